/* The state database: $STATE/berth.db (SQLite, WAL). What the user's agents and infra pairs are, as they were
 * recorded; what is still true is asked from the kernel (bt_agent_status_now), never remembered.
 *
 * Used by commands and keepers, several processes at once. Each call is one transaction.
 */
#ifndef BERTH_FRONTEND_STATE_H
#define BERTH_FRONTEND_STATE_H

#include "frontend/process.h"
#include "lib/error.h"
#include "lib/file.h"

#define BT_NAME_SIZE 32 /* [a-z0-9][a-z0-9-]{0,30} and a NUL */
#define BT_ENVIRONMENT_LIVE "live"
#define BT_STATE_PATH_SIZE 4096

enum bt_agent_status {
    BT_AGENT_STARTING, /* reserved; image, lease, boot, probe */
    BT_AGENT_RUNNING,
    BT_AGENT_EXITED,  /* its command ended by itself; exit_status says how */
    BT_AGENT_FAILED,  /* the launch or the machine failed; detail says why */
    BT_AGENT_STOPPED, /* by the user */
    BT_AGENT_LOST,    /* recorded as starting or running, but its keeper is gone */
    BT_AGENT_STATUS_MAX
};

struct bt_agent {
    int64_t id;              /* rises with each reservation */
    char name[BT_NAME_SIZE]; /* unique within the environment */
    char environment[BT_NAME_SIZE];
    char manifest[BT_NAME_SIZE]; /* agent manifest it was made from */
    char harness[16];
    char backend[24];
    enum bt_agent_status status; /* as recorded */
    int exit_status;             /* -1 = none yet */
    int slot;                    /* -1 = none */
    uint32_t generation;
    struct bt_process keeper;           /* while starting: who reserved it */
    char folder[512];                   /* private files of this agent, absolute */
    char workspace[BT_STATE_PATH_SIZE]; /* host folder it was copied from; empty = none */
    char image[BT_DIGEST_TEXT_SIZE];
    char detail[512];        /* why it is as it is, for the user; may hold text from a guest */
    int64_t created_seconds; /* time(2) */
    int64_t ended_seconds;   /* 0 = has not */
};

/* An orchestrator or gateway of an environment. */
struct bt_infra {
    char environment[BT_NAME_SIZE];
    char role[16]; /* "orchestrator" or "gateway" */
    int slot;
    uint32_t generation;
    uint32_t address; /* guest, host byte order */
    struct bt_process keeper;
    char folder[512];
    char image[BT_DIGEST_TEXT_SIZE];
    int64_t created_seconds;
};

struct bt_state; /* an open database; one thread */

/* Opens, creating folder (0700) and file (0600) at need, and brings older schemas up to date. A database of a
 * newer berth is refused. Waits up to 5 s for other writers. */
int bt_state_open(const struct bt_paths *paths, struct bt_state **ret_state, struct bt_error *error);
struct bt_state *bt_state_close(struct bt_state *state); /* returns NULL, accepts NULL */

/* Whether text is a legal name of an agent, bottle, environment: [a-z0-9][a-z0-9-]{0,30}. */
bool bt_name_is_valid(const char *text);

/* Reserves agent->name in agent->environment as BT_AGENT_STARTING, owned by agent->keeper, and fills
 * agent->id, created_seconds and status. Empty name: one is made from agent->manifest. -EEXIST: name already
 * taken (says by what, and what to do). The caller fills the other fields before. */
int bt_state_reserve(struct bt_state *state, struct bt_agent *agent, struct bt_error *error);

/* Takes an agent that has ended to start it again: BT_AGENT_STARTING, owned by agent->keeper. `seen` is the
 * row as the caller found it; -EBUSY: somebody took or changed it since. Fills *agent with the row as it is
 * then.
 */
int bt_state_take_again(struct bt_state *state, const struct bt_agent *seen, struct bt_agent *agent,
                        struct bt_error *error);

/* Writes all fields of the row agent->id but name, environment and created_seconds. -ENOENT: removed
 * meanwhile. */
int bt_state_update(struct bt_state *state, const struct bt_agent *agent, struct bt_error *error);

/* Sets status, exit status, detail (NULL = keep) and, for an ended status, ended_seconds. For keepers on the
 * way out: nothing else of the row is touched. */
int bt_state_set_status(struct bt_state *state, int64_t id, enum bt_agent_status status, int exit_status,
                        const char *detail, struct bt_error *error);

/* By exact name, else by a part that only one name has. BT_EXIT_NO_TARGET: -ENOENT none, -ENOTUNIQ several
 * (listed). */
int bt_state_find(struct bt_state *state, const char *environment, const char *name_part,
                  struct bt_agent *ret_agent, struct bt_error *error);
/* The newest one. BT_EXIT_NO_TARGET, -ENOENT: there is none. */
int bt_state_find_latest(struct bt_state *state, const char *environment, struct bt_agent *ret_agent,
                         struct bt_error *error);
int bt_state_get(struct bt_state *state, int64_t id, struct bt_agent *ret_agent, struct bt_error *error);

/* All agents of an environment (NULL = of all), newest first. The caller frees *ret_agents with free(). */
int bt_state_list(struct bt_state *state, const char *environment, struct bt_agent **ret_agents,
                  size_t *ret_count, struct bt_error *error);
int bt_state_delete(struct bt_state *state, int64_t id, struct bt_error *error);

/* The number 0..BT_ENVIRONMENTS - 1 of an environment, allotted now if new; live is 0. -ENOSPC: all used. */
int bt_state_environment(struct bt_state *state, const char *environment, unsigned *ret_number,
                         struct bt_error *error);

/* Inserts or replaces the row of (environment, role); created_seconds = 0 means now. */
int bt_state_infra_put(struct bt_state *state, const struct bt_infra *infra, struct bt_error *error);
/* -ENOENT (no message) when there is none. */
int bt_state_infra_get(struct bt_state *state, const char *environment, const char *role,
                       struct bt_infra *ret_infra, struct bt_error *error);
/* environment NULL = all. The caller frees *ret_infra with free(). */
int bt_state_infra_list(struct bt_state *state, const char *environment, struct bt_infra **ret_infra,
                        size_t *ret_count, struct bt_error *error);
/* Deletes only the row whose keeper is *keeper (NULL = whichever): a late keeper never removes its successor.
 */
int bt_state_infra_delete(struct bt_state *state, const char *environment, const char *role,
                          const struct bt_process *keeper, struct bt_error *error);

const char *bt_agent_status_name(enum bt_agent_status status);
/* The status as it is now: what is recorded as starting or running is BT_AGENT_LOST when its keeper is gone.
 */
enum bt_agent_status bt_agent_status_now(const struct bt_agent *agent);
/* Whether its keeper lives: starting or running, now. */
bool bt_agent_is_live(const struct bt_agent *agent);

#endif
