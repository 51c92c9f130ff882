/* The HTTP/2 codec towards upstreams. */
#include <errno.h>

#include "tests/unit/http2_fixture.h"

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static struct bt_message request_of(const char *method, int64_t length)
{
    return (struct bt_message){.method = slice(method),
                               .scheme = slice("https"),
                               .authority = slice("a.example"),
                               .path = slice("/"),
                               .content_length = length};
}

/* A stream with its request on the wire. */
static struct seen *ask(const char *method, bool is_end)
{
    struct bt_message message = request_of(method, -1);
    struct seen *seen = open_stream();
    assert_non_null(seen);
    assert_int_equal(seen->stream->operations->send_head(seen->stream, &message, is_end), 0);
    turn();
    return seen;
}

static int send_text(struct seen *seen, const char *text)
{
    return seen->stream->operations->send_data(seen->stream, text, strlen(text));
}

static void test_settings(void **state)
{
    (void)state;
    world_open(BT_HTTP2_CLIENT);
    expect("SETTINGS 0 2=0 3=0 4=65536 6=65536");
    assert_int_equal(bt_http2_capacity(world->http2),
                     BT_HTTP2_STREAMS_MAX); /* before the peer said anything */
    assert_false(bt_http2_allows_protocol(world->http2));
    say_setting(NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 2);
    assert_true(world->capacity_count > 0);
    assert_int_equal(bt_http2_capacity(world->http2), 2);
    say_setting(NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1000000);
    assert_int_equal(bt_http2_capacity(world->http2), BT_HTTP2_STREAMS_MAX);
    world_stop();
}

static void test_exchange(void **state)
{
    struct bt_message message = request_of("POST", 4), trailers = {.content_length = -1, .field_count = 1};
    (void)state;
    message.fields[message.field_count++] =
        (struct bt_http_field){slice("content-type"), slice("application/grpc")};
    trailers.fields[0] = (struct bt_http_field){slice("x-sum"), slice("1")};
    world_start(BT_HTTP2_CLIENT);
    struct seen *seen = open_stream();
    assert_int_equal(send_text(seen, "early"), -EPIPE); /* a head comes first */
    assert_int_equal(seen->stream->operations->send_head(seen->stream, &message, false), 0);
    assert_int_equal(send_text(seen, "ping"), 0);
    assert_int_equal(seen->stream->operations->send_end(seen->stream, &trailers), 0);
    listen_to_it();
    expect("HEADERS 1 :method=POST :scheme=https :authority=a.example :path=/ te=trailers content-length=4 "
           "content-type=application/grpc\n");
    expect("DATA 1 4\n");
    expect("HEADERS 1 x-sum=1 END");
    say_head(1, false, ":status=103", "link=x", (const char *)NULL);
    assert_string_equal(seen->head, "103 link=x");
    say_head(1, false, ":status=200", "content-length=4", "server=y", (const char *)NULL);
    assert_string_equal(seen->head, "200 length=4 server=y");
    assert_int_equal(seen->heads, 2);
    say_text(1, "pong", false);
    say_head(1, true, "grpc-status=0", (const char *)NULL);
    assert_string_equal(seen->body, "pong");
    assert_string_equal(seen->trailers, " grpc-status=0");
    assert_int_equal(seen->ends, 1);
    assert_int_equal(bt_http2_stream_count(world->http2), 0);
    assert_int_equal(bt_http2_capacity(world->http2), BT_HTTP2_STREAMS_MAX);
    release(seen);
    world_stop();
}

static void test_no_content(void **state)
{
    static const struct {
        const char *method, *status, *length;
        const char *head;
    } table[] = {
        {"HEAD", ":status=200", "content-length=1000", "200 length=1000"},
        {"GET", ":status=304", "content-length=1000", "304 length=1000"},
        {"GET", ":status=204", "content-length=0", "204"},
        {"GET", ":status=200", "content-length=0", "200 length=0"},
    };
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    for (unsigned i = 0; i < BT_ARRAY_LENGTH(table); i++) {
        struct seen *seen = ask(table[i].method, true);
        say_head(2 * i + 1, true, table[i].status, table[i].length, (const char *)NULL);
        assert_string_equal(seen->head, table[i].head);
        assert_true(seen->is_complete);
        assert_int_equal(seen->ends, 1);
        assert_int_equal(seen->aborts, 0);
    }
    world_stop();
}

