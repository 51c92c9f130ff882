/* Matches and what is asked about them: the same however a body is cut. */
#include <stdio.h>
#include <string.h>

#include "policy/gateway/dlp_view.h"
#include "policy/gateway/held.h"
#include "policy/gateway/matches.h"
#include "tests/lib/filter_run.h"
#include "tests/unit/filter_fixture.h"

static unsigned next_random(unsigned *state)
{
    *state = *state * 1103515245U + 12345U;
    return *state >> 8;
}

/* Text out of what matters: secrets, tokens, their beginnings, escapes, and what stands between. */
static char *random_body(unsigned seed, size_t *ret_length)
{
    bt_auto_buffer body = {0};
    const char *const parts[] = {
        github_token(),
        secret_text,
        canary_text,
        "ghp_",
        "gh",
        "eyJ",
        "q7/Zp",
        "cafe0123",
        " ",
        "\n",
        "\"",
        "\\n",
        "%2F",
        "%67",
        "\\u0067",
        "AKIA",
        "AKIA",
        "Q3EGRIT2",
        "7Z5XW4KD",
        "-----BEGIN ",
        "RSA ",
        "PRIVATE ",
        "KEY-----\n",
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
        "-----END ",
        "aws_secret_access_key",
        " = ",
        "wJbrXUtnFEMIK7MDENGbPxRfiCYzz12/+kwq9Qth",
        "hp_",
        "plain words, and more of them. ",
        "{\"a\": [1, 2]}",
        "sk-",
        "R7dkW2mQ9xLc4TnVb8sYf3Hj6GpZa1eUo5Ki",
    };
    for (unsigned i = 0, count = 1 + next_random(&seed) % 40; i < count; i++)
        (void)!bt_buffer_add_text(&body, parts[next_random(&seed) % BT_ARRAY_LENGTH(parts)]);
    if (next_random(&seed) % 16 == 0)
        for (unsigned i = 0; i < 600; i++)
            (void)!bt_buffer_add_text(&body, "0123456789abcdefghijklmnopqrstuvwxyz+/==ABCDEF");
    if (next_random(&seed) % 2 == 0)
        (void)!bt_buffer_add_text(&body, github_token());
    *ret_length = body.length;
    return BT_TAKE(body.data);
}

static void compare_cuts(struct bt_secrets *secrets, const struct filter_run *like, unsigned seed)
{
    struct filter_run whole = *like, cut = *like;
    size_t length;
    bt_auto_free char *body = random_body(seed, &length);
    whole.settings.secrets = cut.settings.secrets = secrets;
    whole.cut = CUT_NONE;
    cut.cut = seed % 4 == 0 ? CUT_BYTES : CUT_RANDOM;
    cut.seed = seed;
    filter_run(&whole, body, length);
    filter_run(&cut, body, length);
    /* A block ends the search, so what else there was may not have been seen. */
    if (whole.verdict != cut.verdict ||
        (whole.verdict == BT_FILTER_PASS && whole.finding_count != cut.finding_count))
        fail_msg("seed %u: %d/%zu findings whole, %d/%zu in pieces", seed, whole.verdict, whole.finding_count,
                 cut.verdict, cut.finding_count);
    assert_true(cut.held_most <= BT_FILTER_HELD_MAX);
    if (whole.verdict == BT_FILTER_PASS) {
        assert_int_equal(whole.output_length, length);
        assert_int_equal(cut.output_length, length);
        if (memcmp(whole.output, cut.output, length) != 0)
            fail_msg("seed %u: other bytes in pieces:\n%s\n%s\n%s", seed, body, whole.output, cut.output);
        assert_null(memmem(whole.output, length, secret_text, sizeof(secret_text) - 1));
    } else {
        for (size_t at = 0; at < cut.output_length; at++)
            assert_true(cut.output[at] == body[at] || cut.output[at] == '*');
        assert_null(memmem(cut.output, cut.output_length, secret_text, sizeof(secret_text) - 1));
    }
    filter_run_clear(&whole);
    filter_run_clear(&cut);
}

static void test_cuts(void **state)
{
    static const struct filter_run likes[] = {
        {.settings.dlp.outbound = BT_DLP_OUTBOUND_BLOCK},
        {.settings.dlp.outbound = BT_DLP_OUTBOUND_REDACT},
        {.settings.dlp.outbound = BT_DLP_OUTBOUND_SUPERVISE, .answer = true},
        {.settings.dlp.inbound = BT_DLP_INBOUND_WARN, .is_response = true},
    };
    struct bt_secrets *secrets = make_secrets();
    (void)state;
    for (unsigned seed = 1; seed <= 1200; seed++) {
        const struct filter_run *like = &likes[seed % BT_ARRAY_LENGTH(likes)];
        if (like->answer)
            continue;
        compare_cuts(secrets, like, seed);
    }
    (void)bt_secrets_free(secrets);
}

