/* The whole isolation probe, in network namespaces that stand for guest, host, gateway, orchestrator, a
 * sibling and the internet: where things do leak each leak must be found, where they are blocked it must
 * pass, and where they are blocked without a trace it must not.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontend/probe_run.h"
#include "lib/spawn.h"
#include "tests/lib/guest_server.h"
#include "vm/guest_config.h"

#define POOL                                                                                                 \
    0x0af30000U /* 10.243.0.0: slot 0 is the guest's, 1 the sibling's, 2 the gateway's, 3 the orchestrator's \
                 */
#define PUBLIC 0xcb007150U /* 203.0.113.80 */

/* What the gateway's stand-in counts and is told; shared with its process. */
struct gateway {
    volatile uint64_t questions, upstream;
    volatile int asks_upstream; /* every question makes one more upstream */
    volatile int answers;       /* with an address */
    volatile int noise; /* the next so many questions come with one upstream of somebody else's making */
};

static struct guest_server server;
static struct gateway *gateway;
static pid_t servers[2];

static const char topology[] =
    "for n in guest sibling gateway orchestrator internet; do ip netns add $n; ip -n $n link set lo up; "
    "done\n"
    "for s in 0:guest 1:sibling 2:gateway 3:orchestrator; do i=${s%%:*}; n=${s#*:};\n"
    " ip link add berth$i type veth peer name eth0 netns $n\n"
    " sysctl -qw net.ipv4.conf.berth$i.rp_filter=0 net.ipv4.conf.berth$i.forwarding=1\n"
    " ip addr add 10.243.0.$((2*i))/31 dev berth$i; ip link set berth$i up\n"
    " ip -n $n addr add 10.243.0.$((2*i+1))/31 dev eth0; ip -n $n link set eth0 up\n"
    " ip -n $n route add default via 10.243.0.$((2*i)); done\n"
    "ip link add up0 type veth peer name up1 netns internet\n"
    "ip addr add 198.51.100.1/24 dev up0; ip link set up0 up; sysctl -qw net.ipv4.ip_forward=1 "
    "net.ipv4.conf.all.rp_filter=0\n"
    "ip route add default via 198.51.100.2\n"
    "ip -n internet addr add 198.51.100.2/24 dev up1; ip -n internet link set up1 up\n"
    "ip -n internet addr add 203.0.113.80/32 dev lo; ip -n internet route add 10.243.0.0/24 via "
    "198.51.100.1\n"
    /* IPv6 works as badly as it can on a real host: the guest has an address and a way out. */
    "sysctl -qw net.ipv6.conf.all.forwarding=1\n"
    "ip addr add 2001:db8:1::1/64 dev berth0 nodad; ip addr add 2001:db8:2::1/64 dev up0 nodad\n"
    "ip -n guest addr add 2001:db8:1::2/64 dev eth0 nodad; ip -n guest route add default via 2001:db8:1::1\n"
    "ip -n internet addr add 2001:db8:2::2/64 dev up1 nodad; ip -n internet addr add "
    "2606:4700:4700::1111/128 dev lo nodad\n"
    "ip -n internet route add 2001:db8:1::/64 via 2001:db8:2::1; ip route add 2606:4700:4700::/48 via "
    "2001:db8:2::2\n"
    /* Addresses of IPv6 need a moment before they work. */
    "for i in $(seq 50); do printf 'connect a 200 2606:4700:4700::1111 443\\n' | ip netns exec "
    "guest " BT_GUEST_PROBE " | grep -q reset && exit 0; sleep 0.1; done; exit 1\n";

/* The gateway's ports are forwarded in each of these worlds; the rest differs. */
#define DNAT                                                                                                 \
    "flush ruleset\n"                                                                                        \
    "table inet berth {\n"                                                                                   \
    " counter refused {}\n"                                                                                  \
    " chain pre { type nat hook prerouting priority -100;\n"                                                 \
    "  iifname berth0 ip daddr 10.243.0.0 tcp dport 8119 dnat ip to 10.243.0.5\n"                            \
    "  iifname berth0 ip daddr 10.243.0.0 udp dport 53 dnat ip to 10.243.0.5\n }\n"