static void test_lies(void **state)
{
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    struct seen *shorter = ask("GET", true), *longer = ask("GET", true), *bodied = ask("HEAD", true);
    struct seen *malformed = ask("GET", true), *switching = ask("GET", true), *late = ask("GET", true);
    say_head(1, false, ":status=200", "content-length=5", (const char *)NULL);
    say_text(1, "four", true);
    say_head(3, false, ":status=200", "content-length=3", (const char *)NULL);
    say_text(3, "four", false);
    say_head(5, false, ":status=200", (const char *)NULL);
    say_text(5, "body", true);
    say_head(7, true, ":status=200", "transfer-encoding=chunked", (const char *)NULL);
    say_head(9, false, ":status=101", (const char *)NULL);
    say_head(11, true, ":status=100", (const char *)NULL);
    struct seen *const all[] = {shorter, longer, bodied, malformed, switching, late};
    listen_to_it();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(all); i++) {
        char line[32];
        assert_int_equal(all[i]->ends, 0);
        assert_int_equal(all[i]->aborts, 1);
        assert_int_equal(all[i]->reason, BT_ABORT_PROTOCOL);
        snprintf(line, sizeof(line), "RST_STREAM %zu 1", 2 * i + 1);
        expect(line);
    }
    assert_null(world->end_reason);
    assert_string_equal(ask("GET", true)->head, ""); /* the others go on */
    world_stop();
}

/* RFC 9113, 8.1: the answer is there, the rest of the request is not wanted. */
static void test_early_answer(void **state)
{
    static const unsigned codes[] = {NGHTTP2_NO_ERROR, NGHTTP2_CANCEL};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(codes); i++) {
        world_start(BT_HTTP2_CLIENT);
        struct seen *seen = ask("POST", false);
        assert_int_equal(send_text(seen, "a part"), 0);
        listen_to_it();
        say_head(1, false, ":status=413", (const char *)NULL);
        say_text(1, "too much", true);
        assert_int_equal(send_text(seen, "more"), 0);
        say_number(NGHTTP2_RST_STREAM, 1, codes[i]);
        assert_int_equal(seen->ends, 1);
        assert_int_equal(seen->aborts, 0);
        assert_true(seen->rooms > 0);
        assert_int_equal(seen->stream->operations->room(seen->stream), BT_STREAM_HELD_MAX);
        assert_int_equal(send_text(seen, "more"), -EPIPE);
        assert_int_equal(seen->stream->operations->send_end(seen->stream, NULL), -EPIPE);
        release(seen);
        world_stop();
    }
}

static void test_aborts(void **state)
{
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    struct seen *refused = ask("GET", true), *cancelled = ask("GET", true), *ours = ask("POST", false),
                *left = ask("POST", false);
    listen_to_it();
    say_number(NGHTTP2_RST_STREAM, 1, NGHTTP2_REFUSED_STREAM);
    assert_int_equal(refused->reason, BT_ABORT_REFUSED);
    say_head(3, false, ":status=200", (const char *)NULL);
    say_text(3, "a part", false);
    say_number(NGHTTP2_RST_STREAM, 3, NGHTTP2_INTERNAL_ERROR);
    assert_int_equal(cancelled->aborts, 1);
    assert_int_equal(cancelled->reason, BT_ABORT_CANCELLED);
    ours->stream->operations->abort(ours->stream, BT_ABORT_LOST);
    release(left);
    listen_to_it();
    expect("RST_STREAM 5 8");
    expect("RST_STREAM 7 8");
    assert_int_equal(ours->aborts, 0);
    assert_int_equal(bt_http2_stream_count(world->http2), 0);
    world_stop();
}

