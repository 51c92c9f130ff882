/* Requests held against a policy: routes with methods, paths, headers and credentials; what excludes what. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "policy/rules/rules.h"

/* Single quotes stand for double ones, to be readable here. */
static json_t *document_of(const char *routes)
{
    char text[4096];
    int length = snprintf(text, sizeof(text), "{'version': 1, 'routes': [%s]}", routes);
    assert_in_range(length, 1, (int)sizeof(text) - 1);
    for (char *at = text; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    json_t *document = json_loads(text, JSON_ALLOW_NUL, NULL);
    if (document == NULL)
        fail_msg("not JSON: %s", text);
    return document;
}

static struct bt_policy *policy_of(const char *routes)
{
    struct bt_policy *policy = NULL;
    struct bt_error error = {0};
    json_t *document = document_of(routes);
    if (bt_policy_parse(document, &policy, &error) < 0)
        fail_msg("%s: %s", routes, error.message);
    json_decref(document);
    return policy;
}

static void refused(const char *routes, const char *part)
{
    struct bt_policy *policy = NULL;
    struct bt_error error = {0};
    json_t *document = document_of(routes);
    if (bt_policy_parse(document, &policy, &error) != -EINVAL)
        fail_msg("accepted: %s", routes);
    if (strstr(error.message, part) == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\"", routes, error.message, part);
    json_decref(document);
}

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static struct bt_verdict ask(const struct bt_policy *policy, const char *method, const char *host,
                             const char *path)
{
    struct bt_verdict verdict;
    struct bt_policy_request request = {
        .host = host, .port = 443, .method = slice(method), .path = slice(path), .is_tls = true};
    bt_policy_decide(policy, &request, &verdict);
    assert_true(verdict.reason[0] != '\0');
    assert_true(verdict.is_allowed || verdict.hint[0] != '\0');
    return verdict;
}

static void expect(const struct bt_policy *policy, const char *method, const char *path, const char *rule)
{
    struct bt_verdict verdict = ask(policy, method, "a.example", path);
    if (strcmp(verdict.rule, rule) != 0)
        fail_msg("%s %s: %s instead of %s", method, path, verdict.rule, rule);
    assert_int_equal(verdict.is_allowed, strncmp(rule, "route:", 6) == 0);
}

static void test_documents(void **state)
{
    (void)state;
    refused("{'host': 'a.example', 'methods': []}", "methods");
    refused("{'host': 'a.example', 'methods': ['get']}", "methods");
    refused("{'host': 'a.example', 'methods': ['CONNECT']}", "methods");
    refused("{'host': 'a.example', 'methods': ['GET\\u0000']}", "methods");
    refused("{'host': 'a.example', 'paths': []}", "paths");
    refused("{'host': 'a.example', 'paths': ['a']}", "paths");
    refused("{'host': 'a.example', 'paths': ['/a*']}", "paths");
    refused("{'host': 'a.example', 'paths': ['/*/a']}", "paths");
    refused("{'host': 'a.example', 'paths': ['/a/../b']}", "paths");
    refused("{'host': 'a.example', 'paths': ['/a?b']}", "paths");
    refused("{'host': 'a.example', 'paths': ['/%c3%bc']}", "paths");
    refused("{'host': 'a.example', 'headers': {}}", "headers");
    refused("{'host': 'a.example', 'headers': {'Accept': 'a'}}", "headers");
    refused("{'host': 'a.example', 'headers': {'host': 'a'}}", "headers");
    refused("{'host': 'a.example', 'headers': {'proxy-a': 'a'}}", "headers");
    refused("{'host': 'a.example', 'headers': {'authorization': 'a'}}", "headers");
    refused("{'host': 'a.example', 'headers': {'x': 'a\\nb'}}", "headers");
    refused("{'host': 'a.example', 'auth': {'scheme': 'bearer'}}", "from");
    refused("{'host': 'a.example', 'auth': {'from': 'a'}}", "scheme");
    refused("{'host': 'a.example', 'auth': {'scheme': 'none', 'from': 'a'}}", "none");
    refused("{'host': 'a.example', 'auth': {'scheme': 'bearer', 'from': 'A'}}", "from");
    refused("{'host': 'a.example', 'auth': {'scheme': 'bearer', 'from': 'a', 'value': 'b'}}", "value");
    refused("{'host': 'a.example', 'auth': {'scheme': 'bearer', 'header': 'x', 'from': 'a'}}", "header");
    refused("{'host': 'a.example', 'auth': {'scheme': 'header', 'from': 'a'}}", "header");
    refused("{'host': 'a.example', 'auth': {'scheme': 'header', 'header': 'host', 'from': 'a'}}", "header");
    refused("{'host': 'a.example', 'auth': {'scheme': 'bearer', 'from': 'a'}, 'preserve_auth': true}",
            "exclude");
    refused("{'host': 'a.example', 'transparent': 'credentials'}", "transparent");
    refused("{'host': 'a.example', 'dlp': {'outbound': 'warn'}}", "outbound");
    refused("{'host': 'a.example', 'dlp': 'off'}", "dlp");
    refused("{'host': 'a.example', 'log': 3}", "log");
}

/* Each key that needs the inside of the connection is refused beside tls: pass, and both are named. */
static void test_pass_excludes(void **state)
{
    static const char *const keys[][2] = {
        {"methods", "['GET']"},    {"paths", "['/']"},
        {"headers", "{'a': 'b'}"}, {"auth", "{'scheme': 'bearer', 'from': 'a'}"},
        {"preserve_auth", "true"}, {"dlp", "{'outbound': 'off'}"},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(keys); i++) {
        char text[256];
        snprintf(text, sizeof(text), "{'host': 'a.example', 'tls': 'pass', '%s': %s}", keys[i][0],
                 keys[i][1]);
        refused(text, keys[i][0]);
        refused(text, "\"pass\"");
    }
}

static void test_methods_and_paths(void **state)
{
    struct bt_policy *policy =
        policy_of("{'host': 'a.example', 'methods': ['POST'], 'paths': ['/v1/messages', '/v1/files/*']},"
                  "{'host': 'a.example', 'methods': ['GET', 'OPTIONS'], 'paths': ['/', '/v1/*']},"
                  "{'host': 'a.example', 'methods': ['DELETE']}");
    (void)state;
    expect(policy, "POST", "/v1/messages", "route:0");
    expect(policy, "POST", "/v1/messages?beta=/../x", "route:0");
    expect(policy, "POST", "/v1/files/", "route:0");
    expect(policy, "POST", "/v1/files/a/b", "route:0");
    expect(policy, "POST", "/v1/files", "path-not-allowed");
    expect(policy, "POST", "/v1/messages/", "path-not-allowed");
    expect(policy, "POST", "/V1/messages", "path-not-allowed");
    expect(policy, "GET", "/v1/x", "route:1");
    expect(policy, "HEAD", "/v1/x", "route:1");
    expect(policy, "OPTIONS", "/", "route:1");
    expect(policy, "OPTIONS", "*", "path-ambiguous");
    expect(policy, "HEAD", "/a", "path-not-allowed");
    expect(policy, "DELETE", "/a//b", "route:2");
    expect(policy, "PUT", "/v1/x", "method-not-allowed");
    expect(policy, "get", "/v1/x", "method-not-allowed");
    expect(policy, "", "/v1/x", "method-not-allowed");
    assert_non_null(strstr(ask(policy, "PUT", "a.example", "/").reason, "PUT"));
    bt_policy_free(policy);
}

static void test_ambiguous_paths(void **state)
{
    static const char *const ambiguous[] = {
        "/v1/../admin",  "/v1/./a",
        "/v1/..",        "/v1//a",
        "//a.example/",  "/v1/%2e%2e/a",
        "/v1/%2E",       "/v1/%2f",
        "/v1/a%2Fb",     "/v1/%5c",
        "/v1/a\\b",      "/v1/a;b",
        "/v1/a%3bb",     "/v1/%61",
        "/v1/%25",       "/v1/%00",
        "/v1/%0a",       "/v1/a\x01",
        "/v1/\xc3\xbc",  "/v1/%c0%af",
        "/v1/%e0%80%af", "/v1/%ed%a0%80",
        "/v1/%f8",       "/v1/%c3",
        "/v1/%c3%",      "/v1/%c",
        "/v1/%",         "/v1/%zz",
        "/v1/a#b",       "/v1/%23",
        "/v1/%3f",       "/v1/a b",
        "/v1/<",         "",
        "v1/a",          "http://a.example/v1/a",
        "/v1/%7f",       "/v1/%c3/%bc",
    };
    static const char *const plain[] = {"/v1/%C3%BC",       "/v1/%c3%bc",     "/v1/...", "/v1/a.b",
                                        "/v1/%20",          "/v1/@scope/a:b", "/v1/~a",  "/v1/%7Ea",
                                        "/v1/%F0%9F%98%80", "/v1/a,b&c=d+e!", "/v1/%40", "/v1/a/?x//y",
                                        "/v1/a?%2e%2e"};
    struct bt_policy *policy = policy_of("{'host': 'a.example', 'paths': ['/v1/*']}, {'host': 'a.example'}");
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(ambiguous); i++)
        expect(policy, "GET", ambiguous[i], "path-ambiguous");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(plain); i++)
        expect(policy, "GET", plain[i], "route:0");
    bt_policy_free(policy);
    policy = policy_of("{'host': 'a.example', 'paths': ['/%C3%BC']}");
    expect(policy, "GET", "/%c3%bC", "route:0");
    bt_policy_free(policy);
    policy = policy_of("{'host': 'a.example'}");
    expect(policy, "GET", "/@scope%2fname", "route:0");
    bt_policy_free(policy);
}