/* count: how a refusal is counted and told; hole: what is let through */
#define WALL(count, hole)                                                                                    \
    DNAT " chain refuse {\n " count "\n }\n"                                                                 \
         " chain raw { type filter hook prerouting priority -200;\n"                                         \
         "  iifname berth0 meta nfproto ipv6 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } "       \
         "accept\n"                                                                                          \
         "  iifname berth0 meta nfproto ipv6 jump refuse\n"                                                  \
         "  iifname berth0 ip saddr != 10.243.0.1 counter name refused drop\n }\n"                           \
         " chain forward { type filter hook forward priority 0;\n"                                           \
         "  ct state established,related accept\n"                                                           \
         "  ct status dnat ip daddr 10.243.0.5 accept\n  " hole "\n  jump refuse\n }\n"                      \
         " chain input { type filter hook input priority 0;\n"                                               \
         "  iifname lo accept\n  iifname berth0 ct direction reply accept\n"                                 \
         "  iifname berth0 meta l4proto ipv6-icmp accept\n  iifname berth0 jump refuse\n }\n}\n"
#define COUNTED_REJECT                                                                                       \
    "counter name refused; limit rate 4/second burst 4 packets reject with icmpx type admin-prohibited; "    \
    "drop"

static const char open_world[] = DNAT "}\n";
static const char walled_world[] = WALL(COUNTED_REJECT, "");
static const char silent_world[] = WALL("drop", "");
static const char holed_world[] = WALL(COUNTED_REJECT, "ip daddr 203.0.113.80 udp dport 443 accept");

static void rules_load(const char *rules)
{
    static const char *const arguments[] = {"nft", "-f", "-", NULL};
    const struct bt_spawn spawn = {.arguments = arguments, .input = rules, .input_length = strlen(rules)};
    struct bt_spawn_result result = {0};
    struct bt_error error = {0};
    if (bt_spawn_check(&spawn, &result, &error) < 0)
        fail_msg("%s", error.message);
    bt_spawn_result_free(&result);
}

static int read_drops(void *context, uint64_t *ret_packets, struct bt_error *error)
{
    static const char *const arguments[] = {"nft", "list", "counter", "inet", "berth", "refused", NULL};
    const struct bt_spawn spawn = {.arguments = arguments};
    struct bt_spawn_result result = {0};
    (void)context;
    int code = bt_spawn_check(&spawn, &result, error);
    if (code < 0)
        return code;
    const char *at = strstr(result.output.data, "packets ");
    assert_non_null(at);
    *ret_packets = strtoull(at + 8, NULL, 10);
    bt_spawn_result_free(&result);
    return 0;
}

static int read_gateway(void *context, struct bt_probe_gateway_counters *ret_counters, struct bt_error *error)
{
    (void)context;
    (void)error;
    *ret_counters = (struct bt_probe_gateway_counters){gateway->questions, gateway->upstream};
    return 0;
}

/* ---- stand-ins, each a process in its namespace ---- */

static void network_enter(const char *name)
{
    bt_auto_free char *path = bt_string_format("/run/netns/%s", name);
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
        _exit(1);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static int listen_on(int type, uint16_t port)
{
    const struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&name, sizeof(name)) < 0 ||
        (type == SOCK_STREAM && listen(fd, 8) < 0))
        _exit(1);
    return fd;
}

static void answer_question(int fd)
{
    uint8_t packet[512];
    struct sockaddr_in peer;
    socklen_t length = sizeof(peer);
    ssize_t count = recvfrom(fd, packet, sizeof(packet), 0, (struct sockaddr *)&peer, &length);
    if (count < 12)
        return;
    packet[2] |= 0x80;
    packet[3] = gateway->answers ? 0 : 5;
    packet[7] = gateway->answers ? 1 : 0;
    gateway->upstream += gateway->asks_upstream || gateway->noise > 0;
    gateway->noise -= gateway->noise > 0;
    gateway->questions++;
    (void)sendto(fd, packet, (size_t)count, 0, (const struct sockaddr *)&peer, length);
}

