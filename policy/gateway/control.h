/* The gateway's side of API v1: one connection to the orchestrator, calls in order, the JWT kept fresh.
 *
 * Called by agents.c and report.c. Answers always come later, from the event loop, never from inside the
 * call.
 */
#ifndef BERTH_POLICY_GATEWAY_CONTROL_H
#define BERTH_POLICY_GATEWAY_CONTROL_H

#include <event2/event.h>
#include <jansson.h>

#include "ipc/base/base.h"

struct bt_control;

/* status: HTTP status, or 0 when the orchestrator cannot be reached. answer: borrowed, NULL when it was not
 * JSON. */
typedef void bt_control_done(void *context, unsigned status, const json_t *answer);

/* secret is borrowed and must outlive it. */
struct bt_control *bt_control_new(struct event_base *base, uint32_t address, uint16_t port,
                                  const char *secret);
struct bt_control *bt_control_free(struct bt_control *control);

/* POSTs body (taken over). Urgent calls go before the others. */
void bt_control_post(struct bt_control *control, const char *path, json_t *body, bool is_urgent,
                     bt_control_done *done, void *context);

#endif
