/* What the tests of bridge slots share: veth pairs in namespaces are the containers, as a container engine
 * would connect them. */
#ifndef BERTH_TESTS_NETNS_BRIDGES_FIXTURE_H
#define BERTH_TESTS_NETNS_BRIDGES_FIXTURE_H

#include <fcntl.h>
#include <net/if.h>

#include "tests/netns/firewall_fixture.h"

/* Alice: two agents, the gateway with a foot in each of her networks, the orchestrator. Bob: the same with
 * one agent. A container's namespace is that of the lease it belongs to. */
static struct {
    struct guest agent, sibling, gateway, orchestrator, other_agent, other_gateway;
    bool is_complete;
} crew;

__attribute__((format(printf, 2, 3))) static inline int run(int namespace_fd, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    assert_true(length > 0 && (size_t)length < sizeof(text));
    const char *const shell[] = {"sh", "-c", text, NULL};
    return bt_test_run(namespace_fd, shell);
}

static inline struct bt_place place_of(const struct guest *guest)
{
    struct bt_place place;
    assert_int_equal(bt_pool_place(&test.config.pool, (enum bt_kind)guest->lease.kind,
                                   (enum bt_role)guest->lease.role, guest->lease.slot, &place),
                     0);
    return place;
}

/* Connects a container to a network, as an engine does: a veth pair whose one end is a port of the bridge. */
static inline void connect_container(int namespace_fd, const struct guest *network, bool is_gateway)
{
    static unsigned serial;
    struct bt_place place = place_of(network);
    const uint8_t *mac = is_gateway ? place.gateway_mac : place.guest_mac;
    char address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(is_gateway ? place.gateway_address : place.guest_address, address);
    unsigned number = serial++;
    assert_int_equal(run(-1,
                         "ip link add port%u type veth peer name eth%u address %02x:%02x:%02x:%02x:%02x:%02x "
                         "netns /proc/%d/fd/%d && ip link set port%u master %s up",
                         number, number, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], (int)getpid(),
                         namespace_fd, number, place.interface_name),
                     0);
    assert_int_equal(
        run(namespace_fd, "ip link set eth%u up && ip address add %s/29 dev eth%u", number, address, number),
        0);
}

static inline void route_by(int namespace_fd, const struct guest *network)
{
    char address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(network->host, address);
    assert_int_equal(run(namespace_fd, "ip route add default via %s", address), 0);
}

static inline void network_lease(struct guest *guest, uint16_t slot, enum bt_role role, uint32_t uid)
{
    memset(guest, 0, sizeof(*guest));
    guest->namespace_fd = -1;
    guest->lease = (struct bt_lease){.slot = slot,
                                     .generation = ++test.generation,
                                     .uid = uid,
                                     .kind = BT_KIND_BRIDGE,
                                     .role = (uint8_t)role};
    guest->tap_fd = -1;
    assert_int_equal(bt_kernel_lease(test.kernel, table_without(guest), &guest->lease, &guest->tap_fd), 0);
    assert_int_equal(guest->tap_fd, -1);
    guest->host = place_of(guest).host_address;
    guest->guest = place_of(guest).guest_address;
    guest_remember(guest);
}

/* A lease and its own container, which has a default route by its network. */
static inline void container_lease(struct guest *guest, uint16_t slot, enum bt_role role, uint32_t uid)
{
    network_lease(guest, slot, role, uid);
    guest->namespace_fd = bt_test_namespace_create();
    assert_true(guest->namespace_fd >= 0);
    connect_container(guest->namespace_fd, guest, role == BT_ROLE_GATEWAY);
    route_by(guest->namespace_fd, guest);
}

static inline void container_end(struct guest *guest)
{
    guest_forget(guest);
    (void)bt_kernel_release(test.kernel, table_without(NULL), &guest->lease);
    if (guest->namespace_fd >= 0)
        close(guest->namespace_fd);
    guest->namespace_fd = -1;
}

/* Making and ending it is most of a test's time: those that leave it as it was share it. */
static inline int make_crew(void **state)
{
    (void)state;
    if (crew.is_complete)
        return 0;
    container_lease(&crew.agent, 0, BT_ROLE_AGENT, ALICE);
    container_lease(&crew.sibling, 1, BT_ROLE_AGENT, ALICE);
    container_lease(&crew.gateway, 2, BT_ROLE_GATEWAY, ALICE);
    container_lease(&crew.orchestrator, 3, BT_ROLE_ORCHESTRATOR, ALICE);
    container_lease(&crew.other_agent, 4, BT_ROLE_AGENT, BOB);
    container_lease(&crew.other_gateway, 5, BT_ROLE_GATEWAY, BOB);
    connect_container(crew.gateway.namespace_fd, &crew.agent, true);
    connect_container(crew.gateway.namespace_fd, &crew.sibling, true);
    connect_container(crew.gateway.namespace_fd, &crew.orchestrator, true);
    connect_container(crew.other_gateway.namespace_fd, &crew.other_agent, true);
    crew.is_complete = true;
    return 0;
}

static inline int end_crew(void **state)
{
    (void)state;
    crew.is_complete = false;
    for (size_t i = 0; i < BT_TEST_GUESTS_MAX; i++) {
        if (test.guests[i])
            container_end(test.guests[i]);
    }
    collect();
    assert_kernel_is_right();
    assert_int_equal(run(-1, "! ip -o link show | grep -q ': berth'"), 0);
    return 0;
}

static inline uint32_t gateway_in(const struct guest *network)
{
    return place_of(network).gateway_address;
}

static inline bool is_up(const struct guest *guest)
{
    return run(-1, "ip -o link show up | grep -q ': berthd%u:'", guest->lease.slot) == 0;
}

static int taken_away; /* turns in which a bridge without a lease was */

/* All that wait: a turn takes a part of a burst only. */
static inline bool handle_events(void)
{
    bool is_any_drift = false;
    for (int turn = 0; turn < 16; turn++) {
        bool is_drift;
        taken_away += bt_kernel_handle_events(test.kernel, &is_drift);
        is_any_drift |= is_drift;
    }
    return is_any_drift;
}

static inline int setup_hooks(void **state, const char *hooks)
{
    int error = setup(state);
    if (run(-1, "test -d /proc/sys/net/bridge") == 0) {
        assert_int_equal(run(-1, "sysctl -qw net.bridge.bridge-nf-call-iptables=%s", hooks), 0);
        print_message("# net.bridge.bridge-nf-call-iptables is %s\n", hooks);
    } else {
        print_message("# this kernel has no br_netfilter\n");
    }
    return error;
}

static inline int setup_on(void **state)
{
    return setup_hooks(state, "1");
}

static inline int setup_off(void **state)
{
    return setup_hooks(state, "0");
}

static inline int teardown_world(void **state)
{
    assert_int_equal(run(-1, "ip link del uplink && nft delete table inet berth"), 0);
    return teardown(state);
}

#define LOOKS(name) cmocka_unit_test_setup(name, make_crew)
#define CHANGES(name) cmocka_unit_test_setup_teardown(name, make_crew, end_crew)

#endif
