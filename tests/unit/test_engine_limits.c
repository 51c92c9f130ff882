/* Limits to the digit: connections, deadlines, rate, descriptors, and clients that do not read. */
#include <errno.h>

#include "tests/unit/engine_fixture.h"

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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE), 0);
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
        assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE), 1);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
