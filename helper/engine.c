/* The engine's loop: connections, timers, drift and the restart.
 *
 * Called by main after the privilege drop, and by tests. It must not stop for anything a client does, grant
 * anything while the kernel's rules are not known to be right, allocate, or block on a client.
 */
#include "helper/engine.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "helper/audit.h"
#include "helper/record.h"
#include "helper/say.h"
#include "helper/verbs.h"
#include "ipc/chan/chan.h"

#define EVENTS_A_STEP 64
#define ACCEPTS_A_STEP 16
#define COLLECT_PAUSE_MS 20U   /* a dead device waits this long for company */
#define COLLECT_LATEST_MS 500U /* and this long when the engine is never idle */
#define REPAIR_PAUSE_FIRST_MS 50U
#define REPAIR_PAUSE_MAX_MS 5000U
#define ACCEPT_PAUSE_MS 100U /* after accept4 found no descriptor or memory */

/* What an epoll event is about, in the upper half of its data; the lower half is an index. */
#define ABOUT_LISTENER UINT64_C(0xffffffff)
#define ABOUT_KERNEL UINT64_C(0xfffffffe)
#define SERIAL_MAX UINT32_C(0xfffffff0)

static uint64_t now_ms(const struct bt_engine *engine)
{
    return engine->options.now_ms();
}

static int watch(struct bt_engine *engine, int fd, uint64_t about, uint32_t index)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = about << 32 | index};
    return epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static unsigned count_reserved(const struct bt_engine *engine)
{
    return bt_ledger_count(&engine->ledger, BT_ANYBODY, BT_HOLD_RESERVED);
}

/* ---- leases ------------------------------------------------------------------------------------------- */

void bt_engine_schedule_collect(struct bt_engine *engine)
{
    if (engine->collect_due_ms == 0)
        engine->collect_due_ms = now_ms(engine) + COLLECT_PAUSE_MS;
}

void bt_engine_release_slot(struct bt_engine *engine, const struct bt_lease *lease)
{
    int error = bt_kernel_release(engine->kernel, bt_ledger_live(&engine->ledger), lease);
    if (error < 0)
        bt_say_error("the kernel did not take back a slot at once", error, "it is tried again");
    bt_engine_schedule_collect(engine);
}

void bt_engine_bind_lease(struct bt_engine *engine, struct bt_connection *connection, uint16_t slot)
{
    connection->state = BT_CONNECTION_LEASED;
    connection->slot = slot;
    connection->deadline_ms = 0;
    bt_admission_set_leased(&engine->admission, connection->uid, true);
}

struct bt_lease bt_engine_end_lease(struct bt_engine *engine, struct bt_connection *connection)
{
    const struct bt_lease *found = bt_ledger_find(&engine->ledger, connection->slot, BT_HOLD_LIVE);
    bt_require(connection->state == BT_CONNECTION_LEASED && found,
               "engine: a connection without its lease, or the reverse");
    struct bt_lease lease = *found;
    bt_ledger_remove(&engine->ledger, lease.slot);
    bt_engine_release_slot(engine, &lease);
    connection->state = BT_CONNECTION_READY;
    connection->slot = 0;
    connection->deadline_ms = now_ms(engine) + BT_IDLE_DEADLINE_MS;
    bt_admission_set_leased(&engine->admission, connection->uid, false);
    return lease;
}

static void end_adoption(struct bt_engine *engine)
{
    unsigned expired = count_reserved(engine);
    engine->adoption_due_ms = 0;
    for (uint16_t slot = 0; slot < engine->ledger.slots; slot++) {
        const struct bt_lease *reserved = bt_ledger_find(&engine->ledger, slot, BT_HOLD_RESERVED);
        if (!reserved)
            continue;
        struct bt_lease lease = *reserved;
        bt_ledger_remove(&engine->ledger, slot);
        bt_engine_release_slot(engine, &lease);
        (void)bt_record_event(engine, "EXPIRE", lease.uid, &lease, 0);
    }
    if (expired > 0)
        bt_say_number("", expired, " reserved slots were not adopted and are given back");
}

