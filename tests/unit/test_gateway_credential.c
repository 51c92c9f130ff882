/* Credentials in the gateway: what is taken from the orchestrator, and what a request looks like afterwards.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "policy/gateway/credential.h"

static struct bt_credentials *take(const char *text, int wanted)
{
    struct bt_credentials *credentials = NULL;
    json_t *answer = json_loads(text, 0, NULL);
    assert_non_null(answer);
    if (bt_credentials_take(answer, &credentials) != wanted)
        fail_msg("not %d: %s", wanted, text);
    json_decref(answer);
    return credentials;
}

static void test_taking(void **state)
{
    (void)state;
    assert_null(take("{}", 0)); /* an older orchestrator */
    assert_null(take("{\"credentials\": null, \"canary\": null}", 0));
    assert_null(take("{\"credentials\": {}}", 0));
    take("{\"credentials\": []}", -EPROTO);
    take("{\"credentials\": {\"a\": 1}}", -EPROTO);
    take("{\"credentials\": {\"a\": \"\"}}", -EPROTO);
    take("{\"credentials\": {\"a\": \"line\\r\\nX-Evil: 1\"}}", -EPROTO);
    take("{\"canary\": 1}", -EPROTO);
    take("{\"identity_token\": \"\"}", -EPROTO);
    struct bt_credentials *credentials = take("{\"canary\": \"0123456789abcdef\"}", 0);
    assert_non_null(bt_credentials_secrets(credentials));
    assert_false(bt_secrets_have(bt_credentials_secrets(credentials), BT_SECRET_IDENTITY));
    bt_credentials_free(credentials);
    credentials =
        take("{\"credentials\": {}, \"canary\": null, \"identity_token\": \"0123456789abcdef\"}", 0);
    assert_true(bt_secrets_have(bt_credentials_secrets(credentials), BT_SECRET_IDENTITY));
    bt_credentials_free(credentials);
    assert_null(bt_credentials_secrets(NULL));
}

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static struct bt_message request(void)
{
    struct bt_message head = {.method = slice("GET"), .path = slice("/"), .field_count = 4};
    head.fields[0] = (struct bt_http_field){slice("authorization"), slice("Bearer agents-own")};
    head.fields[1] = (struct bt_http_field){slice("accept"), slice("*/*")};
    head.fields[2] = (struct bt_http_field){slice("x-api-key"), slice("agents-own")};
    head.fields[3] = (struct bt_http_field){slice("x-special"), slice("agents-own")};
    return head;
}

/* The value of the one field of this name, or NULL. */
static struct bt_http_slice value_of(const struct bt_message *head, const char *name)
{
    struct bt_http_slice value = {NULL, 0};
    for (size_t i = 0; i < head->field_count; i++) {
        if (head->fields[i].name.length != strlen(name) ||
            memcmp(head->fields[i].name.data, name, strlen(name)) != 0)
            continue;
        assert_null(value.data);
        value = head->fields[i].value;
    }
    return value;
}

static void expect(enum bt_auth_scheme scheme, const char *header, const char *value)
{
    struct bt_credentials *credentials =
        take("{\"credentials\": {\"one\": \"user:pass-word\", \"two\": \"other-value\"}}", 0);
    struct bt_verdict verdict = {.is_allowed = true, .strips_credentials = true, .auth = scheme};
    struct bt_message head = request();
    char text[BT_CREDENTIAL_FIELD_SIZE];
    snprintf(verdict.auth_header, sizeof(verdict.auth_header), "%s", header);
    snprintf(verdict.credential, sizeof(verdict.credential), "one");
    assert_true(bt_credentials_have(credentials, &verdict));
    assert_int_equal(bt_credentials_apply(credentials, &verdict, &head, text), 0);
    struct bt_http_slice got = value_of(&head, header);
    assert_int_equal(got.length, strlen(value));
    assert_memory_equal(got.data, value, got.length);
    assert_non_null(value_of(&head, "accept").data);
    assert_null(value_of(&head, strcmp(header, "authorization") == 0 ? "x-api-key" : "authorization").data);
    bt_credentials_free(credentials);
}

static void test_injection(void **state)
{
    (void)state;
    expect(BT_AUTH_BEARER, "authorization", "Bearer user:pass-word");
    expect(BT_AUTH_BASIC, "authorization", "Basic dXNlcjpwYXNzLXdvcmQ=");
    expect(BT_AUTH_HEADER, "x-special", "user:pass-word");
}

static void test_bounds(void **state)
{
    struct bt_credentials *credentials = take("{\"credentials\": {\"one\": \"value-of-one\"}}", 0);
    struct bt_verdict verdict = {.is_allowed = true, .strips_credentials = true};
    struct bt_message head = request();
    char text[BT_CREDENTIAL_FIELD_SIZE];
    (void)state;
    /* Nothing to inject: the agent's own are taken out all the same, or kept when the route says so. */
    assert_int_equal(bt_credentials_apply(NULL, &verdict, &head, text), 0);
    assert_int_equal(head.field_count, 2);
    /* The route has a credential that is not injected here: its field is closed all the same. */
    memcpy(verdict.auth_header, "x-special", sizeof("x-special"));
    head = request();
    assert_int_equal(bt_credentials_apply(NULL, &verdict, &head, text), 0);
    assert_int_equal(head.field_count, 1);
    assert_null(value_of(&head, "x-special").data);
    verdict = (struct bt_verdict){.is_allowed = true};
    head = request();
    assert_int_equal(bt_credentials_apply(NULL, &verdict, &head, text), 0);
    assert_int_equal(head.field_count, 4);
    verdict = (struct bt_verdict){.strips_credentials = true, .auth = BT_AUTH_BEARER, .credential = "absent"};
    assert_false(bt_credentials_have(credentials, &verdict));
    assert_false(bt_credentials_have(NULL, &verdict));
    assert_int_equal(bt_credentials_apply(credentials, &verdict, &head, text), -ENOKEY);
    verdict = (struct bt_verdict){.auth = BT_AUTH_HEADER, .credential = "one", .auth_header = "x-new"};
    for (head.field_count = 0; head.field_count < BT_HTTP_FIELDS_MAX; head.field_count++)
        head.fields[head.field_count] = (struct bt_http_field){slice("accept"), slice("a")};
    assert_int_equal(bt_credentials_apply(credentials, &verdict, &head, text), -E2BIG);
    bt_credentials_free(credentials);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taking),
        cmocka_unit_test(test_injection),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests_name("gateway credential", tests, NULL, NULL);
}
