/* The HTTP/1.1 codec over socket pairs: requests and responses as the other side of stream.h sees them, in
 * one piece and byte by byte; what ends a connection, and what must not be taken for an end. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/gateway/http1_codec.h"

/* What an owner of streams saw, as text: "head GET / a.example", "data ...", "end", "abort 1", ... */
struct owner {
    struct event_base *base;
    struct bt_channel_loop *loop;
    struct bt_http1 *http1;
    struct bt_stream *stream;
    int peer;
    struct bt_buffer seen;
    bool keeps; /* does not consume */
    bool is_closed;
    size_t held;
};

static void note(struct owner *owner, const char *format, ...) BT_PRINTF(2, 3);
static void note(struct owner *owner, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    assert_int_equal(bt_buffer_add_text(&owner->seen, text), 0);
}

static void on_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    struct owner *owner = context;
    (void)stream;
    if (head->status != 0)
        note(owner, "[%u %lld%s", head->status, (long long)head->content_length,
             head->is_complete ? " complete" : "");
    else
        note(owner, "[%.*s %.*s://%.*s%.*s%s", (int)head->method.length, head->method.data,
             (int)head->scheme.length, head->scheme.data, (int)head->authority.length, head->authority.data,
             (int)head->path.length, head->path.data, head->is_complete ? " complete" : "");
    if (head->protocol.length > 0)
        note(owner, " %.*s", (int)head->protocol.length, head->protocol.data);
    for (size_t i = 0; i < head->field_count; i++)
        note(owner, " %.*s=%.*s", (int)head->fields[i].name.length, head->fields[i].name.data,
             (int)head->fields[i].value.length, head->fields[i].value.data);
    note(owner, "]");
}

static void on_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    struct owner *owner = context;
    if (length < 200)
        note(owner, "%.*s", (int)length, (const char *)data);
    owner->held += length;
    if (!owner->keeps)
        stream->operations->consume(stream, length);
}

static void on_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    struct owner *owner = context;
    (void)stream;
    note(owner, "<end");
    for (size_t i = 0; trailers != NULL && i < trailers->field_count; i++)
        note(owner, " %.*s=%.*s", (int)trailers->fields[i].name.length, trailers->fields[i].name.data,
             (int)trailers->fields[i].value.length, trailers->fields[i].value.data);
    note(owner, ">");
}

static void on_room(void *context, struct bt_stream *stream)
{
    (void)context;
    (void)stream;
}

static void on_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    struct owner *owner = context;
    (void)stream;
    note(owner, "<abort %d>", (int)reason);
}

static const struct bt_stream_events stream_events = {
    .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_room = on_room, .on_abort = on_abort};

static void on_stream(void *context, struct bt_stream *stream, const struct bt_http_head *raw)
{
    struct owner *owner = context;
    (void)raw;
    owner->stream = stream;
    stream->events = &stream_events;
    stream->context = owner;
}

static void on_fault(void *context, struct bt_stream *stream, const struct bt_http1_fault *fault)
{
    struct owner *owner = context;
    owner->stream = stream;
    note(owner, "<fault %u>", fault->status);
}

static void on_idle(void *context)
{
    note(context, "<idle>");
}

static void on_close(void *context)
{
    struct owner *owner = context;
    note(owner, "<close>");
    owner->is_closed = true;
}

static const struct bt_http1_events codec_events = {
    .on_stream = on_stream, .on_fault = on_fault, .on_idle = on_idle, .on_close = on_close};

static void turn(struct owner *owner)
{
    for (int i = 0; i < 6; i++)
        (void)event_base_loop(owner->base, EVLOOP_NONBLOCK);
}

static void open_owner(struct owner *owner, bool is_client, bool is_proxy)
{
    struct bt_http1_settings settings = {.is_client = is_client, .is_proxy = is_proxy, .scheme = "https"};
    int ends[2];
    *owner = (struct owner){.base = event_base_new()};
    assert_non_null(owner->base);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    owner->loop = bt_channel_loop_new(owner->base);
    owner->peer = ends[1];
    owner->http1 =
        bt_http1_new(bt_channel_new(owner->loop, ends[0], NULL, NULL), &settings, &codec_events, owner);
    if (!is_client)
        return;
    owner->stream = bt_http1_open(owner->http1);
    assert_non_null(owner->stream);
    owner->stream->events = &stream_events;
    owner->stream->context = owner;
}

static void close_owner(struct owner *owner)
{
    bt_http1_free(owner->http1);
    if (owner->peer >= 0)
        (void)close(owner->peer);
    bt_channel_loop_free(owner->loop);
    event_base_free(owner->base);
    bt_buffer_free(&owner->seen);
}

static void peer_sends(struct owner *owner, const char *text, size_t piece)
{
    size_t length = strlen(text);
    for (size_t at = 0; at < length; at += piece) {
        size_t part = length - at < piece ? length - at : piece;
        assert_int_equal(send(owner->peer, text + at, part, MSG_NOSIGNAL), part);
        turn(owner);
    }
}

static void peer_ends(struct owner *owner)
{
    (void)shutdown(owner->peer, SHUT_WR);
    turn(owner);
}

static void assert_seen(struct owner *owner, const char *wanted)
{
    assert_string_equal(owner->seen.data != NULL ? owner->seen.data : "", wanted);
    bt_buffer_free(&owner->seen);
}

/* What came to the peer since the last time. */
static void assert_peer(struct owner *owner, const char *wanted)
{
    char text[4096];
    turn(owner);
    ssize_t got = recv(owner->peer, text, sizeof(text) - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = '\0';
    assert_string_equal(text, wanted);
}

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

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

static void release(struct owner *owner)
{
    struct bt_stream *stream = BT_TAKE(owner->stream);
    stream->operations->release(stream);
    turn(owner);
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
        cmocka_unit_test(test_requests),       cmocka_unit_test(test_responses_out),
        cmocka_unit_test(test_lengths_kept),   cmocka_unit_test(test_faults),
        cmocka_unit_test(test_proxy_form),     cmocka_unit_test(test_client),
        cmocka_unit_test(test_client_ends),    cmocka_unit_test(test_websocket),
        cmocka_unit_test(test_held),           cmocka_unit_test(test_old_requests),
        cmocka_unit_test(test_old_answer_cut),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("gateway_http1", tests, NULL, NULL);
}
