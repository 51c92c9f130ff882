/* Bridge slots, for containers, tried with real traffic. Every case runs twice, with the host's bridges
 * asking the inet hooks (net.bridge.bridge-nf-call-iptables 1) and not: ours ask them in any case. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/netns/bridges_fixture.h"

static void t_agent_reaches_ports_of_its_gateway(void **state)
{
    static const uint16_t ports[] = {8119, 53, 80, 443, 9420, 9100};
    (void)state;
    assert_kernel_is_right();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(ports); i++)
        assert_connects_once(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), ports[i],
                             crew.gateway.namespace_fd, crew.agent.guest);
    assert_datagram(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 53, crew.gateway.namespace_fd,
                    crew.agent.guest);
    assert_connects_once(crew.sibling.namespace_fd, ROOT, gateway_in(&crew.sibling), 8119,
                         crew.gateway.namespace_fd, crew.sibling.guest);
    assert_connects_once(crew.other_agent.namespace_fd, ROOT, gateway_in(&crew.other_agent), 8119,
                         crew.other_gateway.namespace_fd, crew.other_agent.guest);
}

static void t_agent_reaches_nothing_else(void **state)
{
    static const uint16_t udp_ports[] = {443, 80, 8119};
    (void)state;
    int me = crew.agent.namespace_fd;
    uint64_t before = dropped(&crew.agent);
    /* What would be routed is counted and answered, though its bridge does not forward. */
    assert_int_equal(assert_refused(me, ROOT, WORLD, 80, test.world_fd), -EHOSTUNREACH);
    assert_true(dropped(&crew.agent) > before);
    before = dropped(&crew.agent);
    /* Of its gateway: other ports, and UDP but for names. */
    assert_int_equal(assert_refused(me, ROOT, gateway_in(&crew.agent), 22, crew.gateway.namespace_fd),
                     -EHOSTUNREACH);
    assert_refused(me, ROOT, gateway_in(&crew.agent), 7400, crew.gateway.namespace_fd);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(udp_ports); i++) {
        int server = bt_test_serve(crew.gateway.namespace_fd, SOCK_DGRAM, ANY, udp_ports[i]);
        int client = bt_test_dial_udp(me, ROOT, 0, gateway_in(&crew.agent), udp_ports[i]);
        assert_false(bt_test_passes(client, server, "x", NULL, NEVER_MS));
        close(server);
        close(client);
    }
    /* The same container by its other feet. */
    assert_refused(me, ROOT, crew.gateway.guest, 8119, crew.gateway.namespace_fd);
    assert_refused(me, ROOT, gateway_in(&crew.sibling), 8119, crew.gateway.namespace_fd);
    assert_refused(me, ROOT, gateway_in(&crew.orchestrator), 8119, crew.gateway.namespace_fd);
    /* Siblings, the orchestrator, other people's. */
    assert_refused(me, ROOT, crew.sibling.guest, 8119, crew.sibling.namespace_fd);
    assert_refused(me, ROOT, crew.orchestrator.guest, 7400, crew.orchestrator.namespace_fd);
    assert_refused(me, ROOT, crew.other_agent.guest, 22, crew.other_agent.namespace_fd);
    assert_refused(me, ROOT, gateway_in(&crew.other_agent), 8119, crew.other_gateway.namespace_fd);
    assert_true(dropped(&crew.agent) > before);
}

/* Docker alone leaves the host's services open to containers, by the bridge's address and by all others. */
static void t_no_container_reaches_the_host(void **state)
{
    const struct guest *const containers[] = {&crew.agent, &crew.gateway, &crew.orchestrator};
    static const uint16_t ports[] = {53, 8119, 7400};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(containers); i++) {
        const struct guest *one = containers[i];
        for (size_t j = 0; j < BT_ARRAY_LENGTH(ports); j++)
            assert_refused(one->namespace_fd, ROOT, one->host, ports[j], -1);
        assert_refused(one->namespace_fd, ROOT, HOST_UPLINK, 22, -1);
        assert_refused(one->namespace_fd, ROOT, crew.other_agent.host, 22, -1);
        /* Bound to the bridge's address alone, as Docker's DNS and userland proxy may be. */
        int listener = bt_test_serve(-1, SOCK_STREAM, one->host, 2376);
        assert_true(listener >= 0);
        assert_true(bt_test_dial(one->namespace_fd, ROOT, one->host, 2376, NEVER_MS) < 0);
        close(listener);
    }
}

