/* How an agent was started last: <folder>/origin.json, 0600, kept with its disks for `berth resume`. It is
 * there from the first moment that the agent worked; without it nothing can be resumed.
 *
 * {"project": folder or null, "bottles": [names] or null, "repositories": [URLs], "command": [words] or null,
 *  "prompt": text or null, "image": name or null, "has_session": whether its harness ever worked on a prompt,
 *  "recipe": of its root, "disk_bytes": of each of its disks}
 *
 * Never in it: what the agent may reach. That is read again from the user's files at each start.
 */
#ifndef BERTH_FRONTEND_ORIGIN_H
#define BERTH_FRONTEND_ORIGIN_H

#include <jansson.h>

#include "lib/error.h"

/* Replaces the file as a whole. origin is borrowed. */
int bt_origin_save(const char *folder, const json_t *origin, struct bt_error *error);

/* *ret_origin is owned by the caller, and an object. BT_EXIT_NO_TARGET, -ENOENT: there is none; name is only
 * for messages. */
int bt_origin_load(const char *folder, const char *name, json_t **ret_origin, struct bt_error *error);

#endif
