/* The probe without a network: what plans may say, the packets it makes, and above all what counts as
 * evidence. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "frontend/probe_internal.h"
#include "vm/probe/check.h"

#define SLOT_HOST 0x0af30000U
#define SLOT_HOST_TEXT "10.243.0.0"

/* ---- plan ---- */

static int parse(const char *text, struct bt_probe_plan *plan)
{
    unsigned line = 0;
    int result = bt_probe_plan_parse(text, strlen(text), plan, &line);
    return result < 0 ? -(int)line : (int)plan->count;
}

static void t_plan_lines(void **state)
{
    (void)state;
    static struct bt_probe_plan plan;
    assert_int_equal(parse("", &plan), 0);
    assert_int_equal(parse("connect a-1 900 10.243.0.0 8119\n"
                           "tcp b 900 203.0.113.1 1 abc\n"
                           "udp c 900 2001:db8::1 443 def\n"
                           "dns d 900 10.243.0.0 x.example.com\n"
                           "spoof e 900 10.243.0.3 10.243.0.0 9 f00\n",
                           &plan),
                     5);
    assert_string_equal(plan.entries[0].name, "a-1");
    assert_string_equal(plan.entries[0].text, "");
    assert_string_equal(plan.entries[1].text, "abc");
    assert_int_equal(plan.entries[2].to.any.sa_family, AF_INET6);
    assert_int_equal(plan.entries[3].to.v4.sin_port, htons(53));
    assert_int_equal(plan.entries[4].source, 0x0af30003);
}

static void t_plan_refuses_what_is_wrong(void **state)
{
    (void)state;
    static struct bt_probe_plan plan;
    static const char *const wrong[] = {
        "connect a 900 10.243.0.0 8119", /* no end of line */
        "connect a 900 10.243.0.0 0\n",      "connect a 900 10.243.0.0 65536\n",
        "connect a 0 10.243.0.0 1\n",        "connect a 900 host.example 1\n",
        "connect a 900 10.243.0.0 1 x\n",    "tcp a 900 10.243.0.0 1\n",
        "tcp a 900 10.243.0.0 1 a\"b\n",     "tcp a\"b 900 10.243.0.0 1 ab\n",
        "fly a 900 10.243.0.0 1 ab\n",       "spoof e 900 ::1 10.243.0.0 9 f00\n",
        "dns d 900 2001:db8::1 x.example\n", "\n",
        "tcp  a 900 10.243.0.0 1 ab\n",      "tcp a 900 10.243.0.0 1 ab \n",
        "dns d 900 10.243.0.0 a/b\n",
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(wrong); i++) {
        if (parse(wrong[i], &plan) != -1)
            fail_msg("accepted: %s", wrong[i]);
    }
    assert_int_equal(parse("connect a 900 10.243.0.0 1\nnonsense\n", &plan), -2);
}

static void t_packets(void **state)
{
    (void)state;
    uint8_t packet[BT_PROBE_PACKET_MAX];
    unsigned code = 99, answers = 99;
    assert_int_equal(bt_probe_dns_question("ab.example", 0x1234, packet), 12 + 3 + 8 + 1 + 4);
    assert_memory_equal(packet + 12, "\2ab\7example\0\0\1\0\1", 16);
    assert_int_equal(bt_probe_dns_question("a..b", 1, packet), -EINVAL);
    const uint8_t refused[12] = {0x12, 0x34, 0x81, 0x05, 0, 1, 0, 0, 0, 0, 0, 0};
    assert_int_equal(bt_probe_dns_answer(refused, sizeof(refused), 0x1234, &code, &answers), 0);
    assert_int_equal(code, 5);
    assert_int_equal(answers, 0);
    assert_int_equal(bt_probe_dns_answer(refused, sizeof(refused), 0x1235, &code, &answers), -EINVAL);
    assert_int_equal(bt_probe_dns_answer(refused, 11, 0x1234, &code, &answers), -EINVAL);
    assert_int_equal(bt_probe_udp_packet(0x0a000001, 0x0a000002, 9, "abc", packet), 31);
    uint32_t sum = 0; /* a header with its checksum sums to all ones */
    for (size_t i = 0; i < 20; i += 2)
        sum += (uint32_t)(packet[i] << 8 | packet[i + 1]);
    assert_int_equal((sum & 0xffff) + (sum >> 16), 0xffff);
}

