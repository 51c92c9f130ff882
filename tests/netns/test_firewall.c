/* The kernel side of the helper, tried with real traffic: what the receiver got is what counts.
 *
 * One process in namespaces of its own plays everybody: guests (fake_guest.h), the world behind the uplink,
 * users of the host. Each test leases what it needs, and gives it back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "helper/kernel.h"
#include "tests/netns/firewall_fixture.h"

/* ---- who reaches what ------------------------------------------------------------------------------- */

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

/* ---- forgery ---------------------------------------------------------------------------------------- */

static void put_u16(uint8_t *at, unsigned value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put_u32(uint8_t *at, uint32_t value)
{
    put_u16(at, value >> 16);
    put_u16(at + 2, value & 0xffff);
}

#define VNET_HEADER 10U
#define FRAME_SIZE (VNET_HEADER + 14 + 20 + 8 + 4)

/* A UDP datagram "true" as a guest might write it on its wire. */
static void make_frame(const struct guest *guest, const uint8_t mac[6], uint32_t from, uint32_t to,
                       uint16_t port, uint8_t frame[FRAME_SIZE])
{
    uint8_t host_mac[6], guest_mac[6], *ethernet = frame + VNET_HEADER, *ip = ethernet + 14, *udp = ip + 20;
    uint32_t sum = 0;
    memset(frame, 0, FRAME_SIZE);
    assert_int_equal(bt_pool_tap_macs(&test.config.pool, guest->lease.slot, host_mac, guest_mac), 0);
    memcpy(ethernet, host_mac, 6);
    memcpy(ethernet + 6, mac ? mac : guest_mac, 6);
    put_u16(ethernet + 12, 0x0800);
    ip[0] = 0x45;
    put_u16(ip + 2, 32);
    ip[8] = 64;
    ip[9] = IPPROTO_UDP;
    put_u32(ip + 12, from);
    put_u32(ip + 16, to);
    for (size_t i = 0; i < 20; i += 2)
        sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
    put_u16(ip + 10, ~((sum & 0xffff) + (sum >> 16)) & 0xffff);
    put_u16(udp, 4000);
    put_u16(udp + 2, port);
    put_u16(udp + 4, 12);
    memcpy(udp + 8, "true", 4);
}

static bool does_frame_arrive(const struct guest *guest, const uint8_t mac[6], uint32_t from, int server)
{
    uint8_t frame[FRAME_SIZE];
    make_frame(guest, mac, from, guest->host, 53, frame);
    assert_int_equal(write(guest->tap_fd, frame, sizeof(frame)), sizeof(frame));
    bool is_there = bt_test_is_readable(server, mac || from != guest->guest ? NEVER_MS : SOON_MS);
    bt_test_drain(server);
    return is_there;
}

static void t_forged_sources_are_dropped(void **state)
{
    static const uint8_t other_mac[6] = {0x02, 0x62, 0x74, 0x02, 0x00, 0x03};
    (void)state;
    int own = bt_test_serve(cast.gateway.namespace_fd, SOCK_DGRAM, ANY, 53);
    int other = bt_test_serve(cast.other_gateway.namespace_fd, SOCK_DGRAM, ANY, 53);
    assert_true(own >= 0 && other >= 0);
    assert_true(
        does_frame_arrive(&cast.agent, NULL, cast.agent.guest, own)); /* so the frames are good ones */
    uint64_t before = dropped(&cast.agent);
    assert_false(does_frame_arrive(&cast.agent, NULL, cast.other_agent.guest, own));
    assert_false(does_frame_arrive(&cast.agent, NULL, cast.gateway.guest, own));
    assert_false(does_frame_arrive(&cast.agent, NULL, cast.agent.host, own));
    assert_false(does_frame_arrive(&cast.agent, NULL, WORLD, own));
    assert_false(does_frame_arrive(&cast.agent, NULL, 0x7f000001, own));
    assert_false(does_frame_arrive(&cast.agent, NULL, 0, own));
    assert_false(does_frame_arrive(&cast.agent, other_mac, cast.agent.guest, own));
    assert_false(does_frame_arrive(&cast.agent, other_mac, cast.other_agent.guest, own));
    assert_false(bt_test_is_readable(other, 0));
    /* The kernel itself drops martian sources; the table saw the rest. */
    assert_true(dropped(&cast.agent) >= before + 5);
    close(own);
    close(other);
}

static unsigned tracked_flows(void)
{
    unsigned count = 0;
    FILE *file = fopen("/proc/sys/net/netfilter/nf_conntrack_count", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%u", &count), 1);
    fclose(file);
    return count;
}

static void t_floods_fill_no_table(void **state)
{
    uint8_t frame[FRAME_SIZE];
    (void)state;
    unsigned before = tracked_flows();
    for (uint32_t i = 0; i < 20000; i++) {
        /* Forged sources, forbidden destinations, and ports that lead nowhere. */
        uint32_t from = i % 3 == 0 ? 0x0a000000 + i : cast.agent.guest;
        uint32_t to = i % 3 == 1 ? WORLD + i : cast.agent.host;
        make_frame(&cast.agent, NULL, from, to, (uint16_t)(i % 60000 + 100), frame);
        assert_int_equal(write(cast.agent.tap_fd, frame, sizeof(frame)), sizeof(frame));
    }
    assert_true(tracked_flows() <= before + 4);
    assert_connects_once(cast.other_agent.namespace_fd, ROOT, cast.other_agent.host, 8119,
                         cast.other_gateway.namespace_fd, cast.other_agent.guest);
}

static void t_arp_floods_change_nothing(void **state)
{
    (void)state;
    uint8_t frame[VNET_HEADER + 42] = {0}, host_mac[6], guest_mac[6], *ethernet = frame + VNET_HEADER;
    assert_int_equal(bt_pool_tap_macs(&test.config.pool, cast.agent.lease.slot, host_mac, guest_mac), 0);
    for (uint32_t i = 0; i < 2000; i++) {
        bool is_own_address = i % 2 == 0;
        uint8_t *arp = ethernet + 14;
        memset(ethernet, 0xff, 6);
        memcpy(ethernet + 6, guest_mac, 6);
        put_u16(ethernet + 12, 0x0806);
        put_u16(arp, 1);
        put_u16(arp + 2, 0x0800);
        arp[4] = 6;
        arp[5] = 4;
        put_u16(arp + 6, i % 3 == 0 ? 2 : 1);
        memcpy(arp + 8, guest_mac, 6);
        arp[13] = (uint8_t)(i + 1); /* a MAC that is not the guest's */
        put_u32(arp + 14, is_own_address ? cast.agent.guest : 0x0af30000 + i);
        put_u32(arp + 24, cast.agent.host);
        assert_int_equal(write(cast.agent.tap_fd, frame, sizeof(frame)), sizeof(frame));
    }
    usleep(50000);
    const char *const count[] = {"sh", "-c", "test $(ip neigh show dev berth0 | wc -l) -eq 1", NULL};
    const char *const kept[] = {
        "sh", "-c", "ip neigh show dev berth0 | grep -q '10.243.0.1 lladdr 02:62:74:02:00:00 PERMANENT'",
        NULL};
    assert_int_equal(bt_test_run(-1, count), 0);
    assert_int_equal(bt_test_run(-1, kept), 0);
    assert_connects_once(cast.agent.namespace_fd, ROOT, cast.agent.host, 8119, cast.gateway.namespace_fd,
                         cast.agent.guest);
}

/* Even where an admin gave the interface an IPv6 address. */
static void t_no_ipv6(void **state)
{
    (void)state;
    static const char *const host[] = {"ip",  "-6",     "address", "add", "fd00::1/64",
                                       "dev", "berth0", "nodad",   NULL};
    static const char *const guest[] = {"ip",  "-6",   "address", "add", "fd00::2/64",
                                        "dev", "eth0", "nodad",   NULL};
    static const char *const there[] = {"ip",  "neigh", "add", "fd00::1", "lladdr", "02:62:74:01:00:00",
                                        "dev", "eth0",  NULL};
    static const char *const back[] = {"ip",  "neigh",  "add", "fd00::2", "lladdr", "02:62:74:02:00:00",
                                       "dev", "berth0", NULL};
    static const char *const generated[] = {"sh", "-c", "test -z \"$(ip -6 address show dev berth1)\"", NULL};
    assert_int_equal(bt_test_run(-1, generated), 0);
    if (bt_test_run(-1, host) != 0) {
        skip(); /* a kernel without IPv6 */
        return;
    }
    assert_int_equal(bt_test_run(cast.agent.namespace_fd, guest), 0);
    assert_int_equal(bt_test_run(cast.agent.namespace_fd, there), 0);
    assert_int_equal(bt_test_run(-1, back), 0);
    uint64_t before = dropped(&cast.agent);
    static const char *const ping[] = {"bash", "-c",
                                       "echo x > /dev/udp/fd00::1/53; exec 3<>/dev/tcp/fd00::1/22", NULL};
    const char *const bounded[] = {"timeout", "0.3", "bash", "-c", ping[2], NULL};
    assert_int_not_equal(bt_test_run(cast.agent.namespace_fd, bounded), 0);
    assert_true(dropped(&cast.agent) >= before + 2);
    static const char *const remove[] = {"ip", "-6", "address", "del", "fd00::1/64", "dev", "berth0", NULL};
    assert_int_equal(bt_test_run(-1, remove), 0);
}

/* ---- leases come and go ----------------------------------------------------------------------------- */

static void t_release_cuts_flows(void **state)
{
    int flow[2], shell[2];
    (void)state;
    static struct guest agent; /* outlives a failure */
    guest_lease(&agent, 10, BT_ROLE_AGENT, ALICE, 0);
    assert_connects(agent.namespace_fd, ROOT, agent.host, 8119, cast.gateway.namespace_fd, agent.guest, flow);
    assert_connects(-1, ALICE, agent.guest, 22, agent.namespace_fd, agent.host, shell);
    guest_release(&agent);
    assert_false(bt_test_passes(flow[0], flow[1], "x", NULL, NEVER_MS));
    assert_false(bt_test_passes(flow[1], flow[0], "x", NULL, NEVER_MS));
    assert_false(bt_test_passes(shell[0], shell[1], "x", NULL, NEVER_MS));
    assert_false(bt_test_passes(shell[1], shell[0], "x", NULL, NEVER_MS));
    assert_kernel_is_right();
    for (int i = 0; i < 2; i++) {
        close(flow[i]);
        close(shell[i]);
    }
    guest_end(&agent);
}

static void t_slot_reuse_inherits_no_flow(void **state)
{
    int flow[2];
    static struct guest first, second; /* outlives a failure */
    struct sockaddr_in peer;
    (void)state;
    guest_lease(&first, 11, BT_ROLE_AGENT, ALICE, 0);
    int alices = bt_test_serve(cast.gateway.namespace_fd, SOCK_DGRAM, ANY, 53);
    int bobs = bt_test_serve(cast.other_gateway.namespace_fd, SOCK_DGRAM, ANY, 53);
    int asked = bt_test_dial_udp(first.namespace_fd, ROOT, 5353, first.host, 53);
    int unanswered = bt_test_dial_udp(first.namespace_fd, ROOT, 5354, first.host, 53);
    assert_true(alices >= 0 && bobs >= 0 && asked >= 0 && unanswered >= 0);
    assert_true(bt_test_passes(unanswered, alices, "one", NULL, SOON_MS));
    assert_true(bt_test_passes(asked, alices, "two", &peer, SOON_MS));
    assert_int_equal(connect(alices, (const struct sockaddr *)&peer, sizeof(peer)), 0);
    assert_true(bt_test_passes(alices, asked, "answer", NULL, SOON_MS));
    assert_connects(first.namespace_fd, ROOT, first.host, 8119, cast.gateway.namespace_fd, first.guest, flow);
    guest_stop(&first);
    collect();

    guest_lease(&second, 11, BT_ROLE_AGENT, BOB, 0);
    assert_int_equal(second.guest, first.guest);
    int same = bt_test_dial_udp(second.namespace_fd, ROOT, 5353, second.host, 53);
    int same_unanswered = bt_test_dial_udp(second.namespace_fd, ROOT, 5354, second.host, 53);
    int old_port = bt_test_serve(second.namespace_fd, SOCK_DGRAM, ANY, 5355);
    assert_true(same >= 0 && same_unanswered >= 0 && old_port >= 0);
    /* The first one's gateway still talks to the old flow: before the new guest sent anything, and after. */
    assert_false(bt_test_passes(alices, same, "late", NULL, NEVER_MS));
    assert_false(bt_test_passes(flow[1], same, "late", NULL, NEVER_MS));
    assert_true(bt_test_passes(same, bobs, "new", NULL, SOON_MS));
    assert_true(bt_test_passes(same_unanswered, bobs, "new", NULL, SOON_MS));
    assert_false(bt_test_is_readable(alices, NEVER_MS));
    assert_false(bt_test_passes(alices, same, "late", NULL, NEVER_MS));
    int fds[] = {alices, bobs, asked, unanswered, flow[0], flow[1], same, same_unanswered, old_port};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(fds); i++)
        close(fds[i]);
    guest_stop(&second);
}

/* Puts a conntrack entry of an earlier lessee back: from:from_port -> to:to_port, answered by server. False:
 * no such command here. */
static bool is_old_flow_there(uint32_t generation, uint32_t from, const char *from_port, uint32_t to,
                              const char *to_port, uint32_t server)
{
    char mark[16], source[BT_IPV4_TEXT_SIZE], destination[BT_IPV4_TEXT_SIZE], answering[BT_IPV4_TEXT_SIZE];
    snprintf(mark, sizeof(mark), "%u", generation);
    bt_ipv4_format(from, source);
    bt_ipv4_format(to, destination);
    bt_ipv4_format(server, answering);
    const char *entry[40] = {"conntrack", "-I",      "-p",      "udp",   "-s", source,      "-d", destination,
                             "-r",        answering, "-q",      source,  "-t", "60",        "-m", mark,
                             "--sport",   from_port, "--dport", to_port, "-u", "SEEN_REPLY"};
    const char *ports[] = {"--reply-port-src", to_port, "--reply-port-dst", from_port};
    memcpy(entry + 22, ports, sizeof(ports));
    if (server != to) {
        entry[26] = "-g";
        entry[27] = answering;
    }
    int status = bt_test_run(-1, entry);
    assert_true(status == 0 || status == 127);
    return status == 0;
}

/* The conntrack entries of the last lessee, put back after their deletion: the mark alone must hold. The same
 * user, so that neither the pair nor the owner forbids anything. */
static void t_mark_alone_holds(void **state)
{
    static struct guest first, second; /* outlive a failure */
    (void)state;
    guest_lease(&first, 12, BT_ROLE_AGENT, ALICE, 0);
    guest_stop(&first);
    collect();
    guest_lease(&second, 12, BT_ROLE_AGENT, ALICE, 0);
    uint32_t old = first.lease.generation;
    if (!is_old_flow_there(old, second.guest, "5353", second.host, "53", cast.gateway.guest) ||
        !is_old_flow_there(old, second.host, "5555", second.guest, "5000", second.guest)) {
        skip(); /* the conntrack command is not installed */
        return;
    }
    int gateway = bt_test_serve(cast.gateway.namespace_fd, SOCK_DGRAM, ANY, 53);
    int guest = bt_test_serve(second.namespace_fd, SOCK_DGRAM, ANY, 5000);
    int from_guest = bt_test_dial_udp(second.namespace_fd, ROOT, 5353, second.host, 53);
    int from_host = bt_test_dial_udp(-1, ALICE, 5555, second.guest, 5000);
    assert_true(gateway >= 0 && guest >= 0 && from_guest >= 0 && from_host >= 0);
    assert_false(bt_test_passes(from_guest, gateway, "x", NULL, NEVER_MS));
    assert_false(bt_test_passes(from_host, guest, "x", NULL, NEVER_MS));
    /* Other ports are new flows. */
    int new_from_guest = bt_test_dial_udp(second.namespace_fd, ROOT, 5356, second.host, 53);
    int new_from_host = bt_test_dial_udp(-1, ALICE, 5556, second.guest, 5000);
    assert_true(bt_test_passes(new_from_guest, gateway, "y", NULL, SOON_MS));
    assert_true(bt_test_passes(new_from_host, guest, "y", NULL, SOON_MS));
    int fds[] = {gateway, guest, from_guest, from_host, new_from_guest, new_from_host};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(fds); i++)
        close(fds[i]);
    guest_stop(&second);
}

