/* The HTTP/1.1 codec over socket pairs, towards hosts; WebSockets, and bytes that are not taken. */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/http1_fixture.h"

static void send_request(struct owner *owner, const char *method, int64_t length, bool is_end)
{
    struct bt_message head = {.method = slice(method),
                              .scheme = slice("https"),
                              .authority = slice("a.example"),
                              .path = slice("/x"),
                              .content_length = length,
                              .field_count = 1};
    head.fields[0] = (struct bt_http_field){slice("accept"), slice("*/*")};
    assert_int_equal(owner->stream->operations->send_head(owner->stream, &head, is_end), 0);
    turn(owner);
}

static void test_client(void **state)
{
    struct owner owner;
    (void)state;
    open_owner(&owner, true, false);
    send_request(&owner, "GET", -1, true);
    assert_peer(&owner, "GET /x HTTP/1.1\r\nhost: a.example\r\naccept: */*\r\n\r\n");
    peer_sends(&owner,
               "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
               7);
    assert_seen(&owner, "[103 -1 link=x][200 3]abc<end>");
    release(&owner);
    assert_seen(&owner, "<idle>");
    owner.stream = bt_http1_open(owner.http1);
    owner.stream->events = &stream_events;
    owner.stream->context = &owner;
    send_request(&owner, "POST", -1, false);
    assert_int_equal(owner.stream->operations->send_data(owner.stream, "hi", 2), 0);
    assert_int_equal(owner.stream->operations->send_end(owner.stream, NULL), 0);
    assert_peer(&owner,
                "POST /x HTTP/1.1\r\nhost: a.example\r\naccept: */*\r\ntransfer-encoding: chunked\r\n\r\n"
                "2\r\nhi\r\n0\r\n\r\n");
    peer_sends(&owner, "HTTP/1.1 200 OK\r\n\r\nall", 1000);
    peer_ends(&owner);
    assert_seen(&owner, "[200 -1]all<end>");
    release(&owner);
    assert_seen(&owner, "<close>");
    close_owner(&owner);
}

/* Ends of an upstream that are no ends of an answer; then what nobody asked for. */
static void test_client_ends(void **state)
{
    static const struct {
        const char *text, *seen;
    } cases[] = {
        {"", "<abort 3>"},
        {"HTTP/1.1 200 OK\r\nContent-Le", "<abort 3>"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "[200 5]abc<abort 3>"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "[200 -1]abc<abort 3>"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "[200 -1]<abort 1>"},
        {"HTTP/1.1 101 Switching Protocols\r\n\r\n", "<abort 1>"},
        {"HTTP/2 200 OK\r\n\r\n", "<abort 1>"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "<abort 1>"},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct owner owner;
        open_owner(&owner, true, false);
        send_request(&owner, "GET", -1, true);
        peer_sends(&owner, cases[i].text, 1000);
        peer_ends(&owner);
        assert_seen(&owner, cases[i].seen);
        release(&owner);
        assert_seen(&owner, "<close>");
        close_owner(&owner);
    }
    struct owner owner;
    open_owner(&owner, true, false);
    send_request(&owner, "GET", -1, true);
    peer_sends(&owner, "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1000);
    assert_seen(&owner, "[204 -1 complete]<end>");
    release(&owner);
    assert_seen(&owner, "<close>");
    close_owner(&owner);
}

static void test_websocket(void **state)
{
    struct owner owner;
    struct bt_message head = {.status = 101, .protocol = slice("websocket"), .content_length = -1};
    (void)state;
    open_owner(&owner, false, false);
    peer_sends(&owner,
               "GET /s HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nearly",
               1000);
    assert_seen(&owner, "[GET https://a.example/s websocket]");
    assert_int_equal(owner.stream->operations->send_head(owner.stream, &head, false), 0);
    assert_int_equal(owner.stream->operations->send_data(owner.stream, "down", 4), 0);
    turn(&owner);
    assert_seen(&owner, "early");
    /* The example of RFC 6455, 1.3. */
    assert_peer(&owner, "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
                        "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\ndown");
    peer_ends(&owner);
    assert_seen(&owner, "<end>");
    assert_int_equal(owner.stream->operations->send_end(owner.stream, NULL), 0);
    release(&owner);
    assert_seen(&owner, "<close>");
    close_owner(&owner);
}

/* A receiver that takes nothing is given at most what the contract says. */
static void test_held(void **state)
{
    struct owner owner;
    static char block[32768];
    (void)state;
    memset(block, 'x', sizeof(block));
    open_owner(&owner, false, false);
    owner.keeps = true;
    peer_sends(&owner, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n", 1000);
    for (int i = 0; i < 200; i++) {
        (void)send(owner.peer, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL);
        turn(&owner);
    }
    assert_int_equal(owner.held, BT_STREAM_HELD_MAX);
    owner.stream->operations->consume(owner.stream, 1000);
    turn(&owner);
    assert_int_equal(owner.held, BT_STREAM_HELD_MAX + 1000);
    release(&owner);
    close_owner(&owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_client),
        cmocka_unit_test(test_client_ends),
        cmocka_unit_test(test_websocket),
        cmocka_unit_test(test_held),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