/* ---- judgement ---- */

static struct bt_probe_items one_item(enum bt_probe_rule rule, bool is_tcp, const char *nonce,
                                      uint32_t address)
{
    struct bt_probe_items items = {.count = 1};
    items.list[0].rule = rule;
    items.list[0].is_tcp = is_tcp;
    items.list[0].address = address;
    (void)strncpy(items.list[0].name, "it", sizeof(items.list[0].name) - 1);
    (void)strncpy(items.list[0].nonce, nonce, sizeof(items.list[0].nonce) - 1);
    return items;
}

/* Judges items with what the guest says, after the drop counter has risen by this much. Returns the first
 * verdict. */
static const char *judge_with(const struct bt_probe_items *items, json_t *document,
                              const struct bt_probe_evidence *evidence)
{
    static char verdict[32];
    json_t *checks = json_array();
    bool is_well = bt_probe_judge(items, document, "root", evidence, checks);
    const char *text = json_string_value(json_object_get(json_array_get(checks, 0), "verdict"));
    (void)strncpy(verdict, text, sizeof(verdict) - 1);
    assert_int_equal(json_array_size(checks), items->count);
    if (items->count == 1)
        assert_int_equal(is_well, strcmp(verdict, "blocked") == 0 || strcmp(verdict, "control-ok") == 0);
    json_decref(checks);
    json_decref(document);
    return verdict;
}

static const char *judge(const struct bt_probe_items *items, const char *outcome, const char *from,
                         int packets, uint64_t risen)
{
    const struct bt_probe_evidence evidence = {
        .drops_before = 1000, .drops_after = 1000 + risen, .slot_host_address = SLOT_HOST};
    return judge_with(items,
                      json_pack("{s:[{s:s, s:s, s:s, s:s, s:i}]}", "checks", "name", "it", "outcome", outcome,
                                "from", from, "detail", "", "packets", packets),
                      &evidence);
}

static void t_silence_needs_the_counter(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, true, "", 0xcb007101);
    assert_string_equal(judge(&items, "silent", "", 1, 1), "blocked");
    assert_string_equal(judge(&items, "silent", "", 1, 0), "no-evidence");
    /* A repeated SYN is a second packet: one drop would not be all of them. */
    assert_string_equal(judge(&items, "silent", "", 2, 1), "no-evidence");
    assert_string_equal(judge(&items, "silent", "", 2, 2), "blocked");
    /* A guest that claims to have sent nothing, or the impossible, has sent one. */
    assert_string_equal(judge(&items, "silent", "", 0, 0), "no-evidence");
    assert_string_equal(judge(&items, "silent", "", -5, 0), "no-evidence");
    /* A counter that fell belongs to another lease. */
    const struct bt_probe_evidence fallen = {
        .drops_before = 10, .drops_after = 3, .slot_host_address = SLOT_HOST};
    assert_string_equal(judge_with(&items,
                                   json_pack("{s:[{s:s, s:s, s:i}]}", "checks", "name", "it", "outcome",
                                             "silent", "packets", 1),
                                   &fallen),
                        "no-evidence");
}

/* One packet that leaks and is not answered, among many that are dropped, must not hide in the sum. */
static void t_one_uncounted_packet_among_many_is_seen(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, false, "", 0xcb007101);
    items.count = 3;
    items.list[1] = items.list[0];
    items.list[2] = items.list[0];
    items.list[1].name[0] = 'b';
    items.list[2].name[0] = 'c';
    for (uint64_t risen = 2; risen <= 3; risen++) {
        const struct bt_probe_evidence evidence = {.drops_after = risen, .slot_host_address = SLOT_HOST};
        json_t *document = json_pack("{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s, s:s}]}", "checks", "name", "it",
                                     "outcome", "silent", "name", "bt", "outcome", "silent", "name", "ct",
                                     "outcome", "prohibited", "from", SLOT_HOST_TEXT);
        assert_string_equal(judge_with(&items, document, &evidence), risen == 3 ? "blocked" : "no-evidence");
    }
}