static void t_seal_cuts_everything(void **state)
{
    int flow[2], shell[2];
    static struct guest agent; /* outlives a failure */
    (void)state;
    guest_lease(&agent, 13, BT_ROLE_AGENT, ALICE, 0);
    assert_connects(agent.namespace_fd, ROOT, agent.host, 8119, cast.gateway.namespace_fd, agent.guest, flow);
    assert_connects(-1, ALICE, agent.guest, 22, agent.namespace_fd, agent.host, shell);
    uint64_t before = dropped(&agent);
    assert_int_equal(bt_kernel_seal(test.kernel, table_without(&agent), &agent.lease), 0);
    agent.lease.is_sealed = true;
    assert_kernel_is_right();
    assert_false(bt_test_passes(flow[0], flow[1], "x", NULL, NEVER_MS));
    assert_false(bt_test_passes(flow[1], flow[0], "x", NULL, NEVER_MS));
    assert_false(bt_test_passes(shell[0], shell[1], "x", NULL, NEVER_MS));
    assert_refused(agent.namespace_fd, ROOT, agent.host, 8119, cast.gateway.namespace_fd);
    assert_refused(-1, ALICE, agent.guest, 22, agent.namespace_fd);
    assert_refused(-1, ROOT, agent.guest, 22, agent.namespace_fd);
    assert_true(dropped(&agent) > before);
    for (int i = 0; i < 2; i++) {
        close(flow[i]);
        close(shell[i]);
    }
    guest_stop(&agent);
}