/* Runs of backslashes, cut anywhere: in pairs they mean themselves, and what an odd one begins is an escape.
 */
static void test_backslashes(void **state)
{
    static const size_t runs[] = {1, 2, 3, 4, 5, 511, 512, 513, 514, 601, 602, 1025};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(runs); i++) {
        bt_auto_buffer body = {0};
        (void)!bt_buffer_add_text(&body, "\"");
        for (size_t j = 0; j < runs[i]; j++)
            (void)!bt_buffer_add_text(&body, "\\");
        (void)!bt_buffer_add_format(&body, "u0067%s", github_token() + 1);
        for (size_t cut = 1; cut <= runs[i] + 8; cut++) {
            const struct bt_scanner_settings settings = {.detectors = bt_detectors_outbound()};
            struct bt_view *view = bt_view_new(BT_VIEW_JSON, &settings);
            bt_view_scan(view, body.data, cut);
            bt_view_scan(view, body.data + cut, body.length - cut);
            if ((bt_view_finds(view).detectors != 0) != (runs[i] % 2 != 0))
                fail_msg("%zu backslashes, cut after %zu bytes", runs[i], cut);
            view = bt_view_free(view);
        }
    }
}

static void test_questions(void **state)
{
    struct bt_secrets *secrets = make_secrets();
    (void)state;
    for (unsigned seed = 1; seed <= 200; seed++) {
        size_t length;
        bt_auto_free char *body = random_body(seed, &length);
        struct filter_run run = {
            .settings = {.secrets = secrets, .dlp.outbound = BT_DLP_OUTBOUND_SUPERVISE},
            .cut = CUT_RANDOM,
            .seed = seed,
            .answer = true,
        };
        filter_run(&run, body, length);
        assert_int_equal(run.verdict, BT_FILTER_PASS);
        assert_int_equal(run.output_length, length);
        assert_memory_equal(run.output, body, length);
        assert_true(run.questions <= run.finding_count && (run.questions != 0) == (run.finding_count != 0));
        bool is_asked = run.questions != 0;
        filter_run_clear(&run);
        run.answer = false;
        filter_run(&run, body, length);
        assert_int_equal(run.verdict, is_asked ? BT_FILTER_BLOCK : BT_FILTER_PASS);
        filter_run_clear(&run);
    }
    (void)bt_secrets_free(secrets);
}

/* One answer is for one value: another one of the same kind is another question, the same one is none. */
static void test_values(void **state)
{
    char other[64];
    (void)snprintf(other, sizeof(other), "%.30sZZZZZZZZZZ", github_token());
    bt_auto_free char *body =
        bt_string_format("%s %s %040000d %s %s", github_token(), github_token(), 0, other, github_token());
    (void)state;
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_RANDOM; cut++) {
        struct filter_run run = {
            .settings.dlp.outbound = BT_DLP_OUTBOUND_SUPERVISE, .cut = cut, .seed = 3, .answer = true};
        filter_run(&run, body, strlen(body));
        assert_int_equal(run.verdict, BT_FILTER_PASS);
        assert_int_equal(run.questions, 2);
        assert_string_equal(run.output, body);
        filter_run_clear(&run);
    }
}

/* A private key is known by its first line alone, which others have, too: each one is asked about. */
static void test_partial_values(void **state)
{
    bt_auto_free char *key =
        bt_string_format("%s%s\n%s%s\n%s%s\n", "-----BEGIN ", "PRIVATE KEY-----", "MIIEvQIBADANBgkq",
                         "hkiG9w0BAQEFAASC", "-----END ", "PRIVATE KEY-----");
    bt_auto_free char *body = bt_string_format("%s%040000d%s", key, 0, key);
    struct filter_run run = {.settings.dlp.outbound = BT_DLP_OUTBOUND_SUPERVISE, .answer = true};
    (void)state;
    filter_run(&run, body, strlen(body));
    assert_int_equal(run.verdict, BT_FILTER_PASS);
    assert_int_equal(run.questions, 2);
    filter_run_clear(&run);
}

