/* The engine against an in-memory kernel: every verb in every state, limits to the digit, restarts, and a
 * kernel that fails at each call in turn.
 *
 * A test's users talk over socket pairs in the engine's own thread: say(), step, hear().
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

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

static uint64_t now_for_test(void)
{
    return clock_ms;
}

static struct bt_engine_options default_options(void)
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

static void start_engine(const struct bt_engine_options *options)
{
    struct bt_kernel_config config = {.pool = options->pool};
    assert_int_equal(bt_kernel_open(&config, &kernel), 0);
    assert_int_equal(bt_engine_start(&engine, options, kernel, -1), 0);
}

static void stop_engine(void)
{
    for (size_t i = 0; i < BT_CONNECTIONS_MAX; i++)
        bt_fd_close(&engine.connections[i].fd);
    bt_fd_close(&engine.epoll_fd);
}

static int set_up(void **state)
{
    (void)state;
    bt_fake_reset();
    clock_ms = 1000000;
    struct bt_engine_options options = default_options();
    start_engine(&options);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stop_engine();
    return 0;
}

static void step(void)
{
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(bt_engine_step(&engine, 0), 0);
}

static void pass_time(uint64_t milliseconds)
{
    clock_ms += milliseconds;
    step();
}

static int try_connect(struct user *user, uint32_t uid)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    *user = (struct user){.fd = pair[0], .tap_fd = -1, .uid = uid};
    int error = bt_engine_admit(&engine, pair[1], uid);
    if (error < 0) {
        bt_fd_close(&pair[0]);
        bt_fd_close(&pair[1]);
        user->fd = -1;
    }
    return error;
}

static void disconnect(struct user *user)
{
    bt_fd_close(&user->fd);
    bt_fd_close(&user->tap_fd);
    step();
}

static bool is_closed(const struct user *user)
{
    uint8_t byte;
    ssize_t got = recv(user->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

static void say(struct user *user, struct bt_request *request)
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

static enum bt_status hear(struct user *user)
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

static enum bt_status ask(struct user *user, enum bt_verb verb)
{
    struct bt_request request = {.verb = verb};
    say(user, &request);
    return hear(user);
}

static enum bt_status hello(struct user *user)
{
    struct bt_request request = {.verb = BT_VERB_HELLO, .body.hello = {.version_min = 1, .version_max = 1}};
    say(user, &request);
    enum bt_status status = hear(user);
    user->epoch = user->reply.epoch;
    return status;
}

static void join(struct user *user, uint32_t uid)
{
    assert_int_equal(try_connect(user, uid), 0);
    assert_int_equal(hello(user), BT_STATUS_OK);
}

static enum bt_status lease(struct user *user, enum bt_role role, uint8_t environment, int slot)
{
    struct bt_request request = {.verb = BT_VERB_LEASE};
    request.body.lease.role = role;
    request.body.lease.environment = environment;
    request.body.lease.has_slot = slot >= 0;
    request.body.lease.slot = (uint16_t)(slot >= 0 ? slot : 0);
    say(user, &request);
    return hear(user);
}

static enum bt_status adopt(struct user *user, uint16_t slot, uint32_t generation)
{
    struct bt_request request = {.verb = BT_VERB_LEASE};
    request.body.lease.has_slot = true;
    request.body.lease.is_adopt = true;
    request.body.lease.slot = slot;
    request.body.lease.generation = generation;
    say(user, &request);
    return hear(user);
}

static void crash_and_restart(void)
{
    struct bt_engine_options options = default_options();
    stop_engine();
    clock_ms += 5;
    start_engine(&options);
}

static unsigned count_fds(void)
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
static void check_invariant(void)
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
    assert_int_equal(leased, engine.ledger.live);
}

/* ---- HELLO and order
 * ---------------------------------------------------------------------------------------- */

static void t_engine_hello_tells_the_pool(void **state)
{
    (void)state;
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(alice.reply.body.hello.slots, 16);
    assert_int_equal(alice.reply.body.hello.quota, 4);
    assert_int_equal(alice.reply.body.hello.tap_base, BT_POOL_TAP_BASE_DEFAULT);
    assert_int_equal(alice.reply.version, 1);
    assert_int_equal(ask(&alice, BT_VERB_STATUS), BT_STATUS_OK);
    struct bt_request again = {.verb = BT_VERB_HELLO, .body.hello = {.version_min = 1, .version_max = 1}};
    again.sequence = ++alice.sequence; /* a second HELLO in sequence */
    uint8_t frame[BT_FRAME_SIZE];
    assert_int_equal(bt_frame_encode_request(&again, frame), 0);
    assert_int_equal(bt_chan_send(alice.fd, frame, -1), 0);
    step();
    assert_int_equal(hear(&alice), BT_STATUS_STATE);
    assert_int_equal(ask(&alice, BT_VERB_STATUS), BT_STATUS_OK);
    disconnect(&alice);
}

