/* HTTP/2 heads: what is read, the table of what must not be, and what is written. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/gateway/http2_head.h"

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

/* "name=value" lines; the '=' is the first one behind the first byte. */
static struct bt_http2_head *head_of(enum bt_http2_head_kind kind, const char *const *lines)
{
    struct bt_http2_head *head = bt_http2_head_new(kind);
    for (; *lines != NULL; lines++) {
        const char *equals = strchr(*lines + 1, '=');
        assert_non_null(equals);
        bt_http2_head_add(head, (struct bt_http_slice){*lines, (size_t)(equals - *lines)}, slice(equals + 1));
    }
    return head;
}

static const struct bt_http_field *field(const struct bt_message *message, const char *name)
{
    for (size_t i = 0; i < message->field_count; i++)
        if (bt_http_slice_is(message->fields[i].name, name))
            return &message->fields[i];
    return NULL;
}

static void test_request(void **state)
{
    static const char *const lines[] = {":method=POST",
                                        ":scheme=https",
                                        ":authority=a.example:8443",
                                        ":path=/p?q=1",
                                        "host=A.example:8443",
                                        "cookie=a=1",
                                        "accept=*/*",
                                        "cookie=b=2",
                                        "content-length=12",
                                        "expect=100-continue",
                                        "te=trailers",
                                        "proxy-authorization=Basic eA==",
                                        "trailer=x",
                                        "x-empty=",
                                        "session_id=7",
                                        NULL};
    (void)state;
    struct bt_http2_head *head = head_of(BT_HTTP2_REQUEST, lines);
    const struct bt_message *message = bt_http2_head_finish(head, "https");
    assert_non_null(message);
    assert_true(bt_http_slice_is(message->method, "POST"));
    assert_true(bt_http_slice_is(message->scheme, "https"));
    assert_true(bt_http_slice_is(message->authority, "a.example:8443"));
    assert_true(bt_http_slice_is(message->path, "/p?q=1"));
    assert_int_equal(message->protocol.length, 0);
    assert_int_equal(message->content_length, 12);
    assert_true(message->expects_continue);
    assert_int_equal(message->field_count, 4);
    assert_true(bt_http_slice_is(field(message, "cookie")->value, "a=1; b=2"));
    assert_true(bt_http_slice_is(field(message, "accept")->value, "*/*"));
    assert_int_equal(field(message, "x-empty")->value.length, 0);
    bt_http2_head_free(head);
}

static void test_other_requests(void **state)
{
    static const char *const host_only[] = {":method=GET", ":scheme=http", ":path=/", "host=a.example", NULL};
    static const char *const asterisk[] = {":method=OPTIONS", ":scheme=https", ":authority=a.example",
                                           ":path=*", NULL};
    static const char *const socket[] = {
        ":method=CONNECT", ":protocol=websocket",      ":scheme=https",        ":authority=a.example",
        ":path=/chat",     "sec-websocket-version=13", "sec-websocket-key=AA", NULL};
    (void)state;
    struct bt_http2_head *head = head_of(BT_HTTP2_REQUEST, host_only);
    const struct bt_message *message = bt_http2_head_finish(head, "http");
    assert_non_null(message);
    assert_true(bt_http_slice_is(message->authority, "a.example"));
    assert_int_equal(message->content_length, -1);
    bt_http2_head_free(head);
    head = head_of(BT_HTTP2_REQUEST, asterisk);
    assert_non_null(bt_http2_head_finish(head, "https"));
    bt_http2_head_free(head);
    head = head_of(BT_HTTP2_REQUEST, socket);
    message = bt_http2_head_finish(head, "https");
    assert_non_null(message);
    assert_true(bt_http_slice_is(message->method, "GET"));
    assert_true(bt_http_slice_is(message->protocol, "websocket"));
    assert_int_equal(message->field_count, 1);
    bt_http2_head_free(head);
}

