/* The HTTP/2 codec towards agents: what it delivers, what it sends, and what it does not let a peer do. */
#include <errno.h>

#include "tests/unit/http2_fixture.h"

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static int answer(struct seen *seen, unsigned status, int64_t length, bool is_end)
{
    struct bt_message message = {.status = status, .content_length = length};
    return seen->stream->operations->send_head(seen->stream, &message, is_end);
}

static int answer_data(struct seen *seen, const char *text)
{
    return seen->stream->operations->send_data(seen->stream, text, strlen(text));
}

/* Sends as much as there is room for. */
static size_t answer_fill(struct seen *seen)
{
    static const char zeros[BT_STREAM_HELD_MAX];
    size_t room = seen->stream->operations->room(seen->stream);
    assert_true(room <= sizeof(zeros));
    assert_int_equal(seen->stream->operations->send_data(seen->stream, zeros, room), 0);
    return room;
}

static int answer_end(struct seen *seen)
{
    return seen->stream->operations->send_end(seen->stream, NULL);
}

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

/* Lets the connection's own timer come once. */
static void pass_time(int64_t ms)
{
    now_ms += ms;
    event_active(world->http2->watch, EV_TIMEOUT, 0);
    listen_to_it();
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

static void test_receive_window(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    world->is_holding = true;
    POST(1);
    say_data(1, 65535, false);
    say_data(1, 1, false);
    listen_to_it();
    struct seen *seen = &world->seen[0];
    assert_int_equal(seen->held, BT_STREAM_HELD_MAX);
    assert_int_equal(count("WINDOW_UPDATE 1 "), 0);
    seen->stream->operations->consume(seen->stream, 40000);
    seen->held -= 40000;
    listen_to_it();
    expect("WINDOW_UPDATE 1 40000");
    say_data(1, 40000, false);
    listen_to_it();
    assert_int_equal(seen->aborts, 0);
    say_data(1, 1, false); /* above what was granted */
    listen_to_it();
    expect("RST_STREAM 1 3");
    assert_int_equal(seen->aborts, 1);
    assert_int_equal(seen->reason, BT_ABORT_PROTOCOL);
    world_stop();
}

/* Ninety-nine streams that nobody reads, and one that is read: it goes on. */
static void test_slow_streams(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    world->is_holding = true;
    for (uint32_t id = 1; id < 199; id += 2) {
        POST(id);
        say_data(id, 65536, false);
        listen_to_it();
    }
    assert_null(world->end_reason);
    POST(199);
    struct seen *fast = &world->seen[99];
    for (size_t i = 0; i < 64; i++) {
        say_data(199, 16384, false);
        assert_int_equal(fast->held, 16384);
        fast->stream->operations->consume(fast->stream, fast->held);
        fast->held = 0;
        listen_to_it();
    }
    assert_int_equal(fast->length, 64 * 16384);
    assert_true(world->memory_most < BT_HTTP2_MEMORY_MAX / 4);
    POST(201); /* one too many */
    listen_to_it();
    assert_int_equal(world->seen_count, 100);
    world_stop();
}

static void test_send_window(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    GET(1);
    struct seen *seen = &world->seen[0];
    assert_int_equal(answer(seen, 200, -1, false), 0);
    assert_int_equal(answer_fill(seen), BT_STREAM_HELD_MAX);
    assert_int_equal(seen->stream->operations->room(seen->stream), 0);
    assert_int_equal(seen->rooms, 0);
    listen_to_it();
    assert_int_equal(world->data_length, 65535); /* the peer's window */
    assert_true(seen->rooms > 0);
    assert_int_equal(answer_fill(seen), 65535);
    listen_to_it();
    assert_int_equal(world->data_length, 65535);
    say_number(NGHTTP2_WINDOW_UPDATE, 1, 20000);
    listen_to_it();
    assert_int_equal(world->data_length, 65535); /* the connection's window is used up, too */
    say_number(NGHTTP2_WINDOW_UPDATE, 0, 100000);
    listen_to_it();
    assert_int_equal(world->data_length, 85535);
    assert_int_equal(seen->stream->operations->room(seen->stream), 20000);
    world_stop();
}

/* A peer with large windows that does not read: the output stays bounded, and so does what streams hold. */
static void test_output_bound(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    say_setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1U << 30);
    say_number(NGHTTP2_WINDOW_UPDATE, 0, 1U << 30);
    listen_to_it();
    for (uint32_t id = 1; id < 41; id += 2) {
        GET(id);
        assert_int_equal(answer(&world->seen[id / 2], 200, -1, false), 0);
    }
    for (unsigned round = 0; round < 20; round++) {
        for (size_t i = 0; i < 20; i++)
            (void)answer_fill(&world->seen[i]);
        turn();
    }
    assert_true(world->output_most >= BT_HTTP2_OUTPUT_MAX);
    assert_true(world->output_most <= BT_HTTP2_OUTPUT_MAX + 16384 + 9);
    assert_true(world->memory_most < BT_HTTP2_MEMORY_MAX / 4);
    listen_to_it();
    assert_true(world->data_length >= 20 * BT_STREAM_HELD_MAX);
    world_stop();
}

