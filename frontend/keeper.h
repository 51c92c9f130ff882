/* The keeper: one process per guest, in a session of its own. It holds the lease and the VMM, does the exit
 * work, and answers on a control socket. It is this program executed again, so it starts with clean memory
 * and descriptors.
 *
 * keeper.c        entry: reads the request, runs the right kind, reports failure
 * keeper_start.c  the other side: a command starts a keeper and follows its progress
 * keeper_guest.c  what all kinds share: lease, console, guest; adoption after a helper restart
 * keeper_agent.c  agents: registration, keys, workspace, probe, command, exit work
 * keeper_infra.c  orchestrator and gateway
 * keeper_loop.c   waiting for whatever happens next
 */
#ifndef BERTH_FRONTEND_KEEPER_H
#define BERTH_FRONTEND_KEEPER_H

#include <jansson.h>
#include <pthread.h>

#include "backends/backend.h"
#include "frontend/infra.h"
#include "frontend/state.h"
#include "ipc/client/helper_client.h"
#include "lib/file.h"

/* Descriptors that a keeper is started with. */
#define BT_KEEPER_REQUEST_FD 3  /* the request, one JSON document to end of file */
#define BT_KEEPER_PROGRESS_FD 4 /* events, one JSON document a line */
#define BT_KEEPER_LOCK_FD 5     /* of the infra pair: its locked infra.lock, held until it is recorded */

struct bt_console {
    pthread_t thread;
    bool is_running;
    int write_fd; /* given to the VMM */
    int read_fd;
    int log_fd;
    char last_line[256]; /* the last line that berth-init or the kernel wrote about an end; for messages */
};

struct bt_keeper {
    const json_t *request; /* borrowed */
    struct bt_paths paths;
    struct bt_state *state;
    const char *folder;
    int progress_fd;   /* -1 once "ready" was sent */
    int lock_fd;       /* see BT_KEEPER_LOCK_FD; -1: none, or no longer */
    bool is_abandoned; /* the command that started the launch is gone: the launch ends */
    json_t *steps;
    struct bt_helper helper;
    struct bt_helper_lease lease;
    uint32_t gateway_address; /* where the guest sees its gateway; a gateway: its orchestrator */
    enum bt_role role;
    const struct bt_backend *backend;
    struct bt_guest *guest;
    struct bt_console console;
};

/* ---- request ---- */
/* Members that the starter always writes; a missing one is a programmer's error and ends the keeper with a
 * message. */
const char *bt_keeper_text(const struct bt_keeper *keeper, const char *key); /* NULL when absent or null */
int64_t bt_keeper_number(const struct bt_keeper *keeper, const char *key);
bool bt_keeper_flag(const struct bt_keeper *keeper, const char *key);

/* ---- events to the starter ---- */
/* Ends a timed step: {"event": "step", "step": name, "ms": since started_ms}. */
void bt_keeper_step(struct bt_keeper *keeper, const char *name, double started_ms);
void bt_keeper_note(struct bt_keeper *keeper, const char *text, uint64_t done, uint64_t total);
/* {"event": "ready", ...facts}; takes the reference; closes the pipe. */
void bt_keeper_ready(struct bt_keeper *keeper, json_t *facts);
double bt_keeper_now_ms(void);

/* ---- guest ---- */
/* Whose guest it is; name: of an agent, for others NULL. */
struct bt_guest_identity bt_keeper_identity(const struct bt_keeper *keeper, const char *name);
/* Whether a helper answers at this socket at all; the error says what to do. For commands, before long work.
 */
int bt_keeper_helper_answers(const char *socket_path, struct bt_error *error);
/* Connects to the helper and takes a lease of keeper->role. *ret_tap_fd is owned by the caller. */
int bt_keeper_lease(struct bt_keeper *keeper, int *ret_tap_fd, struct bt_error *error);
/* After the helper's end: one attempt to connect and to take the lease back. -EAGAIN: no helper answers yet,
 * which leaves the rules in force as they are; any other error: the lease is lost. */
int bt_keeper_adopt(struct bt_keeper *keeper, struct bt_error *error);
int bt_keeper_console_open(struct bt_keeper *keeper, struct bt_error *error);
/* Guest, lease and console down, in this order. */
void bt_keeper_teardown(struct bt_keeper *keeper, int grace_ms);
/* Turns "the guest ended" into an error that holds what it said last. */
int bt_keeper_guest_ended(struct bt_keeper *keeper, const char *doing, struct bt_error *error);