static void t_gateway_comes_after_its_agents(void **state)
{
    int flow[2];
    static struct guest agent, gateway, orchestrator; /* outlives a failure */
    (void)state;
    guest_lease(&agent, 14, BT_ROLE_AGENT, ALICE, 3); /* an environment of its own */
    assert_refused(agent.namespace_fd, ROOT, agent.host, 8119, cast.gateway.namespace_fd);
    assert_refused(agent.namespace_fd, ROOT, agent.host, 8119, -1);
    guest_lease(&gateway, 15, BT_ROLE_GATEWAY, ALICE, 3);
    assert_kernel_is_right();
    assert_connects(agent.namespace_fd, ROOT, agent.host, 8119, gateway.namespace_fd, agent.guest, flow);
    guest_lease(&orchestrator, 16, BT_ROLE_ORCHESTRATOR, ALICE, 3);
    assert_connects_once(gateway.namespace_fd, ROOT, gateway.host, 7400, orchestrator.namespace_fd,
                         gateway.guest);

    /* Lost: the way out closes at once, for old flows and new ones. */
    guest_release(&gateway);
    assert_kernel_is_right();
    assert_false(bt_test_passes(flow[0], flow[1], "x", NULL, NEVER_MS));
    assert_refused(agent.namespace_fd, ROOT, agent.host, 8119, gateway.namespace_fd);
    close(flow[0]);
    close(flow[1]);
    guest_end(&gateway);
    collect();

    /* The next one, in the same slot and with the same port. */
    guest_lease(&gateway, 15, BT_ROLE_GATEWAY, ALICE, 3);
    assert_connects_once(agent.namespace_fd, ROOT, agent.host, 8119, gateway.namespace_fd, agent.guest);
    guest_stop(&gateway);
    guest_stop(&orchestrator);
    guest_stop(&agent);
}