static void t_answers_are_leaks(void **state)
{
    (void)state;
    static const char *const answers[] = {"connected", "data", "reset", "answered", "refused"};
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, true, "", 0xcb007101);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(answers); i++)
        assert_string_equal(judge(&items, answers[i], "", 1, 100), "leak");
    items.list[0].rule = BT_PROBE_RULE_IPV6;
    assert_string_equal(judge(&items, "reset", "", 1, 100), "leak");
}

static void t_what_the_canary_received_outweighs_the_guest(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, false, "abc", 0xc6336401);
    items.list[0].is_received = true;
    assert_string_equal(judge(&items, "silent", "", 1, 5), "leak");
    assert_string_equal(judge(&items, "prohibited", SLOT_HOST_TEXT, 1, 5), "leak");
    assert_string_equal(judge(&items, "unsendable", "", 1, 5), "leak");
    items.list[0].rule = BT_PROBE_RULE_SPOOF;
    assert_string_equal(judge(&items, "sent", "", 0, 5), "leak");
}

static void t_who_refused_matters(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, true, "", 0xcb007101);
    assert_string_equal(judge(&items, "prohibited", SLOT_HOST_TEXT, 1, 1), "blocked");
    assert_string_equal(judge(&items, "prohibited", SLOT_HOST_TEXT, 1, 0), "no-evidence");
    /* A router out there that refuses: the packet had left. */
    assert_string_equal(judge(&items, "prohibited", "198.51.100.254", 1, 1), "leak");
    assert_string_equal(judge(&items, "unreachable", "198.51.100.254", 1, 1), "leak");
    assert_string_equal(judge(&items, "unreachable", SLOT_HOST_TEXT, 1, 1), "no-evidence");
    assert_string_equal(judge(&items, "unreachable", "", 1, 1), "no-evidence");
    /* A target that refuses in its own name is one that was reached, unless it is the host's own address. */
    assert_string_equal(judge(&items, "prohibited", "203.0.113.1", 1, 1), "leak");
    struct bt_probe_items canary = one_item(BT_PROBE_RULE_BLOCK, true, "abc", 0xcb007101);
    assert_string_equal(judge(&canary, "prohibited", "203.0.113.1", 1, 1), "blocked");
}

static void t_what_was_not_sent(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, true, "", 0xcb007101);
    assert_string_equal(judge(&items, "unsendable", "", 0, 9), "no-evidence");
    items.list[0].rule = BT_PROBE_RULE_IPV6;
    assert_string_equal(judge(&items, "unsendable", "", 0, 0), "blocked");
    items.list[0].rule = BT_PROBE_RULE_SPOOF;
    assert_string_equal(judge(&items, "unsendable", "", 0, 0), "blocked");
}

/* The spoofed packet is never answered, so only counter and canary can tell; this is where a probe passes
 * wrongly. */
static void t_spoofed_source_needs_the_counter(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_SPOOF, false, "abc", SLOT_HOST);
    assert_string_equal(judge(&items, "sent", "", 0, 1), "blocked");
    assert_string_equal(judge(&items, "sent", "", 0, 0), "no-evidence");
    items.list[0].rule = BT_PROBE_RULE_BLOCK;
    assert_string_equal(judge(&items, "sent", "", 0, 1), "no-evidence"); /* no other check may claim it */
}

static void t_a_guest_that_says_nothing_or_nonsense_proves_nothing(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, true, "", 0xcb007101);
    const struct bt_probe_evidence evidence = {.drops_after = 100, .slot_host_address = SLOT_HOST};
    assert_string_equal(judge_with(&items, json_pack("{}"), &evidence), "no-evidence");
    assert_string_equal(judge_with(&items, json_pack("[]"), &evidence), "no-evidence");
    assert_string_equal(
        judge_with(&items, json_pack("{s:[s, i, {s:i}]}", "checks", "it", 5, "name", 3), &evidence),
        "no-evidence");
    assert_string_equal(judge(&items, "blocked", "", 0, 100), "no-evidence");
    assert_string_equal(judge(&items, "", "", 0, 100), "no-evidence");
    struct bt_probe_items none = {.count = 0};
    json_t *checks = json_array();
    assert_false(bt_probe_judge(&none, NULL, "root", &evidence, checks));
    json_decref(checks);
}