static void test_headers(void **state)
{
    struct bt_policy *policy =
        policy_of("{'host': 'a.example', 'headers': {'x-team': 'red', 'accept': '*/*'}}");
    struct bt_http_field fields[] = {
        {slice("Accept"), slice("*/*")}, {slice("X-Team"), slice("red")}, {slice("x-team"), slice("red")}};
    struct bt_policy_request request = {
        .host = "a.example", .port = 443, .method = slice("GET"), .path = slice("/"), .is_tls = true};
    struct bt_verdict verdict;
    (void)state;
    bt_policy_decide(policy, &request, &verdict);
    assert_string_equal(verdict.rule, "header-not-allowed");
    request.fields = fields;
    request.field_count = 2;
    bt_policy_decide(policy, &request, &verdict);
    assert_true(verdict.is_allowed);
    request.field_count = 3; /* twice the same: still two */
    bt_policy_decide(policy, &request, &verdict);
    assert_string_equal(verdict.rule, "header-not-allowed");
    request.field_count = 2;
    fields[1].value = slice("Red");
    bt_policy_decide(policy, &request, &verdict);
    assert_string_equal(verdict.rule, "header-not-allowed");
    assert_null(strstr(verdict.reason, "red"));
    assert_null(strstr(verdict.hint, "red"));
    bt_policy_free(policy);
}

