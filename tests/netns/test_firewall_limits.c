/* Limits of the table (flows, private addresses), and what a lease costs. */
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/netns/firewall_fixture.h"

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
    assert_int_equal(bt_kernel_dead_count(test.kernel), ROUNDS); /* a release waits for no device's end */
    qsort(times, ROUNDS, sizeof(times[0]), compare_times);
    double start = milliseconds();
    collect();
    print_message(
        "# lease + release: median %.2f ms, 95th percentile %.2f ms; %d dead devices deleted in %.0f ms\n",
        times[ROUNDS / 2], times[ROUNDS * 95 / 100], ROUNDS, milliseconds() - start);
    for (uint16_t i = 0; i < ROUNDS; i++)
        close(fds[i]);
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

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        WITH_CAST(t_flows_of_an_agent_are_limited),
        cmocka_unit_test_teardown(t_private_uplink_is_denied, drop_curtain),
        cmocka_unit_test_teardown(t_lease_and_release_are_fast, drop_curtain),
        cmocka_unit_test_teardown(t_whole_pool, drop_curtain),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