static void t_engine_versions(void **state)
{
    (void)state;
    static const struct {
        uint16_t minimum, maximum;
        enum bt_status status;
    } cases[] = {
        {0, 0, BT_STATUS_VERSION}, {2, 2, BT_STATUS_VERSION}, {65535, 65535, BT_STATUS_VERSION},
        {0, 1, BT_STATUS_OK},      {1, 65535, BT_STATUS_OK},  {0, 65535, BT_STATUS_OK},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct user alice;
        assert_int_equal(try_connect(&alice, ALICE), 0);
        struct bt_request request = {
            .verb = BT_VERB_HELLO,
            .body.hello = {.version_min = cases[i].minimum, .version_max = cases[i].maximum}};
        say(&alice, &request);
        assert_int_equal(hear(&alice), cases[i].status);
        assert_int_equal(alice.reply.body.hello.version_max, BT_PROTOCOL_VERSION_MAX);
        assert_int_equal(is_closed(&alice), cases[i].status != BT_STATUS_OK);
        disconnect(&alice);
    }
}

static void t_engine_verb_before_hello(void **state)
{
    (void)state;
    for (unsigned verb = BT_VERB_STATUS; verb < BT_VERB_MAX; verb++) {
        struct user alice;
        assert_int_equal(try_connect(&alice, ALICE), 0);
        alice.epoch = engine.epoch;
        assert_int_equal(ask(&alice, (enum bt_verb)verb), BT_STATUS_STATE);
        assert_true(is_closed(&alice));
        disconnect(&alice);
    }
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 0);
}

static void t_engine_verbs_in_the_wrong_state(void **state)
{
    (void)state;
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(ask(&alice, BT_VERB_SEAL), BT_STATUS_STATE);
    assert_int_equal(ask(&alice, BT_VERB_COUNTERS), BT_STATUS_STATE);
    assert_int_equal(ask(&alice, BT_VERB_RELEASE), BT_STATUS_STATE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_STATE); /* one connection, one lease */
    assert_int_equal(engine.ledger.live, 1);
    assert_int_equal(ask(&alice, BT_VERB_RELEASE), BT_STATUS_OK);
    assert_int_equal(ask(&alice, BT_VERB_COUNTERS), BT_STATUS_STATE);
    check_invariant();
    disconnect(&alice);
}

static void t_engine_replay_closes(void **state)
{
    (void)state;
    static const uint32_t wrong[] = {1, 2, 4, 1000, UINT32_MAX}; /* 3 is the one expected */
    for (size_t i = 0; i < BT_ARRAY_LENGTH(wrong); i++) {
        struct user alice;
        join(&alice, ALICE);
        assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
        alice.sequence = wrong[i] - 1;
        assert_int_equal(ask(&alice, BT_VERB_COUNTERS), BT_STATUS_STALE);
        assert_true(is_closed(&alice));
        assert_int_equal(engine.ledger.live, 0);
        check_invariant();
        disconnect(&alice);
    }
}

static void t_engine_old_epoch_is_stale(void **state)
{
    (void)state;
    struct user alice, after;
    join(&alice, ALICE);
    uint64_t old_epoch = alice.epoch;
    crash_and_restart();
    join(&after, ALICE);
    assert_true(after.epoch != old_epoch);
    after.epoch = old_epoch;
    assert_int_equal(lease(&after, BT_ROLE_AGENT, 0, -1), BT_STATUS_STALE);
    assert_true(is_closed(&after));
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 0);
    disconnect(&alice);
    disconnect(&after);
}

static void t_engine_malformed_frames_close_only_their_sender(void **state)
{
    (void)state;
    struct user bob;
    uint8_t frame[600] = {0};
    join(&bob, BOB);
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    for (size_t length = 0; length <= 600; length++) {
        struct user alice;
        join(&alice, ALICE);
        assert_int_equal(send(alice.fd, frame, length, 0), length);
        step();
        assert_true(is_closed(&alice));
        disconnect(&alice);
        clock_ms += 100;
    }
    assert_int_equal(ask(&bob, BT_VERB_COUNTERS), BT_STATUS_OK);
    assert_int_equal(engine.admission.spare, 0);
    disconnect(&bob);
}

/* ---- LEASE
 * --------------------------------------------------------------------------------------------------- */

static void t_engine_lease_describes_the_slot(void **state)
{
    (void)state;
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 3, 7), BT_STATUS_OK);
    const struct bt_reply_lease *reply = &alice.reply.body.lease;
    assert_int_equal(reply->slot, 7);
    assert_int_equal(reply->host_address, BT_POOL_TAP_BASE_DEFAULT + 14);
    assert_int_equal(reply->guest_address, BT_POOL_TAP_BASE_DEFAULT + 15);
    assert_int_equal(reply->prefix_length, 31);
    assert_int_equal(reply->environment, 3);
    assert_string_equal(reply->interface_name, "berth7");
    assert_true(alice.tap_fd >= 0);
    assert_int_equal(bt_fake.slots[7].lease.uid, ALICE);
    assert_int_equal(ask(&alice, BT_VERB_COUNTERS), BT_STATUS_OK);
    assert_int_equal(alice.reply.body.counters.accepted_packets, 8);
    check_invariant();
    disconnect(&alice);
}

static void lease_of_kind(struct user *user, enum bt_kind kind, enum bt_role role, enum bt_status wanted)
{
    struct bt_request request = {.verb = BT_VERB_LEASE, .body.lease = {.kind = kind, .role = role}};
    say(user, &request);
    assert_int_equal(hear(user), wanted);
}

