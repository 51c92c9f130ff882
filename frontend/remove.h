/* Removing agents that have ended: what rm and cleanup share.
 */
#ifndef BERTH_FRONTEND_REMOVE_H
#define BERTH_FRONTEND_REMOVE_H

#include "frontend/command.h"

/* Whether the agent has changes that were never applied. */
bool bt_remove_has_work(const struct bt_agent *agent);

/* Writes down that the patch of a state folder, as it is now, was applied. */
int bt_remove_mark_applied(const char *state_folder, struct bt_error *error);

/* Where patches of removed agents are kept: $STATE/kept. The caller frees. */
char *bt_remove_kept_folder(const struct bt_paths *paths);

/* Copies unapplied patches to $STATE/kept/<environment>-<name>-<id>[-<clone>].patch; the paths go to
 * ret_kept. */
int bt_remove_keep_work(const struct bt_paths *paths, const struct bt_agent *agent, struct bt_list *ret_kept,
                        struct bt_error *error);

/* Removes folder, control socket and row of an agent whose keeper does not live (-EBUSY otherwise). */
int bt_remove_agent(const struct bt_paths *paths, struct bt_state *state, const struct bt_agent *agent,
                    struct bt_error *error);

/* The state folders of an agent that may hold a patch: its own, and one a clone. Names of clones, "" for its
 * own. */
void bt_remove_work_folders(const struct bt_agent *agent, struct bt_list *ret_folders,
                            struct bt_list *ret_clones);

#endif