static void t_gateway_answers_and_dials_out(void **state)
{
    (void)state;
    int me = crew.gateway.namespace_fd;
    assert_connects_once(me, ROOT, crew.orchestrator.guest, 7400, crew.orchestrator.namespace_fd,
                         gateway_in(&crew.orchestrator));
    assert_connects_once(me, ROOT, WORLD, 443, test.world_fd, HOST_UPLINK);
    assert_datagram(me, ROOT, WORLD, 53, test.world_fd, HOST_UPLINK);
    assert_refused(me, ROOT, crew.orchestrator.guest, 22, crew.orchestrator.namespace_fd);
    assert_refused(me, ROOT, crew.agent.guest, 22, crew.agent.namespace_fd);
    assert_refused(me, ROOT, crew.agent.guest, 8119, crew.agent.namespace_fd);
    assert_refused(me, ROOT, crew.other_agent.guest, 22, crew.other_agent.namespace_fd);
    assert_refused(me, ROOT, crew.other_gateway.guest, 8119, crew.other_gateway.namespace_fd);
    assert_refused(crew.orchestrator.namespace_fd, ROOT, gateway_in(&crew.orchestrator), 8119, me);
    assert_refused(crew.orchestrator.namespace_fd, ROOT, WORLD, 80, test.world_fd);
    /* The other user's has no orchestrator. */
    assert_refused(crew.other_gateway.namespace_fd, ROOT, crew.orchestrator.guest, 7400,
                   crew.orchestrator.namespace_fd);
}

static void t_uplink_has_limits(void **state)
{
    static const char *const addresses[] = {"169.254.169.254", "10.242.31.2", "10.243.7.255"};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(addresses); i++) {
        uint32_t address;
        assert_int_equal(bt_ipv4_parse(addresses[i], &address), 0);
        assert_int_equal(run(test.world_fd, "ip address add %s/32 dev outside", addresses[i]), 0);
        assert_refused(crew.gateway.namespace_fd, ROOT, address, 80, test.world_fd);
        assert_int_equal(run(test.world_fd, "ip address del %s/32 dev outside", addresses[i]), 0);
    }
}

static void t_users_of_the_host(void **state)
{
    (void)state;
    assert_connects_once(-1, ALICE, crew.agent.guest, 22, crew.agent.namespace_fd, crew.agent.host);
    assert_connects_once(-1, ALICE, crew.orchestrator.guest, 7400, crew.orchestrator.namespace_fd,
                         crew.orchestrator.host);
    assert_connects_once(-1, ROOT, crew.agent.guest, 22, crew.agent.namespace_fd, crew.agent.host);
    assert_refused(-1, BOB, crew.agent.guest, 22, crew.agent.namespace_fd);
    assert_refused(-1, BOB, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd);
    assert_refused(-1, BOB, crew.orchestrator.guest, 7400, crew.orchestrator.namespace_fd);
}

static void t_nobody_comes_in(void **state)
{
    (void)state;
    assert_int_equal(run(test.world_fd, "ip route add 10.242.0.0/19 via 203.0.113.2"), 0);
    assert_refused(test.world_fd, ROOT, crew.agent.guest, 22, crew.agent.namespace_fd);
    assert_refused(test.world_fd, ROOT, crew.gateway.guest, 8119, crew.gateway.namespace_fd);
    assert_int_equal(run(test.world_fd, "ip route del 10.242.0.0/19"), 0);
}

/* Another address or MAC than the network's two members have passes nowhere. */
static void t_forged_sources_are_dropped(void **state)
{
    (void)state;
    int me = crew.agent.namespace_fd;
    uint64_t before = dropped(&crew.agent);
    int server = bt_test_serve(crew.gateway.namespace_fd, SOCK_DGRAM, ANY, 53);
    assert_int_equal(run(me, "ip address add 10.242.0.4/32 dev lo"), 0);
    int client = bt_test_socket(me, ROOT, SOCK_DGRAM);
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(crew.agent.guest + 1)};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(gateway_in(&crew.agent)), .sin_port = htons(53)};
    assert_int_equal(bind(client, (const struct sockaddr *)&from, sizeof(from)), 0);
    (void)sendto(client, "x", 1, 0, (const struct sockaddr *)&to, sizeof(to));
    assert_false(bt_test_is_readable(server, NEVER_MS));
    close(client);
    assert_true(dropped(&crew.agent) > before);
    assert_int_equal(run(me, "for i in $(ip -o link show type veth | cut -d: -f2 | cut -d@ -f1); do "
                             "ip link set $i address 02:42:0a:f2:00:07; done"),
                     0);
    client = bt_test_dial_udp(me, ROOT, 0, gateway_in(&crew.agent), 53);
    assert_false(bt_test_passes(client, server, "x", NULL, NEVER_MS));
    close(client);
    close(server);
}

static void t_seal_takes_the_bridge_down(void **state)
{
    int flow[2];
    (void)state;
    int me = crew.agent.namespace_fd;
    assert_connects(me, ROOT, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd, crew.agent.guest,
                    flow);
    assert_int_equal(bt_kernel_seal(test.kernel, table_without(&crew.agent), &crew.agent.lease), 0);
    crew.agent.lease.is_sealed = true;
    assert_false(handle_events());
    assert_false(is_up(&crew.agent));
    assert_false(bt_test_passes(flow[0], flow[1], "x", NULL, NEVER_MS));
    /* An engine that starts sets its bridges up. */
    assert_int_equal(run(-1, "ip link set berthd0 up"), 0);
    assert_refused(me, ROOT, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd);
    assert_false(handle_events());
    assert_false(is_up(&crew.agent));
    assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
    assert_false(is_up(&crew.agent));
    assert_true(is_up(&crew.sibling));
    close(flow[0]);
    close(flow[1]);
}

