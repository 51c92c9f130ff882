/* The gateway's HTTP reader: what is read, and the table of what two readers could read in two ways. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/gateway/http_body.h"

static int parse(const char *text, struct bt_http_head *head)
{
    return bt_http_request_parse(text, strlen(text), head);
}

static void test_request(void **state)
{
    static const char text[] = "POST http://a.example/p?q HTTP/1.1\r\nHost:  a.example \r\nsession_id: 7\r\n"
                               "Content-Length: 12\r\nX-Empty:\r\n\r\nbody";
    struct bt_http_head head;
    size_t count;
    (void)state;
    assert_int_equal(parse(text, &head), 0);
    assert_true(bt_http_slice_is(head.method, "POST"));
    assert_true(bt_http_slice_is(head.target, "http://a.example/p?q"));
    assert_int_equal(head.body, BT_HTTP_BODY_LENGTH);
    assert_int_equal(head.body_length, 12);
    assert_int_equal(head.length, sizeof(text) - 1 - 4);
    assert_true(bt_http_slice_is(bt_http_find(&head, "HOST", &count)->value, "a.example"));
    assert_int_equal(count, 1);
    assert_int_equal(bt_http_find(&head, "x-empty", NULL)->value.length, 0);
    assert_null(bt_http_find(&head, "cookie", &count));
    /* In whatever pieces it comes, nothing is decided early. */
    for (size_t length = 0; length < head.length; length++) {
        bt_auto_free char *piece = bt_string_copy_length(text, length);
        struct bt_http_head part;
        assert_int_equal(bt_http_request_parse(piece, length, &part), -EAGAIN);
    }
}

static void test_smuggling(void **state)
{
    static const char *const bad[] = {
        "GET / HTTP/1.1\nHost: a\n\n",                  /* bare LF */
        "GET / HTTP/1.1\r\nHost: a\n\r\n",              /* bare LF in a field */
        "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",      /* bare CR */
        "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", /* obs-fold */
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",           /* blank first */
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",           /* blank before colon */
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", /* two hosts */
        "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", /* even the same */
        "GET / HTTP/1.1\r\n\r\n",                       /* no host */
        "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",     /* no name */
        "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",       /* no colon */
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",           /* two blanks */
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",           /* blank behind */
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",         /* blank in target */
        " GET / HTTP/1.1\r\nHost: a\r\n\r\n",           /* blank in front */
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",        /* empty line first */
        "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",            /* not a token */
        "GET /\r\nHost: a\r\n\r\n",                     /* HTTP/0.9 */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", /* twice, same */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", /* twice */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n",                   /* list */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",                     /* sign */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",                     /* sign */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\n",                    /* hex */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 01\r\n\r\n",                     /* leading zero */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1 1\r\n\r\n",                    /* blank inside */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",                        /* empty */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",   /* overflow */
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", /* CL + TE */
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", /* TE + CL */
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\x0b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\x0b: chunked\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", /* CONNECT has no body */
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\x7f\r\n\r\n",
    };
    struct bt_http_head head;
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++)
        if (parse(bad[i], &head) != -EBADMSG)
            fail_msg("case %zu gives %d: %s", i, parse(bad[i], &head), bad[i]);
    static const char with_nul[] = "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n";
    assert_int_equal(bt_http_request_parse(with_nul, sizeof(with_nul) - 1, &head), -EBADMSG);
    assert_int_equal(parse("GET / HTTP/0.9\r\nHost: a\r\n\r\n", &head), -EPROTONOSUPPORT);
    assert_int_equal(parse("GET / HTTP/2.0\r\nHost: a\r\n\r\n", &head), -EPROTONOSUPPORT);
}

static void test_old_version(void **state)
{
    struct bt_http_head head;
    (void)state;
    assert_int_equal(parse("CONNECT a.example:443 HTTP/1.0\r\n\r\n", &head), 0);
    assert_true(head.is_old);
    assert_int_equal(parse("GET http://a.example/ HTTP/1.0\r\n\r\n", &head), 0);
    assert_int_equal(parse("POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\n", &head), 0);
    assert_int_equal(head.body, BT_HTTP_BODY_LENGTH);
    assert_int_equal(parse("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", &head),
                     -EBADMSG);
    assert_int_equal(parse("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", &head), -EBADMSG);
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &head), 0);
    assert_false(head.is_old);
}