/* ---- health -------------------------------------------------------------------------------------------- */

void bt_engine_repair(struct bt_engine *engine)
{
    bool was_healthy = engine->is_healthy;
    if (was_healthy)
        bt_say("the rules in the kernel are not ours any more; interfaces go down until they are");
    engine->is_healthy = false;
    int error = bt_kernel_repair(engine->kernel, bt_ledger_live(&engine->ledger));
    if (was_healthy) /* what is written never delays what is done */
        (void)bt_record_event(engine, "DRIFT", BT_AUDIT_NO_UID, NULL, 0);
    if (error == 0) {
        engine->is_healthy = true;
        engine->repair_due_ms = 0;
        engine->repair_pause_ms = 0;
        bt_say("the rules in the kernel are right again");
        (void)bt_record_event(engine, "REPAIR", BT_AUDIT_NO_UID, NULL, 0);
        return;
    }
    uint64_t pause_ms = engine->repair_pause_ms * 2;
    if (pause_ms < REPAIR_PAUSE_FIRST_MS)
        pause_ms = REPAIR_PAUSE_FIRST_MS;
    if (pause_ms > REPAIR_PAUSE_MAX_MS)
        pause_ms = REPAIR_PAUSE_MAX_MS;
    engine->repair_pause_ms = pause_ms;
    engine->repair_due_ms = now_ms(engine) + pause_ms;
    bt_say_error("repairing the rules failed", error, "it is tried again");
}

void bt_engine_reconcile(struct bt_engine *engine)
{
    if (!engine->is_healthy || bt_kernel_verify(engine->kernel, bt_ledger_live(&engine->ledger)) < 0)
        bt_engine_repair(engine);
}

static void handle_kernel_events(struct bt_engine *engine)
{
    bool is_drift = false;
    int error = bt_kernel_handle_events(engine->kernel, &is_drift);
    if (error < 0) /* events were lost: only reading back tells */
        bt_engine_reconcile(engine);
    else if (is_drift)
        bt_engine_repair(engine);
    if (error > 0)
        bt_say("a bridge came up without a lease and was taken away: a container engine has a network on it");
}

/* ---- connections --------------------------------------------------------------------------------------- */

struct bt_admission *bt_engine_admission(struct bt_engine *engine, bool is_status_only)
{
    return is_status_only ? &engine->status_admission : &engine->admission;
}

static void close_connection(struct bt_engine *engine, struct bt_connection *connection)
{
    if (connection->state == BT_CONNECTION_LEASED) {
        struct bt_lease lease = bt_engine_end_lease(engine, connection);
        (void)bt_record_event(engine, "EOF", connection->uid, &lease, 0);
    }
    bt_fd_close(&connection->fd); /* leaves the epoll set with it: nobody else has this descriptor */
    bt_admission_leave(bt_engine_admission(engine, connection->is_status_only), connection->uid);
    connection->state = BT_CONNECTION_CLOSED;
}

static struct bt_connection *find_closed(struct bt_engine *engine, bool is_status_only)
{
    size_t end = is_status_only ? BT_PLACES_MAX : BT_CONNECTIONS_MAX;
    for (size_t i = is_status_only ? BT_CONNECTIONS_MAX : 0; i < end; i++)
        if (engine->connections[i].state == BT_CONNECTION_CLOSED)
            return &engine->connections[i];
    return NULL;
}

static void close_oldest_spare(struct bt_engine *engine, uint32_t uid, bool is_status_only)
{
    struct bt_connection *oldest = NULL;
    for (size_t i = 0; i < BT_PLACES_MAX; i++) {
        struct bt_connection *connection = &engine->connections[i];
        bool is_spare = connection->state == BT_CONNECTION_NEW || connection->state == BT_CONNECTION_READY;
        if (is_spare && connection->is_status_only == is_status_only && connection->uid == uid &&
            (!oldest || connection->opened_ms < oldest->opened_ms))
            oldest = connection;
    }
    bt_require(oldest, "engine: a connection without its lease, or the reverse");
    close_connection(engine, oldest);
}