static void t_restart_keeps_connections(void **state)
{
    struct guest *const all[] = {&crew.gateway,     &crew.orchestrator,  &crew.agent,
                                 &crew.other_agent, &crew.other_gateway, &crew.sibling};
    int flow[2], world[2];
    (void)state;
    assert_connects(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd,
                    crew.agent.guest, flow);
    assert_connects(crew.gateway.namespace_fd, ROOT, WORLD, 443, test.world_fd, HOST_UPLINK, world);
    /* Written to all interfaces, while no engine is told. */
    assert_int_equal(run(-1, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.ip_forward=0"), 0);
    restart(6, 0);
    assert_echo(flow[0], flow[1]); /* in force until the engine knows better */
    assert_int_equal(bt_kernel_reserve_all(test.kernel, table_without(NULL), 99), 0);
    assert_false(is_up(&crew.agent));
    assert_int_equal(run(-1, "ip link set berthd0 up"), 0);
    assert_false(handle_events());
    assert_false(is_up(&crew.agent));
    for (size_t i = 0; i < BT_ARRAY_LENGTH(all); i++)
        guest_forget(all[i]);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(all); i++)
        adopt(all[i]);
    assert_false(handle_events());
    assert_true(is_up(&crew.agent));
    assert_kernel_is_right();
    assert_echo(flow[0], flow[1]);
    assert_echo(world[0], world[1]);
    for (int i = 0; i < 2; i++) {
        close(flow[i]);
        close(world[i]);
    }
}

/* A container engine that starts makes the bridges of its networks anew, and puts ports in that it still has.
 * What is in such a one says nothing to the host or the world, nor within it where the hooks are asked, and
 * it is gone as soon as the helper has been told. */
static void t_bridge_without_a_lease(void **state)
{
    static struct guest dead; /* outlives a failure */
    (void)state;
    assert_false(handle_events());
    container_lease(&dead, 13, BT_ROLE_AGENT, ALICE);
    int agent_fd = dead.namespace_fd;
    dead.namespace_fd = -1;
    container_end(&dead);
    collect();
    taken_away = 0;
    assert_int_equal(
        run(-1, "ip link add berthd13 type bridge && ip address add 10.242.0.105/29 dev berthd13"), 0);
    assert_false(handle_events());
    assert_int_equal(taken_away, 0);
    assert_int_not_equal(if_nametoindex("berthd13"), 0);
    connect_container(agent_fd, &dead, false);
    assert_int_equal(run(-1, "ip link set berthd13 up"), 0);
    assert_refused(agent_fd, ROOT, dead.host, 22, -1);
    assert_refused(agent_fd, ROOT, WORLD, 443, test.world_fd);
    assert_refused(agent_fd, ROOT, crew.sibling.guest, 22, crew.sibling.namespace_fd);
    assert_false(handle_events());
    assert_true(taken_away > 0);
    assert_int_equal(if_nametoindex("berthd13"), 0);
    assert_kernel_is_right();
    close(agent_fd);
}

/* Somebody's device has the name: the slot is not to be had, nothing of it stays. */
static void t_name_is_taken(void **state)
{
    (void)state;
    struct bt_lease one = {.slot = 12, .generation = ++test.generation, .uid = ALICE, .kind = BT_KIND_BRIDGE};
    int fd = -1;
    assert_int_equal(run(-1, "ip link add berthd12 type bridge"), 0);
    assert_int_equal(bt_kernel_lease(test.kernel, table_without(NULL), &one, &fd), -EEXIST);
    assert_int_equal(run(-1, "ip link del berthd12"), 0);
    assert_int_equal(bt_kernel_lease(test.kernel, table_without(NULL), &one, &fd), 0);
    assert_int_equal(bt_kernel_release(test.kernel, table_without(NULL), &one), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        LOOKS(t_agent_reaches_ports_of_its_gateway),
        LOOKS(t_agent_reaches_nothing_else),
        LOOKS(t_no_container_reaches_the_host),
        LOOKS(t_gateway_answers_and_dials_out),
        LOOKS(t_uplink_has_limits),
        LOOKS(t_users_of_the_host),
        LOOKS(t_nobody_comes_in),
        LOOKS(t_name_is_taken),
        LOOKS(t_bridge_without_a_lease),
        CHANGES(t_forged_sources_are_dropped),
        LOOKS(t_restart_keeps_connections),
        CHANGES(t_seal_takes_the_bridge_down),
    };
    int failed = cmocka_run_group_tests_name("bridges ask the hooks", tests, setup_on, teardown_world);
    failed += cmocka_run_group_tests_name("they do not", tests, setup_off, teardown_world);
    return failed;
}
