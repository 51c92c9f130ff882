/* A kernel that fails at each call in turn, and a table that somebody else changed. */
#include <errno.h>

#include "tests/unit/engine_fixture.h"

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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE), 0);
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
        assert_int_equal(bt_engine_start(&engine, &options, kernel), -EPERM);
        assert_int_equal(count_fds(), before);
        assert_int_equal(bt_fake_count(BT_FAKE_LIVE), 1); /* rules in force stay as they are */
    }
    start_engine(&options);
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_RESERVED), 1);
    disconnect(&alice);
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(t_engine_kernel_error_at_each_call),
        ENGINE_TEST(t_engine_seal_is_enforced_when_the_kernel_refuses),
        ENGINE_TEST(t_engine_start_fails_whole),
        ENGINE_TEST(t_engine_drift_is_repaired),
        ENGINE_TEST(t_engine_nothing_is_granted_while_unhealthy),
        ENGINE_TEST(t_engine_drift_comes_before_requests),
        ENGINE_TEST(t_engine_lost_events_are_looked_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
