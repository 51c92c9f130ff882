/* An engine after another: what was leased is reserved, adopted or given up. */
#include <errno.h>

#include "tests/unit/engine_fixture.h"

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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE),
                     1); /* the deadline is for those who did not come */
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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_RESERVED), 2);
    pass_time(1);
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_RESERVED), 0);
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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_RESERVED), 0);
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
    stop_engine();
    bt_fake_reset(); /* the table was flushed while no engine ran: the kernel part goes by the clock then */
    generation += 1000;
    bt_fake.generation = generation;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(t_engine_adoption),
        ENGINE_TEST(t_engine_expiry),
        ENGINE_TEST(t_engine_deadline_survives_crashes),
        ENGINE_TEST(t_engine_sealed_stays_sealed),
        ENGINE_TEST(t_engine_changed_device_is_not_given_back),
        ENGINE_TEST(t_engine_reserved_counts_against_the_quota),
        ENGINE_TEST(t_engine_new_gateway_while_the_old_one_is_reserved),
        ENGINE_TEST(t_engine_generations_never_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
