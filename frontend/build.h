/* The image of an agent whose bottle has a Dockerfile or an overlay of the user's: packed, asked about,
 * built.
 */
#ifndef BERTH_FRONTEND_BUILD_H
#define BERTH_FRONTEND_BUILD_H

#include "frontend/command.h"
#include "frontend/manifest.h"

/* Makes plan->recipe name the built image, from the cache or built now. What was never agreed to is asked
 * about with its digest: on the terminal, or by --build DIGEST (--yes does not). */
int bt_build_image(struct bt_context *context, struct bt_plan *plan, const char *backend,
                   struct bt_error *error);

/* Whether the last FROM of a Dockerfile is $BERTH_BASE, without which it is no image for agents. */
bool bt_build_is_on_base(const char *dockerfile);

#endif
