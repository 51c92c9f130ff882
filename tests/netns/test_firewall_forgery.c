/* What a guest may make up (sources, floods, ARP, IPv6) against the table: it arrives nowhere. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/netns/firewall_fixture.h"

#define VNET_HEADER 10U
#define FRAME_SIZE (VNET_HEADER + 14 + 20 + 8 + 4)

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

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        WITH_CAST(t_forged_sources_are_dropped),
        WITH_CAST(t_floods_fill_no_table),
        WITH_CAST(t_arp_floods_change_nothing),
        WITH_CAST(t_no_ipv6),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