#define GOOD ":method=GET", ":scheme=https", ":authority=a.example", ":path=/"
static void test_bad_requests(void **state)
{
    static const char *const bad[][12] = {
        {":scheme=https", ":authority=a.example", ":path=/"},                  /* no method */
        {":method=", ":scheme=https", ":authority=a.example", ":path=/"},      /* an empty one */
        {":method=G T", ":scheme=https", ":authority=a.example", ":path=/"},   /* a blank */
        {":method=GET\r\nX", ":scheme=https", ":authority=a", ":path=/"},      /* a line end */
        {":method=GET", ":authority=a.example", ":path=/"},                    /* no scheme */
        {":method=GET", ":scheme=http", ":authority=a.example", ":path=/"},    /* another scheme */
        {":method=GET", ":scheme=HTTPS", ":authority=a.example", ":path=/"},   /* other letters */
        {":method=GET", ":scheme=ftp", ":authority=a.example", ":path=/"},     /* none of ours */
        {":method=GET", ":scheme=https", ":path=/"},                           /* no authority */
        {":method=GET", ":scheme=https", ":authority=", ":path=/"},            /* an empty one */
        {":method=GET", ":scheme=https", ":authority=u@a.example", ":path=/"}, /* userinfo */
        {":method=GET", ":scheme=https", ":authority=a.example/x", ":path=/"}, /* a path in it */
        {":method=GET", ":scheme=https", ":authority=a b", ":path=/"},         /* a blank */
        {":method=GET", ":scheme=https", ":authority=a,b", ":path=/"},         /* a list */
        {":method=GET", ":scheme=https", ":authority=a\\b", ":path=/"},        /* a backslash */
        {":method=GET", ":scheme=https", ":authority=a\xc3\xa9", ":path=/"},   /* not ASCII */
        {GOOD, "host=b.example"},                                              /* another host */
        {GOOD, "host=a.example:443"},                                          /* almost the same */
        {GOOD, "host=a.example", "host=a.example"},                            /* twice */
        {":method=GET", ":scheme=https", ":authority=a.example"},              /* no path */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path="},    /* an empty one */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=x"},   /* relative */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=*"},   /* an asterisk for GET */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=http://b.example/"},  /* absolute */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=/a b"},               /* a blank */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=/ HTTP/1.1\r\nX: y"}, /* a request */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=/a\tb"},              /* a tab */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=/a#b"},               /* a fragment */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=/\xc3\xa9"},          /* not ASCII */
        {":method=GET", GOOD},                                                                /* twice */
        {":method=GET", ":scheme=https", ":authority=a.example", ":path=/", ":path=/"},
        {":method=GET", "accept=*/*", ":scheme=https", ":authority=a.example", ":path=/"}, /* behind fields */
        {":method=GET", "cookie=a", ":scheme=https", ":authority=a.example", ":path=/"},
        {":method=GET", "te=trailers", ":scheme=https", ":authority=a.example", ":path=/"},
        {GOOD, ":status=200"},    /* of responses */
        {GOOD, ":foo=bar"},       /* of nobody */
        {GOOD, "Accept=*/*"},     /* upper case */
        {GOOD, "a b=c"},          /* a blank in a name */
        {GOOD, "a:b=c"},          /* a colon */
        {GOOD, "a\r\nb=c"},       /* a line end */
        {GOOD, "a\xc3\xa9=c"},    /* not ASCII */
        {GOOD, "x=a\r\nevil: b"}, /* a line end in a value */
        {GOOD, "x=a\nevil: b"},   /* a bare one */
        {GOOD, "x=a\rb"},         /* a bare CR */
        {GOOD, "x=a\x01"
               "b"},       /* a control byte */
        {GOOD, "x=a\x7f"}, /* DEL */
        {GOOD, "x= a"},    /* blanks around */
        {GOOD, "x=a\t"},
        {GOOD, "connection=close"},
        {GOOD, "connection=x-y", "x-y=1"},
        {GOOD, "keep-alive=timeout=5"},
        {GOOD, "proxy-connection=keep-alive"},
        {GOOD, "transfer-encoding=chunked"},
        {GOOD, "transfer-encoding=identity", "content-length=3"},
        {GOOD, "upgrade=websocket"},
        {GOOD, "te=chunked"},
        {GOOD, "te=trailers, deflate"},
        {GOOD, "content-length=1", "content-length=1"},
        {GOOD, "content-length=1, 1"},
        {GOOD, "content-length=+1"},
        {GOOD, "content-length=01"},
        {GOOD, "content-length="},
        {GOOD, "content-length=99999999999999999999"},
        {GOOD, "expect=something"},
        {":method=CONNECT", ":authority=a.example:443"},                         /* a tunnel */
        {":method=CONNECT", ":scheme=https", ":authority=a.example", ":path=/"}, /* not extended */
        {GOOD, ":protocol=websocket"},                                           /* not CONNECT */
        {":method=CONNECT", ":protocol=", ":scheme=https", ":authority=a.example", ":path=/"},
        {":method=CONNECT", ":protocol=a b", ":scheme=https", ":authority=a.example", ":path=/"},
        {":method=CONNECT", ":protocol=websocket", ":scheme=https", ":authority=a.example"},
        {":method=CONNECT", ":protocol=websocket", ":scheme=https", ":authority=a", ":path=/",
         "content-length=3"},
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        struct bt_http2_head *head = head_of(BT_HTTP2_REQUEST, bad[i]);
        if (bt_http2_head_finish(head, "https") != NULL)
            fail_msg("request %zu was taken", i);
        assert_non_null(head->error);
        assert_false(head->is_too_large);
        bt_http2_head_free(head);
    }
}

