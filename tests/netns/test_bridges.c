/* Bridge slots, for containers, tried with real traffic: veth pairs in namespaces are the containers, as a
 * container engine would connect them. Every case runs twice, with the host's bridges asking the inet hooks
 * (net.bridge.bridge-nf-call-iptables 1) and not: ours ask them in any case.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "helper/kernel.h"
#include "tests/netns/firewall_fixture.h"

/* Alice: two agents, the gateway with a foot in each of her networks, the orchestrator. Bob: the same with
 * one agent. A container's namespace is that of the lease it belongs to. */
static struct {
    struct guest agent, sibling, gateway, orchestrator, other_agent, other_gateway;
    bool is_complete;
} crew;

/* ---- containers ------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static int run(int namespace_fd, const char *format, ...)
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

static struct bt_place place_of(const struct guest *guest)
{
    struct bt_place place;
    assert_int_equal(bt_pool_place(&test.config.pool, (enum bt_kind)guest->lease.kind,
                                   (enum bt_role)guest->lease.role, guest->lease.slot, &place),
                     0);
    return place;
}

/* Connects a container to a network, as an engine does: a veth pair whose one end is a port of the bridge. */
static void connect_container(int namespace_fd, const struct guest *network, bool is_gateway)
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

static void route_by(int namespace_fd, const struct guest *network)
{
    char address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(network->host, address);
    assert_int_equal(run(namespace_fd, "ip route add default via %s", address), 0);
}

static void network_lease(struct guest *guest, uint16_t slot, enum bt_role role, uint32_t uid)
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
static void container_lease(struct guest *guest, uint16_t slot, enum bt_role role, uint32_t uid)
{
    network_lease(guest, slot, role, uid);
    guest->namespace_fd = bt_test_namespace_create();
    assert_true(guest->namespace_fd >= 0);
    connect_container(guest->namespace_fd, guest, role == BT_ROLE_GATEWAY);
    route_by(guest->namespace_fd, guest);
}

static void container_end(struct guest *guest)
{
    guest_forget(guest);
    (void)bt_kernel_release(test.kernel, table_without(NULL), &guest->lease);
    if (guest->namespace_fd >= 0)
        close(guest->namespace_fd);
    guest->namespace_fd = -1;
}

/* Making and ending it is most of a test's time: those that leave it as it was share it. */
static int make_crew(void **state)
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

static int end_crew(void **state)
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

static uint32_t gateway_in(const struct guest *network)
{
    return place_of(network).gateway_address;
}

static bool is_up(const struct guest *guest)
{
    return run(-1, "ip -o link show up | grep -q ': berthd%u:'", guest->lease.slot) == 0;
}

static int taken_away; /* turns in which a bridge without a lease was */

/* All that wait: a turn takes a part of a burst only. */
static bool handle_events(void)
{
    bool is_any_drift = false;
    for (int turn = 0; turn < 16; turn++) {
        bool is_drift;
        taken_away += bt_kernel_handle_events(test.kernel, &is_drift);
        is_any_drift |= is_drift;
    }
    return is_any_drift;
}

/* ---- who reaches what ------------------------------------------------------------------------------- */

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
    assert_refused(me, ROOT, WORLD, 80, test.world_fd);
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

/* ---- leases come and go ----------------------------------------------------------------------------- */

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

static void t_restart_keeps_connections(void **state)
{
    struct guest *const all[] = {&crew.gateway,     &crew.orchestrator,  &crew.agent,
                                 &crew.other_agent, &crew.other_gateway, &crew.sibling};
    int flow[2], world[2];
    (void)state;
    assert_connects(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119, crew.gateway.namespace_fd,
                    crew.agent.guest, flow);
    assert_connects(crew.gateway.namespace_fd, ROOT, WORLD, 443, test.world_fd, HOST_UPLINK, world);
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

static void t_drift_takes_bridges_down(void **state)
{
    (void)state;
    assert_false(handle_events());
    assert_int_equal(run(-1, "nft delete table inet berth"), 0);
    assert_repair_takes_it_down(&crew.agent, "berthd0");
    assert_connects_once(crew.agent.namespace_fd, ROOT, gateway_in(&crew.agent), 8119,
                         crew.gateway.namespace_fd, crew.agent.guest);
    assert_refused(crew.agent.namespace_fd, ROOT, crew.agent.host, 22, -1);
    /* The name is what the rules for whole devices go by. */
    assert_int_equal(
        run(-1, "ip link set berthd0 down && ip link set berthd0 name mine && ip link set mine up"), 0);
    assert_repair_takes_it_down(&crew.agent, "mine");
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

/* While the helper does not run, or does not listen: its start, the end of a flood of events and a repair
 * look for such. */
static void t_bridges_without_a_lease_are_looked_for(void **state)
{
    static const char *const make = "ip link add berthd13 type bridge && ip link set berthd13 up";
    struct guest *const all[] = {&crew.gateway,     &crew.orchestrator,  &crew.agent,
                                 &crew.other_agent, &crew.other_gateway, &crew.sibling};
    (void)state;
    assert_false(handle_events());
    assert_int_equal(run(-1, "%s", make), 0);
    assert_int_equal(bt_kernel_repair(test.kernel, table_without(NULL)), 0);
    assert_int_equal(if_nametoindex("berthd13"), 0);
    assert_int_equal(run(-1, "%s", make), 0);
    restart(6, 0);
    assert_int_equal(if_nametoindex("berthd13"), 0);
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
    assert_int_equal(run(-1, "%s", make), 0);
    assert_false(handle_events());
    assert_true(taken_away > 0);
    assert_int_equal(if_nametoindex("berthd13"), 0);
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

/* ---- all of it, twice ------------------------------------------------------------------------------- */

static int setup_hooks(void **state, const char *hooks)
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

static int setup_on(void **state)
{
    return setup_hooks(state, "1");
}

static int setup_off(void **state)
{
    return setup_hooks(state, "0");
}

static int teardown_world(void **state)
{
    assert_int_equal(run(-1, "ip link del uplink && nft delete table inet berth"), 0);
    return teardown(state);
}

#define LOOKS(name) cmocka_unit_test_setup(name, make_crew)
#define CHANGES(name) cmocka_unit_test_setup_teardown(name, make_crew, end_crew)

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest either[] = {
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
    const struct CMUnitTest once[] = {
        LOOKS(t_no_ipv6),
        LOOKS(t_other_bridges_are_their_owners),
        LOOKS(t_bridges_without_a_lease_are_looked_for),
        LOOKS(t_drift_takes_bridges_down),
        LOOKS(t_agent_waits_for_its_gateway),
        CHANGES(t_slot_reuse_inherits_nothing),
        CHANGES(t_without_the_hooks_the_host_is_closed),
        CHANGES(t_adoption_refuses_changed_bridges),
    };
    int failed = cmocka_run_group_tests_name("bridges ask the hooks", either, setup_on, teardown_world);
    failed += cmocka_run_group_tests_name("they do not", either, setup_off, teardown_world);
    failed += cmocka_run_group_tests_name("leases come and go", once, setup_off, teardown_world);
    return failed;
}
