/* Bridge slots that come, go, and are changed by somebody else; and what holds without the inet hooks. */
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include "helper/kernel_linux.h"
#include "tests/netns/bridges_fixture.h"

static void t_no_ipv6(void **state)
{
    (void)state;
    int me = crew.agent.namespace_fd;
    assert_int_equal(run(-1, "ip -6 address add fd00::1/64 dev berthd0 nodad"), 0);
    assert_int_equal(run(me, "ip -6 address add fd00::3/64 dev $(ip -o link show type veth | cut -d: -f2 | "
                             "cut -d@ -f1) nodad"),
                     0);
    assert_int_equal(run(crew.gateway.namespace_fd,
                         "for i in $(ip -o -4 address show | grep 10.242.0.2/ | awk '{print $2}'); do "
                         "ip -6 address add fd00::2/64 dev $i nodad; done"),
                     0);
    uint64_t before = dropped(&crew.agent);
    /* The kernel makes an address usable a while after it was given; until then nothing is sent at all. */
    for (int i = 0; i < 10 && (i == 0 || dropped(&crew.agent) == before); i++) {
        assert_int_not_equal(run(me, "ping -c1 -W1 -w2 fd00::1 || ! sleep 0.2"), 0);
        assert_int_not_equal(run(me, "ping -c1 -W1 -w2 fd00::2 || ! sleep 0.2"), 0);
    }
    assert_true(dropped(&crew.agent) > before);
    assert_int_equal(run(-1, "ip -6 address del fd00::1/64 dev berthd0"), 0);
}

/* A kernel whose bridges cannot ask the inet hooks (br_netfilter is not loaded): what stays within one bridge
 * passes unseen, everything else is closed all the same. */
static void t_without_the_hooks_the_host_is_closed(void **state)
{
    (void)state;
    int me = crew.agent.namespace_fd;
    assert_int_equal(run(-1, "ip link set berthd0 type bridge nf_call_iptables 0 nf_call_ip6tables 0"), 0);
    assert_int_equal(run(-1, "sysctl -qw net.bridge.bridge-nf-call-iptables=0"), 0);
    assert_connects_once(me, ROOT, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd,
                         crew.agent.guest);
    assert_refused(me, ROOT, crew.agent.host, 22, -1);
    assert_refused(me, ROOT, HOST_UPLINK, 22, -1);
    assert_refused(me, ROOT, crew.sibling.guest, 22, crew.sibling.namespace_fd);
    assert_refused(me, ROOT, crew.orchestrator.guest, 7400, crew.orchestrator.namespace_fd);
    assert_refused(me, ROOT, WORLD, 80, test.world_fd);
    assert_int_equal(bt_kernel_seal(test.kernel, table_without(&crew.agent), &crew.agent.lease), 0);
    crew.agent.lease.is_sealed = true;
    assert_refused(me, ROOT, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd);
}

static void t_slot_reuse_inherits_nothing(void **state)
{
    int flow[2], old_namespace_fd;
    (void)state;
    assert_connects(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd,
                    crew.agent.guest, flow);
    int index = (int)if_nametoindex("berthd0");
    old_namespace_fd = crew.agent.namespace_fd;
    crew.agent.namespace_fd = -1;
    container_end(&crew.agent); /* with both containers still connected */
    assert_false(bt_test_passes(flow[0], flow[1], "x", NULL, NEVER_MS));
    assert_int_equal(run(-1, "ip link set berthd0 up"), 0);
    assert_false(handle_events());
    assert_false(is_up(&crew.agent));
    collect();
    assert_int_equal(if_nametoindex("berthd0"), 0);
    assert_int_equal(run(-1, "! ip -o link show up nomaster type veth | grep -q port"), 0);
    container_lease(&crew.agent, 0, BT_ROLE_AGENT, BOB);
    connect_container(crew.other_gateway.namespace_fd, &crew.agent, true);
    assert_int_not_equal(if_nametoindex("berthd0"), index);
    assert_connects_once(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119,
                         crew.other_gateway.namespace_fd, crew.agent.guest);
    assert_refused(-1, ALICE, crew.agent.guest, 22, crew.agent.namespace_fd);
    assert_false(bt_test_passes(flow[0], flow[1], "x", NULL, NEVER_MS));
    close(flow[0]);
    close(flow[1]);
    close(old_namespace_fd);
}

