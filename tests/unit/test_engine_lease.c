/* Leases: what they describe, kinds, quota, names that are taken, and their end. */
#include <errno.h>
#include <stdio.h>

#include "tests/unit/engine_fixture.h"

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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE), 0);
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
    assert_int_equal(bt_ledger_count(&engine.ledger, BT_ANYBODY, BT_HOLD_LIVE), 0);
    check_invariant();
    disconnect(&alice);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(t_engine_lease_describes_the_slot),
        ENGINE_TEST(t_engine_kinds),
        ENGINE_TEST(t_engine_quota_to_the_digit),
        ENGINE_TEST(t_engine_pool_full_and_reuse),
        ENGINE_TEST(t_engine_hint_is_a_wish),
        ENGINE_TEST(t_engine_one_gateway_and_orchestrator_a_uid_and_environment),
        ENGINE_TEST(t_engine_squatted_names_do_not_stop_it),
        ENGINE_TEST(t_engine_eof_releases),
        ENGINE_TEST(t_engine_lease_is_undone_when_the_answer_cannot_be_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