static void test_limits(void **state)
{
    struct bt_buffer text = {0};
    struct bt_http_head head;
    (void)state;
    assert_int_equal(bt_buffer_add_text(&text, "GET / HTTP/1.1\r\nHost: a\r\n"), 0);
    for (int i = 0; i < BT_HTTP_FIELDS_MAX; i++)
        assert_int_equal(bt_buffer_add_text(&text, "A: b\r\n"), 0);
    assert_int_equal(bt_http_request_parse(text.data, text.length, &head), -E2BIG);
    bt_buffer_free(&text);
    assert_int_equal(bt_buffer_add_text(&text, "GET /"), 0);
    while (text.length <= BT_HTTP_HEAD_MAX)
        assert_int_equal(bt_buffer_add_text(&text, "aaaaaaaaaaaaaaaa"), 0);
    assert_int_equal(bt_http_request_parse(text.data, text.length, &head), -E2BIG);
    bt_buffer_free(&text);
}

static void test_response(void **state)
{
    struct bt_http_head head;
    static const char good[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    static const char bare[] = "HTTP/1.0 404\r\n\r\n";
    static const char *const bad[] = {
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 20\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\nX: y\n\n"};
    (void)state;
    assert_int_equal(bt_http_response_parse(good, strlen(good), &head), 0);
    assert_int_equal(head.status, 200);
    assert_true(bt_http_slice_is(head.reason, " OK"));
    assert_int_equal(head.body, BT_HTTP_BODY_NONE);
    assert_int_equal(bt_http_response_parse(bare, strlen(bare), &head), 0);
    assert_int_equal(head.body, BT_HTTP_BODY_UNTIL_CLOSE);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++)
        if (bt_http_response_parse(bad[i], strlen(bad[i]), &head) != -EBADMSG)
            fail_msg("accepted: %s", bad[i]);
}

static void test_authority(void **state)
{
    static const struct {
        const char *text;
        uint16_t default_port;
        int result;
        const char *host;
        uint16_t port;
    } cases[] = {
        {"a.example:443", 0, 0, "a.example", 443},
        {"A.Example.", 80, 0, "a.example", 80},
        {"a.example", 0, -EINVAL, NULL, 0},
        {"a.example:", 80, -EINVAL, NULL, 0},
        {"a.example:0", 80, -EINVAL, NULL, 0},
        {"a.example:65536", 80, -EINVAL, NULL, 0},
        {"a.example:+80", 80, -EINVAL, NULL, 0},
        {"user@a.example:80", 0, -EINVAL, NULL, 0},
        {"user:pass@a.example", 80, -EINVAL, NULL, 0},
        {"", 80, -EINVAL, NULL, 0},
        {":80", 80, -EINVAL, NULL, 0},
        {"[::1]:443", 0, -EADDRNOTAVAIL, NULL, 0},
        {"[::1]", 80, -EADDRNOTAVAIL, NULL, 0},
        {"2001:db8::1:443", 0, -EADDRNOTAVAIL, NULL, 0},
        {"127.0.0.1:80", 0, -EADDRNOTAVAIL, NULL, 0},
        {"0x7f.1:80", 0, -EADDRNOTAVAIL, NULL, 0},
        {"2130706433:80", 0, -EADDRNOTAVAIL, NULL, 0},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct bt_http_slice slice = {cases[i].text, strlen(cases[i].text)};
        char host[BT_HOST_NAME_SIZE] = "";
        uint16_t port = 0;
        int result = bt_http_authority_parse(slice, cases[i].default_port, host, &port);
        if (result != cases[i].result)
            fail_msg("%s gives %d", cases[i].text, result);
        if (result == 0) {
            assert_string_equal(host, cases[i].host);
            assert_int_equal(port, cases[i].port);
        }
    }
}

static void test_absolute(void **state)
{
    static const char *const bad[] = {
        "http://",          "https://a.example/", "/path", "http://a.example?q", "*",
        "ftp://a.example/", "http://a.example/#f"};
    struct bt_http_slice authority, path, target = {"HTTP://a.example:8080", 21};
    (void)state;
    assert_int_equal(bt_http_absolute_parse(target, &authority, &path), 0);
    assert_true(bt_http_slice_is(authority, "a.example:8080"));
    assert_true(bt_http_slice_is(path, "/"));
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        struct bt_http_slice slice = {bad[i], strlen(bad[i])};
        if (bt_http_absolute_parse(slice, &authority, &path) != -EINVAL)
            fail_msg("accepted: %s", bad[i]);
    }
}