static void t_engine_kinds(void **state)
{
    (void)state;
    struct user alice, other, third;
    join(&alice, ALICE);
    join(&other, ALICE);
    join(&third, ALICE);
    lease_of_kind(&alice, BT_KIND_PF, BT_ROLE_AGENT, BT_STATUS_UNSUPPORTED);
    lease_of_kind(&alice, BT_KIND_TAP_NAMED, BT_ROLE_GATEWAY, BT_STATUS_OK);
    assert_int_equal(alice.reply.body.lease.kind, BT_KIND_TAP_NAMED);
    assert_false(alice.reply.body.lease.has_fd);
    /* An infra pair of containers beside the one of virtual machines. */
    lease_of_kind(&other, BT_KIND_BRIDGE, BT_ROLE_GATEWAY, BT_STATUS_OK);
    lease_of_kind(&third, BT_KIND_BRIDGE, BT_ROLE_GATEWAY, BT_STATUS_EXISTS);
    lease_of_kind(&third, BT_KIND_BRIDGE, BT_ROLE_AGENT, BT_STATUS_OK);
    const struct bt_reply_lease *reply = &third.reply.body.lease;
    char name[BT_INTERFACE_NAME_SIZE];
    snprintf(name, sizeof(name), "berthd%u", reply->slot);
    assert_string_equal(reply->interface_name, name);
    assert_int_equal(reply->prefix_length, 29);
    assert_int_equal(reply->host_address % 8, 1);
    assert_int_equal(reply->guest_address, reply->host_address + 2);
    assert_int_equal(other.reply.body.lease.guest_address, other.reply.body.lease.host_address + 1);
    assert_false(reply->has_fd);
    check_invariant();
    disconnect(&alice);
    disconnect(&other);
    disconnect(&third);
}

static void t_engine_quota_to_the_digit(void **state)
{
    (void)state;
    struct user alice[5], bob;
    for (unsigned i = 0; i < 4; i++) {
        join(&alice[i], ALICE);
        assert_int_equal(lease(&alice[i], BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    }
    join(&alice[4], ALICE);
    assert_int_equal(lease(&alice[4], BT_ROLE_AGENT, 0, -1), BT_STATUS_QUOTA);
    join(&bob, BOB); /* A full leaves B served */
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    disconnect(&alice[0]);
    assert_int_equal(lease(&alice[4], BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    check_invariant();
    for (unsigned i = 0; i < 5; i++)
        disconnect(&alice[i]);
    disconnect(&bob);
    check_invariant();
    assert_int_equal(engine.ledger.live, 0);
}

static void t_engine_pool_full_and_reuse(void **state)
{
    (void)state;
    struct user users[17];
    for (unsigned i = 0; i < 17; i++) {
        join(&users[i], 2000 + i);
        assert_int_equal(lease(&users[i], BT_ROLE_AGENT, 0, -1), i < 16 ? BT_STATUS_OK : BT_STATUS_FULL);
    }
    uint32_t generation = users[15].reply.body.lease.generation;
    disconnect(&users[3]);
    /* Its device is not deleted yet: the lease waits for that rather than failing. */
    assert_int_equal(lease(&users[16], BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    assert_int_equal(users[16].reply.body.lease.slot, 3);
    assert_true(users[16].reply.body.lease.generation > generation);
    check_invariant();
    for (unsigned i = 0; i < 17; i++)
        disconnect(&users[i]);
}

static void t_engine_hint_is_a_wish(void **state)
{
    (void)state;
    struct user alice, bob, carol;
    join(&alice, ALICE);
    join(&bob, BOB);
    join(&carol, 1002);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, 5), BT_STATUS_OK);
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, 5), BT_STATUS_OK);
    assert_int_not_equal(bob.reply.body.lease.slot, 5);
    assert_int_equal(lease(&carol, BT_ROLE_AGENT, 0, 1023),
                     BT_STATUS_OK); /* outside the pool: the same answer */
    disconnect(&alice);
    disconnect(&bob);
    struct user dave;
    join(&dave, 1003);
    assert_int_equal(lease(&dave, BT_ROLE_AGENT, 0, 5), BT_STATUS_OK); /* dead, but wished for */
    assert_int_equal(dave.reply.body.lease.slot, 5);
    disconnect(&carol);
    disconnect(&dave);
}

static void t_engine_one_gateway_and_orchestrator_a_uid_and_environment(void **state)
{
    (void)state;
    static const enum bt_role roles[] = {BT_ROLE_GATEWAY, BT_ROLE_ORCHESTRATOR};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(roles); i++) {
        struct user first, second, other;
        join(&first, ALICE);
        join(&second, ALICE);
        join(&other, BOB);
        assert_int_equal(lease(&first, roles[i], 0, -1), BT_STATUS_OK);
        assert_int_equal(lease(&second, roles[i], 0, -1), BT_STATUS_EXISTS);
        assert_int_equal(lease(&other, roles[i], 0, -1), BT_STATUS_OK);
        assert_int_equal(lease(&second, roles[i], 1, -1), BT_STATUS_OK);
        disconnect(&first);
        assert_int_equal(ask(&second, BT_VERB_RELEASE), BT_STATUS_OK);
        assert_int_equal(lease(&second, roles[i], 0, -1), BT_STATUS_OK);
        disconnect(&second);
        disconnect(&other);
    }
    check_invariant();
}

static void t_engine_squatted_names_do_not_stop_it(void **state)
{
    (void)state;
    struct user alice, bob;
    bt_fake.slots[0].is_squatted = true;
    bt_fake.slots[1].is_squatted = true;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, 0), BT_STATUS_OK);
    assert_true(alice.reply.body.lease.slot > 1);
    for (unsigned slot = 0; slot < 16; slot++)
        bt_fake.slots[slot].is_squatted = slot != 14;
    join(&bob, BOB);
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, 3), BT_STATUS_OK);
    assert_int_equal(bob.reply.body.lease.slot, 14);
    assert_int_equal(ask(&bob, BT_VERB_RELEASE), BT_STATUS_OK);
    bt_fake.slots[14].is_squatted = true;
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_KERNEL);
    check_invariant();
    disconnect(&alice);
    disconnect(&bob);
}

