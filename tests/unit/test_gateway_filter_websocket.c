/* Filters in WebSockets: messages however they are framed, and frames that break the rules. */
#include <string.h>
#include <zlib.h>

#include "tests/lib/filter_run.h"
#include "tests/unit/filter_fixture.h"

static void add_frame(struct bt_buffer *frames, unsigned first, bool is_masked, const char *text,
                      size_t length)
{
    static const uint8_t mask[4] = {0x12, 0xa4, 0x7f, 0x01};
    uint8_t head[4] = {(uint8_t)first, (uint8_t)(length < 126 ? length : 126), (uint8_t)(length >> 8),
                       (uint8_t)length};
    if (is_masked)
        head[1] |= 128;
    (void)!bt_buffer_add(frames, head, length < 126 ? 2 : 4);
    if (is_masked)
        (void)!bt_buffer_add(frames, mask, 4);
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i] ^ (is_masked ? mask[i & 3] : 0);
        (void)!bt_buffer_add(frames, &byte, 1);
    }
}

static void run_frames(struct filter_run *run, const struct bt_buffer *frames)
{
    run->settings.is_websocket = true;
    run->protocol = "websocket";
    run->status = 101;
    filter_run_clear(run);
    filter_run(run, frames->data, frames->length);
}

static void test_websocket_messages(void **state)
{
    const char *token = github_token();
    (void)state;
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_RANDOM; cut++) {
        struct filter_run run = {.cut = cut, .seed = 7};
        bt_auto_buffer whole = {0}, split = {0}, ping = {0}, harmless = {0};
        add_frame(&whole, 0x81, true, "hello", 5); /* another text: no part of the next one's first word */
        add_frame(&whole, 0x81, true, token, strlen(token));
        run_frames(&run, &whole);
        assert_true(run.verdict == BT_FILTER_BLOCK && filter_run_found(&run, "dlp:github-token"));
        /* Fragments, with a ping between them. */
        add_frame(&split, 0x01, true, token, 9);
        add_frame(&split, 0x89, true, "are you there", 13);
        add_frame(&split, 0x80, true, token + 9, strlen(token) - 9);
        run_frames(&run, &split);
        assert_true(run.verdict == BT_FILTER_BLOCK && filter_run_found(&run, "dlp:github-token"));
        assert_true(run.output_length <= 6 + 4); /* a frame's head and an anchor at most */
        add_frame(&ping, 0x89, true, token, strlen(token));
        run_frames(&run, &ping);
        assert_true(run.verdict == BT_FILTER_BLOCK && filter_run_found(&run, "dlp:github-token"));
        /* A message that ends like the beginning of a token is complete all the same. */
        add_frame(&harmless, 0x81, true, "hello ghp_abc", 13);
        add_frame(&harmless, 0x82, true, "", 0);
        run_frames(&run, &harmless);
        assert_int_equal(run.verdict, BT_FILTER_PASS);
        assert_int_equal(run.output_length, harmless.length);
        assert_memory_equal(run.output, harmless.data, harmless.length);
        filter_run_clear(&run);
    }
}

/* A message that ends like the beginning of something is given out at once, and what goes on after it is too.
 */
static void expect_each_passes(struct bt_secrets *secrets)
{
    static const char *const messages[] = {"ghp_", "R7dkW2mQ9", "q7/Zp", "", "+4", "cafe01", "end"};
    const struct bt_filter_settings settings = {.secrets = secrets, .is_websocket = true};
    struct bt_filter *filter = bt_filter_request_new(&settings);
    struct bt_message head = {.content_length = -1, .protocol = {"websocket", 9}};
    struct evbuffer *out = evbuffer_new();
    bt_auto_buffer frames = {0};
    assert_int_equal(bt_filter_head(filter, &head), BT_FILTER_PASS);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(messages); i++) {
        size_t before = frames.length;
        add_frame(&frames, 0x81, true, messages[i], strlen(messages[i]));
        assert_int_equal(bt_filter_data(filter, frames.data + before, frames.length - before, out),
                         BT_FILTER_PASS);
        assert_int_equal(evbuffer_get_length(out), frames.length);
    }
    evbuffer_free(out);
    (void)bt_filter_free(filter);
}