/* Everybody's limit: the uid with the most spare connections gives up its oldest, once for each round. */
static int enter(struct bt_engine *engine, uint32_t uid, bool is_status_only)
{
    unsigned reserved = is_status_only ? 0 : bt_ledger_count(&engine->ledger, uid, BT_HOLD_RESERVED);
    unsigned reserved_total = is_status_only ? 0 : count_reserved(engine);
    for (;;) {
        uint32_t heaviest_uid = 0;
        int error = bt_admission_enter(bt_engine_admission(engine, is_status_only), uid, reserved,
                                       reserved_total, now_ms(engine), &heaviest_uid);
        if (error != -EBUSY)
            return error;
        close_oldest_spare(engine, heaviest_uid, is_status_only);
    }
}

int bt_engine_admit(struct bt_engine *engine, int fd, uint32_t uid, bool is_status_only)
{
    if (!bt_admission_is_uid_served(&engine->admission, uid))
        return -EACCES;
    struct bt_connection *connection = find_closed(engine, is_status_only);
    if (!connection)
        return -EUSERS;
    int error = enter(engine, uid, is_status_only);
    if (error < 0)
        return error;
    uint64_t now = now_ms(engine);
    uint32_t serial = engine->next_serial;
    engine->next_serial = serial >= SERIAL_MAX ? 1 : serial + 1;
    error = watch(engine, fd, serial, (uint32_t)(connection - engine->connections));
    if (error < 0) {
        bt_admission_leave(bt_engine_admission(engine, is_status_only), uid);
        return error;
    }
    *connection = (struct bt_connection){.fd = fd,
                                         .is_status_only = is_status_only,
                                         .uid = uid,
                                         .state = BT_CONNECTION_NEW,
                                         .serial = serial,
                                         .opened_ms = now,
                                         .deadline_ms = now + BT_HELLO_DEADLINE_MS};
    return 0;
}

/* A uid that cannot be read is nobody's: refused, never taken for root. */
static int read_peer_uid(int fd, uint32_t *ret_uid)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return -errno;
    if (length != sizeof(peer))
        return -EACCES;
    *ret_uid = peer.uid;
    return 0;
}

int bt_engine_listen(struct bt_engine *engine, int listen_fd, bool is_status_only)
{
    int error = watch(engine, listen_fd, ABOUT_LISTENER, is_status_only);
    if (error == 0)
        engine->listen_fds[is_status_only] = listen_fd;
    return error;
}

static void pause_listening(struct bt_engine *engine)
{
    for (unsigned i = 0; i < BT_ARRAY_LENGTH(engine->listen_fds); i++)
        (void)epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, engine->listen_fds[i], NULL);
    engine->listen_due_ms = now_ms(engine) + ACCEPT_PAUSE_MS;
}

static void resume_listening(struct bt_engine *engine)
{
    engine->listen_due_ms = 0;
    for (unsigned i = 0; i < BT_ARRAY_LENGTH(engine->listen_fds); i++) {
        int fd = engine->listen_fds[i];
        int error = fd < 0 ? 0 : watch(engine, fd, ABOUT_LISTENER, i);
        if (error < 0 && error != -EEXIST)
            engine->listen_due_ms = now_ms(engine) + ACCEPT_PAUSE_MS;
    }
}

/* Says why, once, so that a client can tell "later" from "never"; whether that arrives is its own business.
 */
static void refuse(const struct bt_engine *engine, int fd, int reason)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_reply reply = {
        .verb = BT_VERB_HELLO,
        .status = reason == -EACCES ? BT_STATUS_NOT_PERMITTED : BT_STATUS_RATE,
        .sequence = 1,
        .epoch = engine->epoch,
    };
    if (bt_frame_encode_reply(&reply, frame) < 0 || bt_chan_send(fd, frame, -1) < 0)
        return;
}

