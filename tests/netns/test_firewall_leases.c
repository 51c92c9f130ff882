/* Leases that come, end and are sealed while connections are open: nobody inherits a flow. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/netns/firewall_fixture.h"

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

int main(int argc, char **argv)
{
    (void)argc;
    if (!bt_test_enter_namespaces(argv))
        return 0;
    const struct CMUnitTest tests[] = {
        WITH_CAST(t_release_cuts_flows),
        WITH_CAST(t_slot_reuse_inherits_no_flow),
        WITH_CAST(t_mark_alone_holds),
        WITH_CAST(t_seal_cuts_everything),
        WITH_CAST(t_gateway_comes_after_its_agents),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