/* ---- restart, drift --------------------------------------------------------------------------------- */

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
    open_kernel();
}

/* ---- limits and figures ----------------------------------------------------------------------------- */

static unsigned flood(const struct guest *agent, int server, unsigned count)
{
    unsigned arrived = 0;
    for (unsigned i = 0; i < count; i++) {
        int client = bt_test_dial_udp(agent->namespace_fd, ROOT, (uint16_t)(10000 + i), agent->host, 53);
        assert_true(client >= 0);
        (void)send(client, "q", 1, 0);
        close(client);
        char byte;
        if (i % 16 == 15) /* the server's queue is short */
            while (bt_test_is_readable(server, 1) && recv(server, &byte, 1, 0) == 1)
                arrived++;
    }
    char byte;
    while (bt_test_is_readable(server, NEVER_MS) && recv(server, &byte, 1, 0) == 1)
        arrived++;
    return arrived;
}

static void t_flows_of_an_agent_are_limited(void **state)
{
    (void)state;
    int server = bt_test_serve(cast.gateway.namespace_fd, SOCK_DGRAM, ANY, 53);
    assert_true(server >= 0);
    unsigned before = tracked_flows();
    unsigned arrived = flood(&cast.agent, server, 2000);
    close(server);
    assert_true(tracked_flows() <= before + 512);
    print_message("# 2000 new flows of one agent: %u arrived\n", arrived);
    assert_in_range(arrived, 500, 512);
    /* The host's and other people's flows do not suffer. */
    assert_connects_once(-1, ALICE, cast.agent.guest, 22, cast.agent.namespace_fd, cast.agent.host);
    assert_connects_once(cast.other_agent.namespace_fd, ROOT, cast.other_agent.host, 8119,
                         cast.other_gateway.namespace_fd, cast.other_agent.guest);
}