static pid_t stand_in_start(const char *network, uint16_t tcp_port, uint16_t udp_port)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    (void)fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        network_enter(network);
        struct pollfd fds[2] = {{.fd = listen_on(SOCK_STREAM, tcp_port), .events = POLLIN},
                                {.fd = -1, .events = POLLIN}};
        if (udp_port)
            fds[1].fd = listen_on(SOCK_DGRAM, udp_port);
        (void)!write(ready[1], "", 1);
        while (poll(fds, 2, -1) > 0) {
            if (fds[0].revents)
                (void)close(accept(fds[0].fd, NULL, NULL));
            if (fds[1].revents)
                answer_question(fds[1].fd);
        }
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    return pid;
}

/* ---- running it ---- */

static json_t *probe_in(const char *rules)
{
    struct bt_probe_facts facts = {.guest_address = POOL + 1,
                                   .slot_host_address = POOL,
                                   .orchestrator_address = POOL + 7,
                                   .gateway_address = POOL + 5,
                                   .public_address = PUBLIC,
                                   .siblings = {POOL + 3},
                                   .sibling_count = 1,
                                   .foreign_address = POOL + 3,
                                   .has_host_wide = true,
                                   .read_drops = read_drops,
                                   .read_gateway = read_gateway};
    struct bt_guest_link *link = NULL;
    struct bt_error error = {0};
    json_t *document = NULL;
    rules_load(rules);
    assert_int_equal(bt_probe_primary_address(&facts.host_primary_address), 0);
    assert_int_equal(facts.host_primary_address, 0xc6336401); /* 198.51.100.1 */
    if (bt_guest_connect(&server.address, 5000, -1, &link, &error) < 0 ||
        bt_probe_run(link, &facts, &document, &error) < 0)
        fail_msg("%s", error.message);
    bt_guest_close(link);
    return document;
}

static const char *verdict_of(const json_t *document, const char *name, const char *as)
{
    const json_t *checks = json_object_get(document, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        if (strcmp(json_string_value(json_object_get(check, "name")), name) == 0 &&
            strcmp(json_string_value(json_object_get(check, "as")), as) == 0)
            return json_string_value(json_object_get(check, "verdict"));
    }
    return "(missing)";
}

static void expect(const json_t *document, const char *name, const char *as, const char *verdict)
{
    const char *got = verdict_of(document, name, as);
    if (strcmp(got, verdict) != 0) {
        char *text = json_dumps(document, JSON_INDENT(1));
        (void)fprintf(stderr, "%s\n", text);
        free(text);
        fail_msg("%s as %s: %s, not %s", name, as, got, verdict);
    }
}

static void expect_passed(const json_t *document)
{
    struct bt_error error = {0};
    if (bt_probe_check(document, &error) < 0 || !json_is_true(json_object_get(document, "passed")))
        fail_msg("%s", error.message);
}

static const char *const blockable[] = {
    "slot-host-tcp", "slot-host-udp", "orchestrator", "gateway-direct", "sibling-10-243-0-3", "host-tcp",
    "host-udp",      "public-tcp",    "public-udp",   "public-dns",     "ipv6-tcp",           "ipv6-udp"};

static void t_every_leak_is_found(void **state)
{
    (void)state;
    struct bt_error error = {0};
    json_t *document = probe_in(open_world);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(blockable); i++) {
        expect(document, blockable[i], "root", "leak");
        expect(document, blockable[i], "agent", "leak");
    }
    expect(document, "spoofed-source", "root", "leak");
    expect(document, "spoofed-source", "agent", "blocked"); /* may not even send */
    expect(document, "gateway-proxy", "root", "control-ok");
    expect(document, "random-name", "root", "blocked");
    assert_false(json_is_true(json_object_get(document, "passed")));
    assert_int_equal(bt_probe_check(document, &error), -EPERM);
    json_decref(document);
}

