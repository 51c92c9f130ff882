/* What the tests of the engine share: the engine over an in-memory kernel, and users who talk to it over
 * socket pairs in its own thread: say(), step, hear().
 */
#ifndef BERTH_TESTS_UNIT_ENGINE_FIXTURE_H
#define BERTH_TESTS_UNIT_ENGINE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <sys/socket.h>

#include "helper/engine.h"
#include "ipc/chan/chan.h"
#include "tests/lib/fake/kernel_fake.c"

#define ALICE 1000U
#define BOB 1001U

static struct bt_engine engine;
static struct bt_kernel *kernel;
static uint64_t clock_ms;

struct user {
    int fd, tap_fd;
    uint32_t uid, sequence;
    uint64_t epoch;
    struct bt_reply reply; /* the last one */
};

static inline uint64_t now_for_test(void)
{
    return clock_ms;
}

static inline struct bt_engine_options default_options(void)
{
    return (struct bt_engine_options){
        .pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT,
                 .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT,
                 .slots = 16},
        .quota = 4,
        .admission = {.rate = 100, .burst = 1000, .uid_max = 65533},
        .now_ms = now_for_test,
    };
}

static inline void start_engine(const struct bt_engine_options *options)
{
    struct bt_kernel_config config = {.pool = options->pool};
    assert_int_equal(bt_kernel_open(&config, &kernel), 0);
    assert_int_equal(bt_engine_start(&engine, options, kernel), 0);
}

static inline void stop_engine(void)
{
    for (size_t i = 0; i < BT_CONNECTIONS_MAX; i++)
        bt_fd_close(&engine.connections[i].fd);
    bt_fd_close(&engine.epoll_fd);
}

static inline int set_up(void **state)
{
    (void)state;
    bt_fake_reset();
    clock_ms = 1000000;
    struct bt_engine_options options = default_options();
    start_engine(&options);
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    stop_engine();
    return 0;
}

static inline void step(void)
{
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(bt_engine_step(&engine, 0), 0);
}

static inline void pass_time(uint64_t milliseconds)
{
    clock_ms += milliseconds;
    step();
}

static inline int try_connect(struct user *user, uint32_t uid)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    *user = (struct user){.fd = pair[0], .tap_fd = -1, .uid = uid};
    int error = bt_engine_admit(&engine, pair[1], uid, false);
    if (error < 0) {
        bt_fd_close(&pair[0]);
        bt_fd_close(&pair[1]);
        user->fd = -1;
    }
    return error;
}

static inline void disconnect(struct user *user)
{
    bt_fd_close(&user->fd);
    bt_fd_close(&user->tap_fd);
    step();
}

static inline bool is_closed(const struct user *user)
{
    uint8_t byte;
    ssize_t got = recv(user->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

static inline void say(struct user *user, struct bt_request *request)
{
    uint8_t frame[BT_FRAME_SIZE];
    request->sequence = ++user->sequence;
    if (request->verb != BT_VERB_HELLO) {
        request->version = 1;
        request->epoch = user->epoch;
    }
    assert_int_equal(bt_frame_encode_request(request, frame), 0);
    assert_int_equal(bt_chan_send(user->fd, frame, -1), 0);
    step();
}

static inline enum bt_status hear(struct user *user)
{
    uint8_t frame[BT_FRAME_SIZE];
    int tap_fd = -1;
    assert_int_equal(bt_chan_receive_reply(user->fd, frame, &tap_fd), 0);
    assert_int_equal(bt_frame_decode_reply(frame, &user->reply), 0);
    assert_int_equal(user->reply.sequence, user->sequence);
    bool wants_fd = user->reply.status == BT_STATUS_OK && user->reply.verb == BT_VERB_LEASE &&
                    user->reply.body.lease.has_fd;
    assert_int_equal(tap_fd >= 0, wants_fd);
    if (tap_fd >= 0) {
        bt_fd_close(&user->tap_fd);
        user->tap_fd = tap_fd;
    }
    return user->reply.status;
}

static inline enum bt_status ask(struct user *user, enum bt_verb verb)
{
    struct bt_request request = {.verb = verb};
    say(user, &request);
    return hear(user);
}

static inline enum bt_status hello(struct user *user)
{
    struct bt_request request = {.verb = BT_VERB_HELLO, .body.hello = {.version_min = 1, .version_max = 1}};
    say(user, &request);
    enum bt_status status = hear(user);
    user->epoch = user->reply.epoch;
    return status;
}

static inline void join(struct user *user, uint32_t uid)
{
    assert_int_equal(try_connect(user, uid), 0);
    assert_int_equal(hello(user), BT_STATUS_OK);
}

static inline enum bt_status lease(struct user *user, enum bt_role role, uint8_t environment, int slot)
{
    struct bt_request request = {.verb = BT_VERB_LEASE};
    request.body.lease.role = role;
    request.body.lease.environment = environment;
    request.body.lease.has_slot = slot >= 0;
    request.body.lease.slot = (uint16_t)(slot >= 0 ? slot : 0);
    say(user, &request);
    return hear(user);
}

static inline enum bt_status adopt(struct user *user, uint16_t slot, uint32_t generation)
{
    struct bt_request request = {.verb = BT_VERB_LEASE};
    request.body.lease.has_slot = true;
    request.body.lease.is_adopt = true;
    request.body.lease.slot = slot;
    request.body.lease.generation = generation;
    say(user, &request);
    return hear(user);
}

static inline void crash_and_restart(void)
{
    struct bt_engine_options options = default_options();
    stop_engine();
    clock_ms += 5;
    start_engine(&options);
}

static inline unsigned count_fds(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Never a lease without rules, nor rules without a lease, nor a lease without its connection. */
static inline void check_invariant(void)
{
    unsigned leased = 0;
    for (unsigned slot = 0; slot < engine.options.pool.slots; slot++) {
        const struct bt_fake_slot *rules = &bt_fake.slots[slot];
        switch (engine.ledger.states[slot]) {
        case BT_HOLD_FREE:
            assert_int_equal(rules->rules, BT_FAKE_NONE);
            break;
        case BT_HOLD_LIVE:
            assert_int_equal(rules->rules,
                             engine.ledger.leases[slot].is_sealed ? BT_FAKE_SEALED : BT_FAKE_LIVE);
            assert_int_equal(rules->lease.generation, engine.ledger.leases[slot].generation);
            assert_int_equal(rules->lease.uid, engine.ledger.leases[slot].uid);
            break;
        case BT_HOLD_RESERVED:
            assert_int_equal(rules->rules, BT_FAKE_RESERVED);
            break;
        }
    }
    for (size_t i = 0; i < BT_CONNECTIONS_MAX; i++) {
        const struct bt_connection *connection = &engine.connections[i];
        if (connection->state != BT_CONNECTION_LEASED)
            continue;
        leased++;
        assert_int_equal(engine.ledger.states[connection->slot], BT_HOLD_LIVE);
        assert_int_equal(engine.ledger.leases[connection->slot].uid, connection->uid);
    }
    assert_int_equal(leased, bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE));
}

static inline void lease_of_kind(struct user *user, enum bt_kind kind, enum bt_role role,
                                 enum bt_status wanted)
{
    struct bt_request request = {.verb = BT_VERB_LEASE, .body.lease = {.kind = kind, .role = role}};
    say(user, &request);
    assert_int_equal(hear(user), wanted);
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
