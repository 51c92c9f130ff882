/* Requests of agents that wait for their owner's word, as the orchestrator holds them. */
#ifndef BERTH_FRONTEND_APPROVALS_H
#define BERTH_FRONTEND_APPROVALS_H

#include <jansson.h>

#include "frontend/state.h"

/* Those of an environment, oldest first: an owned array (policy/API.md). */
int bt_approvals_list(const struct bt_paths *paths, const char *environment, json_t **ret_approvals,
                      struct bt_error *error);

struct bt_approvals_answer {
    bool is_allowed;
    bool is_remembered; /* these values for this host, until the agent ends */
};

/* BT_EXIT_NO_TARGET, -ENOENT: no request of this number waits. */
int bt_approvals_answer(const struct bt_paths *paths, const char *environment, json_int_t number,
                        struct bt_approvals_answer answer, struct bt_error *error);

/* The numbers of those that wait, for those who mention them beside something else: within half a second, and
 * none when that cannot be told. An owned array. */
json_t *bt_approvals_numbers(const struct bt_paths *paths, const char *environment);

#endif
