/* An agent's secrets in every spelling, what looks random, and how either is overwritten. */
#include <string.h>

#include "policy/gateway/secrets.h"
#include "tests/lib/filter_run.h"
#include "tests/unit/filter_fixture.h"

static char *base64(const char *data, size_t length, bool is_url)
{
    static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char url[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const char *digits = is_url ? url : standard;
    char *text = bt_new(length * 2 + 5, 1);
    size_t count = 0;
    for (size_t i = 0; i < length; i += 3) {
        unsigned window = (unsigned)(uint8_t)data[i] << 16;
        window |= i + 1 < length ? (unsigned)(uint8_t)data[i + 1] << 8 : 0;
        window |= i + 2 < length ? (unsigned)(uint8_t)data[i + 2] : 0;
        text[count++] = digits[window >> 18 & 63];
        text[count++] = digits[window >> 12 & 63];
        if (i + 1 < length)
            text[count++] = digits[window >> 6 & 63];
        if (i + 2 < length)
            text[count++] = digits[window & 63];
    }
    return text;
}

static void expect_found(const struct bt_secrets *secrets, const char *body, const char *rule)
{
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
        struct filter_run run = {.settings.secrets = (struct bt_secrets *)(uintptr_t)secrets, .cut = cut};
        filter_run(&run, body, strlen(body));
        if (run.verdict != BT_FILTER_BLOCK || !filter_run_found(&run, rule))
            fail_msg("%s was not found in: %s", rule, body);
        assert_true(run.output_length <= strlen(body));
        assert_memory_equal(run.output, body, run.output_length);
        filter_run_clear(&run);
    }
}

static void test_spellings(void **state)
{
    struct bt_secrets *secrets = make_secrets();
    struct bt_buffer spelled[6] = {0};
    (void)state;
    for (const char *at = secret_text; *at != '\0'; at++) {
        (void)!bt_buffer_add_format(&spelled[0], "%02x", (unsigned)(uint8_t)*at);
        (void)!bt_buffer_add_format(&spelled[1], "%02X", (unsigned)(uint8_t)*at);
        (void)!bt_buffer_add_format(&spelled[2], "%%%02x", (unsigned)(uint8_t)*at);
        (void)!bt_buffer_add_format(&spelled[3], *at == '"' ? "\\%c" : "%c", *at);
        (void)!bt_buffer_add_format(&spelled[4], *at == '"' || *at == '/' ? "\\%c" : "%c", *at);
        (void)!bt_buffer_add_format(&spelled[5], "\\u%04x", (unsigned)(uint8_t)*at);
    }
    expect_found(secrets, secret_text, "dlp:secret");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(spelled); i++)
        expect_found(secrets, spelled[i].data, "dlp:secret");
    expect_found(secrets, "a=1&b=q7%2FZp%2B4%22w%7BK2%7Dx%3DVn8_Lr&c=3", "dlp:secret");
    expect_found(secrets, "a=1&b=q7/Zp%2b4%22w%7bK2%7dx%3dVn8_Lr&c=3", "dlp:secret");
    expect_found(secrets, "%71" /* q */ "7%2FZp%2B4%22w%7BK2%7Dx%3DVn8_Lr", "dlp:secret");
    expect_found(secrets, "xx cafe0123456789abcdef yy", "dlp:canary");
    for (size_t before = 0; before < 6; before++)
        for (size_t behind = 0; behind < 3; behind++) {
            bt_auto_free char *joined =
                bt_string_format("%.*s%s%.*s", (int)before, "abcdef", secret_text, (int)behind, "xyz");
            bt_auto_free char *standard = base64(joined, strlen(joined), false);
            bt_auto_free char *url = base64(joined, strlen(joined), true);
            expect_found(secrets, standard, "dlp:secret");
            expect_found(secrets, url, "dlp:secret");
        }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(spelled); i++)
        bt_buffer_free(&spelled[i]);
    (void)bt_secrets_free(secrets);
}