/* NUL cannot be in the table's strings. */
static void test_nul(void **state)
{
    static const char *const lines[] = {GOOD, NULL};
    (void)state;
    struct bt_http2_head *head = head_of(BT_HTTP2_REQUEST, lines);
    bt_http2_head_add(head, slice("x"), (struct bt_http_slice){"a\0b", 3});
    assert_null(bt_http2_head_finish(head, "https"));
    bt_http2_head_free(head);
    head = head_of(BT_HTTP2_REQUEST, lines);
    bt_http2_head_add(head, (struct bt_http_slice){"a\0b", 3}, slice("x"));
    assert_null(bt_http2_head_finish(head, "https"));
    bt_http2_head_free(head);
    head = bt_http2_head_new(BT_HTTP2_REQUEST);
    bt_http2_head_add(head, slice(":method"), slice("GET"));
    bt_http2_head_add(head, slice(":scheme"), slice("https"));
    bt_http2_head_add(head, slice(":authority"), (struct bt_http_slice){"allowed.example\0.evil", 21});
    bt_http2_head_add(head, slice(":path"), slice("/"));
    assert_null(bt_http2_head_finish(head, "https"));
    bt_http2_head_free(head);
}

static void test_responses(void **state)
{
    static const char *const fine[] = {":status=200",  "content-length=5",       "server=x", "set-cookie=a",
                                       "set-cookie=b", "sec-websocket-accept=x", NULL};
    static const char *const none[] = {":status=204", "content-length=0", NULL};
    static const char *const bad[][6] = {
        {"server=x"},
        {":status=101"},
        {":status=20"},
        {":status=2000"},
        {":status=099"},
        {":status=600"},
        {":status=2 0"},
        {":status=200", ":status=200"},
        {":status=200", ":path=/"},
        {":status=200", "connection=close"},
        {":status=200", "transfer-encoding=chunked"},
        {":status=200", "content-length=1", "content-length=2"},
        {":status=200", "x=a\r\nset-cookie: b"},
    };
    (void)state;
    struct bt_http2_head *head = head_of(BT_HTTP2_RESPONSE, fine);
    const struct bt_message *message = bt_http2_head_finish(head, "https");
    assert_non_null(message);
    assert_int_equal(message->status, 200);
    assert_int_equal(message->content_length, 5);
    assert_int_equal(message->field_count, 3);
    bt_http2_head_free(head);
    head = head_of(BT_HTTP2_RESPONSE, none);
    message = bt_http2_head_finish(head, "https");
    assert_non_null(message);
    assert_int_equal(message->content_length, -1);
    bt_http2_head_free(head);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        head = head_of(BT_HTTP2_RESPONSE, bad[i]);
        if (bt_http2_head_finish(head, "https") != NULL)
            fail_msg("response %zu was taken", i);
        bt_http2_head_free(head);
    }
}

static void test_trailers(void **state)
{
    static const char *const fine[] = {"grpc-status=0", "grpc-message=", NULL};
    static const char *const bad[][4] = {{":status=200"},     {"content-length=1"}, {"host=a"},
                                         {"authorization=x"}, {"cookie=a"},         {"content-encoding=gzip"},
                                         {"te=trailers"},     {"connection=close"}, {"X=y"}};
    (void)state;
    struct bt_http2_head *head = head_of(BT_HTTP2_TRAILERS, fine);
    const struct bt_message *message = bt_http2_head_finish(head, "https");
    assert_non_null(message);
    assert_int_equal(message->field_count, 2);
    bt_http2_head_free(head);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        head = head_of(BT_HTTP2_TRAILERS, bad[i]);
        if (bt_http2_head_finish(head, "https") != NULL)
            fail_msg("trailers %zu were taken", i);
        bt_http2_head_free(head);
    }
}

static void test_sizes(void **state)
{
    static const char *const lines[] = {GOOD, NULL};
    char *big = malloc(BT_HTTP_HEAD_MAX);
    (void)state;
    memset(big, 'a', BT_HTTP_HEAD_MAX);
    struct bt_http2_head *head = head_of(BT_HTTP2_REQUEST, lines);
    size_t left = BT_HTTP_HEAD_MAX - head->size;
    bt_http2_head_add(head, slice("x"), (struct bt_http_slice){big, left - 33});
    assert_int_equal(head->size, BT_HTTP_HEAD_MAX);
    assert_non_null(bt_http2_head_finish(head, "https"));
    bt_http2_head_free(head);
    head = head_of(BT_HTTP2_REQUEST, lines);
    bt_http2_head_add(head, slice("x"), (struct bt_http_slice){big, left - 32});
    assert_null(bt_http2_head_finish(head, "https"));
    assert_true(head->is_too_large);
    bt_http2_head_free(head);
    /* However often something is added above the limit, nothing is kept of it. */
    head = head_of(BT_HTTP2_REQUEST, lines);
    for (unsigned i = 0; i < 1000; i++)
        bt_http2_head_add(head, slice(i % 2 == 0 ? "cookie" : "x"), (struct bt_http_slice){big, 4000});
    assert_true(head->is_too_large);
    assert_true(head->text.length + head->cookie.length <= BT_HTTP_HEAD_MAX);
    bt_http2_head_free(head);
    head = head_of(BT_HTTP2_REQUEST, lines);
    for (unsigned i = 0; i < BT_HTTP_FIELDS_MAX; i++)
        bt_http2_head_add(head, slice("x"), slice("y"));
    assert_null(bt_http2_head_finish(head, "https"));
    assert_true(head->is_too_large);
    bt_http2_head_free(head);
    free(big);
}

