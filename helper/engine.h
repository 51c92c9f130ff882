/* The engine: connections, leases, timers and the answers to verbs. One thread, one loop, no memory of its
 * own.
 *
 * Used by main and by tests (which pass connected sockets and a clock, and link an in-memory kernel). A lease
 * is a connection: whatever closes the connection releases the slot.
 */
#ifndef BERTH_HELPER_ENGINE_H
#define BERTH_HELPER_ENGINE_H

#include "helper/admission.h"
#include "helper/kernel.h"
#include "helper/ledger.h"
#include "ipc/wire/frame.h"

struct bt_audit;

#define BT_HELLO_DEADLINE_MS 2000U
#define BT_IDLE_DEADLINE_MS 5000U /* of a connection without a lease, after its last request */
#define BT_ADOPTION_DEADLINE_MS 30000U
#define BT_ADOPTION_GRACE_MS                                                                                 \
    2000U /* at least this long after each start, whatever deadline the kernel carries */

struct bt_engine_options {
    struct bt_pool pool;
    uint16_t quota; /* slots per uid, 1..slots */
    struct bt_admission_limits admission;
    uint64_t (*now_ms)(void); /* CLOCK_BOOTTIME, which the adoption deadline in the kernel is in */
    struct bt_audit *audit;   /* borrowed; NULL: nothing is recorded */
};

/* What a connection may do next; verbs.c says which verbs are permitted in which state. */
enum bt_connection_state {
    BT_CONNECTION_CLOSED = 0,
    BT_CONNECTION_NEW = 1,   /* HELLO is awaited */
    BT_CONNECTION_READY = 2, /* no lease */
    BT_CONNECTION_LEASED = 3 /* holds a slot */
};

/* Those of the status socket have places and limits of their own: nothing there takes from the others. */
#define BT_STATUS_CONNECTIONS_MAX BT_SPARE_TOTAL
#define BT_PLACES_MAX (BT_CONNECTIONS_MAX + BT_STATUS_CONNECTIONS_MAX)

struct bt_connection {
    int fd;
    bool is_status_only; /* HELLO, STATUS, COUNTERS and nothing else */
    uint32_t uid;        /* SO_PEERCRED at accept; the only source of authority */
    enum bt_connection_state state;
    uint16_t slot; /* when LEASED */
    uint16_t version;
    uint32_t sequence;               /* of the last request */
    uint32_t serial;                 /* tells this connection from an earlier one in the same place */
    uint64_t opened_ms, deadline_ms; /* deadline 0: none */
};

struct bt_engine {
    struct bt_engine_options options;
    struct bt_kernel *kernel;
    int epoll_fd;
    int listen_fds[2]; /* -1: none; the second is the status socket */
    uint64_t epoch;
    uint32_t next_serial;
    bool is_healthy;
    uint64_t repair_due_ms, repair_pause_ms; /* 0: none */
    uint64_t collect_due_ms;                 /* 0: none */
    uint64_t adoption_due_ms;                /* 0: no reserved slots */
    uint64_t listen_due_ms;                  /* 0: accepting */
    uint64_t summary_due_ms;                 /* 0: nothing was counted */
    struct bt_admission admission, status_admission;
    struct bt_ledger ledger;
    struct bt_lease found[BT_POOL_SLOTS_MAX];        /* in the kernel at the start */
    struct bt_connection connections[BT_PLACES_MAX]; /* the last ones are those of the status socket */
};

/* Reads back what an earlier engine left in the kernel and reserves it. kernel: opened, borrowed. */
int bt_engine_start(struct bt_engine *engine, const struct bt_engine_options *options,
                    struct bt_kernel *kernel) BT_MUST_CHECK;

/* Listens, too: on a non-blocking socket, taken over on success. The status socket is for whoever may not use
 * the main one: answers HELLO, STATUS and COUNTERS, out of places and token buckets of its own. */
int bt_engine_listen(struct bt_engine *engine, int listen_fd, bool is_status_only) BT_MUST_CHECK;

/* Waits for events (at most timeout_max_ms; -1: as long as no timer is due) and handles them. Negative errno
 * only when the loop itself cannot go on. */
int bt_engine_step(struct bt_engine *engine, int timeout_max_ms) BT_MUST_CHECK;

/* Takes over a connected socket of a peer with this uid. On failure the socket stays the caller's. */
int bt_engine_admit(struct bt_engine *engine, int fd, uint32_t uid, bool is_status_only) BT_MUST_CHECK;

/* The limits that a connection is held to: those of its socket. */
struct bt_admission *bt_engine_admission(struct bt_engine *engine, bool is_status_only);

/* For verbs.c. Ends the connection's lease in kernel and ledger; the connection stays. What it held. */
struct bt_lease bt_engine_end_lease(struct bt_engine *engine, struct bt_connection *connection);
void bt_engine_bind_lease(struct bt_engine *engine, struct bt_connection *connection, uint16_t slot);
/* Compares with the kernel and repairs now; engine->is_healthy tells the outcome. */
void bt_engine_reconcile(struct bt_engine *engine);
/* Something in the kernel is or may be wrong: unhealthy until a repair has read back equal. */
void bt_engine_repair(struct bt_engine *engine);
void bt_engine_release_slot(struct bt_engine *engine, const struct bt_lease *lease);
/* A device may wait to be deleted: soon, when nothing else is to be done. */
void bt_engine_schedule_collect(struct bt_engine *engine);

#endif
