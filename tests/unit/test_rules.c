/* Egress rules: spellings of names and addresses, patterns, documents, decisions. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/wire/pool.h"
#include "policy/rules/ports.h"
#include "policy/rules/rules.h"

static struct bt_policy *parse(const char *text)
{
    struct bt_policy *policy = NULL;
    struct bt_error error = {0};
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    assert_int_equal(bt_policy_parse(document, &policy, &error), 0);
    json_decref(document);
    return policy;
}

static void refuse_document(const char *text)
{
    struct bt_policy *policy = NULL;
    struct bt_error error = {0};
    json_t *document = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    assert_non_null(document);
    int result = bt_policy_parse(document, &policy, &error);
    if (result != -EINVAL)
        fail_msg("accepted: %s", text);
    assert_null(policy);
    assert_true(error.message[0] != '\0');
    json_decref(document);
}

static bool is_allowed(const struct bt_policy *policy, const char *host, uint16_t port, const char *rule)
{
    struct bt_verdict verdict;
    bt_policy_decide_connection(policy, host, port, &verdict);
    if (rule != NULL && strcmp(verdict.rule, rule) != 0)
        fail_msg("%s:%u: rule %s instead of %s", host, port, verdict.rule, rule);
    assert_true(verdict.reason[0] != '\0');
    return verdict.is_allowed;
}

static void test_canonical(void **state)
{
    static const struct {
        const char *host;
        size_t length;
        const char *canonical;
    } cases[] = {
        {"example.com", 11, "example.com"},
        {"EXAMPLE.Com.", 12, "example.com"},
        {"xn--bcher-kva.example", 21, "xn--bcher-kva.example"},
        {"a-b.c1", 6, "a-b.c1"},
        {"1.2.3.4.example", 15, "1.2.3.4.example"},
        {"0xyz", 4, "0xyz"},
        {"", 0, NULL},
        {".", 1, NULL},
        {"example.com..", 13, NULL},
        {".example.com", 12, NULL},
        {"a..b", 4, NULL},
        {"-a.example", 10, NULL},
        {"a-.example", 10, NULL},
        {"a_b.example", 11, NULL},
        {"a b.example", 11, NULL},
        {"example.com\0.evil", 17, NULL},
        {"example.com\0", 12, NULL},
        {"b\xc3\xbc"
         "cher.example",
         15, NULL},
        {"example.com%00", 14, NULL},
        {"user@example.com", 16, NULL},
        {"example.com/", 12, NULL},
        {"1.2.3.4", 7, NULL},
        {"1.2.3.4.", 8, NULL},
        {"127.1", 5, NULL},
        {"2130706433", 10, NULL},
        {"0177.0.0.01", 11, NULL},
        {"0x7f.0.0.0x1", 12, NULL},
        {"0x7f000001", 10, NULL},
        {"0X7F000001", 10, NULL},
        {"a.0x", 4, NULL},
        {"example.123", 11, NULL},
        {"[::1]", 5, NULL},
        {"::1", 3, NULL},
        {"::ffff:1.2.3.4", 14, NULL},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        char host[BT_HOST_NAME_SIZE] = "untouched";
        int result = bt_host_canonical(cases[i].host, cases[i].length, host);
        if (result != (cases[i].canonical != NULL ? 0 : -EINVAL))
            fail_msg("%s gives %d", cases[i].host, result);
        assert_string_equal(host, cases[i].canonical != NULL ? cases[i].canonical : "untouched");
    }
}

static void test_canonical_lengths(void **state)
{
    char host[BT_HOST_NAME_SIZE];
    char text[300];
    (void)state;
    memset(text, 'a', sizeof(text));
    assert_int_equal(bt_host_canonical(text, 63, host), 0);
    assert_int_equal(bt_host_canonical(text, 64, host), -EINVAL);
    for (size_t i = 50; i < sizeof(text); i += 51)
        text[i] = '.';
    assert_int_equal(bt_host_canonical(text, 253, host), 0);
    assert_int_equal(bt_host_canonical(text, 254, host), -EINVAL);
    text[253] = '.';
    assert_int_equal(bt_host_canonical(text, 254, host), 0);
    assert_int_equal(strlen(host), 253);
}

static void test_patterns(void **state)
{
    static const char *const good[] = {"example.com", "*.example.com", "*.example.com:8443", "EXAMPLE.com:1",
                                       "a"};
    static const char *const bad[] = {
        "",           "*",          "*.",           "*example.com",     "a.*.example",
        "1.2.3.4",    "*.1",        "example.com:", "example.com:0",    "example.com:65536",
        "a:80:80",    "[::1]",      "a:080",        "http://a.example", "a.example/",
        "**.example", "*.*.example"};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(good); i++)
        assert_int_equal(bt_host_pattern_check(good[i], NULL), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++)
        if (bt_host_pattern_check(bad[i], NULL) != -EINVAL)
            fail_msg("accepted: %s", bad[i]);
}

static void test_documents(void **state)
{
    (void)state;
    refuse_document("[]");
    refuse_document("{\"routes\": []}");
    refuse_document("{\"version\": 2, \"routes\": []}");
    refuse_document("{\"version\": \"1\", \"routes\": []}");
    refuse_document("{\"version\": 1}");
    refuse_document("{\"version\": 1, \"routes\": {}}");
    refuse_document("{\"version\": 1, \"routes\": [], \"extra\": 1}");
    refuse_document("{\"version\": 1, \"routes\": [\"a.example\"]}");
    refuse_document("{\"version\": 1, \"routes\": [{}]}");
    refuse_document("{\"version\": 1, \"routes\": [{\"host\": \"a.example\", \"verbs\": [\"GET\"]}]}");
    refuse_document("{\"version\": 1, \"routes\": [{\"host\": \"a.example\", \"tls\": \"maybe\"}]}");
    refuse_document("{\"version\": 1, \"routes\": [{\"host\": \"a.example\", \"private\": 1}]}");
    refuse_document("{\"version\": 1, \"routes\": [{\"host\": \"a.example\", \"granted_by\": 1}]}");
    refuse_document("{\"version\": 1, \"routes\": [{\"host\": \"a.example\\u0000.b\"}]}");
    refuse_document("{\"version\": 1, \"routes\": [{\"host\": \"good.example\"}, {\"host\": \"10.0.0.1\"}]}");
}

static void test_default_deny(void **state)
{
    struct bt_policy *policy = parse("{\"version\": 1, \"routes\": []}");
    (void)state;
    assert_false(is_allowed(policy, "example.com", 443, "default-deny"));
    assert_false(is_allowed(policy, "1.2.3.4", 443, "ip-literal"));
    assert_false(is_allowed(policy, "[::1]", 443, "ip-literal"));
    assert_false(is_allowed(policy, "0x7f000001", 443, "ip-literal"));
    assert_false(is_allowed(policy, "a_b", 443, "bad-host"));
    assert_false(is_allowed(policy, "", 443, "bad-host"));
    assert_false(is_allowed(policy, "example.com", 0, "bad-port"));
    bt_policy_free(policy);
}

static void test_decisions(void **state)
{
    struct bt_policy *policy =
        parse("{\"version\": 1, \"routes\": [{\"host\": \"example.com\"}, {\"host\": \"*.example.org:8443\","
              " \"private\": true, \"granted_by\": \"bottle dev\"}, {\"host\": \"*.example.com\"},"
              " {\"host\": \"db.example.org:8443\"}]}");
    struct bt_verdict verdict;
    (void)state;
    assert_true(is_allowed(policy, "example.com", 443, "route:0"));
    assert_true(is_allowed(policy, "example.com", 80, "route:0"));
    assert_true(is_allowed(policy, "EXAMPLE.COM.", 80, "route:0"));
    assert_false(is_allowed(policy, "example.com", 8443, "port-not-allowed"));
    assert_true(is_allowed(policy, "a.example.com", 443, "route:2"));
    assert_true(is_allowed(policy, "a.b.example.com", 443, "route:2"));
    assert_false(is_allowed(policy, "notexample.com", 443, "default-deny"));
    assert_false(is_allowed(policy, "example.com.evil", 443, "default-deny"));
    assert_false(is_allowed(policy, "com", 443, "default-deny"));
    assert_false(is_allowed(policy, "example.org", 8443, "default-deny"));
    assert_false(is_allowed(policy, "a.example.org", 443, "port-not-allowed"));
    bt_policy_decide_connection(policy, "db.example.org", 8443, &verdict);
    assert_true(verdict.is_allowed && verdict.may_be_private);
    assert_string_equal(verdict.rule, "route:1");
    assert_string_equal(verdict.granted_by, "bottle dev");
    bt_policy_decide_name(policy, "db.example.org", &verdict);
    assert_true(verdict.is_allowed);
    bt_policy_decide_name(policy, "example.org", &verdict);
    assert_false(verdict.is_allowed);
    assert_string_equal(verdict.granted_by, "");
    bt_policy_free(policy);
}

static void test_addresses(void **state)
{
    static const struct {
        const char *address;
        enum bt_address_class class;
    } cases[] = {
        {"0.0.0.0", BT_ADDRESS_FORBIDDEN},         {"9.255.255.255", BT_ADDRESS_PUBLIC},
        {"10.0.0.0", BT_ADDRESS_PRIVATE},          {"10.255.255.255", BT_ADDRESS_PRIVATE},
        {"11.0.0.0", BT_ADDRESS_PUBLIC},           {"100.63.255.255", BT_ADDRESS_PUBLIC},
        {"100.64.0.1", BT_ADDRESS_PRIVATE},        {"100.128.0.0", BT_ADDRESS_PUBLIC},
        {"127.0.0.1", BT_ADDRESS_FORBIDDEN},       {"127.255.255.255", BT_ADDRESS_FORBIDDEN},
        {"169.254.169.254", BT_ADDRESS_FORBIDDEN}, {"172.15.255.255", BT_ADDRESS_PUBLIC},
        {"172.16.0.0", BT_ADDRESS_PRIVATE},        {"172.31.255.255", BT_ADDRESS_PRIVATE},
        {"172.32.0.0", BT_ADDRESS_PUBLIC},         {"192.0.0.1", BT_ADDRESS_FORBIDDEN},
        {"168.63.129.16", BT_ADDRESS_FORBIDDEN},   {"168.63.129.17", BT_ADDRESS_PUBLIC},
        {"100.100.100.200", BT_ADDRESS_FORBIDDEN}, {"100.100.100.201", BT_ADDRESS_PRIVATE},
        {"192.0.0.192", BT_ADDRESS_FORBIDDEN},     {"192.88.99.1", BT_ADDRESS_FORBIDDEN},
        {"192.168.1.1", BT_ADDRESS_PRIVATE},       {"198.18.0.1", BT_ADDRESS_FORBIDDEN},
        {"198.20.0.0", BT_ADDRESS_PUBLIC},         {"203.0.113.10", BT_ADDRESS_PUBLIC},
        {"223.255.255.255", BT_ADDRESS_PUBLIC},    {"224.0.0.1", BT_ADDRESS_FORBIDDEN},
        {"255.255.255.255", BT_ADDRESS_FORBIDDEN},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        uint32_t address;
        assert_int_equal(bt_ipv4_parse(cases[i].address, &address), 0);
        if (bt_address_classify(address) != cases[i].class)
            fail_msg("%s is %d", cases[i].address, (int)bt_address_classify(address));
        assert_int_equal(bt_address_is_public(address), cases[i].class == BT_ADDRESS_PUBLIC);
    }
}

_Static_assert(BT_PORT_PROXY == BT_GATEWAY_PORT_PROXY && BT_PORT_DNS == BT_GATEWAY_PORT_DNS &&
                   BT_PORT_HTTP == BT_GATEWAY_PORT_HTTP && BT_PORT_HTTPS == BT_GATEWAY_PORT_HTTPS &&
                   BT_PORT_ORCHESTRATOR == BT_ORCHESTRATOR_PORT && BT_SLOTS_MAX == 2 * BT_POOL_SLOTS_MAX &&
                   BT_BLOCK_TAP == BT_POOL_TAP_BASE_DEFAULT && BT_BLOCK_BRIDGE == BT_POOL_BRIDGE_BASE_DEFAULT,
               "the firewall and the gateway must mean the same ports and blocks");

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical),    cmocka_unit_test(test_canonical_lengths),
        cmocka_unit_test(test_patterns),     cmocka_unit_test(test_documents),
        cmocka_unit_test(test_default_deny), cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests_name("rules", tests, NULL, NULL);
}