static void test_goaway(void **state)
{
    static const uint8_t goaway[8] = {0, 0, 0, 1, 0, 0, 0, 0};
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    struct seen *first = ask("GET", true), *second = ask("GET", true), *unsent = open_stream();
    listen_to_it();
    say(NGHTTP2_GOAWAY, 0, 0, goaway, sizeof(goaway));
    assert_int_equal(second->aborts, 1);
    assert_int_equal(second->reason, BT_ABORT_REFUSED); /* may be tried elsewhere */
    assert_int_equal(bt_http2_capacity(world->http2), 0);
    assert_null(open_stream());
    assert_true(world->capacity_count > 0);
    assert_int_equal(first->aborts, 0);
    say_head(1, true, ":status=204", (const char *)NULL);
    assert_int_equal(first->ends, 1);
    listen_to_it();
    assert_int_equal(unsent->aborts, 1);
    assert_int_equal(unsent->reason, BT_ABORT_REFUSED);
    assert_true(world->channel->is_finished);
    world_stop();
}

static void test_lost(void **state)
{
    struct bt_message message = request_of("GET", -1);
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    struct seen *sent = ask("GET", true);
    listen_to_it();
    struct seen *unsent = open_stream();
    assert_int_equal(unsent->stream->operations->send_head(unsent->stream, &message, true), 0);
    memory_channel_end(world->channel, BT_CHANNEL_BROKEN);
    assert_int_equal(sent->reason, BT_ABORT_LOST);
    assert_int_equal(unsent->aborts, 1);
    assert_non_null(world->end_reason);
    world_stop();
}

static void test_other_protocol(void **state)
{
    struct bt_message message = request_of("GET", -1);
    (void)state;
    message.protocol = slice("websocket");
    world_start(BT_HTTP2_CLIENT);
    struct seen *seen = open_stream();
    assert_int_equal(seen->stream->operations->send_head(seen->stream, &message, false),
                     -EPIPE);          /* not offered */
    assert_int_equal(seen->aborts, 0); /* told from the loop */
    turn();
    assert_int_equal(seen->aborts, 1);
    say_setting(NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1);
    assert_true(bt_http2_allows_protocol(world->http2));
    seen = open_stream();
    assert_int_equal(seen->stream->operations->send_head(seen->stream, &message, false), 0);
    listen_to_it();
    expect("HEADERS 1 :method=CONNECT :protocol=websocket :scheme=https :authority=a.example :path=/\n");
    say_head(1, false, ":status=200", "sec-websocket-protocol=x", (const char *)NULL);
    assert_string_equal(seen->head, "101 sec-websocket-protocol=x");
    assert_int_equal(send_text(seen, "frames"), 0);
    say_text(1, "others", true);
    assert_string_equal(seen->body, "others");
    assert_int_equal(seen->ends, 1);
    listen_to_it();
    expect("DATA 1 6\n");
    say_number(NGHTTP2_RST_STREAM, 1, NGHTTP2_CANCEL);
    assert_int_equal(seen->aborts, 1); /* both directions matter here */
    world_stop();
}

/* A receiver that keeps up gets more window, one that does not keeps what it has. */
static void test_windows(void **state)
{
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    struct seen *fast = ask("GET", true), *slow = ask("GET", true);
    say_head(1, false, ":status=200", (const char *)NULL);
    say_head(3, false, ":status=200", (const char *)NULL);
    for (unsigned i = 0; i < 4; i++) {
        say_data(1, 65536, false);
        listen_to_it();
    }
    world->is_holding = true;
    say_data(1, 131072, false);
    listen_to_it();
    assert_int_equal(fast->aborts, 0);
    assert_int_equal(fast->held, 131072);
    say_data(3, 65536, false);
    for (unsigned i = 0; i < 16; i++) { /* always one byte behind */
        slow->stream->operations->consume(slow->stream, 65535);
        slow->held -= 65535;
        listen_to_it();
        say_data(3, 65535, false);
    }
    assert_int_equal(slow->held, 65536);
    assert_int_equal(slow->aborts, 0);
    say_data(3, 1, false);
    assert_int_equal(slow->aborts, 1);
    for (unsigned i = 0; i < 64 && fast->aborts == 0; i++)
        say_data(1, 65536, false);
    assert_int_equal(fast->aborts, 1);
    assert_true(fast->held <= BT_HTTP2_WINDOW_MAX);
    world_stop();
}

