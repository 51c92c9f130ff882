/* What the tests of the table share: guests with leases, the world behind the uplink, traffic as assertions.
 *
 * One process in namespaces of its own plays everybody: guests (fake_guest.h), the world, users of the host.
 * A test program includes this once; what it makes is in `test` and `cast`.
 */
#ifndef BERTH_TESTS_NETNS_FIREWALL_FIXTURE_H
#define BERTH_TESTS_NETNS_FIREWALL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "helper/kernel.h"
#include "tests/lib/fake_guest.h"

#define ALICE 1000U
#define BOB 1001U
#define ROOT 0U

#define HOST_UPLINK 0xcb007102U /* 203.0.113.2 */
#define WORLD 0xcb007101U       /* 203.0.113.1 */
#define ANY INADDR_ANY

/* Something that must come in does so within this; something that must not is waited for so long. */
#define SOON_MS 2000
#define NEVER_MS 120

struct guest {
    struct bt_lease lease;
    int tap_fd, namespace_fd;
    uint32_t host, guest;
};

static struct {
    struct bt_kernel *kernel;
    struct bt_kernel_config config;
    uint32_t generation;
    int world_fd; /* namespace */
    struct guest *guests[BT_TEST_GUESTS_MAX];
    struct bt_lease leases[BT_POOL_SLOTS_MAX];
} test = {.world_fd = -1};

/* ---- the engine's part, as small as it can be ------------------------------------------------------- */

/* Leases of all guests but one. */
static inline struct bt_lease_table table_without(const struct guest *excluded)
{
    struct bt_lease_table table = {.leases = test.leases};
    for (size_t i = 0; i < BT_TEST_GUESTS_MAX; i++) {
        if (test.guests[i] && test.guests[i] != excluded)
            test.leases[table.count++] = test.guests[i]->lease;
    }
    return table;
}

static inline void collect(void)
{
    for (int i = 0; i < 100 && bt_kernel_dead_count(test.kernel) > 0; i++) {
        assert_true(bt_kernel_collect(test.kernel) >= 0);
        if (bt_kernel_dead_count(test.kernel) > 0)
            usleep(5000);
    }
    assert_int_equal(bt_kernel_dead_count(test.kernel), 0);
}

static inline void guest_remember(struct guest *guest)
{
    for (size_t i = 0; i < BT_TEST_GUESTS_MAX; i++) {
        if (!test.guests[i]) {
            test.guests[i] = guest;
            return;
        }
    }
    fail_msg("too many guests");
}

static inline void guest_lease(struct guest *guest, uint16_t slot, enum bt_role role, uint32_t uid,
                               uint8_t environment)
{
    uint8_t host_mac[6], guest_mac[6];
    memset(guest, 0, sizeof(*guest));
    guest->lease = (struct bt_lease){.slot = slot,
                                     .generation = ++test.generation,
                                     .uid = uid,
                                     .role = (uint8_t)role,
                                     .environment = environment};
    assert_int_equal(bt_kernel_lease(test.kernel, table_without(guest), &guest->lease, &guest->tap_fd), 0);
    assert_int_equal(bt_pool_tap_addresses(&test.config.pool, slot, &guest->host, &guest->guest), 0);
    assert_int_equal(bt_pool_tap_macs(&test.config.pool, slot, host_mac, guest_mac), 0);
    guest->namespace_fd = bt_test_guest_start(guest->tap_fd, guest_mac, guest->guest, guest->host);
    assert_true(guest->namespace_fd >= 0);
    guest_remember(guest);
}

static inline void guest_forget(struct guest *guest)
{
    for (size_t i = 0; i < BT_TEST_GUESTS_MAX; i++) {
        if (test.guests[i] == guest)
            test.guests[i] = NULL;
    }
}

static inline void guest_release(struct guest *guest)
{
    guest_forget(guest);
    assert_int_equal(bt_kernel_release(test.kernel, table_without(NULL), &guest->lease), 0);
}

static inline void guest_end(struct guest *guest)
{
    bt_test_guest_stop(guest->tap_fd, guest->namespace_fd);
    close(guest->tap_fd);
}

static inline void guest_stop(struct guest *guest)
{
    guest_release(guest);
    guest_end(guest);
}