static void t_engine_eof_releases(void **state)
{
    (void)state;
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_GATEWAY, 0, -1), BT_STATUS_OK);
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 1);
    disconnect(&alice);
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 0);
    assert_int_equal(bt_fake.releases, 1);
    assert_int_equal(bt_fake.collects, 0);
    pass_time(20); /* the device goes when the engine is idle */
    assert_int_equal(bt_fake.collects, 1);
    assert_int_equal(bt_kernel_dead_count(kernel), 0);
    check_invariant();
}

static void t_engine_lease_is_undone_when_the_answer_cannot_be_sent(void **state)
{
    (void)state;
    struct user alice;
    uint8_t frame[BT_FRAME_SIZE];
    join(&alice, ALICE);
    struct bt_request request = {.verb = BT_VERB_LEASE, .version = 1, .epoch = alice.epoch, .sequence = 2};
    assert_int_equal(bt_frame_encode_request(&request, frame), 0);
    assert_int_equal(bt_chan_send(alice.fd, frame, -1), 0);
    assert_int_equal(shutdown(alice.fd, SHUT_RD), 0);
    step();
    assert_int_equal(bt_fake.tap_fds, 1);
    assert_int_equal(engine.ledger.live, 0);
    check_invariant();
    disconnect(&alice);
}

/* ---- the kernel fails
 * --------------------------------------------------------------------------------------- */

/* A whole life, with the n-th call into the kernel failing. Whatever the answers are: the invariant holds
 * after each. */
static void live_once(unsigned fail_at, int error)
{
    struct user alice, bob;
    join(&alice, ALICE);
    join(&bob, BOB);
    bt_fake_fail(fail_at, 1, error);
    (void)lease(&alice, BT_ROLE_GATEWAY, 0, -1);
    check_invariant();
    (void)lease(&bob, BT_ROLE_AGENT, 0, -1);
    check_invariant();
    (void)ask(&bob, BT_VERB_COUNTERS);
    (void)ask(&alice, BT_VERB_SEAL);
    check_invariant();
    (void)ask(&alice, BT_VERB_RELEASE);
    check_invariant();
    disconnect(&alice);
    disconnect(&bob);
    check_invariant();
    pass_time(10000);
    pass_time(10000);
    assert_int_equal(engine.ledger.live, 0);
    assert_true(engine.is_healthy);
    assert_int_equal(bt_kernel_dead_count(kernel), 0);
}

static void t_engine_kernel_error_at_each_call(void **state)
{
    (void)state;
    static const int errors[] = {-EEXIST, -EPERM, -ENOBUFS, -EBUSY, -EINTR, -EUCLEAN, -ENOENT};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(errors); i++) {
        unsigned fail_at = 1;
        for (; fail_at < 100; fail_at++) {
            unsigned before = bt_fake.calls;
            live_once(fail_at, errors[i]);
            if (bt_fake.calls - before < fail_at)
                break; /* it was never reached: all are done */
        }
        assert_true(fail_at > 5 && fail_at < 100);
    }
}

static void t_engine_seal_is_enforced_when_the_kernel_refuses(void **state)
{
    (void)state;
    struct user alice, bob;
    join(&alice, ALICE);
    join(&bob, BOB);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    unsigned slot = alice.reply.body.lease.slot;
    bt_fake_fail(1, 1, -ENOBUFS);
    assert_int_equal(ask(&alice, BT_VERB_SEAL), BT_STATUS_OK); /* by the repair */
    assert_int_equal(bt_fake.repairs, 1);
    assert_int_equal(bt_fake.slots[slot].rules, BT_FAKE_SEALED);
    assert_int_equal(ask(&alice, BT_VERB_SEAL), BT_STATUS_OK); /* again: nothing to do */

    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    bt_fake_fail(1, 2, -ENOBUFS); /* and the repair fails too */
    assert_int_equal(ask(&bob, BT_VERB_SEAL), BT_STATUS_KERNEL);
    assert_false(engine.is_healthy);
    pass_time(60);
    assert_true(engine.is_healthy);
    assert_int_equal(bt_fake_count(BT_FAKE_SEALED), 2);
    check_invariant();
    disconnect(&alice);
    disconnect(&bob);
}