static void t_agent_waits_for_its_gateway(void **state)
{
    (void)state;
    int gateway_namespace_fd = crew.gateway.namespace_fd;
    crew.gateway.namespace_fd = -1;
    container_end(&crew.gateway);
    assert_kernel_is_right();
    assert_refused(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119, gateway_namespace_fd);
    assert_refused(gateway_namespace_fd, ROOT, crew.orchestrator.guest, 7400, crew.orchestrator.namespace_fd);
    /* One of virtual machines is not this one. */
    static struct guest machine; /* outlives a failure */
    guest_lease(&machine, 8, BT_ROLE_GATEWAY, ALICE, 0);
    assert_refused(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119, gateway_namespace_fd);
    guest_stop(&machine);
    network_lease(&crew.gateway, 9, BT_ROLE_GATEWAY, ALICE);
    crew.gateway.namespace_fd = gateway_namespace_fd;
    connect_container(gateway_namespace_fd, &crew.gateway, true);
    assert_connects_once(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119, gateway_namespace_fd,
                         crew.agent.guest);
    assert_kernel_is_right();
}

static void t_adoption_refuses_changed_bridges(void **state)
{
    static const char *const damages[] = {"ip address add 10.0.0.1/24 dev berthd0",
                                          "ip address del 10.242.0.1/29 dev berthd0",
                                          "ip link set berthd0 address 02:00:00:00:00:09",
                                          "ip link set berthd0 type bridge nf_call_iptables 0",
                                          "ip link set berthd0 type bridge nf_call_ip6tables 0",
                                          "ip link del berthd0"};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(damages); i++) {
        static struct guest one; /* outlives a failure */
        for (size_t j = 0; j < BT_TEST_GUESTS_MAX; j++) {
            if (test.guests[j])
                container_end(test.guests[j]);
        }
        collect();
        container_lease(&one, 0, BT_ROLE_AGENT, ALICE);
        assert_int_equal(run(-1, "%s", damages[i]), 0);
        restart(1, 0);
        assert_int_equal(bt_kernel_reserve_all(test.kernel, table_without(NULL), 99), 0);
        guest_forget(&one);
        int error = bt_kernel_adopt(test.kernel, table_without(NULL), &one.lease);
        assert_true(error == -EPERM || error == -ENODEV);
        container_end(&one);
    }
}

/* Everything that happens to links from now on. */
static int watch_links(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Has that interface been down since? Takes what was told, to the end. */
static bool was_down(int fd, int ifindex)
{
    static union {
        struct nlmsghdr header;
        uint8_t bytes[65536];
    } buffer;
    bool was_down = false;
    ssize_t got;
    while ((got = recv(fd, &buffer, sizeof(buffer), 0)) > 0) {
        const struct nlmsghdr *message = &buffer.header;
        for (int left = (int)got; mnl_nlmsg_ok(message, left); message = mnl_nlmsg_next(message, &left)) {
            const struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
            was_down |= message->nlmsg_type == RTM_NEWLINK && link->ifi_family == AF_UNSPEC &&
                        link->ifi_index == ifindex && (link->ifi_flags & IFF_UP) == 0;
        }
    }
    assert_int_equal(errno, EAGAIN); /* and not ENOBUFS */
    return was_down;
}

/* It is up again when the repair returns. */
static void assert_repair_takes_it_down(const struct guest *guest, const char *name)
{
    int ifindex = (int)if_nametoindex(name), watch_fd = watch_links();
    assert_true(ifindex > 0);
    assert_true(handle_events());
    assert_false(was_down(watch_fd, ifindex));
    assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
    assert_true(was_down(watch_fd, ifindex));
    assert_true(is_up(guest));
    close(watch_fd);
}

/* Without a table, until the helper is told of it: also on a host that forwards, as with Docker. What an
 * agent reaches then is the host's own addresses. */
static void assert_nothing_is_routed(void)
{
    int me = crew.agent.namespace_fd;
    assert_int_equal(run(-1, "sysctl -qn net.ipv4.conf.uplink.forwarding | grep -qx 1"), 0);
    assert_refused(me, ROOT, WORLD, 80, test.world_fd);
    assert_refused(me, ROOT, crew.sibling.guest, 22, crew.sibling.namespace_fd);
    assert_refused(me, ROOT, crew.other_gateway.guest, 8119, crew.other_gateway.namespace_fd);
    assert_refused(crew.orchestrator.namespace_fd, ROOT, WORLD, 80, test.world_fd);
    assert_datagram(me, ROOT, crew.agent.host, 53, -1, crew.agent.guest);
}

static void t_drift_takes_bridges_down(void **state)
{
    (void)state;
    assert_int_equal(run(-1, "sysctl -qw net.ipv4.ip_forward=1"), 0);
    assert_false(handle_events());
    assert_int_equal(run(-1, "nft delete table inet berth"), 0);
    assert_nothing_is_routed();
    assert_repair_takes_it_down(&crew.agent, "berthd0");
    assert_connects_once(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119,
                         crew.gateway.namespace_fd, crew.agent.guest);
    assert_refused(crew.agent.namespace_fd, ROOT, crew.agent.host, 22, -1);
    /* The name is what the rules for whole devices go by. */
    assert_int_equal(
        run(-1, "ip link set berthd0 down && ip link set berthd0 name mine && ip link set mine up"), 0);
    assert_repair_takes_it_down(&crew.agent, "mine");
}

/* Only bridges that have the name of a slot's are anybody's but their owner's. */
static void t_other_bridges_are_their_owners(void **state)
{
    static const char *const others[] = {"berthd", "berthdx1", "berthd1x", "berth14", "berthe14"};
    (void)state;
    assert_false(handle_events());
    taken_away = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(others); i++)
        assert_int_equal(run(-1, "ip link add %s type bridge && ip link set %s up", others[i], others[i]), 0);
    assert_int_equal(run(-1, "ip link add berthd14 type veth peer name other14 && ip link set berthd14 up"),
                     0);
    assert_false(handle_events());
    assert_int_equal(taken_away, 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(others); i++)
        assert_int_equal(run(-1, "ip link del %s", others[i]), 0);
    assert_int_equal(run(-1, "ip link del berthd14"), 0);
}