/* What the end of a message, or of a ping, cuts in two; and nothing of a message waits for the next one. */
static void test_websocket_split(void **state)
{
    struct bt_secrets *secrets = make_secrets();
    const char *token = github_token();
    const struct {
        const char *text, *rule;
        unsigned first; /* byte of its frames */
        bool is_response;
    } cases[] = {
        {token, "dlp:github-token", 0x81, false}, {canary_text, "dlp:canary", 0x82, false},
        {secret_text, "dlp:secret", 0x81, false}, {secret_text, "dlp:secret", 0x89, false},
        {token, "dlp:github-token", 0x89, false}, {secret_text, "dlp:secret", 0x82, true},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++)
        for (size_t piece = 1; piece < strlen(cases[i].text); piece += 6) {
            struct filter_run run = {.settings.secrets = secrets,
                                     .is_response = cases[i].is_response,
                                     .cut = CUT_RANDOM,
                                     .seed = 3};
            bt_auto_buffer frames = {0};
            size_t length = strlen(cases[i].text);
            for (size_t at = 0; at < length; at += piece)
                add_frame(&frames, cases[i].first, !cases[i].is_response, cases[i].text + at,
                          length - at < piece ? length - at : piece);
            run_frames(&run, &frames);
            if (run.verdict != BT_FILTER_BLOCK || !filter_run_found(&run, cases[i].rule))
                fail_msg("%s in pieces of %zu", cases[i].rule, piece);
            assert_true(run.output_length < frames.length);
            filter_run_clear(&run);
        }
    expect_each_passes(secrets);
    (void)bt_secrets_free(secrets);
}

static void test_websocket_violations(void **state)
{
    static const struct {
        const char *bytes;
        size_t length;
    } bad[] = {
        {"\xc1\x80\0\0\0\0", 6},                    /* a reserved bit: compressed */
        {"\x81\x01x", 3},                           /* a client that does not mask */
        {"\x83\x80\0\0\0\0", 6},                    /* an opcode that is none */
        {"\x80\x80\0\0\0\0", 6},                    /* a continuation of nothing */
        {"\x01\x80\0\0\0\0\x81\x80\0\0\0\0", 12},   /* a message within another */
        {"\x09\x80\0\0\0\0", 6},                    /* a ping in fragments */
        {"\x89\xfe\0\x7e\0\0\0\0", 8},              /* a long ping */
        {"\x81\xfe\0\x05\0\0\0\0", 8},              /* a length in more bytes than needed */
        {"\x81\xff\x80\0\0\0\0\0\0\0\0\0\0\0", 14}, /* a negative length */
        {"\x88\x80\0\0\0\0\x81\x80\0\0\0\0", 12},   /* something after the close */
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        bt_auto_buffer frames = {0};
        struct filter_run run = {.cut = CUT_NONE};
        (void)!bt_buffer_add(&frames, bad[i].bytes, bad[i].length);
        run_frames(&run, &frames);
        if (run.verdict != BT_FILTER_BLOCK)
            fail_msg("frame %zu passed", i);
        filter_run_clear(&run);
    }
}

static void test_websocket_response(void **state)
{
    struct bt_secrets *secrets = make_secrets();
    struct filter_run run = {.is_response = true, .settings.secrets = secrets, .cut = CUT_BYTES};
    bt_auto_buffer echo = {0}, fine = {0};
    (void)state;
    add_frame(&echo, 0x81, false, secret_text, sizeof(secret_text) - 1);
    run_frames(&run, &echo);
    assert_true(run.verdict == BT_FILTER_BLOCK && filter_run_found(&run, "dlp:secret"));
    add_frame(&fine, 0x81, false, "hello q7/Zp", 11);
    run_frames(&run, &fine);
    assert_int_equal(run.verdict, BT_FILTER_PASS);
    assert_int_equal(run.output_length, fine.length);
    const struct bt_http_field fields[] = {{{"sec-websocket-extensions", 24}, {"permessage-deflate", 18}},
                                           {{"sec-websocket-version", 21}, {"13", 2}}};
    struct filter_run request = {.fields = fields, .field_count = 2, .protocol = "websocket"};
    filter_run(&request, "", 0);
    assert_string_equal(request.head, "/\nsec-websocket-version: 13\n");
    filter_run_clear(&request);
    filter_run_clear(&run);
    (void)bt_secrets_free(secrets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_websocket_messages),
        cmocka_unit_test(test_websocket_split),
        cmocka_unit_test(test_websocket_violations),
        cmocka_unit_test(test_websocket_response),
    };
    return cmocka_run_group_tests(tests, filters_start, filters_stop);
}