/* A published example is none; what stands behind it, with nothing between that ends a token, is. */
static void test_behind_an_example(void **state)
{
    static const char *const between[] = {"-", ".", "/", "=", ".key=", " "};
    static const struct {
        const char *anchor, *example, *token, *rule;
    } cases[] = {
        {"AKIA", "IOSFODNN7EXAMPLE", "Q3EGRIT27Z5XW4KD", "dlp:aws-access-key"},
        {"sk_live_", "4eC39HqLyjWDarjtT1zdp7dc", "51HxYzAbCdEfGhIjKlMnOpQrSt", "dlp:stripe-key"},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        const char *anchor = cases[i].anchor;
        bt_auto_free char *example = bt_string_format("%s%s", anchor, cases[i].example);
        struct filter_run run = {.cut = CUT_NONE};
        filter_run(&run, example, strlen(example));
        assert_int_equal(run.verdict, BT_FILTER_PASS);
        filter_run_clear(&run);
        for (size_t j = 0; j < BT_ARRAY_LENGTH(between); j++) {
            bt_auto_free char *body =
                bt_string_format("%s%s%s%s", example, between[j], anchor, cases[i].token);
            expect_found(NULL, body, cases[i].rule);
        }
    }
}

static void test_bounds_of_secrets(void **state)
{
    static char large[BT_SECRET_MAX + 1];
    struct bt_secrets *secrets = NULL;
    struct bt_error error = {0};
    (void)state;
    memset(large, 'x', sizeof(large));
    const struct bt_secret too_large = {BT_SECRET_CREDENTIAL, large, sizeof(large)};
    assert_int_equal(bt_secrets_new(&too_large, 1, &secrets, &error), -E2BIG);
    assert_null(strstr(error.message, "xxx"));
    const struct bt_secret largest = {BT_SECRET_CREDENTIAL, large, BT_SECRET_MAX};
    assert_int_equal(bt_secrets_new(&largest, 1, &secrets, &error), 0);
    struct filter_run run = {.settings.secrets = secrets, .cut = CUT_RANDOM};
    filter_run(&run, large, BT_SECRET_MAX);
    assert_true(filter_run_found(&run, "dlp:secret"));
    filter_run_clear(&run);
    secrets = bt_secrets_free(secrets);
    const struct bt_secret small = {BT_SECRET_CREDENTIAL, "1234567", 7};
    assert_int_equal(bt_secrets_new(&small, 1, &secrets, &error), 0);
    assert_null(secrets);
}

static void test_entropy(void **state)
{
    static const struct {
        const char *text;
        bool is_random;
    } cases[] = {
        {"k=R7dkW2mQ9xLc4TnVb8sYf3Hj6GpZa1eUo5Ki", true},
        {"k=R7dkW2mQ9xLc4TnVb8s", false}, /* too short to tell */
        {"bt_exchange_filter_request_new_And_So_On_2", false},
        {"the quick brown fox jumps over the lazy dog", false},
        {"0123456789abcdef0123456789abcdef0123456789abcdef", false},
        {"sha512-R7dkW2mQ9xLc4TnVb8sYf3Hj6GpZa1eUo5Ki", false},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
            const char *body = cases[i].text;
            struct filter_run run = {
                .settings.dlp = {.outbound = BT_DLP_OUTBOUND_OFF, .warns_of_entropy = true}, .cut = cut};
            filter_run(&run, body, strlen(body));
            assert_int_equal(run.verdict, BT_FILTER_PASS);
            assert_string_equal(run.output, body);
            if (filter_run_found(&run, "dlp:entropy") != cases[i].is_random)
                fail_msg("%s", cases[i].text);
            filter_run_clear(&run);
        }
    }
    /* Not without being asked to, and in a path as well; what dlp is off for passes. */
    bt_auto_free char *path = bt_string_format("/%s", cases[0].text);
    struct filter_run run = {.path = path, .settings.dlp.outbound = BT_DLP_OUTBOUND_BLOCK};
    filter_run(&run, cases[0].text, strlen(cases[0].text));
    assert_int_equal(run.finding_count, 0);
    filter_run_clear(&run);
    run.settings.dlp = (struct bt_dlp){.outbound = BT_DLP_OUTBOUND_OFF, .warns_of_entropy = true};
    filter_run(&run, github_token(), strlen(github_token()));
    assert_int_equal(run.verdict, BT_FILTER_PASS);
    assert_int_equal(run.finding_count, 1);
    assert_string_equal(run.findings[0].rule, "dlp:entropy");
    filter_run_clear(&run);
}