static void test_hop_by_hop(void **state)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Mine ,TE\r\nX-Mine: 1\r\n"
                               "Connection: other\r\n\r\n";
    static const char *const hop[] = {
        "Connection", "proxy-authorization", "Proxy-Connection", "Keep-Alive", "te",
        "Trailer",    "Transfer-Encoding",   "Upgrade",          "x-mine",     "OTHER"};
    static const char *const end[] = {"Host", "Accept", "X", "Cookie", "Authorization"};
    struct bt_http_head head;
    (void)state;
    assert_int_equal(parse(text, &head), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(hop); i++)
        assert_true(bt_http_is_hop_by_hop(&head, (struct bt_http_slice){hop[i], strlen(hop[i])}));
    for (size_t i = 0; i < BT_ARRAY_LENGTH(end); i++)
        assert_false(bt_http_is_hop_by_hop(&head, (struct bt_http_slice){end[i], strlen(end[i])}));
}

static int token_of(const char *value, char token[BT_HTTP_TOKEN_SIZE])
{
    struct bt_http_head head;
    bt_auto_free char *text =
        bt_string_format("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nProxy-Authorization: %s\r\n\r\n", value);
    assert_int_equal(parse(text, &head), 0);
    return bt_http_proxy_token(&head, token);
}

static void test_token(void **state)
{
    char token[BT_HTTP_TOKEN_SIZE];
    struct bt_http_head head;
    (void)state;
    assert_int_equal(token_of("Basic YWdlbnQ6dG9rZW4=", token), 0);
    assert_string_equal(token, "token");
    assert_int_equal(token_of("basic YWdlbnQ6dG9rZW4", token), 0);
    assert_int_equal(token_of("Basic YWdlbnQ6", token), -EINVAL);         /* agent: */
    assert_int_equal(token_of("Basic b3RoZXI6dG9rZW4=", token), -EINVAL); /* other:token */
    assert_int_equal(token_of("Basic YWdlbnQ6YQBi", token), -EINVAL);     /* agent:a NUL b */
    assert_int_equal(token_of("Bearer YWdlbnQ6dG9rZW4=", token), -EINVAL);
    assert_int_equal(token_of("Basic YWdl*G5Q6", token), -EINVAL);
    assert_int_equal(token_of("Basic", token), -EINVAL);
    bt_auto_free char *long_value = bt_new(2000, 1);
    memcpy(long_value, "Basic YWdlbnQ6", 14);
    memset(long_value + 14, 'Y', 1000);
    assert_int_equal(token_of(long_value, token), -EINVAL);
    assert_int_equal(parse("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", &head), 0);
    assert_int_equal(bt_http_proxy_token(&head, token), -ENOENT);
}

/* Feeds a body in pieces of one size; returns the result and how many bytes belonged to it. */
/* Reads a body in pieces; what is data is appended to ret_data. Returns the last result. */
static int follow(enum bt_http_body kind, uint64_t length, const char *text, size_t piece, size_t *ret_taken,
                  struct bt_buffer *data)
{
    struct bt_http_body_reader reader;
    size_t at = 0, size = strlen(text);
    int result = BT_HTTP_PIECE_MORE;
    bt_http_body_start(&reader, kind, length);
    bt_buffer_free(data);
    while (result >= 0 && result != BT_HTTP_PIECE_TRAILERS && result != BT_HTTP_PIECE_END && at < size) {
        size_t taken, part = size - at < piece ? size - at : piece;
        struct bt_http_slice slice;
        result = bt_http_body_read(&reader, text + at, part, &taken, &slice);
        if (result == BT_HTTP_PIECE_DATA)
            assert_int_equal(bt_buffer_add(data, slice.data, slice.length), 0);
        at += taken;
    }
    *ret_taken = at;
    return result;
}