static void t_private_uplink_is_denied(void **state)
{
    static struct guest gateway; /* outlives a failure */
    static const char *const own[] = {
        "sh", "-c",
        "ip address add 10.9.9.9/32 dev outside; ip address add 192.168.9.9/32 dev outside; "
        "ip address add 172.20.9.9/32 dev outside; ip address add 10.9.9.53/32 dev outside",
        NULL};
    static const char *const gone[] = {"sh", "-c", "nft delete table inet berth", NULL};
    (void)state;
    bt_kernel_close(test.kernel);
    assert_int_equal(bt_test_run(-1, gone), 0);
    assert_int_equal(bt_test_run(test.world_fd, own), 0);
    struct bt_kernel_config permissive = test.config;
    test.config.deny_private_uplink = true;
    test.config.resolvers[0] = 0x0a090935;
    test.config.resolver_count = 1;
    open_kernel();
    assert_kernel_is_right();
    guest_lease(&gateway, 30, BT_ROLE_GATEWAY, ALICE, 0);
    assert_refused(gateway.namespace_fd, ROOT, 0x0a090909, 80, test.world_fd);
    assert_refused(gateway.namespace_fd, ROOT, 0xc0a80909, 80, test.world_fd);
    assert_refused(gateway.namespace_fd, ROOT, 0xac140909, 80, test.world_fd);
    int server = bt_test_serve(test.world_fd, SOCK_DGRAM, 0x0a090935, 53);
    int client = bt_test_dial_udp(gateway.namespace_fd, ROOT, 0, 0x0a090935, 53);
    assert_true(server >= 0 && client >= 0);
    assert_true(bt_test_passes(client, server, "question", NULL, SOON_MS));
    close(server);
    close(client);
    assert_connects_once(gateway.namespace_fd, ROOT, WORLD, 443, test.world_fd, HOST_UPLINK);
    guest_stop(&gateway);
    collect();
    bt_kernel_close(test.kernel);
    test.config = permissive;
    assert_int_equal(bt_test_run(-1, gone), 0);
    open_kernel();
}