static void test_credentials(void **state)
{
    struct bt_policy *policy = policy_of(
        "{'host': 'a.example', 'paths': ['/v1/*'], 'auth': {'scheme': 'header', 'header': 'x-api-key', "
        "'from':"
        " 'one'}}, {'host': 'a.example', 'auth': {'scheme': 'bearer', 'from': 'two'}, 'transparent':"
        " 'credentials'}, {'host': 'b.example', 'preserve_auth': true}, {'host': 'c.example', 'auth':"
        " {'scheme': 'basic', 'from': 'one'}}, {'host': 'd.example', 'tls': 'pass'}");
    struct bt_policy_request request = {
        .host = "a.example", .port = 443, .method = slice("GET"), .path = slice("/v1/a"), .is_tls = true};
    struct bt_verdict verdict = ask(policy, "GET", "a.example", "/v1/a");
    (void)state;
    assert_int_equal(verdict.auth, BT_AUTH_HEADER);
    assert_string_equal(verdict.auth_header, "x-api-key");
    assert_string_equal(verdict.credential, "one");
    assert_true(verdict.strips_credentials && verdict.is_intercepted);
    verdict = ask(policy, "GET", "a.example", "/");
    assert_int_equal(verdict.auth, BT_AUTH_BEARER);
    assert_string_equal(verdict.auth_header, "authorization");
    assert_string_equal(verdict.credential, "two");
    verdict = ask(policy, "GET", "b.example", "/");
    assert_false(verdict.strips_credentials);
    assert_int_equal(verdict.auth, BT_AUTH_NONE);
    assert_int_equal(ask(policy, "GET", "c.example", "/").auth, BT_AUTH_BASIC);
    /* Attributed by address alone: only where the route says so. */
    request.is_transparent = true;
    bt_policy_decide(policy, &request, &verdict);
    assert_true(verdict.is_allowed);
    assert_int_equal(verdict.auth, BT_AUTH_NONE);
    assert_string_equal(verdict.auth_header, "x-api-key"); /* the agent's own does not pass either */
    request.path = slice("/");
    bt_policy_decide(policy, &request, &verdict);
    assert_int_equal(verdict.auth, BT_AUTH_BEARER);
    /* Never in clear. */
    request.is_tls = false;
    request.port = 80;
    bt_policy_decide(policy, &request, &verdict);
    assert_false(verdict.is_allowed);
    assert_string_equal(verdict.rule, "credential-needs-tls");
    json_t *names = bt_policy_credentials(policy);
    assert_int_equal(json_array_size(names), 2);
    assert_string_equal(json_string_value(json_array_get(names, 0)), "one");
    json_decref(names);
    bt_policy_free(policy);
}

