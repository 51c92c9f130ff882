/* Bytes as the deeds of four users, the passage of time, crashes and kernel errors; after each, the books
 * must balance: a lease has its rules and its connection, rules have their lease, nobody exceeds a quota, and
 * generations only grow.
 *
 * Corpus: a few short lives.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "helper/engine.h"
#include "helper/say.h"
#include "ipc/chan/chan.h"
#include "tests/lib/fake/kernel_fake.c"

#define USERS 4
#define PEERS 12
#define QUOTA 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct peer {
    int fd;
    uint32_t sequence;
};

static struct bt_engine engine;
static struct bt_kernel *kernel;
static uint64_t clock_ms;
static struct peer peers[PEERS];

/* The engine's words would fill the disk; these stand in for helper/say.c. */
void bt_say(const char *message)
{
    (void)message;
}

void bt_say_number(const char *before, uint64_t number, const char *after)
{
    (void)before;
    (void)number;
    (void)after;
}

void bt_say_error(const char *what, int error, const char *hint)
{
    (void)what;
    (void)error;
    (void)hint;
}

void bt_text_add(struct bt_text *text, const char *addition)
{
    (void)text;
    (void)addition;
}

void bt_text_add_number(struct bt_text *text, uint64_t number)
{
    (void)text;
    (void)number;
}

void bt_say_text(const struct bt_text *text)
{
    (void)text;
}

_Noreturn void bt_die(const char *what)
{
    (void)what;
    abort();
}

static void must(bool condition)
{
    if (!condition)
        abort();
}

static uint64_t now_for_fuzz(void)
{
    return clock_ms;
}

static bool start(void)
{
    const struct bt_engine_options options = {
        .pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT, .slots = 8},
        .quota = QUOTA,
        .admission = {.rate = 100, .burst = 50, .uid_max = 65533},
        .now_ms = now_for_fuzz,
    };
    struct bt_kernel_config config = {.pool = options.pool};
    return bt_kernel_open(&config, &kernel) == 0 && bt_engine_start(&engine, &options, kernel) == 0;
}

static void stop(void)
{
    for (size_t i = 0; i < BT_CONNECTIONS_MAX; i++)
        bt_fd_close(&engine.connections[i].fd);
    bt_fd_close(&engine.epoll_fd);
}

static void check_slot(unsigned slot)
{
    const struct bt_fake_slot *rules = &bt_fake.slots[slot];
    const struct bt_lease *lease = &engine.ledger.leases[slot];
    switch (engine.ledger.states[slot]) {
    case BT_HOLD_FREE:
        must(rules->rules == BT_FAKE_NONE);
        break;
    case BT_HOLD_LIVE:
        must(rules->lease.uid == lease->uid && rules->lease.generation == lease->generation);
        must(!engine.is_healthy || rules->rules == (lease->is_sealed ? BT_FAKE_SEALED : BT_FAKE_LIVE));
        must(!lease->is_sealed || !engine.is_healthy || rules->rules != BT_FAKE_LIVE);
        break;
    case BT_HOLD_RESERVED:
        must(rules->rules == BT_FAKE_RESERVED);
        break;
    }
}

static void check_books(void)
{
    unsigned leased = 0, held[USERS] = {0};
    for (unsigned slot = 0; slot < engine.options.pool.slots; slot++) {
        if (!bt_fake.is_table_lost)
            check_slot(slot);
        if (engine.ledger.states[slot] != BT_HOLD_FREE)
            held[engine.ledger.leases[slot].uid % USERS]++;
    }
    for (unsigned user = 0; user < USERS; user++)
        must(held[user] <= QUOTA);
    for (size_t i = 0; i < BT_CONNECTIONS_MAX; i++) {
        const struct bt_connection *connection = &engine.connections[i];
        if (connection->state != BT_CONNECTION_LEASED)
            continue;
        leased++;
        must(engine.ledger.states[connection->slot] == BT_HOLD_LIVE);
        must(engine.ledger.leases[connection->slot].uid == connection->uid);
    }
    must(leased == bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE));
    must(engine.admission.spare <= BT_CONNECTIONS_MAX);
}

