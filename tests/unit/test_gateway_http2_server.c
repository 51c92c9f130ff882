/* The HTTP/2 codec towards agents: what it delivers, what it sends, and what it takes for malformed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "tests/unit/http2_server_fixture.h"

static void test_settings(void **state)
{
    (void)state;
    world_open(BT_HTTP2_SERVER);
    expect("SETTINGS 0 3=100 4=65536 6=65536 8=1 9=1");
    world_stop();
}

static void test_exchange(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    POST(1, "content-length=10", "accept=*/*", "cookie=a=1", "cookie=b=2");
    struct seen *seen = &world->seen[0];
    assert_int_equal(seen->heads, 1);
    assert_string_equal(seen->head, "POST https a.example /p length=10 accept=*/* cookie=a=1; b=2");
    assert_false(seen->is_complete);
    say_text(1, "hello", false);
    say_text(1, "world", true);
    assert_string_equal(seen->body, "helloworld");
    assert_int_equal(seen->ends, 1);
    assert_int_equal(answer(seen, 100, -1, false), 0);
    assert_int_equal(answer(seen, 200, 4, false), 0);
    assert_int_equal(answer(seen, 200, 4, false), -EPIPE); /* once */
    assert_int_equal(answer_data(seen, "good"), 0);
    assert_int_equal(answer_end(seen), 0);
    assert_int_equal(answer_data(seen, "more"), -EPIPE);
    release(seen);
    listen_to_it();
    expect("HEADERS 1 :status=100\n");
    expect("HEADERS 1 :status=200 content-length=4\n");
    expect("DATA 1 4 END");
    assert_int_equal(count("RST_STREAM"), 0);
    assert_int_equal(bt_http2_stream_count(world->http2), 0);
    world_stop();
}

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static void test_trailers(void **state)
{
    struct bt_message trailers = {.content_length = -1, .field_count = 1};
    (void)state;
    trailers.fields[0] = (struct bt_http_field){slice("grpc-status"), slice("0")};
    world_start(BT_HTTP2_SERVER);
    POST(1, "te=trailers", "content-type=application/grpc");
    say_text(1, "message", false);
    say_head(1, true, "x-checksum=1", (const char *)NULL);
    struct seen *seen = &world->seen[0];
    assert_string_equal(seen->trailers, " x-checksum=1");
    assert_int_equal(seen->ends, 1);
    assert_int_equal(answer(seen, 200, -1, false), 0);
    assert_int_equal(answer_data(seen, "reply"), 0);
    assert_int_equal(seen->stream->operations->send_end(seen->stream, &trailers), 0);
    listen_to_it();
    expect("DATA 1 5\n");
    expect("HEADERS 1 grpc-status=0 END");
    /* Trailers without a body, and a complete request. */
    GET(3);
    assert_true(world->seen[1].is_complete);
    assert_int_equal(world->seen[1].ends, 1);
    assert_int_equal(answer(&world->seen[1], 200, -1, false), 0);
    assert_int_equal(world->seen[1].stream->operations->send_end(world->seen[1].stream, &trailers), 0);
    listen_to_it();
    expect("HEADERS 3 grpc-status=0 END");
    world_stop();
}

static void test_bad_trailers(void **state)
{
    static const char *const bad[] = {"authorization=x", "content-length=1", ":status=200",
                                      "connection=close", "X=y"};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        world_start(BT_HTTP2_SERVER);
        POST(1);
        say_head(1, true, bad[i], (const char *)NULL);
        listen_to_it();
        expect("RST_STREAM 1 1");
        assert_int_equal(world->seen[0].aborts, 1);
        assert_int_equal(world->seen[0].reason, BT_ABORT_PROTOCOL);
        assert_int_equal(world->seen[0].ends, 0);
        world_stop();
    }
}

/* Through HPACK and nghttp2, where the table of http2_head's test is not looked at alone. */
static void test_malformed(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    GET(1, "x=a\r\nhost: evil");
    GET(3, "Accept=x");
    GET(5, "transfer-encoding=chunked");
    GET(7, "content-length=1", "content-length=1");
    GET(9, "host=b.example");
    GET(11, ":method=GET");
    GET(13, "x=\tblank");
    GET(15, "a b=c");
    say_head(17, true, ":method=GET", ":scheme=http", ":authority=a.example", ":path=/", (const char *)NULL);
    say_head(19, true, ":method=GET", ":scheme=https", ":authority=u@a.example", ":path=/",
             (const char *)NULL);
    say_head(21, true, ":method=GET", ":scheme=https", ":authority=a.example", ":path=/ b",
             (const char *)NULL);
    say_head(23, false, ":method=CONNECT", ":authority=a.example:443", (const char *)NULL);
    GET(25, "content-length=5"); /* and nothing comes */
    GET(27);
    listen_to_it();
    for (unsigned id = 1; id <= 25; id += 2) {
        char line[32];
        snprintf(line, sizeof(line), "RST_STREAM %u 1\n", id);
        expect(line);
    }
    assert_int_equal(world->malformed_count, 13);
    assert_int_equal(world->seen_count, 1);
    assert_int_equal(world->seen[0].ends, 1);
    assert_null(world->end_reason);
    world_stop();
}

