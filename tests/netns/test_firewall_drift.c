/* Helpers that end and come back, and a table or devices that somebody else changed. */
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/netns/firewall_fixture.h"

static void t_restart_keeps_connections(void **state)
{
    int flow[2];
    (void)state;
    assert_connects(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd,
                    cast.agent.guest, flow);
    restart(5, 0);
    assert_echo(flow[0], flow[1]); /* the rules in force stay as they are */
    assert_int_equal(bt_kernel_reserve_all(test.kernel, table_without(NULL), 12345), 0);
    assert_false(bt_test_passes(flow[0], flow[1], "paused", NULL, NEVER_MS));
    assert_refused(-1, ALICE, cast.agent.guest, 22, cast.agent.namespace_fd);
    restart(5, 12345); /* it crashes again */
    assert_false(bt_test_passes(flow[1], flow[0], "paused", NULL, NEVER_MS));

    struct guest *adopting[] = {&cast.agent, &cast.gateway, &cast.orchestrator, &cast.other_agent};
    memset(test.guests, 0, sizeof(test.guests));
    for (size_t i = 0; i < BT_ARRAY_LENGTH(adopting); i++)
        adopt(adopting[i]);
    /* Nobody took Bob's gateway back. */
    assert_int_equal(bt_kernel_release(test.kernel, table_without(NULL), &cast.other_gateway.lease), 0);
    guest_end(&cast.other_gateway);
    assert_kernel_is_right();
    /* TCP sends again what was lost; both directions come through. */
    char text[64] = {0};
    assert_true(bt_test_is_readable(flow[1], 3000));
    assert_int_equal(recv(flow[1], text, sizeof(text), 0), 6);
    assert_true(bt_test_is_readable(flow[0], 3000));
    assert_int_equal(recv(flow[0], text, sizeof(text), 0), 6);
    assert_echo(flow[0], flow[1]);
    close(flow[0]);
    close(flow[1]);
}

/* The admin changed the configuration, and made the pool smaller, while the helper was down. */
static void t_restart_with_another_configuration(void **state)
{
    static struct bt_lease found[BT_POOL_SLOTS_MAX];
    struct bt_kernel_config usual = test.config;
    static struct guest outside; /* outlives a failure */
    int flow[2];
    size_t count;
    uint64_t deadline_ms;
    uint32_t generation;
    (void)state;
    guest_lease(&outside, 900, BT_ROLE_AGENT, ALICE, 0);
    assert_connects(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd,
                    cast.agent.guest, flow);
    test.config.pool.slots = 800;
    test.config.agent_flows = 100;
    test.config.deny_private_uplink = true;
    bt_kernel_close(test.kernel);
    assert_int_equal(bt_kernel_open(&test.config, &test.kernel), 0);
    assert_int_equal(bt_kernel_provision(test.kernel, found, &count, &deadline_ms, &generation), 0);
    test.generation = generation;
    assert_int_equal(count, 5);
    assert_echo(flow[0], flow[1]);
    assert_refused(outside.namespace_fd, ROOT, outside.host, 8119, cast.gateway.namespace_fd);
    guest_forget(&outside);
    guest_end(&outside);
    assert_int_equal(bt_kernel_reserve_all(test.kernel, table_without(NULL), 5), 0);
    struct guest *adopting[] = {&cast.agent, &cast.gateway, &cast.orchestrator, &cast.other_agent,
                                &cast.other_gateway};
    memset(test.guests, 0, sizeof(test.guests));
    assert_kernel_is_right();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(adopting); i++)
        adopt(adopting[i]);
    assert_kernel_is_right();
    assert_echo(flow[0], flow[1]);
    close(flow[0]);
    close(flow[1]);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(adopting); i++)
        guest_stop(adopting[i]);
    collect();
    bt_kernel_close(test.kernel);
    test.config = usual;
    open_kernel(); /* no lease: the usual rules at once */
    assert_kernel_is_right();
}

/* What a lessee can do to its device. */
static void t_adoption_refuses_changed_devices(void **state)
{
    static struct guest changed, gone; /* outlives a failure */
    struct ifreq request = {.ifr_hwaddr.sa_family = ARPHRD_ETHER};
    (void)state;
    guest_lease(&changed, 20, BT_ROLE_AGENT, ALICE, 0);
    guest_lease(&gone, 21, BT_ROLE_AGENT, ALICE, 0);
    memcpy(request.ifr_hwaddr.sa_data, "\x02\x00\x00\x00\x00\x07", 6);
    assert_int_equal(ioctl(changed.tap_fd, SIOCSIFHWADDR, &request), 0);
    assert_int_equal(bt_kernel_reserve_all(test.kernel, table_without(NULL), 1), 0);
    guest_end(&gone);
    memset(test.guests, 0, sizeof(test.guests));
    assert_int_equal(bt_kernel_adopt(test.kernel, table_without(NULL), &gone.lease), -ENODEV);
    assert_int_equal(bt_kernel_adopt(test.kernel, table_without(NULL), &changed.lease), -EPERM);
    struct bt_lease stale = cast.agent.lease;
    stale.generation++;
    assert_int_equal(bt_kernel_adopt(test.kernel, table_without(NULL), &stale), -ESTALE);
    assert_int_equal(bt_kernel_release(test.kernel, table_without(NULL), &gone.lease), 0);
    assert_int_equal(bt_kernel_release(test.kernel, table_without(NULL), &changed.lease), 0);
    guest_end(&changed);
    struct guest *adopting[] = {&cast.agent, &cast.gateway, &cast.orchestrator, &cast.other_agent,
                                &cast.other_gateway};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(adopting); i++)
        adopt(adopting[i]);
    collect();
    assert_kernel_is_right();
}

