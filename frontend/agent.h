/* Acting on an agent that runs: the owner's commands reach its guest over SSH with the agent's own key, and
 * its keeper over a control socket (JSON lines, owner only).
 */
#ifndef BERTH_FRONTEND_AGENT_H
#define BERTH_FRONTEND_AGENT_H

#include <jansson.h>

#include "frontend/state.h"
#include "lib/error.h"
#include "lib/file.h"
#include "vm/guest_link.h"

/* Runs a command as the agent's user, in its workspace, with its environment (proxy, trust, bottle's
 * variables); standard input and output are the caller's. is_terminal: an interactive terminal. */
int bt_agent_exec(const struct bt_paths *paths, const struct bt_agent *agent, const char *const *command,
                  bool is_terminal, int *ret_status, struct bt_error *error);

/* Runs a short command as the agent's user and collects what it prints, at most limit bytes of each stream
 * (-EFBIG). Of *question only arguments, input and timeout_ms count. What comes back is the agent's word. The
 * caller frees *ret_output. BT_EXIT_NO_TARGET: it does not run. */
int bt_agent_ask(const struct bt_paths *paths, const struct bt_agent *agent,
                 const struct bt_guest_command *question, size_t limit, struct bt_buffer *ret_output,
                 int *ret_status, struct bt_error *error);

/* What its terminal shows now: at most BT_PEEK_BYTES_MAX bytes, as they are (not made harmless), without
 * blank lines at the end. lines: 0 = the screen; else that many of the last lines, those that have scrolled
 * away included. BT_EXIT_ERROR, -ENOTTY: it has no terminal. The caller frees *ret_text. */
#define BT_PEEK_LINES_MAX 2000U /* what tmux keeps unless told otherwise */
#define BT_PEEK_BYTES_MAX (4U * 1024 * 1024)
int bt_agent_peek(const struct bt_paths *paths, const struct bt_agent *agent, unsigned lines,
                  struct bt_buffer *ret_text, struct bt_error *error);

/* Types text and Enter into its terminal. Text of at most BT_STEER_BYTES_MAX bytes, checked by the caller;
 * empty: Enter alone. -ENOTTY: as above. */
#define BT_STEER_BYTES_MAX 65536U
int bt_agent_steer(const struct bt_paths *paths, const struct bt_agent *agent, const char *text,
                   size_t length, struct bt_error *error);

/* The agent's terminal (its tmux session), until it ends or is left: by ctrl-p ctrl-q, or by tmux's own keys.
 * *ret_is_detached: left, it goes on. */
int bt_agent_attach(const struct bt_paths *paths, const struct bt_agent *agent, bool *ret_is_detached,
                    struct bt_error *error);

/* Waits until its keeper has ended: the exit work is done then. -ETIMEDOUT after two minutes. */
int bt_agent_await_end(const struct bt_agent *agent) BT_MUST_CHECK;

/* Ends it: exit work (the patch is collected), guest, lease. Waits for the keeper to end. */
int bt_agent_stop(const struct bt_agent *agent, struct bt_error *error);

/* Runs the isolation probe again; *ret_result is owned by the caller. */
int bt_agent_probe(const struct bt_paths *paths, const struct bt_agent *agent, json_t **ret_result,
                   struct bt_error *error);

/* Brings <folder>/patch up to date with what the guest holds now. */
int bt_agent_collect(const struct bt_paths *paths, const struct bt_agent *agent, struct bt_error *error);

/* Has its keeper register it again with the credentials as they are now, when it uses this one; that takes
 * effect on open connections within seconds. */
int bt_agent_refresh(const struct bt_paths *paths, const struct bt_agent *agent, const char *credential,
                     bool *ret_is_concerned, struct bt_error *error);

/* Copies between host and guest. Paths in the guest that are not absolute are below /workspace. */
int bt_agent_copy_in(const struct bt_paths *paths, const struct bt_agent *agent, const char *host_path,
                     const char *guest_path, struct bt_error *error);
int bt_agent_copy_out(const struct bt_paths *paths, const struct bt_agent *agent, const char *guest_path,
                      const char *host_path, struct bt_error *error);

#endif
