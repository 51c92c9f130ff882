/* Starting an agent: from a plan to a running, probed guest. Called by `berth spawn`,
 * `berth run` and `berth resume`.
 *
 * Data flow: the command reserves the name in the state database, brings the infra pair up, starts the keeper
 * (this program again, in a session of its own) and hands it one JSON document through a pipe; the keeper
 * reports each step through another pipe. When anything fails before "ready" the keeper undoes what it did
 * and the row is removed.
 */
#ifndef BERTH_FRONTEND_LAUNCH_H
#define BERTH_FRONTEND_LAUNCH_H

#include <jansson.h>

#include "images/images.h"
#include "lib/error.h"
#include "lib/file.h"

struct bt_agent;  /* frontend/state.h */
struct bt_config; /* frontend/config.h */
struct bt_plan;   /* frontend/manifest.h */

struct bt_launch_request {
    const struct bt_paths *paths;
    const struct bt_config *config;
    const struct bt_plan *plan;
    const char *environment;         /* "live" unless named */
    const char *backend;             /* NULL = choose */
    const char *name;                /* wanted name, or NULL to make one up */
    const char *workspace;           /* host folder to copy in, or NULL */
    bool is_ignored_included;        /* also copy what git ignores */
    const char *const *repositories; /* https URLs cloned inside the guest, NULL-terminated, or NULL */
    const char *const *command;      /* NULL-terminated; NULL: the harness itself */
    const char *prompt;              /* NULL: the manifest's */
    const json_t *origin;            /* frontend/origin.h; written down once the agent works */
    /* The row of an agent that has ended, which is to work again with what it kept; NULL: a new one. Its
     * backend, name and workspace are its own then. */
    const struct bt_agent *resumed;
    bool is_continued;        /* its harness goes on in its session */
    bool is_background;       /* return once the agent works */
    bool is_terminal_allowed; /* an interactive terminal may be opened on fd 0 and 1 */
    const struct bt_progress *progress;
};

struct bt_launch_outcome {
    char name[64];
    bool has_ended;          /* false: it runs on (background, detached) */
    int exit_status;         /* of the agent's command when it has ended */
    bool has_patch;          /* there are changes to see with `berth diff` */
    double first_command_ms; /* from a working agent to the end of its command; 0 when it runs on */
    json_t *steps;           /* [{"step": "lease", "ms": 1.2}, ...]; owned by the caller */
    json_t *probe;           /* the probe's document; owned by the caller; NULL when it was not run */
};

/* Errors name what failed; nothing is left behind by a launch that failed. An agent that could not be resumed
 * keeps all that it had. */
int bt_launch(const struct bt_launch_request *request, struct bt_launch_outcome *ret_outcome,
              struct bt_error *error);

/* The hidden first argument with which berth runs itself as a keeper, and that program. Returns an exit
 * status. */
#define BT_KEEPER_ARGUMENT "keeper"
int bt_keeper_main(void);

#endif