/* A credential that a policy above took away leaves its field closed. */
static void test_no_credential(void **state)
{
    struct bt_policy *policy = policy_of(
        "{'host': 'a.example', 'auth': {'scheme': 'none'}}, {'host': 'b.example', 'auth': {'scheme': 'none',"
        " 'header': 'x-special'}}, {'host': 'c.example'}");
    struct bt_verdict verdict = ask(policy, "GET", "a.example", "/");
    (void)state;
    assert_int_equal(verdict.auth, BT_AUTH_NONE);
    assert_string_equal(verdict.auth_header, "authorization");
    verdict = ask(policy, "GET", "b.example", "/");
    assert_int_equal(verdict.auth, BT_AUTH_NONE);
    assert_string_equal(verdict.auth_header, "x-special");
    assert_string_equal(ask(policy, "GET", "c.example", "/").auth_header, "");
    bt_policy_free(policy);
}

/* What a host may take for the method or path in place of those that were held against the policy. */
static void test_overrides(void **state)
{
    struct bt_policy *policy = policy_of(
        "{'host': 'a.example', 'methods': ['GET', 'POST'], 'paths': ['/v1/*']}, {'host': 'b.example'},"
        " {'host': 'c.example', 'headers': {'x-team': 'red'}}");
    static const struct {
        const char *host, *path, *name, *value, *rule;
    } cases[] = {
        {"a.example", "/v1/a", "X-HTTP-Method-Override", "DELETE", "method-ambiguous"},
        {"a.example", "/v1/a", "x-http-method-override", "post", "method-ambiguous"},
        {"a.example", "/v1/a", "X_HTTP_Method_Override", "PUT", "method-ambiguous"},
        {"a.example", "/v1/a", "X-Method-Override", "PATCH", "method-ambiguous"},
        {"a.example", "/v1/a", "X-HTTP-Method", "MERGE", "method-ambiguous"},
        {"a.example", "/v1/a", "X-HTTP-Method-Override", "", "method-ambiguous"},
        {"a.example", "/v1/a", "X-HTTP-Method-Override", "GET", "route:0"},
        {"a.example", "/v1/a?_method=DELETE", "x", "", "method-ambiguous"},
        {"a.example", "/v1/a?b=c&_method=delete", "x", "", "method-ambiguous"},
        {"a.example", "/v1/a?b;%5Fm%65thod=DELETE", "x", "", "method-ambiguous"},
        {"a.example", "/v1/a?.method=DELETE", "x", "", "method-ambiguous"},
        {"a.example", "/v1/a?_method", "x", "", "method-ambiguous"},
        {"a.example", "/v1/a?_method=HEAD", "x", "", "route:0"},
        {"a.example", "/v1/a?_methods=PUT&my_method=PUT&method=PUT&%5=1&=_method", "x", "", "route:0"},
        {"a.example", "/v1/a?", "x", "", "route:0"},
        {"a.example", "/v1/a", "X-Original-URL", "/v2/a", "path-ambiguous"},
        {"a.example", "/v1/a", "x-rewrite_url", "/v1/a", "path-ambiguous"},
        {"b.example", "/a?_method=DELETE", "X-Original-URL", "/b", "route:1"},
        {"b.example", "/a", "X-HTTP-Method-Override", "DELETE", "route:1"},
        {"c.example", "/a", "X_Team", "blue", "header-not-allowed"},
        {"c.example", "/a", "X-Other", "blue", "route:2"},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        const struct bt_http_field fields[] = {{slice("x-team"), slice("red")},
                                               {slice(cases[i].name), slice(cases[i].value)}};
        const struct bt_policy_request request = {.host = cases[i].host,
                                                  .port = 443,
                                                  .method = slice("POST"),
                                                  .path = slice(cases[i].path),
                                                  .fields = fields,
                                                  .field_count = 2,
                                                  .is_tls = true};
        struct bt_verdict verdict;
        bt_policy_decide(policy, &request, &verdict);
        if (strcmp(verdict.rule, cases[i].rule) != 0)
            fail_msg("%s, %s: %s is %s, not %s", cases[i].path, cases[i].name, cases[i].value, verdict.rule,
                     cases[i].rule);
    }
    assert_true(bt_policy_is_credential_field(slice("X_Api_Key")));
    bt_policy_free(policy);
}