/* ---- kinds; return 0 or a negative errno ---- */
int bt_keeper_agent_run(struct bt_keeper *keeper, struct bt_error *error);
int bt_keeper_infra_run(struct bt_keeper *keeper, struct bt_error *error);

/* ---- loop ---- */
#define BT_KEEPER_WATCH_MAX 4
enum bt_keeper_event {
    BT_KEEPER_GUEST_ENDED,
    BT_KEEPER_LEASE_LOST, /* the helper ended, and its successor does not know the lease any more */
    BT_KEEPER_SIGNALLED,  /* SIGTERM: stop */
    BT_KEEPER_CONTROL,    /* a client connected; *ret_client_fd */
    BT_KEEPER_WATCHED,    /* one of the extra descriptors; *ret_index */
    BT_KEEPER_TIMER,
};
struct bt_keeper_watch {
    int control_fd;                     /* listening socket, or -1 */
    int extra_fds[BT_KEEPER_WATCH_MAX]; /* -1 = none */
    int timer_ms;                       /* -1 = none */
};
/* Waits for the next event. The guest's end is told before anything else. While the helper is away its return
 * is awaited here and the lease is taken back; only a lost lease is told, with the reason in *error. */
enum bt_keeper_event bt_keeper_wait(struct bt_keeper *keeper, const struct bt_keeper_watch *watch,
                                    int *ret_client_fd, int *ret_index, struct bt_error *error);
/* PEM of what programs in the guest trust: the host's roots, gateway.trust and, for agents (has_authority),
 * the user's authority. The caller frees it. */
int bt_keeper_trust(const struct bt_keeper *keeper, bool has_authority, struct bt_buffer *ret_trust,
                    struct bt_error *error);
/* SIGTERM and SIGINT are taken by bt_keeper_wait from now on. */
int bt_keeper_signals_open(void);

/* ---- the starter's side ---- */
struct bt_keeper_handle {
    int progress_fd;
    int request_fd; /* internal */
};
/* Starts a keeper with this request; its standard error goes to <folder>/keeper.log. lock_fd: borrowed, for
 * BT_KEEPER_LOCK_FD, or -1. */
int bt_keeper_start(const json_t *request, int lock_fd, struct bt_keeper_handle *ret_handle,
                    struct bt_error *error);
/* Follows progress until "ready" (*ret_facts, owned) or failure (the keeper's own error). steps may be NULL:
 * events of kind step are appended to it. */
int bt_keeper_follow(struct bt_keeper_handle *handle, const struct bt_progress *progress, json_t *steps,
                     json_t **ret_facts, struct bt_error *error);

/* ---- control socket: $runtime/<environment>-<agent id>.sock ---- */
int bt_control_listen(const struct bt_paths *paths, int64_t agent_id, int *ret_fd, struct bt_error *error);
void bt_control_remove(const struct bt_paths *paths, int64_t agent_id);
/* One request and its answer; *ret_answer is owned by the caller. An answer with "error" becomes *error. */
int bt_control_call(const struct bt_paths *paths, int64_t agent_id, json_t *request, json_t **ret_answer,
                    struct bt_error *error);
/* An error as keepers tell it, in answers and in the event "failed"; unpacking returns -error->code. */
json_t *bt_control_pack_error(const struct bt_error *error);
int bt_control_unpack_error(const json_t *described, struct bt_error *error);
/* The keeper's side: reads one line from a client (bounded, 5 s) and answers; both take no ownership of fd.
 */
int bt_control_read(int client_fd, json_t **ret_request);
void bt_control_answer(int client_fd, json_t *answer); /* takes the reference */

/* ---- secrets of an agent: <folder>/secrets.json, 0600 ---- */
struct bt_agent_secrets {
    char *private_key, *host_public_key, *token;
    /* What the orchestrator keeps this agent's credentials under, and a bait that is nowhere else. NULL in
     * agents of an older berth. */
    char *credential_key, *canary;
};
int bt_agent_secrets_save(const char *folder, const struct bt_agent_secrets *secrets, struct bt_error *error);
int bt_agent_secrets_load(const char *folder, struct bt_agent_secrets *ret_secrets, struct bt_error *error);
void bt_agent_secrets_free(struct bt_agent_secrets *secrets);

#endif