static void accept_connections(struct bt_engine *engine, bool is_status_only)
{
    for (unsigned i = 0; i < ACCEPTS_A_STEP; i++) {
        uint32_t uid = UINT32_MAX;
        bt_auto_fd fd = accept4(engine->listen_fds[is_status_only], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                pause_listening(engine);
            return; /* EAGAIN: no more; anything else is the peer's trouble */
        }
        int error = read_peer_uid(fd, &uid);
        if (error == 0)
            error = bt_engine_admit(engine, fd, uid, is_status_only);
        if (error == 0) {
            bt_fd_take(&fd);
            continue;
        }
        bt_record_turned_away(engine, uid, is_status_only);
        refuse(engine, fd, error);
    }
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* In HELLO the epoch is 0 and sequence 1; after it both must be exactly right. */
static enum bt_status check_order(const struct bt_engine *engine, const struct bt_connection *connection,
                                  const struct bt_request *request)
{
    if (connection->sequence == UINT32_MAX || request->sequence != connection->sequence + 1)
        return BT_STATUS_STALE;
    if (request->verb == BT_VERB_HELLO)
        return BT_STATUS_OK;
    if (request->epoch != engine->epoch)
        return BT_STATUS_STALE;
    if (connection->state != BT_CONNECTION_NEW && request->version != connection->version)
        return BT_STATUS_VERSION;
    return BT_STATUS_OK;
}

/* Fills the reply. True: close the connection after it. */
static bool answer(struct bt_exchange *exchange)
{
    struct bt_engine *engine = exchange->engine;
    struct bt_connection *connection = exchange->connection;
    struct bt_admission *admission = bt_engine_admission(engine, connection->is_status_only);
    exchange->reply.status = check_order(engine, connection, &exchange->request);
    if (exchange->reply.status != BT_STATUS_OK)
        return true;
    connection->sequence = exchange->request.sequence;
    if (bt_verbs_is_charged(exchange->request.verb) &&
        !bt_admission_take_token(admission, connection->uid, now_ms(engine))) {
        exchange->reply.status = BT_STATUS_RATE;
        return false;
    }
    return bt_verbs_answer(exchange);
}

/* What was granted without a line in the log is taken back. What takes away stands, and so does an adoption:
 * it gives nothing that has no line already, and undoing it would end an agent at work. */
static void record(struct bt_exchange *exchange, const struct bt_lease *held)
{
    const struct bt_request *request = &exchange->request;
    struct bt_reply *reply = &exchange->reply;
    bool is_grant =
        request->verb == BT_VERB_LEASE && !request->body.lease.is_adopt && reply->status == BT_STATUS_OK;
    if (bt_record_answer(exchange->engine, exchange->connection, request, reply->status, held) == 0 ||
        !is_grant)
        return;
    bt_fd_close(&exchange->passed_fd);
    (void)bt_engine_end_lease(exchange->engine, exchange->connection);
    memset(&reply->body, 0, sizeof(reply->body));
    reply->status = BT_STATUS_KERNEL;
}

static void handle_request(struct bt_engine *engine, struct bt_connection *connection)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_exchange exchange = {.engine = engine, .connection = connection, .passed_fd = -1};
    int error = bt_chan_receive_request(connection->fd, frame);
    if (error == -EAGAIN)
        return;
    if (error < 0 || bt_frame_decode_request(frame, &exchange.request) < 0) {
        if (error == 0 || error == -EBADMSG)
            bt_record_malformed(engine, connection);
        close_connection(engine, connection);
        return;
    }
    exchange.reply = (struct bt_reply){.verb = exchange.request.verb,
                                       .version = connection->version,
                                       .sequence = exchange.request.sequence,
                                       .epoch = engine->epoch};
    bool is_leased = connection->state == BT_CONNECTION_LEASED;
    struct bt_lease held = engine->ledger.leases[connection->slot];
    bool has_to_close = answer(&exchange);
    record(&exchange, is_leased ? &held : NULL);
    if (connection->state == BT_CONNECTION_READY)
        connection->deadline_ms = now_ms(engine) + BT_IDLE_DEADLINE_MS;
    bool is_sent = bt_frame_encode_reply(&exchange.reply, frame) == 0 &&
                   bt_chan_send(connection->fd, frame, exchange.passed_fd) == 0;
    bt_fd_close(&exchange.passed_fd);
    /* A lease whose owner did not get the answer is nobody's: closing gives it back. */
    if (!is_sent || has_to_close)
        close_connection(engine, connection);
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static void earliest(uint64_t *due_ms, uint64_t candidate_ms)
{
    if (candidate_ms != 0 && (*due_ms == 0 || candidate_ms < *due_ms))
        *due_ms = candidate_ms;
}

static int wait_timeout(const struct bt_engine *engine, int timeout_max_ms)
{
    uint64_t due_ms = 0;
    earliest(&due_ms, engine->repair_due_ms);
    earliest(&due_ms, engine->collect_due_ms);
    earliest(&due_ms, engine->adoption_due_ms);
    earliest(&due_ms, engine->listen_due_ms);
    earliest(&due_ms, engine->summary_due_ms);
    for (size_t i = 0; i < BT_PLACES_MAX; i++)
        if (engine->connections[i].state != BT_CONNECTION_CLOSED)
            earliest(&due_ms, engine->connections[i].deadline_ms);
    if (due_ms == 0)
        return timeout_max_ms;
    uint64_t now = now_ms(engine);
    uint64_t wait_ms = due_ms > now ? due_ms - now : 0;
    if (timeout_max_ms >= 0 && wait_ms > (uint64_t)timeout_max_ms)
        return timeout_max_ms;
    return wait_ms > INT32_MAX ? INT32_MAX : (int)wait_ms;
}

static void collect(struct bt_engine *engine)
{
    bool has_moved = bt_kernel_collect(engine->kernel) > 0;
    engine->collect_due_ms = 0;
    if (bt_kernel_dead_count(engine->kernel) > 0)
        engine->collect_due_ms = now_ms(engine) + (has_moved ? COLLECT_PAUSE_MS : COLLECT_LATEST_MS);
}

static bool is_due(uint64_t due_ms, uint64_t now)
{
    return due_ms != 0 && now >= due_ms;
}

static void run_timers(struct bt_engine *engine, bool is_idle)
{
    uint64_t now = now_ms(engine);
    if (is_due(engine->repair_due_ms, now))
        bt_engine_repair(engine);
    if (is_due(engine->adoption_due_ms, now))
        end_adoption(engine);
    if (is_due(engine->listen_due_ms, now))
        resume_listening(engine);
    bt_record_summaries(engine, now);
    for (size_t i = 0; i < BT_PLACES_MAX; i++) {
        struct bt_connection *connection = &engine->connections[i];
        if (connection->state != BT_CONNECTION_CLOSED && is_due(connection->deadline_ms, now))
            close_connection(engine, connection);
    }
    if (engine->adoption_due_ms != 0 && count_reserved(engine) == 0)
        engine->adoption_due_ms = 0;
    if (is_due(engine->collect_due_ms, now) && (is_idle || now >= engine->collect_due_ms + COLLECT_LATEST_MS))
        collect(engine);
}

/* An event may be about a connection that an earlier event of the same batch has closed. */
static void handle_event(struct bt_engine *engine, const struct epoll_event *event)
{
    uint64_t about = event->data.u64 >> 32;
    uint32_t index = (uint32_t)event->data.u64;
    if (about == ABOUT_KERNEL)
        return; /* was handled before all others */
    if (about == ABOUT_LISTENER) {
        accept_connections(engine, index != 0);
        return;
    }
    bt_require(index < BT_PLACES_MAX, "engine: a connection without its lease, or the reverse");
    struct bt_connection *connection = &engine->connections[index];
    if (connection->state != BT_CONNECTION_CLOSED && connection->serial == about)
        handle_request(engine, connection);
}

int bt_engine_step(struct bt_engine *engine, int timeout_max_ms)
{
    struct epoll_event events[EVENTS_A_STEP];
    bool has_kernel_event = false;
    int count = epoll_wait(engine->epoll_fd, events, EVENTS_A_STEP, wait_timeout(engine, timeout_max_ms));
    if (count < 0)
        return errno == EINTR ? 0 : -errno;
    /* Drift first: nothing is granted on rules that are gone. */
    for (int i = 0; i < count; i++)
        has_kernel_event |= events[i].data.u64 >> 32 == ABOUT_KERNEL;
    if (has_kernel_event)
        handle_kernel_events(engine);
    for (int i = 0; i < count; i++)
        handle_event(engine, &events[i]);
    run_timers(engine, count == 0);
    return 0;
}

/* ---- start --------------------------------------------------------------------------------------------- */

/* What was in force stays in force until this one transaction, and authorises nothing after it. */
static int take_over(struct bt_engine *engine)
{
    struct bt_lease *leases = engine->found;
    size_t count = 0;
    uint64_t deadline_ms = 0;
    uint32_t generation = 0;
    uint64_t now = now_ms(engine);
    int error = bt_kernel_provision(engine->kernel, leases, &count, &deadline_ms, &generation);
    if (error < 0) {
        bt_say_error(
            "setting up the table inet berth failed", error,
            error == -EPROTONOSUPPORT
                ? "another version of berth-helper wrote it: start that one again, or end all agents and "
                  "run berth-helper uninstall, then install"
                : "see whether something else owns a table of that name");
        return error;
    }
    engine->ledger.last_generation = generation;
    if (count == 0)
        return 0;
    if (deadline_ms == 0)
        deadline_ms = now + BT_ADOPTION_DEADLINE_MS;
    else if (deadline_ms < now + BT_ADOPTION_GRACE_MS)
        deadline_ms = now + BT_ADOPTION_GRACE_MS;
    error = bt_kernel_reserve_all(engine->kernel, (struct bt_lease_table){.leases = leases, .count = count},
                                  deadline_ms);
    if (error < 0) {
        bt_say_error("reserving the slots in use failed", error, "their rules stay as they are");
        return error;
    }
    for (size_t i = 0; i < count; i++)
        bt_ledger_put(&engine->ledger, &leases[i], BT_HOLD_RESERVED);
    engine->adoption_due_ms = deadline_ms;
    bt_say_number("", count, " slots were in use and wait to be adopted");
    return 0;
}

static int watch_kernel(struct bt_engine *engine)
{
    int fds[BT_KERNEL_EVENT_FDS];
    bt_kernel_event_fds(engine->kernel, fds);
    for (uint32_t i = 0; i < BT_KERNEL_EVENT_FDS; i++) {
        int error = fds[i] < 0 ? 0 : watch(engine, fds[i], ABOUT_KERNEL, i);
        if (error < 0)
            return error;
    }
    return 0;
}

int bt_engine_start(struct bt_engine *engine, const struct bt_engine_options *options,
                    struct bt_kernel *kernel)
{
    memset(engine, 0, sizeof(*engine));
    engine->options = *options;
    engine->kernel = kernel;
    engine->listen_fds[0] = engine->listen_fds[1] = -1;
    engine->next_serial = 1;
    engine->is_healthy = true;
    for (size_t i = 0; i < BT_PLACES_MAX; i++)
        engine->connections[i].fd = -1;
    bt_admission_init(&engine->admission, &options->admission);
    bt_admission_init(&engine->status_admission, &options->admission);
    bt_ledger_init(&engine->ledger, options->pool.slots, 0);
    engine->epoch = now_ms(engine) + 1; /* differs from every earlier engine of this boot; never 0 */
    engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll_fd < 0)
        return -errno;
    int error = take_over(engine);
    if (error == 0)
        error = watch_kernel(engine);
    if (error < 0) {
        bt_fd_close(&engine->epoll_fd);
        return error;
    }
    /* A start that cannot be written refuses leases, as any line would. */
    (void)bt_record_event(engine, "START", BT_AUDIT_NO_UID, NULL, count_reserved(engine));
    bt_engine_reconcile(engine);
    return 0;
}