static inline void assert_kernel_is_right(void)
{
    assert_int_equal(bt_kernel_verify(test.kernel, table_without(NULL)), 0);
}

static inline uint64_t dropped(const struct guest *guest)
{
    struct bt_lease_counters counters;
    assert_int_equal(bt_kernel_counters(test.kernel, &guest->lease, &counters), 0);
    return counters.dropped_packets;
}

/* ---- the world: one interface beyond the host's uplink, which has no route to any guest ------------- */

static inline void make_world(void)
{
    static const char *const make[] = {"ip",   "link", "add",  "uplink",  "type",
                                       "veth", "peer", "name", "outside", NULL};
    test.world_fd = bt_test_namespace_create();
    assert_true(test.world_fd >= 0);
    assert_int_equal(bt_test_run(-1, make), 0);
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), test.world_fd);
    const char *const move[] = {"ip", "link", "set", "outside", "netns", path, NULL};
    assert_int_equal(bt_test_run(-1, move), 0);
    assert_int_equal(bt_test_interface_address(-1, "uplink", HOST_UPLINK, 24), 0);
    assert_int_equal(bt_test_interface_up(-1, "uplink"), 0);
    assert_int_equal(bt_test_interface_address(test.world_fd, "outside", WORLD, 24), 0);
    assert_int_equal(bt_test_interface_up(test.world_fd, "outside"), 0);
    assert_int_equal(bt_test_route_default(-1, WORLD), 0);
}

static inline void open_kernel(void)
{
    static struct bt_lease found[BT_POOL_SLOTS_MAX];
    size_t count;
    uint64_t deadline_ms;
    assert_int_equal(bt_kernel_open(&test.config, &test.kernel), 0);
    assert_int_equal(bt_kernel_provision(test.kernel, found, &count, &deadline_ms, &test.generation), 0);
    assert_int_equal(count, 0);
}

static inline int setup(void **state)
{
    (void)state;
    test.config = (struct bt_kernel_config){.pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT,
                                                     .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT,
                                                     .slots = 1024},
                                            .agent_flows = 512,
                                            .gateway_flows = 16384};
    make_world();
    open_kernel();
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    bt_kernel_close(test.kernel);
    close(test.world_fd);
    return 0;
}

/* Alice's agent, gateway and orchestrator, and Bob's agent and gateway. */
struct cast {
    struct guest agent, gateway, orchestrator, other_agent, other_gateway;
};

static struct cast cast;

static inline int raise_curtain(void **state)
{
    (void)state;
    guest_lease(&cast.agent, 0, BT_ROLE_AGENT, ALICE, 0);
    guest_lease(&cast.gateway, 1, BT_ROLE_GATEWAY, ALICE, 0);
    guest_lease(&cast.orchestrator, 2, BT_ROLE_ORCHESTRATOR, ALICE, 0);
    guest_lease(&cast.other_agent, 3, BT_ROLE_AGENT, BOB, 0);
    guest_lease(&cast.other_gateway, 4, BT_ROLE_GATEWAY, BOB, 0);
    return 0;
}

/* After a failure too: whatever is leased is given back. */
static inline int drop_curtain(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_TEST_GUESTS_MAX; i++) {
        if (test.guests[i])
            guest_stop(test.guests[i]);
    }
    collect();
    assert_kernel_is_right();
    return 0;
}

/* ---- another helper after this one ------------------------------------------------------------------ */

static inline void restart(size_t expected, uint64_t expected_deadline_ms)
{
    static struct bt_lease found[BT_POOL_SLOTS_MAX];
    size_t count;
    uint64_t deadline_ms;
    uint32_t generation;
    bt_kernel_close(test.kernel);
    assert_int_equal(bt_kernel_open(&test.config, &test.kernel), 0);
    assert_int_equal(bt_kernel_provision(test.kernel, found, &count, &deadline_ms, &generation), 0);
    assert_int_equal(count, expected);
    assert_true(deadline_ms == expected_deadline_ms);
    assert_true(generation >= test.generation);
    for (size_t i = 0; i < count; i++) {
        bool is_known = false;
        for (size_t j = 0; j < BT_TEST_GUESTS_MAX; j++) {
            const struct guest *guest = test.guests[j];
            is_known = is_known || (guest && guest->lease.slot == found[i].slot &&
                                    guest->lease.generation == found[i].generation &&
                                    guest->lease.uid == found[i].uid && guest->lease.role == found[i].role &&
                                    guest->lease.environment == found[i].environment);
        }
        assert_true(is_known);
    }
    test.generation = generation;
}