static void test_length_lies(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    POST(1, "content-length=3");
    say_text(1, "four", false);
    POST(3, "content-length=5");
    say_text(3, "four", true);
    listen_to_it();
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(world->seen[i].ends, 0);
        assert_int_equal(world->seen[i].aborts, 1);
        assert_int_equal(world->seen[i].reason, BT_ABORT_PROTOCOL);
        assert_int_equal(answer(&world->seen[i], 200, -1, true), -EPIPE);
    }
    expect("RST_STREAM 1 1");
    expect("RST_STREAM 3 1");
    world_stop();
}

static void test_too_large(void **state)
{
    bt_auto_free char *value = bt_new(1, 15001);
    (void)state;
    memset(value, 'v', 15000);
    memcpy(value, "x=", 2);
    world_start(BT_HTTP2_SERVER);
    GET(1, value); /* goes into the table of HPACK no more than its 4096 bytes allow */
    assert_int_equal(world->seen_count, 1);
    /* In five frames, since a frame ends at 16384: more than 64 KiB. */
    uint8_t block[80000];
    nghttp2_nv fields[5];
    for (size_t i = 0; i < BT_ARRAY_LENGTH(fields); i++)
        fields[i] = (nghttp2_nv){(uint8_t *)value, (uint8_t *)value + 2, 1, 14998, NGHTTP2_NV_FLAG_NO_INDEX};
    ssize_t length =
        nghttp2_hd_deflate_hd(world->deflater, block, sizeof(block), fields, BT_ARRAY_LENGTH(fields));
    assert_true(length > 0);
    for (ssize_t at = 0; at < length; at += 16384)
        say(at == 0 ? NGHTTP2_HEADERS : NGHTTP2_CONTINUATION,
            (at == 0 ? NGHTTP2_FLAG_END_STREAM : 0U) | (length - at <= 16384 ? NGHTTP2_FLAG_END_HEADERS : 0U),
            3, block + at, length - at < 16384 ? (size_t)(length - at) : 16384);
    GET(5);
    listen_to_it();
    expect("RST_STREAM 3 1"); /* it has no pseudo-fields; nghttp2 saw that first */
    assert_int_equal(world->seen_count, 2);
    world_stop();
}

static void test_too_many_fields(void **state)
{
    nghttp2_nv fields[4 + BT_HTTP_FIELDS_MAX];
    uint8_t block[16384];
    static const char *const pseudo[][2] = {
        {":method", "POST"}, {":scheme", "https"}, {":authority", "a.example"}, {":path", "/"}};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(fields); i++) {
        union {
            const char *text;
            uint8_t *bytes;
        } name = {i < 4 ? pseudo[i][0] : "x"}, value = {i < 4 ? pseudo[i][1] : "y"};
        fields[i] = (nghttp2_nv){name.bytes, value.bytes, strlen(name.text), strlen(value.text), 0};
    }
    world_start(BT_HTTP2_SERVER);
    ssize_t length =
        nghttp2_hd_deflate_hd(world->deflater, block, sizeof(block), fields, BT_ARRAY_LENGTH(fields));
    assert_true(length > 0);
    say(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, block, (size_t)length);
    listen_to_it();
    expect("HEADERS 1 :status=431 END");
    expect("RST_STREAM 1 0"); /* and what follows of it is not wanted */
    assert_int_equal(world->seen_count, 0);
    say_data(1, 1000, true); /* was on its way */
    GET(3);
    listen_to_it();
    assert_int_equal(world->seen_count, 1);
    assert_null(world->end_reason);
    world_stop();
}

static void test_not_http2(void **state)
{
    (void)state;
    world_open(BT_HTTP2_SERVER);
    say_bytes("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 35);
    assert_true(world->channel->is_finished);
    pass_time(1000);
    assert_non_null(world->end_reason);
    world_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings),  cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_trailers),  cmocka_unit_test(test_bad_trailers),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_length_lies),
        cmocka_unit_test(test_too_large), cmocka_unit_test(test_too_many_fields),
        cmocka_unit_test(test_not_http2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