static void test_settings(void **state)
{
    struct bt_policy *policy = policy_of(
        "{'host': 'a.example'}, {'host': 'b.example', 'dlp': {'outbound': 'redact', 'inbound': 'off',"
        " 'entropy': 'warn'}, 'log': 2}");
    struct bt_verdict verdict = ask(policy, "GET", "a.example", "/");
    (void)state;
    assert_int_equal(verdict.dlp.outbound, BT_DLP_OUTBOUND_BLOCK);
    assert_int_equal(verdict.dlp.inbound, BT_DLP_INBOUND_WARN);
    assert_false(verdict.dlp.warns_of_entropy);
    assert_int_equal(verdict.log, BT_LOG_CONNECTIONS);
    verdict = ask(policy, "GET", "b.example", "/");
    assert_int_equal(verdict.dlp.outbound, BT_DLP_OUTBOUND_REDACT);
    assert_int_equal(verdict.dlp.inbound, BT_DLP_INBOUND_OFF);
    assert_true(verdict.dlp.warns_of_entropy);
    assert_int_equal(verdict.log, BT_LOG_REQUESTS);
    bt_policy_free(policy);
}

/* The first route for a host and port says what becomes of its TLS; the others follow. */
static void test_connections(void **state)
{
    struct bt_policy *policy = policy_of(
        "{'host': 'pinned.example.com', 'tls': 'pass'}, {'host': '*.example.com', 'paths': ['/a']},"
        "{'host': 'b.example.com', 'tls': 'pass'}, {'host': '*.example.com', 'methods': ['GET'], 'private':"
        " true}");
    struct bt_verdict verdict;
    (void)state;
    bt_policy_decide_connection(policy, "pinned.example.com", 443, &verdict);
    assert_true(verdict.is_allowed && !verdict.is_intercepted && !verdict.may_be_private);
    assert_string_equal(verdict.rule, "route:0");
    bt_policy_decide_connection(policy, "b.example.com", 443, &verdict);
    assert_true(verdict.is_allowed && verdict.is_intercepted && verdict.may_be_private);
    assert_string_equal(verdict.rule, "route:1");
    bt_policy_decide_connection(policy, "b.example.com", 444, &verdict);
    assert_string_equal(verdict.rule, "port-not-allowed");
    bt_policy_decide_connection(policy, "example.com", 443, &verdict);
    assert_string_equal(verdict.rule, "default-deny");
    verdict = ask(policy, "POST", "b.example.com", "/a");
    assert_true(verdict.is_allowed && !verdict.may_be_private);
    verdict = ask(policy, "GET", "b.example.com", "/b");
    assert_string_equal(verdict.rule, "route:2");
    assert_true(verdict.strips_credentials && !verdict.may_be_private);
    assert_string_equal(ask(policy, "POST", "c.example.com", "/b").rule, "path-not-allowed");
    assert_string_equal(ask(policy, "GET", "c.example.com", "/b").rule, "route:3");
    /* In clear there is no TLS to pass through: the route allows the host. */
    struct bt_policy_request request = {
        .host = "b.example.com", .port = 80, .method = slice("POST"), .path = slice("/b")};
    bt_policy_decide(policy, &request, &verdict);
    assert_string_equal(verdict.rule, "route:2");
    assert_true(verdict.strips_credentials);
    bt_policy_free(policy);
}

static void test_credential_fields(void **state)
{
    (void)state;
    assert_true(bt_policy_is_credential_field(slice("Authorization")));
    assert_true(bt_policy_is_credential_field(slice("x-api-key")));
    assert_true(bt_policy_is_credential_field(slice("Private-Token")));
    assert_false(bt_policy_is_credential_field(slice("accept")));
    assert_false(bt_policy_is_credential_field(slice("")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),         cmocka_unit_test(test_pass_excludes),
        cmocka_unit_test(test_methods_and_paths), cmocka_unit_test(test_ambiguous_paths),
        cmocka_unit_test(test_headers),           cmocka_unit_test(test_credentials),
        cmocka_unit_test(test_no_credential),     cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_settings),          cmocka_unit_test(test_connections),
        cmocka_unit_test(test_credential_fields),
    };
    return cmocka_run_group_tests_name("policy decide", tests, NULL, NULL);
}