/* More values than an owner can be asked about, whether they come together or one by one. */
static void test_many_values(void **state)
{
    bt_auto_buffer body = {0};
    (void)state;
    for (unsigned i = 0; i <= BT_MATCHES_MAX; i++) {
        for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
            struct filter_run run = {
                .settings.dlp.outbound = BT_DLP_OUTBOUND_SUPERVISE, .cut = cut, .answer = true};
            filter_run(&run, body.data != NULL ? body.data : "", body.length);
            assert_int_equal(run.verdict, BT_FILTER_PASS);
            filter_run_clear(&run);
        }
        assert_int_equal(bt_buffer_add_format(&body, "%.30sZZZZZZZZ%02u ", github_token(), i), 0);
    }
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
        struct filter_run run = {
            .settings.dlp.outbound = BT_DLP_OUTBOUND_SUPERVISE, .cut = cut, .answer = true};
        filter_run(&run, body.data, body.length);
        assert_int_equal(run.verdict, BT_FILTER_BLOCK);
        assert_true(filter_run_found(&run, "approval:too-many"));
        filter_run_clear(&run);
    }
}

/* What was asked about says what and where, and nothing of the value; what is remembered is of one host. */
static void test_matches(void **state)
{
    struct bt_filter_settings settings = {.dlp.outbound = BT_DLP_OUTBOUND_SUPERVISE, .host = "a.example"};
    struct bt_filter *filter = bt_filter_request_new(&settings);
    struct bt_message head = {.path = {"/", 1}, .content_length = -1};
    struct bt_approved *approved = NULL;
    struct evbuffer *out = evbuffer_new();
    bt_auto_free char *body = bt_string_format("x=%s&y=1", github_token());
    char rule[64];
    const char *title;
    (void)state;
    assert_int_equal(bt_filter_head(filter, &head), BT_FILTER_PASS);
    assert_int_equal(bt_filter_data(filter, body, strlen(body), out), BT_FILTER_ASK);
    const struct bt_matches *matches = bt_filter_matches(filter);
    assert_int_equal(matches->count, 1);
    assert_int_equal(matches->items[0].offset, 2 + strlen(github_token()));
    assert_string_equal(matches->items[0].excerpt, "ghp_****************");
    bt_filter_name_match(&matches->items[0], rule, &title);
    assert_string_equal(rule, "dlp:github-token");
    bt_approved_add(&approved, "a.example", matches);
    (void)bt_filter_free(filter);
    settings.approved = approved;
    for (unsigned i = 0; i < 2; i++) {
        struct bt_filter_finding finding;
        settings.host = i == 0 ? "a.example" : "b.example";
        filter = bt_filter_request_new(&settings);
        assert_int_equal(bt_filter_head(filter, &head), BT_FILTER_PASS);
        assert_int_equal(bt_filter_data(filter, body, strlen(body), out),
                         i == 0 ? BT_FILTER_PASS : BT_FILTER_ASK);
        assert_true(bt_filter_take_finding(filter, &finding));
        assert_string_equal(finding.rule, i == 0 ? "approval:remembered" : "dlp:github-token");
        (void)bt_filter_free(filter);
    }
    (void)bt_approved_free(approved);
    evbuffer_free(out);
}

static void show_path(enum bt_dlp_outbound outbound, const char *path, const char *expected)
{
    const struct bt_filter_settings settings = {.dlp.outbound = outbound};
    struct bt_filter *filter = bt_filter_request_new(&settings);
    char shown[BT_FILTER_PATH_SIZE];
    bt_filter_show_path(filter, (struct bt_http_slice){path, strlen(path)}, shown);
    assert_string_equal(shown, expected);
    (void)bt_filter_free(filter);
}

static void test_shown_paths(void **state)
{
    bt_auto_free char *plain = bt_string_format("/a/%s?q=%s", github_token(), github_token());
    bt_auto_free char *hidden = bt_string_format("/a/%%67%s", github_token() + 1);
    bt_auto_free char *large = bt_string_format("/%0400d", 0);
    bt_auto_free char *cut = bt_string_format("/%0255d", 0);
    (void)state;
    show_path(BT_DLP_OUTBOUND_SUPERVISE, "/v1/x?key=1", "/v1/x");
    show_path(BT_DLP_OUTBOUND_SUPERVISE, plain, "/a/ghp_************************************");
    show_path(BT_DLP_OUTBOUND_BLOCK, plain, "/a/ghp_************************************");
    show_path(BT_DLP_OUTBOUND_SUPERVISE, hidden, "");
    show_path(BT_DLP_OUTBOUND_SUPERVISE, large, cut);
    show_path(BT_DLP_OUTBOUND_OFF, "/a\033b", "/a?b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),           cmocka_unit_test(test_backslashes),
        cmocka_unit_test(test_questions),      cmocka_unit_test(test_values),
        cmocka_unit_test(test_partial_values), cmocka_unit_test(test_many_values),
        cmocka_unit_test(test_matches),        cmocka_unit_test(test_shown_paths),
    };
    return cmocka_run_group_tests(tests, filters_start, filters_stop);
}
