/* The HTTP/2 codec towards agents: frames that cost more than they carry. */
#include <string.h>

#include "tests/unit/http2_server_fixture.h"

static void say_settings(unsigned i)
{
    say_setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1000 + i % 2);
}

static void say_priority(unsigned i)
{
    uint8_t payload[5] = {0, 0, 0, 0, (uint8_t)i};
    say(NGHTTP2_PRIORITY, 0, 1 + 2 * (i % 1000), payload, 5);
}

static void say_update(unsigned i)
{
    (void)i;
    say_number(NGHTTP2_WINDOW_UPDATE, 0, 1);
}

static void say_empty(unsigned i)
{
    if (i == 0)
        POST(1);
    say(NGHTTP2_DATA, 0, 1, NULL, 0);
}

static void say_padding(unsigned i)
{
    static const uint8_t padding[256] = {255};
    if (i == 0)
        POST(1);
    say(NGHTTP2_DATA, NGHTTP2_FLAG_PADDED, 1, padding, sizeof(padding));
}

static void say_reset(unsigned i)
{
    GET(2 * i + 1);
    say_number(NGHTTP2_RST_STREAM, 2 * i + 1, NGHTTP2_CANCEL);
    if (i < world->seen_count && world->seen[i].stream != NULL)
        release(&world->seen[i]);
}

static void say_malformed(unsigned i)
{
    GET(2 * i + 1, "connection=close");
}

/* The server is made to reset what the client opens: a frame that is wrong for the stream. */
static void say_made_reset(unsigned i)
{
    GET(2 * i + 1);
    say_number(NGHTTP2_WINDOW_UPDATE, 2 * i + 1, 0x7fffffff); /* more than a window may be */
    if (i < world->seen_count && world->seen[i].stream != NULL)
        release(&world->seen[i]);
}

static void say_lies(unsigned i)
{
    POST(2 * i + 1, "content-length=1");
    say_text(2 * i + 1, "two", false);
    if (i < world->seen_count && world->seen[i].stream != NULL)
        release(&world->seen[i]);
}

static void test_floods(void **state)
{
    static const struct {
        const char *name;
        void (*say)(unsigned i);
        unsigned least, most; /* frames, or what is made of them, until the end */
    } floods[] = {
        {"PING", say_ping, 1000, 3000},
        {"SETTINGS", say_settings, 100, 1000},
        {"PRIORITY", say_priority, 500, 3000},
        {"WINDOW_UPDATE", say_update, 1000, 3000},
        {"empty DATA", say_empty, 500, 2000},
        {"padding", say_padding, 500, 2000},
        {"RST_STREAM", say_reset, 100, 550},
        {"malformed", say_malformed, 50, 200},
        {"made to reset", say_made_reset, 50, 550},
        {"lies", say_lies, 50, 550},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(floods); i++) {
        unsigned sent = 0;
        world_start(BT_HTTP2_SERVER);
        for (; sent < floods[i].most && !world->channel->is_finished; sent++) {
            floods[i].say(sent);
            listen_to_it();
            forget();
        }
        if (!world->channel->is_finished || sent < floods[i].least)
            fail_msg("%s: %s after %u", floods[i].name, world->channel->is_finished ? "ended" : "goes on",
                     sent);
        assert_true(world->memory_most < BT_HTTP2_MEMORY_MAX / 4);
        assert_true(world->output_most <= BT_HTTP2_OUTPUT_MAX + 16384 + 9);
        pass_time(1000);
        assert_non_null(world->end_reason);
        world_stop();
    }
}

static void say_unknown(unsigned i)
{
    say(0x20 + i % 16, 0, i % 5, "x", 1);
}

/* Frames of types that nobody knows are skipped, and nothing is kept of them. */
static void test_unknown_frames(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    measure();
    size_t before = world->memory_most;
    for (unsigned i = 0; i < 3000; i++)
        say_unknown(i);
    listen_to_it();
    assert_int_equal(world->memory_most, before);
    assert_int_equal(world->log.length, 0);
    GET(1);
    assert_int_equal(world->seen[0].ends, 1);
    world_stop();
}

/* The same peer, patient: what it is given back by time is enough. */
static void test_patience(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    for (unsigned i = 0; i < 10000; i++) {
        now_ms += 10;
        say_ping(i);
        listen_to_it();
        forget();
    }
    assert_false(world->channel->is_finished);
    world_stop();
}

static void test_continuations(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    say(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_STREAM, 1, "\x82", 1);
    unsigned sent = 0;
    for (; sent < 100 && !world->channel->is_finished; sent++)
        say(NGHTTP2_CONTINUATION, 0, 1, NULL, 0);
    assert_true(sent < 20);
    assert_true(world->channel->is_finished);
    world_stop();
}

/* One large field in HPACK's table, then single bytes that repeat it: 16 KiB on the wire are 60 MiB of head.
 */
static void test_bomb(void **state)
{
    static const char start[] =
        "\x82\x87\x84\x01\x09" /* GET https /, and :authority, which is not indexed: */
        "a.example"
        "\x40\x01x\x7f\xbd\x1d"; /* x, indexed, of 3900 bytes */
    uint8_t block[16384];
    (void)state;
    memcpy(block, start, sizeof(start) - 1);
    memset(block + sizeof(start) - 1, 'v', 3900);
    world_start(BT_HTTP2_SERVER);
    say(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1, block,
        sizeof(start) - 1 + 3900);
    assert_int_equal(world->seen_count, 1);
    for (uint32_t id = 3; id < 403 && !world->channel->is_finished; id += 2) {
        memset(block + 14, 0x80 | 62, sizeof(block) - 14);
        say(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, id, block, sizeof(block));
        listen_to_it();
        expect("HEADERS 3 :status=431 END");
        assert_int_equal(world->seen_count, 1);
    }
    assert_true(world->memory_most < BT_HTTP2_MEMORY_MAX / 4);
    assert_true(world->channel->is_finished); /* and it does not go on for ever */
    world_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floods),   cmocka_unit_test(test_unknown_frames),
        cmocka_unit_test(test_patience), cmocka_unit_test(test_continuations),
        cmocka_unit_test(test_bomb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