static bool is_drift_seen(void)
{
    bool is_drift = false;
    assert_int_equal(bt_kernel_handle_events(test.kernel, &is_drift), 0);
    return is_drift;
}

/* One rule, found by what it says, as somebody might edit it. */
#define REPLACE(chain, text, rule)                                                                           \
    "nft replace rule inet berth " chain " handle $(nft -a list chain inet berth " chain                     \
    " | sed -n 's/.*" text ".*handle //p') '" rule "'"

static void t_drift_is_seen_and_repaired(void **state)
{
    static const char *const damages[] = {
        "nft flush ruleset",
        "nft delete element inet berth refused { berth0 } || nft flush set inet berth live",
        "nft insert rule inet berth forward accept",
        "nft add element inet berth uplinks '{ berth0 . 1 }'",
        "nft flush chain inet berth input_from_guest",
        "nft add chain inet berth more",
        "nft add table inet berth '{ flags dormant; }'",
        "nft 'add chain inet berth input { policy drop; }'",
        REPLACE("agent_flow", "ct count",
                "add @agent_flows { ct mark ct count 513 } goto accepted_from_guest"),
        REPLACE("output_to_guest", "skuid 0", "meta skuid 1002 goto mark_outgoing"),
        REPLACE("postrouting_nat", "masquerade",
                "iif . ct mark @uplinks oifname != "
                "\"berth*\" masquerade random"),
        REPLACE("forward_to_guest", "uplinks", "oif . ct mark @uplinks accept"),
    };
    int flow[2];
    (void)state;
    assert_connects(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd,
                    cast.agent.guest, flow);
    assert_false(is_drift_seen()); /* our own work is none */
    for (size_t i = 0; i < BT_ARRAY_LENGTH(damages); i++) {
        const char *const damage[] = {"sh", "-c", damages[i], NULL};
        assert_int_equal(bt_test_run(-1, damage), 0);
        assert_true(is_drift_seen());
        assert_int_equal(bt_kernel_verify(test.kernel, table_without(NULL)), -EUCLEAN);
        assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
        assert_kernel_is_right();
        assert_echo(flow[0], flow[1]);
        assert_refused(cast.agent.namespace_fd, ROOT, WORLD, 80, test.world_fd);
        assert_refused(cast.agent.namespace_fd, ROOT, cast.agent.host, 22, -1);
    }
    assert_false(is_drift_seen());
    /* More events than the queue holds: of others first, then hiding one of ours. */
    int events[BT_KERNEL_EVENT_FDS], small = 1;
    bt_kernel_event_fds(test.kernel, events);
    assert_int_equal(setsockopt(events[0], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    static const char *const large[] = {
        "sh", "-c",
        "nft add table ip other && nft add set ip other s '{ type ipv4_addr; flags interval; }' && "
        "for i in 1 2 3 4 5 6 7 8 9; do for j in $(seq 200); do echo add element ip other s { 10.$i.$j.0/24 "
        "}; done; "
        "done | nft -f - && nft delete table ip other",
        NULL};
    static const char *const hidden[] = {"nft", "flush", "set", "inet", "berth", "live", NULL};
    assert_int_equal(bt_test_run(-1, large), 0);
    assert_false(is_drift_seen());
    assert_int_equal(bt_test_run(-1, large), 0);
    assert_int_equal(bt_test_run(-1, hidden), 0);
    assert_true(is_drift_seen());
    assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
    /* Somebody else's table is nobody's business. */
    static const char *const foreign[] = {"sh", "-c", "nft add table ip other && nft delete table ip other",
                                          NULL};
    assert_int_equal(bt_test_run(-1, foreign), 0);
    assert_false(is_drift_seen());
    close(flow[0]);
    close(flow[1]);
}

/* Under another name the rules for berth* would not see the device. */
static void t_renamed_devices_are_drift(void **state)
{
    static const char *const rename[] = {
        "sh", "-c", "ip link set berth0 down && ip link set berth0 name other0 && ip link set other0 up",
        NULL};
    static const char *const take[] = {
        "sh", "-c",
        "ip link set berth0 down && ip link set berth0 name other0 && "
        "ip link add berth0 type veth peer name peer0 && ip link set other0 up",
        NULL};
    static const char *const is_down[] = {"sh", "-c", "test -z \"$(ip -o link show other0 up)\"", NULL};
    static const char *const give_back[] = {"ip", "link", "del", "berth0", NULL};
    int flow[2];
    (void)state;
    assert_connects(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd,
                    cast.agent.guest, flow);
    (void)is_drift_seen();
    assert_int_equal(bt_test_run(-1, rename), 0);
    assert_true(is_drift_seen());
    assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
    assert_int_not_equal(if_nametoindex("berth0"), 0);
    assert_echo(flow[0], flow[1]);
    /* The name is taken: the device stays down until it is free. */
    (void)is_drift_seen();
    assert_int_equal(bt_test_run(-1, take), 0);
    assert_true(is_drift_seen());
    assert_true(bt_kernel_repair(test.kernel, table_without(NULL)) < 0);
    assert_int_equal(bt_test_run(-1, is_down), 0);
    assert_int_equal(bt_test_run(-1, give_back), 0);
    assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
    assert_echo(flow[0], flow[1]);
    close(flow[0]);
    close(flow[1]);
}

/* A helper that was killed, and a table that lost its records meanwhile: nobody has rights, devices are taken
 * away. */
static void t_restart_without_records(void **state)
{
    static struct bt_lease found[BT_POOL_SLOTS_MAX];
    static const char *const damage[] = {"nft", "delete", "set", "inet", "berth", "leases", NULL};
    size_t count;
    uint64_t deadline_ms;
    uint32_t generation;
    (void)state;
    assert_int_equal(bt_test_run(-1, damage), 0);
    bt_kernel_close(test.kernel);
    assert_int_equal(bt_kernel_open(&test.config, &test.kernel), 0);
    assert_int_equal(bt_kernel_provision(test.kernel, found, &count, &deadline_ms, &generation), 0);
    assert_int_equal(count, 0);
    assert_true(generation >= test.generation);
    test.generation = generation;
    assert_refused(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd);
    assert_int_equal(if_nametoindex("berth0"), 0);
    for (size_t i = 0; i < BT_TEST_GUESTS_MAX; i++) {
        if (test.guests[i])
            guest_end(test.guests[i]);
        test.guests[i] = NULL;
    }
    assert_kernel_is_right();
}

/* A release whose elements were tampered with still takes everything out. */
static void t_release_copes_with_drift(void **state)
{
    static struct guest agent; /* outlives a failure */
    (void)state;
    guest_lease(&agent, 22, BT_ROLE_AGENT, ALICE, 0);
    static const char *const damage[] = {"sh", "-c", "nft flush set inet berth sources", NULL};
    assert_int_equal(bt_test_run(-1, damage), 0);
    guest_stop(&agent);
    assert_kernel_is_right();
    guest_lease(&agent, 23, BT_ROLE_AGENT, ALICE, 0);
    static const char *const worse[] = {"sh", "-c", "nft delete table inet berth", NULL};
    assert_int_equal(bt_test_run(-1, worse), 0);
    guest_stop(&agent);
    assert_kernel_is_right();
    (void)is_drift_seen();
}

static void t_foreign_table_is_left_alone(void **state)
{
    static struct bt_lease found[BT_POOL_SLOTS_MAX];
    static const char *const make[] = {"sh", "-c",
                                       "nft add table inet berth && nft add chain inet berth theirs", NULL};
    static const char *const kept[] = {"sh", "-c", "nft list chain inet berth theirs", NULL};
    static const char *const gone[] = {"sh", "-c", "nft delete table inet berth", NULL};
    size_t count;
    uint64_t deadline_ms;
    (void)state;
    bt_kernel_close(test.kernel);
    assert_int_equal(bt_test_run(-1, gone), 0);
    assert_int_equal(bt_test_run(-1, make), 0);
    assert_int_equal(bt_kernel_open(&test.config, &test.kernel), 0);
    assert_int_equal(bt_kernel_provision(test.kernel, found, &count, &deadline_ms, &test.generation),
                     -EEXIST);
    assert_int_equal(bt_test_run(-1, kept), 0);
    assert_int_equal(bt_test_run(-1, gone), 0);
    bt_kernel_close(test.kernel);
    /* With a new table generations go by the clock: those of the lost one do not come again. */
    uint64_t uptime_s = bt_boottime_ms() / 1000;
    open_kernel();
    assert_true(test.generation > 62 * uptime_s);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        WITH_CAST(t_restart_keeps_connections),
        WITH_CAST(t_restart_with_another_configuration),
        WITH_CAST(t_adoption_refuses_changed_devices),
        WITH_CAST(t_drift_is_seen_and_repaired),
        WITH_CAST(t_renamed_devices_are_drift),
        WITH_CAST(t_restart_without_records),
        WITH_CAST(t_release_copes_with_drift),
        cmocka_unit_test_teardown(t_foreign_table_is_left_alone, drop_curtain),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
