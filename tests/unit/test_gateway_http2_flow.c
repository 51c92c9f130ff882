/* The HTTP/2 codec towards agents: windows, bounds of what waits, and turns between streams. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/http2_server_fixture.h"

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

/* Sends as much as there is room for. */
static size_t answer_fill(struct seen *seen)
{
    static const char zeros[BT_STREAM_HELD_MAX];
    size_t room = seen->stream->operations->room(seen->stream);
    assert_true(room <= sizeof(zeros));
    assert_int_equal(seen->stream->operations->send_data(seen->stream, zeros, room), 0);
    return room;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receive_window), cmocka_unit_test(test_slow_streams),
        cmocka_unit_test(test_send_window),    cmocka_unit_test(test_output_bound),
        cmocka_unit_test(test_turns),          cmocka_unit_test(test_busy_client),
        cmocka_unit_test(test_unread_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
