/* Who reaches whom through the table, tried with real traffic: what the receiver got is what counts. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/netns/firewall_fixture.h"

static void t_agent_reaches_gateway_ports(void **state)
{
    static const uint16_t ports[] = {8119, 53, 80, 443, 9420, 9100};
    (void)state;
    assert_kernel_is_right();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(ports); i++)
        assert_connects_once(cast.agent.namespace_fd, ROOT, cast.agent.host, ports[i],
                             cast.gateway.namespace_fd, cast.agent.guest);
    assert_datagram(cast.agent.namespace_fd, ROOT, cast.agent.host, 53, cast.gateway.namespace_fd,
                    cast.agent.guest);
    /* Each user's own. */
    assert_connects_once(cast.other_agent.namespace_fd, ROOT, cast.other_agent.host, 8119,
                         cast.other_gateway.namespace_fd, cast.other_agent.guest);
}

static void t_agent_reaches_nothing_else(void **state)
{
    (void)state;
    int me = cast.agent.namespace_fd;
    uint64_t before = dropped(&cast.agent);
    /* At once, by ICMP: not after a timeout. */
    assert_int_equal(assert_refused(me, ROOT, WORLD, 80, test.world_fd), -EHOSTUNREACH);
    /* The host, by all its names; ports that are forwarded and ports that are not. */
    assert_refused(me, ROOT, cast.agent.host, 22, -1);
    assert_refused(me, ROOT, cast.agent.host, 22, cast.gateway.namespace_fd);
    assert_refused(me, ROOT, cast.agent.host, 7400, cast.orchestrator.namespace_fd);
    assert_refused(me, ROOT, HOST_UPLINK, 22, -1);
    assert_refused(me, ROOT, HOST_UPLINK, 8119, -1);
    assert_refused(me, ROOT, cast.gateway.host, 8119, -1);
    /* Its gateway by its own address, and by other people's host addresses. */
    assert_refused(me, ROOT, cast.gateway.guest, 8119, cast.gateway.namespace_fd);
    assert_refused(me, ROOT, cast.gateway.host, 8119, cast.gateway.namespace_fd);
    assert_refused(me, ROOT, cast.other_agent.host, 8119, cast.other_gateway.namespace_fd);
    assert_refused(me, ROOT, cast.orchestrator.guest, 7400, cast.orchestrator.namespace_fd);
    assert_refused(me, ROOT, cast.other_agent.guest, 22, cast.other_agent.namespace_fd);
    assert_refused(me, ROOT, cast.other_gateway.guest, 8119, cast.other_gateway.namespace_fd);
    assert_true(dropped(&cast.agent) > before);
}

static void t_agent_udp_only_for_names(void **state)
{
    static const uint16_t ports[] = {443, 80, 8119, 9420};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(ports); i++) {
        int server = bt_test_serve(cast.gateway.namespace_fd, SOCK_DGRAM, ANY, ports[i]);
        int host = bt_test_serve(-1, SOCK_DGRAM, ANY, ports[i]);
        int client = bt_test_dial_udp(cast.agent.namespace_fd, ROOT, 0, cast.agent.host, ports[i]);
        assert_true(server >= 0 && host >= 0 && client >= 0);
        assert_false(bt_test_passes(client, server, "x", NULL, NEVER_MS));
        assert_false(bt_test_is_readable(host, 0));
        close(server);
        close(host);
        close(client);
    }
}

static void t_gateway_reaches_orchestrator_and_world(void **state)
{
    (void)state;
    int me = cast.gateway.namespace_fd;
    assert_connects_once(me, ROOT, cast.gateway.host, 7400, cast.orchestrator.namespace_fd,
                         cast.gateway.guest);
    assert_connects_once(me, ROOT, WORLD, 443, test.world_fd, HOST_UPLINK);
    assert_datagram(me, ROOT, WORLD, 53, test.world_fd, HOST_UPLINK);
    /* Nothing else. */
    assert_refused(me, ROOT, cast.gateway.host, 8119, -1);
    assert_refused(me, ROOT, cast.gateway.host, 22, -1);
    assert_refused(me, ROOT, cast.gateway.host, 80, cast.orchestrator.namespace_fd);
    assert_refused(me, ROOT, cast.orchestrator.guest, 7400, cast.orchestrator.namespace_fd);
    assert_refused(me, ROOT, HOST_UPLINK, 22, -1);
    assert_refused(me, ROOT, cast.agent.guest, 22, cast.agent.namespace_fd);
    assert_refused(me, ROOT, cast.other_gateway.guest, 8119, cast.other_gateway.namespace_fd);
    /* The other user's has no orchestrator. */
    assert_refused(cast.other_gateway.namespace_fd, ROOT, cast.other_gateway.host, 7400,
                   cast.orchestrator.namespace_fd);
}