static void t_a_walled_guest_passes(void **state)
{
    (void)state;
    json_t *document = probe_in(walled_world);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(blockable); i++) {
        expect(document, blockable[i], "root", "blocked");
        expect(document, blockable[i], "agent", "blocked");
    }
    expect(document, "metadata", "agent", "blocked");
    expect(document, "spoofed-source", "root", "blocked");
    expect(document, "gateway-proxy", "agent", "control-ok");
    expect(document, "random-name", "agent", "blocked");
    expect_passed(document);
    assert_in_range(json_integer_value(json_object_get(document, "took_ms")), 1, 6000);
    json_decref(document);
}

static void t_silence_without_a_counter_is_no_proof(void **state)
{
    (void)state;
    json_t *document = probe_in(silent_world);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(blockable); i++)
        expect(document, blockable[i], "root", "no-evidence");
    assert_false(json_is_true(json_object_get(document, "passed")));
    json_decref(document);
}

/* One kind of packet leaves and is answered by nobody: only the sum of the counter tells. */
static void t_one_silent_hole_is_no_proof(void **state)
{
    (void)state;
    assert_int_equal(
        guest_server_shell(
            "ip netns exec internet nft -f - <<'E'\ntable ip t { chain i { type filter hook input "
            "priority 0; udp dport 443 drop\n }\n}\nE\n"),
        0);
    json_t *document = probe_in(holed_world);
    expect(document, "public-udp", "root", "no-evidence");
    expect(document, "public-udp", "agent", "no-evidence");
    assert_false(json_is_true(json_object_get(document, "passed")));
    json_decref(document);
    assert_int_equal(guest_server_shell("ip netns exec internet nft flush ruleset"), 0);
    document = probe_in(holed_world);
    expect(document, "public-udp", "root", "leak"); /* now something there answers */
    json_decref(document);
}

static void t_a_gateway_that_asks_or_answers_leaks(void **state)
{
    (void)state;
    gateway->asks_upstream = 1;
    json_t *document = probe_in(walled_world);
    expect(document, "random-name", "root", "leak");
    expect(document, "public-tcp", "root", "blocked");
    json_decref(document);
    gateway->asks_upstream = 0;
    gateway->answers = 1;
    document = probe_in(walled_world);
    expect(document, "random-name", "agent", "leak");
    json_decref(document);
    gateway->answers = 0;
    /* The agent's own work makes its gateway ask; that is not the probe's doing. */
    gateway->noise = 2;
    document = probe_in(walled_world);
    expect(document, "random-name", "root", "blocked");
    expect_passed(document);
    json_decref(document);
}

static void t_no_gateway_no_proof(void **state)
{
    (void)state;
    (void)kill(servers[0], SIGKILL);
    (void)waitpid(servers[0], NULL, 0);
    json_t *document = probe_in(walled_world);
    expect(document, "gateway-proxy", "root", "control-failed");
    expect(document, "random-name", "root", "control-failed");
    expect(document, "public-tcp", "root", "blocked");
    assert_false(json_is_true(json_object_get(document, "passed")));
    json_decref(document);
}

int main(void)
{
    guest_server_enter_namespaces();
    if (guest_server_shell(topology) != 0) {
        (void)printf("Bail out! cannot make the networks\n");
        return 1;
    }
    gateway = mmap(NULL, sizeof(*gateway), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    servers[0] = stand_in_start("gateway", 8119, 53);
    servers[1] = stand_in_start("orchestrator", 7400, 0);
    guest_server_start(&server, POOL + 1, "guest");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_every_leak_is_found),
        cmocka_unit_test(t_a_walled_guest_passes),
        cmocka_unit_test(t_silence_without_a_counter_is_no_proof),
        cmocka_unit_test(t_one_silent_hole_is_no_proof),
        cmocka_unit_test(t_a_gateway_that_asks_or_answers_leaks),
        cmocka_unit_test(t_no_gateway_no_proof),
    };
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    (void)kill(servers[1], SIGKILL);
    (void)waitpid(servers[1], NULL, 0);
    guest_server_free(&server);
    return result;
}
