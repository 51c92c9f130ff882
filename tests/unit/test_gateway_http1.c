/* The HTTP/1.1 codec over socket pairs, towards agents: requests and responses in one piece and byte by byte,
 * and what must not be taken for an end. */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/http1_fixture.h"

static void respond(struct owner *owner, unsigned status, int64_t length, const char *body)
{
    struct bt_stream *stream = owner->stream;
    struct bt_message head = {.status = status, .content_length = length};
    assert_int_equal(stream->operations->send_head(stream, &head, body == NULL), 0);
    if (body != NULL) {
        assert_int_equal(stream->operations->send_data(stream, body, strlen(body)), 0);
        assert_int_equal(stream->operations->send_end(stream, NULL), 0);
    }
}

static void test_requests(void **state)
{
    static const char text[] =
        "POST /p?q HTTP/1.1\r\nHost: a.example\r\nX-Up: Yes\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\n"
        "TE: trailers\r\nProxy-Authorization: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n0\r\nX-Sum: 1\r\nHost: evil\r\n\r\n"
        "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    (void)state;
    for (size_t piece = 1; piece < 200; piece = piece * 3 + 1) {
        struct owner owner;
        open_owner(&owner, false, false);
        peer_sends(&owner, text, piece);
        if (piece == 1)
            assert_seen(&owner, "[POST https://a.example/p?q x-up=Yes]hello<end x-sum=1>");
        respond(&owner, 200, 2, "ok");
        bt_buffer_free(&owner.seen);
        release(&owner); /* the next one waited for this */
        assert_seen(&owner, "[GET https://a.example/ complete]<end>");
        respond(&owner, 204, -1, NULL);
        release(&owner);
        assert_peer(&owner, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 204 No Content\r\n\r\n");
        peer_ends(&owner);
        assert_seen(&owner, "<close>");
        close_owner(&owner);
    }
}

static void test_responses_out(void **state)
{
    struct owner owner;
    struct bt_message trailers = {.field_count = 1};
    trailers.fields[0] = (struct bt_http_field){slice("grpc-status"), slice("0")};
    (void)state;
    open_owner(&owner, false, false);
    peer_sends(&owner, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 1000);
    struct bt_message head = {.status = 200, .content_length = -1};
    assert_int_equal(owner.stream->operations->send_head(owner.stream, &head, false), 0);
    assert_int_equal(owner.stream->operations->send_data(owner.stream, "abc", 3), 0);
    assert_int_equal(owner.stream->operations->send_end(owner.stream, &trailers), 0);
    release(&owner);
    assert_peer(
        &owner,
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\ngrpc-status: 0\r\n\r\n");
    peer_sends(&owner, "HEAD / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", 1000);
    respond(&owner, 200, 55, NULL);
    release(&owner);
    assert_peer(&owner, "HTTP/1.1 200 OK\r\ncontent-length: 55\r\nconnection: close\r\n\r\n");
    bt_buffer_free(&owner.seen);
    peer_ends(&owner);
    assert_seen(&owner, "<close>");
    close_owner(&owner);
}

/* HTTP/1.0 gets its answer as it can read it, and no second one. */
static void test_old_requests(void **state)
{
    static const char pair[] = "GET /a HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n"
                               "GET /b HTTP/1.0\r\nHost: a.example\r\n\r\n";
    static const char unheard[] = "POST /c HTTP/1.0\r\nHost: a.example\r\nContent-Length: 2\r\n"
                                  "Expect: much\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhi";
    struct owner owner;
    struct bt_message early = {.status = 103, .content_length = -1};
    struct bt_message head = {.status = 200, .content_length = -1};
    (void)state;
    open_owner(&owner, false, false);
    peer_sends(&owner, pair, 1000);
    assert_seen(&owner, "[GET https://a.example/a complete]<end>");
    assert_int_equal(owner.stream->operations->send_head(owner.stream, &early, false), 0);
    assert_int_equal(owner.stream->operations->send_head(owner.stream, &head, false), 0);
    assert_int_equal(owner.stream->operations->send_data(owner.stream, "abc", 3), 0);
    assert_int_equal(owner.stream->operations->send_end(owner.stream, NULL), 0);
    release(&owner);
    assert_peer(&owner, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabc");
    char byte;
    assert_int_equal(recv(owner.peer, &byte, 1, MSG_DONTWAIT), 0); /* the end of the body */
    peer_ends(&owner);
    assert_seen(&owner, "<close>");
    close_owner(&owner);
    open_owner(&owner, false, false);
    peer_sends(&owner, unheard, 1000);
    assert_seen(&owner, "[POST https://a.example/c]hi<end>");
    respond(&owner, 200, 2, "ok");
    release(&owner);
    assert_peer(&owner, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
    close_owner(&owner);
}

/* An answer that breaks off is no answer that ends. */
static void test_old_answer_cut(void **state)
{
    struct owner owner;
    struct bt_message head = {.status = 200, .content_length = -1};
    (void)state;
    open_owner(&owner, false, false);
    peer_sends(&owner, "GET / HTTP/1.0\r\nHost: a.example\r\n\r\n", 1000);
    assert_int_equal(owner.stream->operations->send_head(owner.stream, &head, false), 0);
    assert_int_equal(owner.stream->operations->send_data(owner.stream, "abc", 3), 0);
    bt_buffer_free(&owner.seen);
    owner.stream->operations->abort(owner.stream, BT_ABORT_LOST);
    release(&owner);
    assert_seen(&owner, "<close>");
    close_owner(&owner);
}

/* More than was announced, or less, is never passed off as an answer: the connection is reset or cut. */
static void test_lengths_kept(void **state)
{
    struct owner owner;
    struct bt_message head = {.status = 200, .content_length = 3};
    (void)state;
    open_owner(&owner, false, false);
    peer_sends(&owner, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 1000);
    assert_int_equal(owner.stream->operations->send_head(owner.stream, &head, false), 0);
    assert_true(owner.stream->operations->send_data(owner.stream, "abcd", 4) < 0);
    assert_int_equal(owner.stream->operations->send_data(owner.stream, "ab", 2), 0);
    assert_true(owner.stream->operations->send_end(owner.stream, NULL) < 0);
    bt_buffer_free(&owner.seen);
    release(&owner);
    assert_seen(&owner, "<close>");
    close_owner(&owner);
}

static void test_faults(void **state)
{
    static const struct {
        const char *text, *seen;
    } cases[] = {
        {"GET / HTTP/1.1\nHost: a\n\n", "<fault 400>"},
        {"GET / HTTP/1.0\r\n\r\n", "<fault 400>"},
        {"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "<fault 400>"},
        {"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "<fault 400>"},
        {"GET / HTTP/1.1\r\nHost: a\r\nExpect: much\r\n\r\n", "<fault 417>"},
        {"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "<fault 400>"},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         "<fault 400>"},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "<fault 400>"},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "<fault 505>"},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct owner owner;
        open_owner(&owner, false, false);
        peer_sends(&owner, cases[i].text, 1000);
        assert_seen(&owner, cases[i].seen);
        respond(&owner, 400, -1, NULL);
        release(&owner);
        assert_peer(&owner, "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        close_owner(&owner);
    }
}

static void test_proxy_form(void **state)
{
    struct owner owner;
    (void)state;
    open_owner(&owner, false, true);
    peer_sends(&owner, "GET http://a.example:81/x HTTP/1.1\r\nHost: A.example:81\r\n\r\n", 1000);
    assert_seen(&owner, "[GET http://a.example:81/x complete]<end>");
    respond(&owner, 204, -1, NULL);
    release(&owner);
    peer_sends(&owner, "CONNECT a.example:443 HTTP/1.0\r\n\r\nrest", 1000);
    assert_seen(&owner, "[CONNECT http://a.example:443 complete]<end>");
    respond(&owner, 200, -1, NULL);
    struct bt_channel *channel = bt_http1_detach(BT_TAKE(owner.http1));
    assert_int_equal(evbuffer_get_length(bt_channel_input(channel)), 4);
    assert_peer(&owner, "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
    bt_channel_free(channel);
    close_owner(&owner);
    open_owner(&owner, false, true);
    peer_sends(&owner, "GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n", 1000);
    assert_seen(&owner, "<fault 400>");
    release(&owner);
    close_owner(&owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),     cmocka_unit_test(test_responses_out),
        cmocka_unit_test(test_old_requests), cmocka_unit_test(test_old_answer_cut),
        cmocka_unit_test(test_lengths_kept), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_proxy_form),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