/* Addresses that a gateway must not dial, though the world answers on them. */
static void t_gateway_uplink_has_limits(void **state)
{
    (void)state;
    static const uint32_t addresses[] = {0xa9fea9fe /* metadata */, 0x0af21f02 /* a bridge slot */,
                                         0x0af307ff /* the pool's last address, not leased */};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(addresses); i++) {
        char text[BT_IPV4_TEXT_SIZE + 4], route[BT_IPV4_TEXT_SIZE];
        bt_ipv4_format(addresses[i], route);
        snprintf(text, sizeof(text), "%s/32", route);
        const char *const own[] = {"ip", "address", "add", text, "dev", "outside", NULL};
        assert_int_equal(bt_test_run(test.world_fd, own), 0);
        assert_refused(cast.gateway.namespace_fd, ROOT, addresses[i], 80, test.world_fd);
        const char *const gone[] = {"ip", "address", "del", text, "dev", "outside", NULL};
        assert_int_equal(bt_test_run(test.world_fd, gone), 0);
    }
}

/* A port of the host that a container engine forwards to one of its containers. */
static void t_published_ports_are_not_reached(void **state)
{
    static const char *const publish[] = {
        "sh", "-c",
        "nft add table ip engine && "
        "nft 'add chain ip engine published { type nat hook prerouting priority -100; }' && "
        "nft add rule ip engine published tcp dport '{ 8080, 8119 }' dnat to 203.0.113.1",
        NULL};
    static const char *const gone[] = {"nft", "delete", "table", "ip", "engine", NULL};
    (void)state;
    assert_int_equal(bt_test_run(-1, publish), 0);
    assert_refused(cast.gateway.namespace_fd, ROOT, HOST_UPLINK, 8080, test.world_fd);
    assert_refused(cast.agent.namespace_fd, ROOT, HOST_UPLINK, 8080, test.world_fd);
    assert_refused(cast.agent.namespace_fd, ROOT, cast.agent.host, 8080, test.world_fd);
    /* Nor does it take the agent's own gateway away. */
    assert_connects_once(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd,
                         cast.agent.guest);
    assert_int_equal(bt_test_run(-1, gone), 0);
}

static void t_orchestrator_reaches_nothing(void **state)
{
    (void)state;
    int me = cast.orchestrator.namespace_fd;
    assert_refused(me, ROOT, WORLD, 80, test.world_fd);
    assert_refused(me, ROOT, cast.orchestrator.host, 22, -1);
    assert_refused(me, ROOT, cast.orchestrator.host, 8119, -1);
    assert_refused(me, ROOT, cast.gateway.guest, 8119, cast.gateway.namespace_fd);
    assert_refused(me, ROOT, cast.agent.guest, 22, cast.agent.namespace_fd);
    assert_refused(me, ROOT, HOST_UPLINK, 22, -1);
}

static void t_world_reaches_no_guest(void **state)
{
    (void)state;
    const char *const route[] = {"ip", "route", "add", "10.243.0.0/16", "via", "203.0.113.2", NULL};
    const char *const gone[] = {"ip", "route", "del", "10.243.0.0/16", NULL};
    assert_int_equal(bt_test_run(test.world_fd, route), 0);
    assert_refused(test.world_fd, ROOT, cast.agent.guest, 22, cast.agent.namespace_fd);
    assert_refused(test.world_fd, ROOT, cast.gateway.guest, 8119, cast.gateway.namespace_fd);
    assert_refused(test.world_fd, ROOT, cast.orchestrator.guest, 7400, cast.orchestrator.namespace_fd);
    assert_int_equal(bt_test_run(test.world_fd, gone), 0);
}

static void set_ip_forward(const char *value)
{
    bool is_drift;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_forward", "w");
    assert_non_null(file);
    assert_true(fputs(value, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(bt_kernel_handle_events(test.kernel, &is_drift), 0);
    assert_false(is_drift);
    assert_kernel_is_right();
}

static int make_lan(void)
{
    static const char *const make[] = {"ip",   "link", "add",  "lan",      "type",
                                       "veth", "peer", "name", "lan_peer", NULL};
    char path[64];
    int lan_ns = bt_test_namespace_create();
    assert_true(lan_ns >= 0);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), lan_ns);
    const char *const move[] = {"ip", "link", "set", "lan_peer", "netns", path, NULL};
    assert_int_equal(bt_test_run(-1, make), 0);
    assert_int_equal(bt_test_run(-1, move), 0);
    assert_int_equal(bt_test_interface_address(-1, "lan", 0xc6336401, 24), 0);
    assert_int_equal(bt_test_interface_up(-1, "lan"), 0);
    assert_int_equal(bt_test_interface_address(lan_ns, "lan_peer", 0xc6336402, 24), 0);
    assert_int_equal(bt_test_interface_up(lan_ns, "lan_peer"), 0);
    assert_int_equal(bt_test_route_default(lan_ns, 0xc6336401), 0);
    return lan_ns;
}