static inline void adopt(struct guest *guest)
{
    /* What is adopted so far is in the table; the rest is reserved. */
    guest_forget(guest);
    struct bt_lease_table table = table_without(guest);
    assert_int_equal(bt_kernel_adopt(test.kernel, table, &guest->lease), 0);
    guest_remember(guest);
}

/* ---- traffic, as assertions ------------------------------------------------------------------------- */

static inline void assert_echo(int one_fd, int other_fd)
{
    assert_true(bt_test_passes(one_fd, other_fd, "there", NULL, SOON_MS));
    assert_true(bt_test_passes(other_fd, one_fd, "and back", NULL, SOON_MS));
}

/* TCP to address:port arrives at server_ns, on listen_port, with this source address. Both ends in ret_fds.
 */
static inline void assert_connects(int from_ns, uint32_t uid, uint32_t address, uint16_t port, int server_ns,
                                   uint32_t source, int ret_fds[2])
{
    struct sockaddr_in peer = {0};
    int listener = bt_test_serve(server_ns, SOCK_STREAM, ANY, port);
    assert_true(listener >= 0);
    ret_fds[0] = bt_test_dial(from_ns, uid, address, port, SOON_MS);
    assert_true(ret_fds[0] >= 0);
    ret_fds[1] = bt_test_accept(listener, &peer, SOON_MS);
    assert_true(ret_fds[1] >= 0);
    if (source != ANY)
        assert_int_equal(ntohl(peer.sin_addr.s_addr), source);
    assert_echo(ret_fds[0], ret_fds[1]);
    close(listener);
}

static inline void assert_connects_once(int from_ns, uint32_t uid, uint32_t address, uint16_t port,
                                        int server_ns, uint32_t source)
{
    int fds[2];
    assert_connects(from_ns, uid, address, port, server_ns, source, fds);
    close(fds[0]);
    close(fds[1]);
}

/* Whoever of server_ns (all of them tried) listens on the port, TCP and UDP, gets nothing. Returns how TCP
 * failed. */
static inline int assert_refused(int from_ns, uint32_t uid, uint32_t address, uint16_t port, int server_ns)
{
    int tcp = bt_test_serve(server_ns, SOCK_STREAM, ANY, port);
    int udp = bt_test_serve(server_ns, SOCK_DGRAM, ANY, port);
    assert_true(tcp >= 0 && udp >= 0);
    int dialled = bt_test_dial(from_ns, uid, address, port, NEVER_MS);
    assert_true(dialled < 0);
    assert_false(bt_test_is_readable(tcp, 0));
    int datagram = bt_test_dial_udp(from_ns, uid, 0, address, port);
    if (datagram >= 0) {
        (void)send(datagram, "x", 1, 0);
        close(datagram);
    }
    assert_false(bt_test_is_readable(udp, NEVER_MS));
    close(tcp);
    close(udp);
    return dialled;
}

static inline void assert_datagram(int from_ns, uint32_t uid, uint32_t address, uint16_t port, int server_ns,
                                   uint32_t source)
{
    struct sockaddr_in peer = {0};
    int server = bt_test_serve(server_ns, SOCK_DGRAM, ANY, port);
    int client = bt_test_dial_udp(from_ns, uid, 0, address, port);
    assert_true(server >= 0 && client >= 0);
    assert_true(bt_test_passes(client, server, "question", &peer, SOON_MS));
    assert_int_equal(ntohl(peer.sin_addr.s_addr), source);
    assert_int_equal(connect(server, (const struct sockaddr *)&peer, sizeof(peer)), 0);
    assert_true(bt_test_passes(server, client, "answer", NULL, SOON_MS));
    close(server);
    close(client);
}

/* Of everybody in this network namespace. */
static inline unsigned tracked_flows(void)
{
    unsigned count = 0;
    FILE *file = fopen("/proc/sys/net/netfilter/nf_conntrack_count", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%u", &count), 1);
    fclose(file);
    return count;
}

#define WITH_CAST(name) cmocka_unit_test_setup_teardown(name, raise_curtain, drop_curtain)

#endif