static void t_control_must_connect(void **state)
{
    (void)state;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_CONTROL, true, "", SLOT_HOST);
    assert_string_equal(judge(&items, "connected", "", 5, 0), "control-ok");
    assert_string_equal(judge(&items, "silent", "", 1, 9), "control-failed");
    assert_string_equal(judge(&items, "reset", "", 5, 9), "control-failed");
    assert_string_equal(judge(&items, "prohibited", SLOT_HOST_TEXT, 5, 9), "control-failed");
    assert_string_equal(judge(&items, "", "", 0, 9), "control-failed");
}

static const char *judge_name(const char *outcome, bool has_gateway, uint64_t questions, uint64_t upstream)
{
    struct bt_probe_items items = one_item(BT_PROBE_RULE_NAME, false, "", SLOT_HOST);
    const struct bt_probe_evidence evidence = {
        .has_gateway = has_gateway,
        .gateway_before = {.dns_questions = 7, .upstream_questions = 3},
        .gateway_after = {7 + questions, 3 + upstream}};
    return judge_with(&items, json_pack("{s:[{s:s, s:s}]}", "checks", "name", "it", "outcome", outcome),
                      &evidence);
}

static void t_name_needs_the_gateways_count(void **state)
{
    (void)state;
    assert_string_equal(judge_name("refused", true, 1, 0), "blocked");
    assert_string_equal(judge_name("refused", true, 0, 0), "no-evidence");
    assert_string_equal(judge_name("refused", false, 1, 0), "no-evidence");
    assert_string_equal(judge_name("refused", true, 1, 1), "leak");
    assert_string_equal(judge_name("answered", true, 1, 0), "leak");
    assert_string_equal(judge_name("silent", true, 1, 0), "control-failed");
}

/* ---- the whole document, repetition ---- */

static void t_check_names_what_failed(void **state)
{
    (void)state;
    struct bt_error error = {0};
    json_t *document =
        json_pack("{s:b, s:[{s:s, s:s, s:s}, {s:s, s:s, s:s}]}", "passed", 0, "checks", "name", "host-udp",
                  "as", "root", "verdict", "leak", "name", "metadata", "as", "agent", "verdict", "blocked");
    assert_int_equal(bt_probe_check(document, &error), -EPERM);
    assert_non_null(strstr(error.message, "host-udp as root: leak"));
    assert_null(strstr(error.message, "metadata"));
    json_decref(document);
    document = json_pack("{s:b, s:[]}", "passed", 1, "checks");
    assert_int_equal(bt_probe_check(document, &error), -EPERM);
    json_decref(document);
    assert_int_equal(bt_probe_check(NULL, &error), -EPERM);
}

static void t_host_wide_checks_repeat_when_something_changed(void **state)
{
    (void)state;
    struct bt_error error = {0};
    char first[BT_DIGEST_TEXT_SIZE], again[BT_DIGEST_TEXT_SIZE], other[BT_DIGEST_TEXT_SIZE];
    assert_int_equal(bt_probe_key(1, first, &error), 0);
    assert_int_equal(bt_probe_key(1, again, &error), 0);
    assert_int_equal(bt_probe_key(2, other, &error), 0);
    assert_string_equal(first, again);
    assert_string_not_equal(first, other);
    const char *const passed[] = {other, first};
    assert_false(bt_probe_is_needed(BT_PROBE_ONCE, passed, 2, again));
    assert_true(bt_probe_is_needed(BT_PROBE_ONCE, passed, 1, again));
    assert_true(bt_probe_is_needed(BT_PROBE_ONCE, NULL, 0, again));
    assert_true(bt_probe_is_needed(BT_PROBE_ALWAYS, passed, 2, again));
    assert_false(bt_probe_is_needed(BT_PROBE_OFF, NULL, 0, again));
}