/* Streams take turns, whatever the peer asks for. */
static void test_turns(void **state)
{
    static const uint8_t exclusive[] = {0x80, 0, 0, 0, 255};
    size_t sent[3] = {0};
    (void)state;
    world_start(BT_HTTP2_SERVER);
    say_setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1U << 30);
    say_number(NGHTTP2_WINDOW_UPDATE, 0, 1U << 30);
    GET(1, "priority=u=0");
    GET(3, "priority=u=7");
    GET(5, "priority=u=7, i=?0");
    say(NGHTTP2_PRIORITY, 0, 1, exclusive, sizeof(exclusive));
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(answer(&world->seen[i], 200, -1, false), 0);
        (void)answer_fill(&world->seen[i]);
    }
    listen_to_it();
    /* At each point of the output the three have sent the same to a frame or two. */
    for (const char *line = world->log.data; line != NULL && *line != '\0';) {
        unsigned id, length;
        if (strncmp(line, "DATA ", 5) == 0 && line[5] != '0') {
            id = (unsigned)strtoul(line + 5, NULL, 10);
            length = (unsigned)strtoul(strchr(line + 5, ' '), NULL, 10);
            sent[id / 2] += length;
            for (size_t i = 0; i < 3; i++)
                assert_true(sent[id / 2] <= sent[i] + 2 * 16384);
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    assert_int_equal(sent[0] + sent[1] + sent[2], 3 * BT_STREAM_HELD_MAX);
    world_stop();
}

static void test_aborts_of_owner(void **state)
{
    static const struct {
        enum bt_abort reason;
        unsigned code;
    } table[] = {
        {BT_ABORT_CANCELLED, NGHTTP2_CANCEL},       {BT_ABORT_PROTOCOL, NGHTTP2_INTERNAL_ERROR},
        {BT_ABORT_REFUSED, NGHTTP2_REFUSED_STREAM}, {BT_ABORT_LOST, NGHTTP2_INTERNAL_ERROR},
        {BT_ABORT_POLICY, NGHTTP2_CANCEL},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(table); i++) {
        char line[40];
        world_start(BT_HTTP2_SERVER);
        POST(1);
        struct seen *seen = &world->seen[0];
        assert_int_equal(answer(seen, 200, -1, false), 0);
        assert_int_equal(answer_data(seen, "a part"), 0);
        seen->stream->operations->abort(seen->stream, table[i].reason);
        assert_int_equal(answer_data(seen, "more"), -EPIPE);
        say_data(1, 1000, true); /* was on its way */
        listen_to_it();
        snprintf(line, sizeof(line), "RST_STREAM 1 %u", table[i].code);
        expect(line);
        assert_int_equal(count("DATA 1 6 END"), 0);
        assert_int_equal(seen->aborts + seen->ends + (unsigned)seen->length, 0);
        world_stop();
    }
}

static void test_aborts_of_peer(void **state)
{
    static const struct {
        unsigned code;
        enum bt_abort reason;
    } table[] = {
        {NGHTTP2_CANCEL, BT_ABORT_CANCELLED},
        {NGHTTP2_NO_ERROR, BT_ABORT_CANCELLED},
        {NGHTTP2_PROTOCOL_ERROR, BT_ABORT_CANCELLED},
        {NGHTTP2_REFUSED_STREAM, BT_ABORT_REFUSED},
        {0x12345678, BT_ABORT_CANCELLED},
    };
    (void)state;
    world_start(BT_HTTP2_SERVER);
    for (unsigned i = 0; i < BT_ARRAY_LENGTH(table); i++) {
        POST(2 * i + 1);
        say_number(NGHTTP2_RST_STREAM, 2 * i + 1, table[i].code);
        assert_int_equal(world->seen[i].aborts, 1);
        assert_int_equal(world->seen[i].reason, table[i].reason);
    }
    /* With the request complete, too: somebody waited for the answer. */
    GET(31);
    say_number(NGHTTP2_RST_STREAM, 31, NGHTTP2_CANCEL);
    assert_int_equal(world->seen[5].aborts, 1);
    listen_to_it();
    assert_int_equal(count("RST_STREAM"), 0);
    world_stop();
}

static void test_connection_lost(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    POST(1);
    GET(3);
    assert_int_equal(answer(&world->seen[1], 204, -1, true), 0); /* complete: nothing is lost */
    memory_channel_end(world->channel, BT_CHANNEL_ENDED);
    assert_int_equal(world->seen[0].aborts, 1);
    assert_int_equal(world->seen[0].reason, BT_ABORT_LOST);
    assert_int_equal(world->seen[1].aborts, 0);
    assert_string_equal(world->end_reason, "the peer closed the connection");
    assert_int_equal(answer(&world->seen[0], 200, -1, true), -EPIPE);
    assert_int_equal(world->seen[0].stream->operations->room(world->seen[0].stream), BT_STREAM_HELD_MAX);
    world->seen[0].stream->operations->consume(world->seen[0].stream, 1);
    world_stop();
}

static void test_release(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    /* Answered before the request ended: what was said leaves; the rest has a while to end by itself. */
    POST(1);
    assert_int_equal(answer(&world->seen[0], 403, 6, false), 0);
    assert_int_equal(answer_data(&world->seen[0], "denied"), 0);
    assert_int_equal(answer_end(&world->seen[0]), 0);
    release(&world->seen[0]);
    listen_to_it();
    expect("DATA 1 6 END");
    say_data(1, 1000, false);
    pass_time(5000);
    assert_int_equal(count("RST_STREAM 1"), 0);
    assert_int_equal(count("WINDOW_UPDATE 1"), 0); /* no more of it */
    pass_time(5000);
    expect("RST_STREAM 1 0");
    /* The same, released later. */
    POST(3);
    assert_int_equal(answer(&world->seen[1], 403, 0, true), 0);
    listen_to_it();
    assert_int_equal(count("RST_STREAM 3"), 0);
    release(&world->seen[1]);
    pass_time(5000);
    say_data(3, 1000, true); /* it ends by itself */
    pass_time(5000);
    assert_int_equal(count("RST_STREAM 3"), 0);
    /* Left alone in the middle. */
    GET(5);
    release(&world->seen[2]);
    listen_to_it();
    expect("RST_STREAM 5 8");
    assert_int_equal(bt_http2_stream_count(world->http2), 0);
    world_stop();
}

static void test_refusing_owner(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    world->is_refusing = true;
    POST(1);
    say_data(1, 1000, true);
    listen_to_it();
    expect("RST_STREAM 1 7");
    assert_int_equal(bt_http2_stream_count(world->http2), 0);
    world_stop();
}

static void test_other_protocol(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    for (uint32_t id = 1; id <= 5; id += 2)
        say_head(id, false, ":method=CONNECT", ":protocol=websocket", ":scheme=https", ":authority=a.example",
                 ":path=/chat", "sec-websocket-protocol=x", (const char *)NULL);
    struct seen *seen = &world->seen[0];
    assert_string_equal(seen->head, "GET https a.example /chat protocol=websocket sec-websocket-protocol=x");
    assert_int_equal(answer(seen, 101, -1, false), 0);
    assert_int_equal(answer_data(seen, "frames"), 0);
    say_text(1, "others", false);
    assert_string_equal(seen->body, "others");
    assert_int_equal(answer(&world->seen[1], 200, 2, false), 0);
    assert_int_equal(answer(&world->seen[2], 403, 0, true), 0);
    listen_to_it();
    expect("HEADERS 1 :status=200\n");
    expect("DATA 1 6\n");
    expect("HEADERS 3 :status=502");
    expect("HEADERS 5 :status=403");
    say_data(1, 0, true);
    assert_int_equal(seen->ends, 1);
    assert_int_equal(answer_end(seen), 0);
    listen_to_it();
    expect("DATA 1 0 END");
    world_stop();
}

static void test_drain(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    POST(1);
    bt_http2_drain(world->http2);
    listen_to_it();
    expect("GOAWAY 0 2147483647 0");
    expect("PING 0");
    GET(3); /* was on its way: still served */
    uint8_t nothing[8] = {0};
    say(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, nothing, 8);
    listen_to_it();
    expect("GOAWAY 0 3 0");
    GET(5); /* this one is not */
    assert_int_equal(world->seen_count, 2);
    assert_null(world->end_reason);
    say_text(1, "the rest", true);
    assert_int_equal(answer(&world->seen[0], 204, -1, true), 0);
    assert_int_equal(answer(&world->seen[1], 204, -1, true), 0);
    listen_to_it();
    assert_true(world->channel->is_finished);
    memory_channel_end(world->channel, BT_CHANNEL_ENDED);
    assert_string_equal(world->end_reason, "ended in order");
    assert_int_equal(world->seen[0].aborts + world->seen[1].aborts, 0);
    world_stop();
}

static void test_time(void **state)
{
    (void)state;
    world_open(BT_HTTP2_SERVER); /* no preface */
    pass_time(BT_HTTP2_HEAD_MS - 1);
    assert_int_equal(count("GOAWAY"), 0);
    pass_time(1);
    expect("GOAWAY 0 0 4");
    world_stop();

    world_start(BT_HTTP2_SERVER); /* a head that does not end */
    say(NGHTTP2_HEADERS, 0, 1, "\x82", 1);
    pass_time(BT_HTTP2_HEAD_MS);
    expect("GOAWAY 0 1 11");
    world_stop();

    world_start(BT_HTTP2_SERVER); /* idle; but a stream may take its time */
    GET(1);
    pass_time(BT_HTTP2_IDLE_MS);
    assert_int_equal(count("GOAWAY"), 0);
    assert_int_equal(answer(&world->seen[0], 204, -1, true), 0);
    listen_to_it();
    pass_time(BT_HTTP2_IDLE_MS - 1);
    assert_int_equal(count("GOAWAY"), 0);
    pass_time(1);
    expect("GOAWAY 0 2147483647 0");
    pass_time(5000);
    expect("GOAWAY 0 1 0");
    world_stop();

    world_start(BT_HTTP2_SERVER); /* the peer neither reads the GOAWAY nor closes */
    say_setting(NGHTTP2_SETTINGS_MAX_FRAME_SIZE, 0);
    turn();
    assert_true(world->channel->is_finished);
    pass_time(1000);
    assert_non_null(world->end_reason);
    world_stop();
}

/* ---- floods
 * ------------------------------------------------------------------------------------------------
 */

static void say_ping(unsigned i)
{
    uint8_t payload[8] = {(uint8_t)i};
    say(NGHTTP2_PING, 0, 0, payload, 8);
}

static void say_settings(unsigned i)
{
    say_setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1000 + i % 2);
}