static void t_engine_start_fails_whole(void **state)
{
    (void)state;
    struct bt_engine_options options = default_options();
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    stop_engine();
    unsigned before = count_fds();
    for (unsigned call = 1; call <= 2; call++) { /* provision, reserve_all */
        bt_fake_fail(call, 1, -EPERM);
        assert_int_equal(bt_engine_start(&engine, &options, kernel, -1), -EPERM);
        assert_int_equal(count_fds(), before);
        assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 1); /* rules in force stay as they are */
    }
    start_engine(&options);
    assert_int_equal(engine.ledger.reserved, 1);
    disconnect(&alice);
}

/* ---- restart
 * -------------------------------------------------------------------------------------------------- */

static void t_engine_adoption(void **state)
{
    (void)state;
    struct user alice, bob, later;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 2, 4), BT_STATUS_OK);
    uint32_t generation = alice.reply.body.lease.generation;
    crash_and_restart();
    assert_int_equal(bt_fake_count(BT_FAKE_RESERVED), 1);
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 0);
    assert_true(bt_fake.deadline_ms == clock_ms + BT_ADOPTION_DEADLINE_MS);
    check_invariant();

    join(&bob, BOB);
    assert_int_equal(adopt(&bob, 4, generation), BT_STATUS_NOT_FOUND); /* another's */
    struct bt_reply foreign = bob.reply;
    assert_int_equal(adopt(&bob, 9, generation), BT_STATUS_NOT_FOUND); /* nobody's: the same bytes */
    foreign.sequence = bob.reply.sequence;
    assert_memory_equal(&foreign, &bob.reply, sizeof(foreign));

    join(&later, ALICE);
    assert_int_equal(adopt(&later, 4, generation + 1), BT_STATUS_NOT_FOUND);
    assert_int_equal(adopt(&later, 1023, generation), BT_STATUS_NOT_FOUND);
    assert_int_equal(ask(&later, BT_VERB_STATUS), BT_STATUS_OK);
    assert_int_equal(later.reply.body.status.reserved, 1);
    assert_int_equal(later.reply.body.status.own[0], 1 << 4);
    assert_int_equal(adopt(&later, 4, generation), BT_STATUS_OK);
    assert_int_equal(later.reply.body.lease.environment, 2);
    assert_false(later.reply.body.lease.has_fd);
    assert_int_equal(bt_fake.slots[4].rules, BT_FAKE_LIVE);
    check_invariant();
    pass_time(BT_ADOPTION_DEADLINE_MS);
    assert_int_equal(engine.ledger.live, 1); /* the deadline is for those who did not come */
    disconnect(&alice);
    disconnect(&bob);
    disconnect(&later);
    check_invariant();
}

static void t_engine_expiry(void **state)
{
    (void)state;
    struct user alice, bob;
    join(&alice, ALICE);
    join(&bob, BOB);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    assert_int_equal(lease(&bob, BT_ROLE_GATEWAY, 0, -1), BT_STATUS_OK);
    crash_and_restart();
    pass_time(BT_ADOPTION_DEADLINE_MS - 1);
    assert_int_equal(engine.ledger.reserved, 2);
    pass_time(1);
    assert_int_equal(engine.ledger.reserved, 0);
    assert_int_equal(bt_fake_count(BT_FAKE_RESERVED), 0);
    check_invariant();
    pass_time(30);
    assert_int_equal(bt_kernel_dead_count(kernel), 0);
    disconnect(&alice);
    disconnect(&bob);
}

static void t_engine_deadline_survives_crashes(void **state)
{
    (void)state;
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, 0), BT_STATUS_OK);
    crash_and_restart();
    uint64_t deadline_ms = bt_fake.deadline_ms;
    pass_time(10000);
    crash_and_restart();
    assert_true(bt_fake.deadline_ms == deadline_ms);
    pass_time(deadline_ms - clock_ms - 100);
    crash_and_restart(); /* close to the deadline: whoever had adopted gets a moment */
    assert_true(bt_fake.deadline_ms == clock_ms + BT_ADOPTION_GRACE_MS);
    pass_time(BT_ADOPTION_GRACE_MS);
    assert_int_equal(engine.ledger.reserved, 0);
    disconnect(&alice);
}

static void t_engine_sealed_stays_sealed(void **state)
{
    (void)state;
    struct user alice, later;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, 0), BT_STATUS_OK);
    uint32_t generation = alice.reply.body.lease.generation;
    assert_int_equal(ask(&alice, BT_VERB_SEAL), BT_STATUS_OK);
    crash_and_restart();
    join(&later, ALICE);
    assert_int_equal(adopt(&later, 0, generation), BT_STATUS_OK);
    assert_true(later.reply.body.lease.is_sealed);
    assert_int_equal(bt_fake.slots[0].rules, BT_FAKE_SEALED);
    check_invariant();
    disconnect(&alice);
    disconnect(&later);
}