/* The uplink forwards only since we asked it to: not for anybody else, until the admin wants it. */
static void t_host_is_no_router_for_others(void **state)
{
    (void)state;
    static const char *const route[] = {"ip", "route", "add", "198.51.100.0/24", "via", "203.0.113.2", NULL};
    static const char *const gone[] = {"ip", "route", "del", "198.51.100.0/24", NULL};
    static const char *const remove[] = {"ip", "link", "del", "lan", NULL};
    int lan_ns = make_lan();
    assert_int_equal(bt_test_run(test.world_fd, route), 0);
    assert_refused(test.world_fd, ROOT, 0xc6336402, 80, lan_ns);
    set_ip_forward("1");
    assert_connects_once(test.world_fd, ROOT, 0xc6336402, 80, lan_ns, WORLD);
    assert_refused(test.world_fd, ROOT, cast.agent.guest, 22, cast.agent.namespace_fd);
    /* Off again: that is written to our interfaces too, which go on forwarding. */
    set_ip_forward("0");
    assert_refused(test.world_fd, ROOT, 0xc6336402, 80, lan_ns);
    assert_connects_once(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd,
                         cast.agent.guest);
    assert_connects_once(cast.gateway.namespace_fd, ROOT, WORLD, 443, test.world_fd, HOST_UPLINK);
    assert_int_equal(bt_test_run(test.world_fd, gone), 0);
    assert_int_equal(bt_test_run(-1, remove), 0);
    close(lan_ns);
}

/* The default route moves to another interface: so does the way out. */
static void t_way_out_follows_the_default_route(void **state)
{
    bool is_drift;
    (void)state;
    static const char *const away[] = {"ip", "route", "replace", "default", "via", "198.51.100.2", NULL};
    static const char *const back[] = {"ip", "route", "replace", "default", "via", "203.0.113.1", NULL};
    static const char *const elsewhere[] = {"ip", "address", "add", "192.0.2.9/32", "dev", "lo", NULL};
    static const char *const remove[] = {"ip", "link", "del", "lan", NULL};
    int lan_ns = make_lan();
    assert_int_equal(bt_test_run(lan_ns, elsewhere), 0);
    assert_int_equal(bt_test_run(-1, away), 0);
    assert_int_equal(bt_kernel_handle_events(test.kernel, &is_drift), 0);
    assert_false(is_drift);
    assert_kernel_is_right();
    assert_connects_once(cast.gateway.namespace_fd, ROOT, 0xc0000209, 443, lan_ns, 0xc6336401);
    assert_int_equal(bt_test_run(-1, back), 0);
    assert_int_equal(bt_test_run(-1, remove), 0);
    assert_int_equal(bt_kernel_handle_events(test.kernel, &is_drift), 0);
    assert_false(is_drift);
    assert_kernel_is_right();
    assert_connects_once(cast.gateway.namespace_fd, ROOT, WORLD, 443, test.world_fd, HOST_UPLINK);
    close(lan_ns);
}

static void t_users_of_the_host(void **state)
{
    (void)state;
    assert_connects_once(-1, ALICE, cast.agent.guest, 22, cast.agent.namespace_fd, cast.agent.host);
    assert_connects_once(-1, ALICE, cast.orchestrator.guest, 7400, cast.orchestrator.namespace_fd,
                         cast.orchestrator.host);
    assert_connects_once(-1, ROOT, cast.agent.guest, 22, cast.agent.namespace_fd, cast.agent.host);
    assert_datagram(-1, ALICE, cast.agent.guest, 5000, cast.agent.namespace_fd, cast.agent.host);
    assert_connects_once(-1, BOB, cast.other_agent.guest, 22, cast.other_agent.namespace_fd,
                         cast.other_agent.host);
    /* Everybody's own only. */
    assert_refused(-1, BOB, cast.agent.guest, 22, cast.agent.namespace_fd);
    assert_refused(-1, BOB, cast.gateway.guest, 8119, cast.gateway.namespace_fd);
    assert_refused(-1, BOB, cast.orchestrator.guest, 7400, cast.orchestrator.namespace_fd);
    assert_refused(-1, ALICE, cast.other_agent.guest, 22, cast.other_agent.namespace_fd);
    assert_refused(-1, 65534, cast.agent.guest, 22, cast.agent.namespace_fd);
}

