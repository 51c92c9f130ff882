/* Parts of the agent's keeper: life (keeper_agent.c), workspace (keeper_workspace.c), probe (keeper_probe.c),
 * command (keeper_command.c), and its infra pair (keeper_pair.c).
 */
#ifndef BERTH_FRONTEND_KEEPER_AGENT_H
#define BERTH_FRONTEND_KEEPER_AGENT_H

#include "frontend/keeper.h"
#include "frontend/workspace.h"
#include "policy/client/orchestrator_client.h"

#define BT_AGENT_WORKSPACE "/workspace"

struct bt_keeper_agent {
    struct bt_keeper *keeper;
    struct bt_agent row;
    struct bt_agent_secrets secrets;
    struct bt_guest_link *link;
    char host_key[BT_DIGEST_TEXT_SIZE];
    struct bt_infra_pair pair;
    int pair_fds[2]; /* orchestrator's and gateway's keepers; readable when they ended; -1 = none */
    struct bt_list own_environment;
    json_t *policy;                              /* as launched */
    char registered_digest[BT_DIGEST_TEXT_SIZE]; /* of policy and credentials that are registered now */
    json_t *probe;                               /* the last result */
    struct bt_workspace_base base;               /* of the host folder, while it is copied */
    bool has_patch;
    bool is_resumed; /* home, workspace and its base are there from an earlier run */
    bool is_registered;
    struct bt_process
        launcher;     /* the command that started it, and runs its work when that is in the foreground */
    int launcher_fd;  /* readable when it ended; -1 = of no interest */
    pid_t runner_pid; /* runs the command of a background agent; 0 = none */
    int runner_fd;
    int control_fd;
    int finish_fd; /* client that waits for the end, or -1 */
};

/* What opens the agent's guest. */
struct bt_guest_access bt_keeper_access(const struct bt_keeper_agent *agent);

/* ---- pair ---- */
/* The orchestrator as this keeper sees it now. */
struct bt_orchestrator bt_keeper_orchestrator(const struct bt_keeper_agent *agent);
/* Reads who the pair is, watches its keepers, registers the agent. */
int bt_keeper_pair_join(struct bt_keeper_agent *agent, struct bt_error *error);
/* One of the pair is gone: brings it up again under the lock, and joins. */
int bt_keeper_pair_renew(struct bt_keeper_agent *agent, struct bt_error *error);
/* Registers again with the credentials as the user has them now. What was in force stays when that fails. */
int bt_keeper_pair_refresh(struct bt_keeper_agent *agent, struct bt_error *error);
/* The same, when they are others than those registered. */
int bt_keeper_pair_catch_up(struct bt_keeper_agent *agent, struct bt_error *error);
void bt_keeper_pair_leave(struct bt_keeper_agent *agent);

/* ---- workspace ---- */
/* What can be done while the guest boots: the base is recorded on the host. */
int bt_keeper_workspace_prepare(struct bt_keeper_agent *agent, struct bt_error *error);
/* Into the guest: files, or clones. */
int bt_keeper_workspace_fill(struct bt_keeper_agent *agent, struct bt_error *error);
/* Out of the guest: <folder>/patch. Sets agent->has_patch. */
int bt_keeper_workspace_collect(struct bt_keeper_agent *agent, struct bt_error *error);

/* ---- probe ---- */
/* Runs the isolation probe and keeps its result. A leak or missing evidence is an error that names it.
 * is_forced: the host-wide checks too, whatever passed before and whatever the configuration says. */
int bt_keeper_probe(struct bt_keeper_agent *agent, bool is_forced, struct bt_error *error);

/* ---- command ---- */
/* Starts the harness in the guest's tmux, or the request's command in a child that logs its output. The
 * command of an agent in the foreground is run by the launcher, whose end is watched instead. */
int bt_keeper_command_start(struct bt_keeper_agent *agent, struct bt_error *error);
/* Whether the harness still runs in its terminal: 1, or 0 with its exit status. */
int bt_keeper_command_status(struct bt_keeper_agent *agent, int *ret_exit_status);

#endif