static void t_items_make_a_plan_that_the_guest_accepts(void **state)
{
    (void)state;
    struct bt_probe_facts facts = {.guest_address = SLOT_HOST + 1,
                                   .slot_host_address = SLOT_HOST,
                                   .orchestrator_address = SLOT_HOST + 3,
                                   .gateway_address = SLOT_HOST + 5,
                                   .public_address = 0xcb007101,
                                   .sibling_count = BT_PROBE_SIBLINGS_MAX,
                                   .foreign_address = SLOT_HOST + 7,
                                   .has_host_wide = true};
    for (uint32_t i = 0; i < BT_PROBE_SIBLINGS_MAX; i++)
        facts.siblings[i] = SLOT_HOST + 9 + 2 * i;
    const struct bt_probe_canary host = {.address = 0xc6336401, .tcp_port = 40001, .udp_port = 40002};
    const struct bt_probe_canary slot = {.address = SLOT_HOST, .tcp_port = 40003, .udp_port = 40004};
    static struct bt_probe_items items, later;
    static struct bt_probe_plan plan;
    struct bt_buffer text = {0};
    unsigned line = 0;
    assert_int_equal(bt_probe_items_make(&facts, &host, &slot, &items), 0);
    assert_int_equal(bt_probe_items_plan(&items, &text), 0);
    assert_int_equal(bt_probe_plan_parse(text.data, text.length, &plan, &line), 0);
    assert_int_equal(plan.count, items.count);
    assert_int_equal(items.count, 7 + 16 + 8);
    for (size_t i = 0; i < items.count; i++)
        assert_string_equal(plan.entries[i].name, items.list[i].name);
    bt_buffer_free(&text);
    assert_int_equal(bt_probe_items_make(&facts, &host, &slot, &later), 0);
    assert_string_not_equal(items.list[2].nonce, later.list[2].nonce);
    facts.has_host_wide = false;
    assert_int_equal(bt_probe_items_make(&facts, &host, &slot, &later), 0);
    assert_int_equal(later.count, 7 + 16);
}

/* A real listener on the loopback: what it could not look at in full must not count as silence. */
static void t_a_flooded_canary_says_so(void **state)
{
    (void)state;
    struct bt_error error = {0};
    struct bt_probe_canary canary;
    struct bt_probe_items items = one_item(BT_PROBE_RULE_BLOCK, false, "abc", INADDR_LOOPBACK);
    assert_int_equal(bt_probe_canary_open(INADDR_LOOPBACK, &canary, &error), 0);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(canary.udp_port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, sizeof(to)), 3);
    assert_true(bt_probe_canary_collect(&canary, 0, &items));
    assert_true(items.list[0].is_received);
    for (int i = 0; i < 300; i++)
        (void)sendto(fd, "x", 1, 0, (struct sockaddr *)&to, sizeof(to));
    assert_false(bt_probe_canary_collect(&canary, 0, &items));
    (void)close(fd);
    bt_probe_canary_close(&canary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_a_flooded_canary_says_so),
        cmocka_unit_test(t_plan_lines),
        cmocka_unit_test(t_plan_refuses_what_is_wrong),
        cmocka_unit_test(t_packets),
        cmocka_unit_test(t_silence_needs_the_counter),
        cmocka_unit_test(t_one_uncounted_packet_among_many_is_seen),
        cmocka_unit_test(t_answers_are_leaks),
        cmocka_unit_test(t_what_the_canary_received_outweighs_the_guest),
        cmocka_unit_test(t_who_refused_matters),
        cmocka_unit_test(t_what_was_not_sent),
        cmocka_unit_test(t_spoofed_source_needs_the_counter),
        cmocka_unit_test(t_a_guest_that_says_nothing_or_nonsense_proves_nothing),
        cmocka_unit_test(t_control_must_connect),
        cmocka_unit_test(t_name_needs_the_gateways_count),
        cmocka_unit_test(t_check_names_what_failed),
        cmocka_unit_test(t_host_wide_checks_repeat_when_something_changed),
        cmocka_unit_test(t_items_make_a_plan_that_the_guest_accepts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