static double milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int compare_times(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

#define ROUNDS 101

static void t_lease_and_release_are_fast(void **state)
{
    static double times[ROUNDS];
    static int fds[ROUNDS];
    (void)state;
    for (uint16_t i = 0; i < ROUNDS; i++) {
        struct bt_lease lease = {.slot = (uint16_t)(100 + i), .generation = ++test.generation, .uid = ALICE};
        double start = milliseconds();
        assert_int_equal(bt_kernel_lease(test.kernel, table_without(NULL), &lease, &fds[i]), 0);
        assert_int_equal(bt_kernel_release(test.kernel, table_without(NULL), &lease), 0);
        times[i] = milliseconds() - start;
    }
    qsort(times, ROUNDS, sizeof(times[0]), compare_times);
    double start = milliseconds();
    collect();
    print_message(
        "# lease + release: median %.2f ms, 95th percentile %.2f ms; %d dead devices deleted in %.0f ms\n",
        times[ROUNDS / 2], times[ROUNDS * 95 / 100], ROUNDS, milliseconds() - start);
    for (uint16_t i = 0; i < ROUNDS; i++)
        close(fds[i]);
    assert_true(times[ROUNDS / 2] < 20);
}

/* Every slot of the largest pool, ten users with a gateway and an orchestrator each. */
static void t_whole_pool(void **state)
{
    static struct bt_lease leases[BT_POOL_SLOTS_MAX];
    static int fds[BT_POOL_SLOTS_MAX];
    struct bt_lease_table table = {.leases = leases};
    struct rlimit files = {.rlim_cur = 2048, .rlim_max = 2048};
    (void)state;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    double start = milliseconds();
    for (uint16_t i = 0; i < BT_POOL_SLOTS_MAX; i++) {
        uint8_t role = i % 100 == 1 ? BT_ROLE_GATEWAY : i % 100 == 2 ? BT_ROLE_ORCHESTRATOR : BT_ROLE_AGENT;
        leases[i] = (struct bt_lease){
            .slot = i, .generation = ++test.generation, .uid = ALICE + i / 100U, .role = role};
        table.count = i;
        assert_int_equal(bt_kernel_lease(test.kernel, table, &leases[i], &fds[i]), 0);
        if (i == 255)
            print_message("# 256 slots leased in %.0f ms\n", milliseconds() - start);
    }
    table.count = BT_POOL_SLOTS_MAX;
    print_message("# 1024 slots leased in %.0f ms\n", milliseconds() - start);
    start = milliseconds();
    assert_int_equal(bt_kernel_verify(test.kernel, table), 0);
    print_message("# 1024 slots compared with the kernel in %.1f ms\n", milliseconds() - start);
    start = milliseconds();
    assert_int_equal(bt_kernel_reserve_all(test.kernel, table, 1), 0);
    double reserved = milliseconds();
    for (size_t i = 0; i < BT_POOL_SLOTS_MAX; i++) {
        table.count = i;
        assert_int_equal(bt_kernel_adopt(test.kernel, table, &leases[i]), 0);
    }
    print_message("# 1024 slots reserved in %.0f ms, adopted in %.0f ms\n", reserved - start,
                  milliseconds() - reserved);
    table.count = BT_POOL_SLOTS_MAX;
    assert_int_equal(bt_kernel_verify(test.kernel, table), 0);
    start = milliseconds();
    assert_int_equal(bt_kernel_repair(test.kernel, table), 0);
    print_message("# 1024 slots repaired in %.0f ms\n", milliseconds() - start);
    start = milliseconds();
    for (size_t i = BT_POOL_SLOTS_MAX; i-- > 0;) {
        table.count = i;
        assert_int_equal(bt_kernel_release(test.kernel, table, &leases[i]), 0);
    }
    print_message("# 1024 slots released in %.0f ms\n", milliseconds() - start);
    start = milliseconds();
    collect();
    print_message("# 1024 devices deleted in %.0f ms\n", milliseconds() - start);
    for (size_t i = 0; i < BT_POOL_SLOTS_MAX; i++)
        close(fds[i]);
    assert_kernel_is_right();
}

#define WITH_CAST(name) cmocka_unit_test_setup_teardown(name, raise_curtain, drop_curtain)

int main(int argc, char **argv)
{
    (void)argc;
    int error = bt_test_enter_namespaces(argv);
    if (error < 0) {
        printf("1..0 # SKIP namespaces cannot be made here: %s\n", strerror(-error));
        return 0;
    }
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
        WITH_CAST(t_forged_sources_are_dropped),
        WITH_CAST(t_floods_fill_no_table),
        WITH_CAST(t_arp_floods_change_nothing),
        WITH_CAST(t_no_ipv6),
        WITH_CAST(t_release_cuts_flows),
        WITH_CAST(t_slot_reuse_inherits_no_flow),
        WITH_CAST(t_mark_alone_holds),
        WITH_CAST(t_seal_cuts_everything),
        WITH_CAST(t_gateway_comes_after_its_agents),
        WITH_CAST(t_restart_keeps_connections),
        WITH_CAST(t_restart_with_another_configuration),
        WITH_CAST(t_adoption_refuses_changed_devices),
        WITH_CAST(t_drift_is_seen_and_repaired),
        WITH_CAST(t_renamed_devices_are_drift),
        WITH_CAST(t_restart_without_records),
        WITH_CAST(t_release_copes_with_drift),
        WITH_CAST(t_flows_of_an_agent_are_limited),
        cmocka_unit_test_teardown(t_foreign_table_is_left_alone, drop_curtain),
        cmocka_unit_test_teardown(t_private_uplink_is_denied, drop_curtain),
        cmocka_unit_test_teardown(t_lease_and_release_are_fast, drop_curtain),
        cmocka_unit_test_teardown(t_whole_pool, drop_curtain),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