static void test_bodies(void **state)
{
    static const char chunked[] = "5\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\nNEXT";
    static const char *const bad[] = {"5\nhello\r\n",    "5;x=y\r\nhello\r\n",     "\r\n",
                                      "+5\r\nhello",     "0x5\r\nhello",           " 5\r\nhello",
                                      "5 \r\nhello",     "5\r\nhelloX\r\n",        "5\r\nhello\nX",
                                      "0\n\r\n",         "000000005\r\nhello\r\n", "g\r\n",
                                      "5\r\nhello\r\r\n"};
    struct bt_buffer data = {0};
    size_t taken;
    (void)state;
    for (size_t piece = 1; piece < sizeof(chunked); piece++) {
        assert_int_equal(follow(BT_HTTP_BODY_CHUNKED, 0, chunked, piece, &taken, &data),
                         BT_HTTP_PIECE_TRAILERS);
        assert_int_equal(taken, sizeof(chunked) - 1 - 6);
        assert_string_equal(data.data, "helloabcdefghijklmnopqrstuvwxyz");
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++)
        if (follow(BT_HTTP_BODY_CHUNKED, 0, bad[i], 100, &taken, &data) != -EBADMSG)
            fail_msg("accepted: %s", bad[i]);
    assert_int_equal(follow(BT_HTTP_BODY_LENGTH, 3, "abcdef", 2, &taken, &data), BT_HTTP_PIECE_END);
    assert_int_equal(taken, 3);
    assert_int_equal(follow(BT_HTTP_BODY_LENGTH, 9, "abcdef", 2, &taken, &data), BT_HTTP_PIECE_DATA);
    assert_int_equal(follow(BT_HTTP_BODY_NONE, 0, "abc", 3, &taken, &data), BT_HTTP_PIECE_END);
    assert_int_equal(taken, 0);
    assert_int_equal(follow(BT_HTTP_BODY_UNTIL_CLOSE, 0, "abc", 3, &taken, &data), BT_HTTP_PIECE_DATA);
    assert_int_equal(taken, 3);
    bt_buffer_free(&data);
}

static void test_trailers(void **state)
{
    static const char good[] = "Grpc-Status: 0\r\nX: y\r\n\r\nNEXT";
    static const char *const bad[] = {"X: y\n\r\n", " X: y\r\n\r\n", "X : y\r\n\r\n", "X\r\n\r\n"};
    struct bt_http_head head;
    (void)state;
    assert_int_equal(bt_http_trailers_parse(good, sizeof(good) - 1, &head), 0);
    assert_int_equal(head.field_count, 2);
    assert_int_equal(head.length, sizeof(good) - 1 - 4);
    assert_int_equal(bt_http_trailers_parse("\r\n", 2, &head), 0);
    assert_int_equal(head.field_count, 0);
    for (size_t length = 0; length < sizeof(good) - 1 - 4; length++)
        assert_int_equal(bt_http_trailers_parse(good, length, &head), -EAGAIN);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++)
        assert_int_equal(bt_http_trailers_parse(bad[i], strlen(bad[i]), &head), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),     cmocka_unit_test(test_smuggling),
        cmocka_unit_test(test_limits),      cmocka_unit_test(test_response),
        cmocka_unit_test(test_authority),   cmocka_unit_test(test_absolute),
        cmocka_unit_test(test_hop_by_hop),  cmocka_unit_test(test_token),
        cmocka_unit_test(test_bodies),      cmocka_unit_test(test_trailers),
        cmocka_unit_test(test_old_version),
    };
    return cmocka_run_group_tests_name("gateway_http", tests, NULL, NULL);
}
