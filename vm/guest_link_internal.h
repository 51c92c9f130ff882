/* What the files vm/guest_link*.c share: the connection, one command running over it, and what a transport
 * must be able to do (SSH: guest_link_ssh*.c; a container engine's exec: backends/docker_link.c).
 */
#ifndef BERTH_VM_GUEST_LINK_INTERNAL_H
#define BERTH_VM_GUEST_LINK_INTERNAL_H

#include <poll.h>

#include "vm/guest_link.h"

#define BT_GUEST_SESSION_CHUNK 65536

struct bt_guest_session;

/* How bytes get into a guest and out of it. All members are called by guest_link_session.c only. */
struct bt_guest_transport {
    /* Starts "berth-init run" in the guest as command's user; terminal: the name of a terminal type (then of
     * session's size), or NULL for separate streams. On failure end is called. */
    int (*start)(struct bt_guest_session *session, const struct bt_guest_command *command,
                 const char *terminal, struct bt_error *error);
    /* Moves what can be moved without waiting: out, the end of input, a new size, output (to
     * bt_guest_session_deliver), and finds the command's end (is_closed). Returns 1 when something moved. */
    int (*step)(struct bt_guest_session *session, struct bt_error *error);
    /* What to wait for before the next step can do something. */
    struct pollfd (*watch)(const struct bt_guest_session *session);
    /* Of a command that has ended: 0..255, or an error: nobody knows. */
    int (*status)(struct bt_guest_session *session, struct bt_error *error);
    /* Ends the command if it runs (which may cost the link) and frees session->channel. */
    void (*end)(struct bt_guest_session *session);
    /* Ends the connection and frees the link. */
    void (*close)(struct bt_guest_link *link);
    bool is_root_plain; /* see bt_guest_reader() */
    uint32_t agent_id;  /* uid and gid that the guest's user BT_GUEST_AGENT_ID has there; 0 = the same */
};

/* The first member of what a transport keeps for a connection. */
struct bt_guest_link {
    const struct bt_guest_transport *transport;
    char name[64];  /* "10.243.0.1:22", for messages */
    bool is_usable; /* false once a command was abandoned in the middle or the connection failed */
};

struct bt_guest_session {
    struct bt_guest_link *link;
    void *channel;       /* the transport's own; NULL = not open */
    int64_t deadline_ms; /* INT64_MAX = none */
    const char *out;     /* being sent to the command; borrowed */
    size_t out_length;
    bool may_end, is_ended; /* end of input: asked for, sent */
    bool is_resized;        /* columns and rows wait to be sent */
    int columns, rows;
    bool is_ready;  /* the ready byte has come */
    bool is_closed; /* the command has ended and all of its output was taken */
    bool is_pull;   /* standard output stays in chunk until its reader takes it */
    size_t chunk_length;
    int (*on_output)(void *context, bool is_stderr, const char *data, size_t length);
    void *context;
    char chunk[BT_GUEST_SESSION_CHUNK];
};

/* Milliseconds of CLOCK_MONOTONIC. */
int64_t bt_link_now_ms(void);
/* Milliseconds left for poll(2), 0 when passed, -1 when there is no deadline. */
int bt_link_left_ms(int64_t deadline_ms);

/* The request of vm/run_protocol.h into an empty buffer, which holds secrets: free it with bt_buffer_wipe().
 */
int bt_run_request_encode(const struct bt_guest_command *command, struct bt_buffer *ret_request,
                          struct bt_error *error);

/* Opens a channel, executes the run command and sends the request. terminal: the name of a terminal type, or
 * NULL for separate streams. The session is large (a chunk): callers allocate it. On failure nothing is left
 * open. */
int bt_guest_session_start(struct bt_guest_link *link, const struct bt_guest_command *command,
                           const char *terminal, int columns, int rows, struct bt_guest_session *ret_session,
                           struct bt_error *error);
/* For transports: hands what came to the session's reader. With is_pull it goes to session->chunk, where data
 * may already be; otherwise it is consumed. A non-zero answer of on_output is -ECANCELED. */
int bt_guest_session_deliver(struct bt_guest_session *session, bool is_stderr, const char *data,
                             size_t length, struct bt_error *error);
/* Moves what can be moved now. Returns 1 when something moved, 0 when not, a negative errno on failure; a
 * non-zero answer of on_output is -ECANCELED. */
int bt_guest_session_step(struct bt_guest_session *session, struct bt_error *error);
/* Waits until a step can do something, one of extra[0..extra_count) (at most 3) is ready (its revents then
 * says so), or at_most_ms passed (-1 = no such limit). -ETIMEDOUT: the deadline of the session. */
int bt_guest_session_wait(struct bt_guest_session *session, struct pollfd *extra, nfds_t extra_count,
                          int at_most_ms, struct bt_error *error);
/* Sends all bytes, taking output meanwhile. -EPIPE: the command ended before. */
int bt_guest_session_write(struct bt_guest_session *session, const void *data, size_t length,
                           struct bt_error *error);
/* Sends the end of input and takes output until the command has ended. */
int bt_guest_session_finish(struct bt_guest_session *session, int *ret_status, struct bt_error *error);
/* Ends a session on every way out. A command still running costs the link: SSH servers answer only after its
 * end. */
void bt_guest_session_close(struct bt_guest_session *session);

/* Collected text of a stream of a command, bounded; for messages. */
struct bt_guest_session_errors {
    char text[512];
    size_t length;
};
/* An on_output function for context = struct bt_guest_session_errors: keeps the start of what comes on either
 * stream. */
int bt_guest_session_keep_errors(void *context, bool is_stderr, const char *data, size_t length);
/* "<what> failed in the guest (exit status N): <first line>" */
int bt_guest_session_fail(const struct bt_guest_session_errors *errors, int status, const char *what,
                          struct bt_error *error);

/* Finds the keys that end a terminal among what is typed. Zero-initialise, then set keys (at most 16 bytes).
 */
#define BT_DETACH_KEYS_MAX 16
struct bt_detach {
    const char *keys;
    size_t matched; /* bytes of keys held back, since they may become the whole */
};
/* Copies typed bytes to ret_out (room for length + BT_DETACH_KEYS_MAX), holding back what may be the start of
 * the keys. Returns true when the keys are complete; what came before them is in ret_out. */
bool bt_detach_feed(struct bt_detach *detach, const char *typed, size_t length, char *ret_out,
                    size_t *ret_length);

#endif