static void test_push(void **state)
{
    static const uint8_t promise[] = {0, 0, 0, 2, 0x82};
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    (void)ask("GET", true);
    say(NGHTTP2_PUSH_PROMISE, NGHTTP2_FLAG_END_HEADERS, 1, promise, sizeof(promise));
    listen_to_it();
    expect("GOAWAY 0 0 1");
    assert_int_equal(world->seen[0].aborts, 1);
    world_stop();
}

static void test_many(void **state)
{
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    for (unsigned i = 0; i < BT_HTTP2_STREAMS_MAX; i++)
        (void)ask("GET", true);
    assert_null(open_stream());
    listen_to_it();
    assert_int_equal(count("HEADERS"), BT_HTTP2_STREAMS_MAX);
    for (unsigned i = BT_HTTP2_STREAMS_MAX; i > 0; i--)
        say_head(2 * i - 1, true, ":status=204", (const char *)NULL);
    for (unsigned i = 0; i < BT_HTTP2_STREAMS_MAX; i++)
        assert_int_equal(world->seen[i].ends, 1);
    assert_int_equal(bt_http2_capacity(world->http2), BT_HTTP2_STREAMS_MAX);
    world_stop();
}

static void test_drain(void **state)
{
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    struct seen *seen = ask("GET", true);
    bt_http2_drain(world->http2);
    assert_int_equal(bt_http2_capacity(world->http2), 0);
    listen_to_it();
    expect("GOAWAY 0 0 0");
    assert_false(world->channel->is_finished);
    say_head(1, true, ":status=204", (const char *)NULL);
    assert_int_equal(seen->ends, 1);
    listen_to_it();
    assert_true(world->channel->is_finished);
    world_stop();
}

/* An upstream that floods is left as an agent would be. */
static void test_flood(void **state)
{
    static const uint8_t ping[8];
    (void)state;
    world_start(BT_HTTP2_CLIENT);
    struct seen *seen = ask("GET", true);
    listen_to_it();
    for (unsigned i = 0; i < 3000 && !world->channel->is_finished; i++) {
        say(NGHTTP2_PING, 0, 0, ping, sizeof(ping));
        listen_to_it();
    }
    assert_true(world->channel->is_finished);
    assert_int_equal(seen->aborts, 1);
    assert_int_equal(seen->reason, BT_ABORT_LOST);
    world_stop();
}

/* A response head that is large for nghttp2's memory limit ends this connection alone. */
static void test_large_request(void **state)
{
    bt_auto_free char *value = bt_new(1, 60001);
    struct bt_message message = request_of("GET", -1);
    (void)state;
    memset(value, 'v', 60000);
    message.fields[message.field_count++] = (struct bt_http_field){slice("x"), slice(value)};
    world_start(BT_HTTP2_CLIENT);
    for (unsigned i = 0; i < BT_HTTP2_STREAMS_MAX; i++) {
        struct seen *seen = open_stream();
        if (seen == NULL)
            break;
        (void)seen->stream->operations->send_head(seen->stream, &message, true);
    }
    turn();
    assert_true(world->memory_most <= BT_HTTP2_MEMORY_MAX + 4096);
    for (size_t i = 0; i < world->seen_count; i++)
        assert_true(world->seen[i].aborts == 0 || world->seen[i].reason != BT_ABORT_CANCELLED);
    world_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings),       cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_no_content),     cmocka_unit_test(test_lies),
        cmocka_unit_test(test_early_answer),   cmocka_unit_test(test_aborts),
        cmocka_unit_test(test_goaway),         cmocka_unit_test(test_lost),
        cmocka_unit_test(test_other_protocol), cmocka_unit_test(test_push),
        cmocka_unit_test(test_windows),        cmocka_unit_test(test_many),
        cmocka_unit_test(test_drain),          cmocka_unit_test(test_flood),
        cmocka_unit_test(test_large_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