static void connect_peer(struct peer *peer, uint32_t uid)
{
    int pair[2];
    bt_fd_close(&peer->fd);
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    *peer = (struct peer){.fd = pair[0]};
    if (bt_engine_admit(&engine, pair[1], uid, false) < 0) {
        bt_fd_close(&pair[1]);
        bt_fd_close(&peer->fd);
    }
}

/* Mostly well-formed requests, since the decoder has a fuzzer of its own. */
static void ask(struct peer *peer, uint8_t verb, uint8_t first, uint8_t second)
{
    uint8_t frame[BT_FRAME_SIZE];
    struct bt_request request = {.verb = (enum bt_verb)(verb % BT_VERB_MAX), .sequence = ++peer->sequence};
    if (request.verb == BT_VERB_HELLO) {
        request.body.hello.version_max = first % 3;
    } else {
        request.version = 1;
        request.epoch = engine.epoch;
    }
    if (request.verb == BT_VERB_LEASE) {
        request.body.lease.has_slot = (first & 1) != 0;
        request.body.lease.is_adopt = (first & 3) == 3;
        request.body.lease.slot = (uint16_t)((first & 1) != 0 ? second % 16 : 0);
        if (request.body.lease.is_adopt) {
            request.body.lease.generation = bt_fake.slots[second % 16].lease.generation;
        } else {
            request.body.lease.role = (enum bt_role)((first >> 2) % BT_ROLE_MAX);
            request.body.lease.environment = (first >> 4) % 2;
        }
    }
    if (bt_frame_encode_request(&request, frame) == 0)
        (void)!send(peer->fd, frame, sizeof(frame), MSG_NOSIGNAL);
}

static void drain(struct peer *peer)
{
    uint8_t frame[BT_FRAME_SIZE];
    int tap_fd = -1;
    struct bt_reply reply;
    int error;
    while ((error = bt_chan_receive_reply(peer->fd, frame, &tap_fd)) == 0) {
        must(bt_frame_decode_reply(frame, &reply) == 0);
        must((tap_fd >= 0) ==
             (reply.verb == BT_VERB_LEASE && reply.status == BT_STATUS_OK && reply.body.lease.has_fd));
        bt_fd_close(&tap_fd);
    }
    if (error != -EAGAIN)
        bt_fd_close(&peer->fd);
}

static void crash(void)
{
    stop();
    clock_ms += 3;
    for (unsigned attempt = 0; attempt < 4; attempt++)
        if (start())
            return;
    must(false);
}

static void act(const uint8_t *deed)
{
    struct peer *peer = &peers[deed[1] % PEERS];
    switch (deed[0] % 9) {
    case 0:
        connect_peer(peer, 1000 + deed[2] % USERS);
        break;
    case 1:
        bt_fd_close(&peer->fd);
        break;
    case 2:
        clock_ms += (uint64_t)deed[2] * deed[3];
        break;
    case 3:
        crash();
        break;
    case 4:
        bt_fake_fail(1 + deed[1] % 4, 1 + deed[2] % 2, -ENOBUFS);
        break;
    case 5:
        if (deed[1] % 4 == 0)
            bt_fake_flush_table();
        break;
    default:
        if (peer->fd >= 0)
            ask(peer, deed[0] / 9, deed[2], deed[3]);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_fake_reset();
    clock_ms = 100000;
    for (unsigned i = 0; i < PEERS; i++)
        peers[i].fd = -1;
    must(start());
    for (size_t at = 0; at + 4 <= size && at < 4096; at += 4) {
        act(data + at);
        must(bt_engine_step(&engine, 0) == 0);
        must(bt_engine_step(&engine, 0) == 0);
        for (unsigned i = 0; i < PEERS; i++)
            if (peers[i].fd >= 0)
                drain(&peers[i]);
        check_books();
    }
    for (unsigned i = 0; i < PEERS; i++)
        bt_fd_close(&peers[i].fd);
    stop();
    return 0;
}