static const char *written(const struct bt_http2_fields *fields, const char *name)
{
    static char text[256];
    for (size_t i = 0; i < fields->count; i++) {
        const nghttp2_nv *nv = &fields->fields[i];
        if (nv->namelen == strlen(name) && memcmp(nv->name, name, nv->namelen) == 0) {
            snprintf(text, sizeof(text), "%.*s", (int)nv->valuelen, (const char *)nv->value);
            return text;
        }
    }
    return NULL;
}

static void test_write_request(void **state)
{
    struct bt_message message = {
        .method = slice("POST"),
        .scheme = slice("https"),
        .authority = slice("a.example"),
        .path = slice("/"),
        .content_length = 0,
        .expects_continue = true,
        .field_count = 2,
        .fields = {{slice("accept"), slice("*/*")}, {slice("sec-websocket-key"), slice("A")}}};
    struct bt_http2_fields fields;
    (void)state;
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_REQUEST, &message, false), 0);
    assert_int_equal(fields.count, 8);
    assert_string_equal(written(&fields, ":method"), "POST");
    assert_string_equal(written(&fields, "content-length"), "0");
    assert_string_equal(written(&fields, "expect"), "100-continue");
    assert_string_equal(written(&fields, "te"), "trailers");
    assert_null(written(&fields, "sec-websocket-key"));
    message.protocol = slice("websocket");
    message.method = slice("GET");
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_REQUEST, &message, false), 0);
    assert_string_equal(written(&fields, ":method"), "CONNECT");
    assert_string_equal(written(&fields, ":protocol"), "websocket");
    assert_null(written(&fields, "content-length"));
    static const char *const bad[] = {"a\r\nb", "a\nb", " a", "a\x01"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        message.fields[0].value = slice(bad[i]);
        assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_REQUEST, &message, false), -EINVAL);
    }
    message.fields[0] = (struct bt_http_field){slice("connection"), slice("close")};
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_REQUEST, &message, false), -EINVAL);
    message.fields[0] = (struct bt_http_field){slice("Accept"), slice("x")};
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_REQUEST, &message, false), -EINVAL);
}

static void test_write_response(void **state)
{
    struct bt_message message = {.status = 200, .content_length = 7};
    struct bt_http2_fields fields;
    (void)state;
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_RESPONSE, &message, false), 0);
    assert_string_equal(written(&fields, ":status"), "200");
    assert_string_equal(written(&fields, "content-length"), "7");
    message.status = 204;
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_RESPONSE, &message, false), 0);
    assert_null(written(&fields, "content-length"));
    message.status = 101;
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_RESPONSE, &message, false), -EINVAL);
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_RESPONSE, &message, true), 0);
    assert_string_equal(written(&fields, ":status"), "200");
    message.status = 200; /* would mean that the other protocol is spoken from now on */
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_RESPONSE, &message, true), 0);
    assert_string_equal(written(&fields, ":status"), "502");
    message.status = 403;
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_RESPONSE, &message, true), 0);
    assert_string_equal(written(&fields, ":status"), "403");
}

static void test_copy(void **state)
{
    char name[] = "x-one", value[] = "first";
    struct bt_message message = {
        .content_length = -1, .field_count = 1, .fields = {{slice(name), slice(value)}}};
    struct bt_http2_fields fields;
    (void)state;
    assert_int_equal(bt_http2_fields_set(&fields, BT_HTTP2_TRAILERS, &message, false), 0);
    struct bt_http2_fields *copy = bt_http2_fields_copy(&fields);
    memset(name, 0, sizeof(name));
    memset(value, 0, sizeof(value));
    assert_string_equal(written(copy, "x-one"), "first");
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),        cmocka_unit_test(test_other_requests),
        cmocka_unit_test(test_bad_requests),   cmocka_unit_test(test_nul),
        cmocka_unit_test(test_responses),      cmocka_unit_test(test_trailers),
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_write_request),
        cmocka_unit_test(test_write_response), cmocka_unit_test(test_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