static void t_engine_changed_device_is_not_given_back(void **state)
{
    (void)state;
    struct user alice, later;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, 0), BT_STATUS_OK);
    uint32_t generation = alice.reply.body.lease.generation;
    crash_and_restart();
    bt_fake.slots[0].is_changed = true;
    join(&later, ALICE);
    assert_int_equal(adopt(&later, 0, generation), BT_STATUS_NOT_FOUND);
    assert_int_equal(bt_fake_count(BT_FAKE_RESERVED), 0);
    check_invariant();
    disconnect(&alice);
    disconnect(&later);
}

static void t_engine_reserved_counts_against_the_quota(void **state)
{
    (void)state;
    struct user alice[4], later[9];
    uint32_t generations[4];
    uint16_t slots[4];
    for (unsigned i = 0; i < 4; i++) {
        join(&alice[i], ALICE);
        assert_int_equal(lease(&alice[i], i == 0 ? BT_ROLE_GATEWAY : BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
        generations[i] = alice[i].reply.body.lease.generation;
        slots[i] = alice[i].reply.body.lease.slot;
    }
    crash_and_restart();
    for (unsigned i = 0; i < 8; i++) /* 4 spare and 4 reserved: all may come at once */
        join(&later[i], ALICE);
    assert_int_equal(try_connect(&later[8], ALICE), -EUSERS);
    assert_int_equal(lease(&later[4], BT_ROLE_AGENT, 0, -1), BT_STATUS_QUOTA);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(adopt(&later[i], slots[i], generations[i]), BT_STATUS_OK);
    assert_int_equal(lease(&later[4], BT_ROLE_AGENT, 0, -1), BT_STATUS_QUOTA);
    check_invariant();
    for (unsigned i = 0; i < 8; i++)
        disconnect(&later[i]);
    for (unsigned i = 0; i < 4; i++)
        disconnect(&alice[i]);
}

static void t_engine_new_gateway_while_the_old_one_is_reserved(void **state)
{
    (void)state;
    struct user old, new_one, late;
    join(&old, ALICE);
    assert_int_equal(lease(&old, BT_ROLE_GATEWAY, 0, 0), BT_STATUS_OK);
    uint32_t generation = old.reply.body.lease.generation;
    crash_and_restart();
    join(&new_one, ALICE);
    assert_int_equal(lease(&new_one, BT_ROLE_GATEWAY, 0, -1), BT_STATUS_OK);
    assert_true(new_one.reply.body.lease.generation > generation);
    join(&late, ALICE);
    assert_int_equal(adopt(&late, 0, generation), BT_STATUS_EXISTS);
    check_invariant();
    disconnect(&old);
    disconnect(&new_one);
    disconnect(&late);
}

static void t_engine_generations_never_come_back(void **state)
{
    (void)state;
    struct user alice, later;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    uint32_t generation = alice.reply.body.lease.generation;
    assert_true(generation > clock_ms / 1000 * 16);
    stop_engine();
    bt_fake_reset(); /* the table was flushed while no engine ran: the kernel has forgotten everything */
    clock_ms += 1000;
    struct bt_engine_options options = default_options();
    start_engine(&options);
    join(&later, ALICE);
    assert_int_equal(lease(&later, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    assert_true(later.reply.body.lease.generation > generation);
    engine.ledger.last_generation = UINT32_MAX;
    assert_int_equal(ask(&later, BT_VERB_RELEASE), BT_STATUS_OK);
    assert_int_equal(lease(&later, BT_ROLE_AGENT, 0, -1), BT_STATUS_FULL);
    check_invariant();
    disconnect(&alice);
    disconnect(&later);
}

/* ---- drift
 * ----------------------------------------------------------------------------------------------------- */

static void t_engine_drift_is_repaired(void **state)
{
    (void)state;
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    bt_fake_flush_table();
    step();
    assert_int_equal(bt_fake.repairs, 1);
    assert_true(engine.is_healthy);
    check_invariant();
    disconnect(&alice);
}

static void t_engine_nothing_is_granted_while_unhealthy(void **state)
{
    (void)state;
    struct user alice, bob, root;
    join(&alice, ALICE);
    join(&bob, BOB);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    bt_fake_fail(2, 3, -ENOBUFS); /* the events are read, but three repairs fail */
    bt_fake_flush_table();
    step();
    assert_false(engine.is_healthy);
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_UNHEALTHY);
    assert_int_equal(ask(&bob, BT_VERB_STATUS), BT_STATUS_OK);
    assert_false(bob.reply.body.status.is_healthy);
    assert_int_equal(ask(&alice, BT_VERB_RELEASE), BT_STATUS_OK); /* giving back always works */
    pass_time(50);
    assert_int_equal(bt_fake.repairs, 2);
    pass_time(99);
    assert_int_equal(bt_fake.repairs, 2); /* the pause doubles */
    pass_time(1);
    assert_int_equal(bt_fake.repairs, 3);
    join(&root, 0);
    assert_int_equal(ask(&bob, BT_VERB_RECONCILE), BT_STATUS_NOT_PERMITTED);
    assert_int_equal(ask(&root, BT_VERB_RECONCILE), BT_STATUS_OK);
    assert_true(engine.is_healthy);
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    check_invariant();
    disconnect(&alice);
    disconnect(&bob);
    disconnect(&root);
}

static void t_engine_drift_comes_before_requests(void **state)
{
    (void)state;
    struct user alice;
    uint8_t frame[BT_FRAME_SIZE];
    join(&alice, ALICE);
    struct bt_request request = {.verb = BT_VERB_LEASE, .version = 1, .epoch = alice.epoch, .sequence = 2};
    assert_int_equal(bt_frame_encode_request(&request, frame), 0);
    assert_int_equal(bt_chan_send(alice.fd, frame, -1), 0); /* ready first */
    bt_fake_fail(2, 1, -ENOBUFS);
    bt_fake_flush_table();
    assert_int_equal(bt_engine_step(&engine, 0), 0);
    alice.sequence = 2;
    assert_int_equal(hear(&alice), BT_STATUS_UNHEALTHY);
    disconnect(&alice);
}

static void t_engine_lost_events_are_looked_up(void **state)
{
    (void)state;
    bt_fake_fail(1, 1, -ENOBUFS);
    bt_fake_flush_table();
    step();
    assert_int_equal(bt_fake.repairs, 1);
    assert_true(engine.is_healthy);
}

/* ---- limits
 * ---------------------------------------------------------------------------------------------------- */

static void t_engine_uids_that_are_not_served(void **state)
{
    (void)state;
    static const uint32_t uids[] = {UINT32_MAX, 65534, 65536, 100000, UINT32_C(1) << 31, UINT32_MAX - 1};
    struct user user;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(uids); i++)
        assert_int_equal(try_connect(&user, uids[i]), -EACCES);
}

static void t_engine_spare_connections(void **state)
{
    (void)state;
    struct user alice[5], others[12], bob;
    for (unsigned i = 0; i < 4; i++)
        join(&alice[i], ALICE);
    assert_int_equal(try_connect(&alice[4], ALICE), -EUSERS);
    assert_int_equal(lease(&alice[0], BT_ROLE_AGENT, 0, -1), BT_STATUS_OK); /* no longer spare */
    join(&alice[4], ALICE);
    for (unsigned i = 0; i < 12; i++)
        join(&others[i], 3000 + i / 3);
    assert_int_equal(engine.admission.spare, 16);
    clock_ms += 1;
    join(&bob, BOB); /* everybody's limit: the uid with the most gives up its oldest */
    assert_int_equal(engine.admission.spare, 16);
    assert_true(is_closed(&alice[1]));
    assert_int_equal(ask(&alice[0], BT_VERB_COUNTERS), BT_STATUS_OK);
    assert_int_equal(ask(&bob, BT_VERB_STATUS), BT_STATUS_OK);
    for (unsigned i = 0; i < 5; i++)
        disconnect(&alice[i]);
    for (unsigned i = 0; i < 12; i++)
        disconnect(&others[i]);
    disconnect(&bob);
    assert_int_equal(engine.admission.spare, 0);
}

static void t_engine_deadlines(void **state)
{
    (void)state;
    struct user silent, idle, holder;
    assert_int_equal(try_connect(&silent, ALICE), 0);
    join(&idle, ALICE);
    join(&holder, ALICE);
    assert_int_equal(lease(&holder, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    pass_time(BT_HELLO_DEADLINE_MS - 1);
    assert_false(is_closed(&silent));
    pass_time(1);
    assert_true(is_closed(&silent));
    assert_int_equal(ask(&idle, BT_VERB_STATUS), BT_STATUS_OK);
    pass_time(BT_IDLE_DEADLINE_MS - 1);
    assert_false(is_closed(&idle));
    pass_time(1);
    assert_true(is_closed(&idle));
    pass_time(24 * 3600 * 1000);
    assert_int_equal(ask(&holder, BT_VERB_COUNTERS), BT_STATUS_OK);
    disconnect(&silent);
    disconnect(&idle);
    disconnect(&holder);
}

static void t_engine_token_bucket(void **state)
{
    (void)state;
    struct bt_engine_options options = default_options();
    struct user alice, bob;
    stop_engine();
    options.admission = (struct bt_admission_limits){.rate = 10, .burst = 5, .uid_max = 65533};
    start_engine(&options);
    join(&alice, ALICE); /* one token */
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(ask(&alice, BT_VERB_STATUS), BT_STATUS_OK);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_RATE);
    assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 0);
    join(&bob, BOB); /* others have their own bucket */
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    struct user second;
    assert_int_equal(try_connect(&second, ALICE), -EAGAIN);
    pass_time(100);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    assert_int_equal(ask(&alice, BT_VERB_COUNTERS), BT_STATUS_RATE);
    assert_int_equal(ask(&alice, BT_VERB_SEAL), BT_STATUS_OK); /* exempt */
    disconnect(&alice);
    assert_int_equal(try_connect(&second, ALICE), -EAGAIN); /* coming back does not fill the bucket */
    pass_time(60000);
    join(&second, ALICE);
    disconnect(&second);
    disconnect(&bob);
}

static void t_engine_nobody_reads(void **state)
{
    (void)state;
    struct user alice, bob;
    uint8_t frame[BT_FRAME_SIZE];
    join(&alice, ALICE);
    join(&bob, BOB);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    bool is_ended = false;
    for (unsigned i = 0; i < 5000 && !is_ended; i++) { /* asks, and never reads an answer */
        struct bt_request request = {.verb = BT_VERB_SEAL, .version = 1, .epoch = alice.epoch};
        request.sequence = ++alice.sequence;
        assert_int_equal(bt_frame_encode_request(&request, frame), 0);
        is_ended = bt_chan_send(alice.fd, frame, -1) < 0;
        step();
    }
    assert_true(is_ended);
    assert_int_equal(engine.ledger.live, 0);
    assert_int_equal(ask(&bob, BT_VERB_STATUS), BT_STATUS_OK);
    check_invariant();
    disconnect(&alice);
    disconnect(&bob);
}

static void t_engine_fd_flood(void **state)
{
    (void)state;
    struct user bob;
    join(&bob, BOB);
    assert_int_equal(lease(&bob, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    unsigned before = count_fds();
    for (unsigned round = 0; round < 500; round++) {
        struct user alice;
        uint8_t frame[BT_FRAME_SIZE];
        join(&alice, ALICE);
        struct bt_request request = {
            .verb = BT_VERB_LEASE, .version = 1, .epoch = alice.epoch, .sequence = 2};
        assert_int_equal(bt_frame_encode_request(&request, frame), 0);
        assert_int_equal(bt_chan_send(alice.fd, frame, alice.fd), 0); /* well-formed but for the descriptor */
        step();
        assert_int_equal(engine.ledger.live, 1);
        disconnect(&alice);
        clock_ms += 100;
    }
    assert_int_equal(count_fds(), before);
    assert_int_equal(ask(&bob, BT_VERB_STATUS), BT_STATUS_OK);
    disconnect(&bob);
}

static void t_engine_stuck_devices_are_tried_again(void **state)
{
    (void)state;
    struct user alice;
    join(&alice, ALICE);
    assert_int_equal(lease(&alice, BT_ROLE_AGENT, 0, -1), BT_STATUS_OK);
    bt_fake.is_stuck = true;
    disconnect(&alice);
    pass_time(30);
    unsigned tried = bt_fake.collects;
    assert_true(tried >= 1);
    for (unsigned i = 0; i < 10; i++)
        pass_time(100);
    assert_in_range(bt_fake.collects, tried + 1, tried + 3); /* but not in a loop */
    bt_fake.is_stuck = false;
    pass_time(1000);
    assert_int_equal(bt_kernel_dead_count(kernel), 0);
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(t_engine_hello_tells_the_pool),
        ENGINE_TEST(t_engine_versions),
        ENGINE_TEST(t_engine_verb_before_hello),
        ENGINE_TEST(t_engine_verbs_in_the_wrong_state),
        ENGINE_TEST(t_engine_replay_closes),
        ENGINE_TEST(t_engine_old_epoch_is_stale),
        ENGINE_TEST(t_engine_malformed_frames_close_only_their_sender),
        ENGINE_TEST(t_engine_lease_describes_the_slot),
        ENGINE_TEST(t_engine_kinds),
        ENGINE_TEST(t_engine_quota_to_the_digit),
        ENGINE_TEST(t_engine_pool_full_and_reuse),
        ENGINE_TEST(t_engine_hint_is_a_wish),
        ENGINE_TEST(t_engine_one_gateway_and_orchestrator_a_uid_and_environment),
        ENGINE_TEST(t_engine_squatted_names_do_not_stop_it),
        ENGINE_TEST(t_engine_eof_releases),
        ENGINE_TEST(t_engine_lease_is_undone_when_the_answer_cannot_be_sent),
        ENGINE_TEST(t_engine_kernel_error_at_each_call),
        ENGINE_TEST(t_engine_seal_is_enforced_when_the_kernel_refuses),
        ENGINE_TEST(t_engine_start_fails_whole),
        ENGINE_TEST(t_engine_adoption),
        ENGINE_TEST(t_engine_expiry),
        ENGINE_TEST(t_engine_deadline_survives_crashes),
        ENGINE_TEST(t_engine_sealed_stays_sealed),
        ENGINE_TEST(t_engine_changed_device_is_not_given_back),
        ENGINE_TEST(t_engine_reserved_counts_against_the_quota),
        ENGINE_TEST(t_engine_new_gateway_while_the_old_one_is_reserved),
        ENGINE_TEST(t_engine_generations_never_come_back),
        ENGINE_TEST(t_engine_drift_is_repaired),
        ENGINE_TEST(t_engine_nothing_is_granted_while_unhealthy),
        ENGINE_TEST(t_engine_drift_comes_before_requests),
        ENGINE_TEST(t_engine_lost_events_are_looked_up),
        ENGINE_TEST(t_engine_uids_that_are_not_served),
        ENGINE_TEST(t_engine_spare_connections),
        ENGINE_TEST(t_engine_deadlines),
        ENGINE_TEST(t_engine_token_bucket),
        ENGINE_TEST(t_engine_nobody_reads),
        ENGINE_TEST(t_engine_fd_flood),
        ENGINE_TEST(t_engine_stuck_devices_are_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
