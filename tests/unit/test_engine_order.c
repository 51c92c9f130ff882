/* What the engine answers at which point of a connection: HELLO, versions, sequence, epoch, whole frames. */
#include <errno.h>
#include <sys/socket.h>

#include "tests/unit/engine_fixture.h"

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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE), 1);
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
        assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE), 0);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