/* Bob takes the UDP port that Alice has just left: conntrack would think it Alice's flow. */
static void t_port_of_another_uid_inherits_nothing(void **state)
{
    (void)state;
    int server = bt_test_serve(cast.agent.namespace_fd, SOCK_DGRAM, ANY, 5000);
    int alice = bt_test_dial_udp(-1, ALICE, 5555, cast.agent.guest, 5000);
    assert_true(server >= 0 && alice >= 0);
    struct sockaddr_in peer;
    assert_true(bt_test_passes(alice, server, "mine", &peer, SOON_MS));
    assert_int_equal(connect(server, (const struct sockaddr *)&peer, sizeof(peer)), 0);
    assert_true(bt_test_passes(server, alice, "yours", NULL, SOON_MS)); /* established, for conntrack */
    close(alice);
    int bob = bt_test_dial_udp(-1, BOB, 5555, cast.agent.guest, 5000);
    assert_true(bob >= 0);
    assert_false(bt_test_passes(bob, server, "not yours", NULL, NEVER_MS));
    close(bob);
    close(server);
}

/* A connection of Alice's that was never answered, and given up: conntrack still waits for its answer.
 * Whoever has the port by then must not be reached by the guest's own first packet (simultaneous open, RFC
 * 9293, 3.5). */
static void t_guest_opens_nothing_behind_a_lost_connection(void **state)
{
    static const char *const make[] = {"nft",
                                       "add table ip silent; add chain ip silent in { type filter hook input "
                                       "priority 0; }; add rule ip silent in tcp dport 2222 drop",
                                       NULL};
    static const char *const undo[] = {"nft", "delete table ip silent", NULL};
    const struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(6001)};
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(2222), .sin_addr.s_addr = htonl(cast.agent.guest)};
    const struct sockaddr_in guest_from = {.sin_family = AF_INET, .sin_port = htons(2222)};
    const struct sockaddr_in guest_to = {
        .sin_family = AF_INET, .sin_port = htons(6001), .sin_addr.s_addr = htonl(cast.agent.host)};
    (void)state;
    assert_int_equal(bt_test_run(cast.agent.namespace_fd, make), 0);
    int alice = bt_test_socket(-1, ALICE, SOCK_STREAM | SOCK_NONBLOCK);
    assert_true(alice >= 0);
    assert_int_equal(bind(alice, (const struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(alice, (const struct sockaddr *)&to, sizeof(to)), -1);
    usleep(50000);
    close(alice);
    for (uint32_t uid = ROOT; uid <= BOB; uid += BOB) {
        int listener = bt_test_socket(-1, uid, SOCK_STREAM);
        assert_true(listener >= 0);
        assert_int_equal(bind(listener, (const struct sockaddr *)&from, sizeof(from)), 0);
        assert_int_equal(listen(listener, 1), 0);
        int guest = bt_test_socket(cast.agent.namespace_fd, ROOT, SOCK_STREAM | SOCK_NONBLOCK);
        assert_int_equal(bt_test_run(cast.agent.namespace_fd, undo), 0);
        assert_int_equal(bind(guest, (const struct sockaddr *)&guest_from, sizeof(guest_from)), 0);
        uint64_t before = dropped(&cast.agent);
        (void)connect(guest, (const struct sockaddr *)&guest_to, sizeof(guest_to));
        assert_false(bt_test_is_readable(listener, NEVER_MS));
        assert_true(dropped(&cast.agent) > before);
        close(guest);
        close(listener);
        assert_int_equal(bt_test_run(cast.agent.namespace_fd, make), 0);
    }
    assert_int_equal(bt_test_run(cast.agent.namespace_fd, undo), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        WITH_CAST(t_agent_reaches_gateway_ports),
        WITH_CAST(t_agent_reaches_nothing_else),
        WITH_CAST(t_agent_udp_only_for_names),
        WITH_CAST(t_gateway_reaches_orchestrator_and_world),
        WITH_CAST(t_gateway_uplink_has_limits),
        WITH_CAST(t_published_ports_are_not_reached),
        WITH_CAST(t_orchestrator_reaches_nothing),
        WITH_CAST(t_world_reaches_no_guest),
        WITH_CAST(t_host_is_no_router_for_others),
        WITH_CAST(t_way_out_follows_the_default_route),
        WITH_CAST(t_users_of_the_host),
        WITH_CAST(t_port_of_another_uid_inherits_nothing),
        WITH_CAST(t_guest_opens_nothing_behind_a_lost_connection),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
