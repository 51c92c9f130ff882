/* The HTTP/2 codec towards agents: how streams and connections end, whoever ends them. */
#include <errno.h>
#include <stdio.h>

#include "tests/unit/http2_server_fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aborts_of_owner),
        cmocka_unit_test(test_aborts_of_peer),
        cmocka_unit_test(test_connection_lost),
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_refusing_owner),
        cmocka_unit_test(test_other_protocol),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_free_in_callbacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