static void expect_output(struct filter_run *run, const char *body, const char *expected)
{
    filter_run_clear(run);
    filter_run(run, body, strlen(body));
    assert_int_equal(run->verdict, BT_FILTER_PASS);
    assert_string_equal(run->output, expected);
}

static void test_redaction(void **state)
{
    struct bt_secrets *secrets = make_secrets();
    (void)state;
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
        struct filter_run run = {
            .settings = {.secrets = secrets, .dlp.outbound = BT_DLP_OUTBOUND_REDACT},
            .cut = cut,
        };
        bt_auto_free char *longer = bt_string_format("a %sMORE b", github_token());
        expect_output(&run, longer, "a ghp_**************************************** b");
        assert_int_equal(run.finding_count, 1);
        assert_int_equal(run.findings[0].act, BT_FILTER_REDACTED);
        assert_string_equal(run.findings[0].rule, "dlp:github-token");
        expect_output(&run, "x q7/Zp+4\"w{K2}x=Vn8_Lr y", "x q7******************* y");
        expect_output(&run,
                      "-----BEGIN "
                      "RSA PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"
                      "-----END RSA PRIVATE KEY-----\nbehind",
                      "-----BEGIN "
                      "*********************"
                      "*********************************"
                      "*****************************\nbehind");
        /* A spelling that cannot be overwritten. */
        bt_auto_free char *hidden = bt_string_format("a \\u0067%s b", github_token() + 1);
        filter_run_clear(&run);
        filter_run(&run, hidden, strlen(hidden));
        assert_int_equal(run.verdict, BT_FILTER_BLOCK);
        filter_run_clear(&run);
    }
    (void)bt_secrets_free(secrets);
}

static void test_scrubbing(void **state)
{
    struct bt_secrets *secrets = make_secrets();
    bt_auto_free char *coded = base64("user:q7/Zp+4\"w{K2}x=Vn8_Lr", 26, false);
    (void)state;
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
        struct filter_run run = {.settings.secrets = secrets, .is_response = true, .cut = cut};
        expect_output(&run, "data: q7/Zp+4\"w{K2}x=Vn8_Lr\n\n", "data: q7*******************\n\n");
        assert_string_equal(run.findings[0].rule, "dlp:secret");
        assert_int_equal(run.findings[0].act, BT_FILTER_SCRUBBED);
        filter_run_clear(&run);
        filter_run(&run, coded, strlen(coded));
        assert_int_equal(run.output_length, strlen(coded));
        assert_non_null(strstr(run.output, "********************"));
        /* A canary may come back: the agent has it. */
        expect_output(&run, canary_text, canary_text);
        assert_int_equal(run.finding_count, 0);
        filter_run_clear(&run);
    }
    const struct bt_http_field fields[] = {{{"x-echo", 6}, {secret_text, sizeof(secret_text) - 1}}};
    struct filter_run run = {
        .settings.secrets = secrets, .is_response = true, .fields = fields, .field_count = 1};
    filter_run(&run, "", 0);
    assert_string_equal(run.head, "\nx-echo: q7*******************\n");
    filter_run_clear(&run);
    (void)bt_secrets_free(secrets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),         cmocka_unit_test(test_behind_an_example),
        cmocka_unit_test(test_bounds_of_secrets), cmocka_unit_test(test_entropy),
        cmocka_unit_test(test_redaction),         cmocka_unit_test(test_scrubbing),
    };
    return cmocka_run_group_tests(tests, filters_start, filters_stop);
}
