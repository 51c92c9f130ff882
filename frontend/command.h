/* What a command is, and what it is given. One command a file (cmd_*.c); main.c holds the table.
 *
 * A command returns 0 or a negative errno with *error filled: main prints it. An exit status that is not an
 * error of berth (that of a command in a guest) goes to context->exit_status.
 */
#ifndef BERTH_FRONTEND_COMMAND_H
#define BERTH_FRONTEND_COMMAND_H

#include "frontend/config.h"
#include "frontend/options.h"
#include "frontend/output.h"
#include "frontend/state.h"

#define BT_VERSION "0.1.0"

struct bt_context {
    struct bt_paths paths;
    struct bt_config config; /* loaded when the command wants it (BT_COMMAND_CONFIG) */
    const char *environment; /* --environment, else config */
    struct bt_output output;
    struct bt_arguments arguments;
    int exit_status; /* of the guest's command */
};

enum bt_command_needs {
    BT_COMMAND_PLAIN = 0,
    BT_COMMAND_CONFIG = 1, /* config.yaml must be right */
    /* A wrong config.yaml is told and the defaults are used: a slip in it must not stand between a user and
     * the end of an agent. */
    BT_COMMAND_CONFIG_OR_DEFAULTS = 2,
};

struct bt_command {
    const char *name;
    const char *operands; /* for usage: "<agent> [-- command...]" */
    const char *summary;  /* one line */
    const char *details;  /* a paragraph, or NULL */
    const struct bt_option *options;
    size_t option_count;
    size_t minimum, maximum; /* operands */
    bool may_have_rest;      /* words after "--" */
    enum bt_command_needs needs;
    int (*run)(struct bt_context *context, struct bt_error *error);
};

extern const struct bt_command bt_command_spawn, bt_command_run, bt_command_list, bt_command_status,
    bt_command_exec, bt_command_attach, bt_command_stop, bt_command_rm, bt_command_diff, bt_command_apply,
    bt_command_cp, bt_command_probe, bt_command_why, bt_command_doctor, bt_command_up, bt_command_down,
    bt_command_credential, bt_command_logs, bt_command_image, bt_command_audit, bt_command_version,
    bt_command_cleanup, bt_command_approvals, bt_command_resume, bt_command_peek, bt_command_steer,
    bt_command_freeze;

#define BT_COMMANDS_MAX 32U
extern const struct bt_command *const bt_commands[];
extern const size_t bt_command_count;

/* A command's own options and those of every command: --json, --quiet, --environment, --help. Returns how
 * many. */
size_t bt_command_options(const struct bt_command *command, struct bt_option ret_options[BT_OPTIONS_MAX]);

/* The agent that operand number index or --latest names. BT_EXIT_USAGE when neither or both are given. */
int bt_command_target(struct bt_context *context, struct bt_state *state, size_t index,
                      struct bt_agent *ret_agent, struct bt_error *error);

/* The same of the first operand, for a command that needs the state database for nothing else. */
int bt_command_agent(struct bt_context *context, struct bt_agent *ret_agent, struct bt_error *error);

/* The agents that all operands or --latest name, each once: found before anything is done to one of them,
 * since a part of a name that is not unique would be when another agent has gone. The caller frees
 * *ret_agents. */
int bt_command_targets(struct bt_context *context, struct bt_state *state, struct bt_agent **ret_agents,
                       size_t *ret_count, struct bt_error *error);

/* GET of this path from the orchestrator of this environment; *ret_document is owned by the caller. */
int bt_command_ask_orchestrator(struct bt_context *context, const char *environment, const char *path,
                                json_t **ret_document, struct bt_error *error);

/* Asks on the terminal, default no. is_assumed (--yes): yes at once. Without a terminal: -EPERM, saying to
 * use --yes. */
int bt_command_confirm(struct bt_context *context, bool is_assumed, const char *question,
                       struct bt_error *error);

/* With --json, what an agent prints must not mix with the document: standard output leads to standard error
 * until it is restored. Returns the saved descriptor, -1 when nothing was done. */
int bt_command_divert_stdout(const struct bt_output *output);
void bt_command_restore_stdout(int *saved);
#define bt_auto_stdout BT_CLEANUP(bt_command_restore_stdout) int

#endif