static void say_priority(unsigned i)
{
    uint8_t payload[5] = {0, 0, 0, 0, (uint8_t)i};
    say(NGHTTP2_PRIORITY, 0, 1 + 2 * (i % 1000), payload, 5);
}

static void say_unknown(unsigned i)
{
    say(0x20 + i % 16, 0, i % 5, "x", 1);
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

/* A download whose client acknowledges each frame on both levels is no flood. */
static void test_busy_client(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    GET(1);
    assert_int_equal(answer(&world->seen[0], 200, -1, false), 0);
    for (unsigned i = 0; i < 5000; i++) {
        assert_int_equal(answer_data(&world->seen[0], "an event of a stream of events"), 0);
        listen_to_it();
        forget();
        say_number(NGHTTP2_WINDOW_UPDATE, 0, 30);
        say_number(NGHTTP2_WINDOW_UPDATE, 1, 30);
    }
    assert_false(world->channel->is_finished);
    world_stop();
}

/* Answers to PING that the peer does not read are not piled up: it is not read either. */
static void test_unread_answers(void **state)
{
    (void)state;
    world_start(BT_HTTP2_SERVER);
    say_setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1U << 30);
    say_number(NGHTTP2_WINDOW_UPDATE, 0, 1U << 30);
    GET(1);
    assert_int_equal(answer(&world->seen[0], 200, -1, false), 0);
    for (unsigned i = 0; i < 3; i++) { /* fills the output */
        (void)answer_fill(&world->seen[0]);
        turn();
    }
    for (unsigned i = 0; i < 400 && !world->channel->is_stopped; i++)
        say_ping(i);
    assert_true(world->channel->is_stopped);
    assert_true(nghttp2_session_get_outbound_queue_size(world->http2->session) < 200);
    listen_to_it();
    assert_false(world->channel->is_stopped);
    assert_true(count("PING 0 ACK") >= 100);
    assert_null(world->end_reason);
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

static void test_free_in_callbacks(void **state)
{
    static const char *const where[] = {"stream", "head",  "data",      "end",
                                        "room",   "abort", "malformed", "connection"};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(where); i++) {
        world_start(BT_HTTP2_SERVER);
        world->free_in = where[i];
        POST(1);
        if (!world->is_gone)
            say_text(1, "body", true);
        if (!world->is_gone) {
            assert_int_equal(answer(&world->seen[0], 200, -1, false), 0);
            assert_int_equal(answer_data(&world->seen[0], "x"), 0);
            listen_to_it();
        }
        if (!world->is_gone)
            GET(3, "connection=close");
        if (!world->is_gone)
            say_number(NGHTTP2_RST_STREAM, 1, NGHTTP2_CANCEL);
        if (!world->is_gone)
            memory_channel_end(world->channel, BT_CHANNEL_BROKEN);
        assert_true(world->is_gone);
        world_stop();
    }
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
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_trailers),
        cmocka_unit_test(test_bad_trailers),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_length_lies),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_too_many_fields),
        cmocka_unit_test(test_receive_window),
        cmocka_unit_test(test_slow_streams),
        cmocka_unit_test(test_send_window),
        cmocka_unit_test(test_output_bound),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_aborts_of_owner),
        cmocka_unit_test(test_aborts_of_peer),
        cmocka_unit_test(test_connection_lost),
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_refusing_owner),
        cmocka_unit_test(test_other_protocol),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_floods),
        cmocka_unit_test(test_unknown_frames),
        cmocka_unit_test(test_patience),
        cmocka_unit_test(test_busy_client),
        cmocka_unit_test(test_unread_answers),
        cmocka_unit_test(test_continuations),
        cmocka_unit_test(test_bomb),
        cmocka_unit_test(test_free_in_callbacks),
        cmocka_unit_test(test_not_http2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