/* A bridge that is deleted lets go of its ports as they are: they are set down before. */
static void make_stranger(void)
{
    assert_int_equal(run(-1, "ip link add lone type veth peer name other && ip link set other up && "
                             "ip link add berthd13 type bridge && ip link set lone master berthd13 up && "
                             "ip link set berthd13 up"),
                     0);
}

static void assert_taken_away(void)
{
    assert_int_equal(if_nametoindex("berthd13"), 0);
    assert_int_equal(run(-1, "! ip -o link show up | grep -q ' lone@' && ip link del lone"), 0);
}

/* While the helper does not run, or does not listen: its start, the end of a flood of events and a repair
 * look for such. */
static void t_bridges_without_a_lease_are_looked_for(void **state)
{
    struct guest *const all[] = {&crew.gateway,     &crew.orchestrator,  &crew.agent,
                                 &crew.other_agent, &crew.other_gateway, &crew.sibling};
    (void)state;
    assert_false(handle_events());
    make_stranger();
    assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
    assert_taken_away();
    make_stranger();
    restart(6, 0);
    assert_taken_away();
    make_stranger(); /* left dead, by a helper that ended before it deleted */
    assert_int_equal(run(-1, "ip link set berthd13 down && ip link set berthd13 group %u", BT_GROUP_DEAD), 0);
    restart(6, 0);
    assert_taken_away();
    assert_int_equal(bt_kernel_reserve_all(test.kernel, table_without(NULL), 99), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(all); i++)
        guest_forget(all[i]);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(all); i++)
        adopt(all[i]);
    taken_away = 0;
    assert_int_equal(run(-1, "(echo link add flood type bridge; for i in $(seq 3000); do "
                             "echo link set flood up; echo link set flood down; done; echo link del flood) | "
                             "ip -batch -"),
                     0);
    make_stranger();
    assert_false(handle_events());
    assert_true(taken_away > 0);
    assert_taken_away();
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        LOOKS(t_no_ipv6),
        LOOKS(t_other_bridges_are_their_owners),
        LOOKS(t_bridges_without_a_lease_are_looked_for),
        LOOKS(t_drift_takes_bridges_down),
        LOOKS(t_agent_waits_for_its_gateway),
        CHANGES(t_slot_reuse_inherits_nothing),
        CHANGES(t_without_the_hooks_the_host_is_closed),
        CHANGES(t_adoption_refuses_changed_bridges),
    };
    return cmocka_run_group_tests_name("leases come and go", tests, setup_off, teardown_world);
}
