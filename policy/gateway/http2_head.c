/* HTTP/2 heads, read and written. See http2_head.h. */
#include "policy/gateway/http2_head.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define METHOD_MAX 32
#define PROTOCOL_MAX 32

static const char *const pseudo_names[BT_HTTP2_PSEUDO_COUNT] = {
    [BT_HTTP2_METHOD] = ":method", [BT_HTTP2_SCHEME] = ":scheme",     [BT_HTTP2_AUTHORITY] = ":authority",
    [BT_HTTP2_PATH] = ":path",     [BT_HTTP2_PROTOCOL] = ":protocol", [BT_HTTP2_STATUS] = ":status",
};

/* RFC 9113, 8.2.2: of one connection, so of no meaning here; a sign of translation gone wrong, or of
 * smuggling. */
static const char *const forbidden[] = {"connection",        "keep-alive", "proxy-connection",
                                        "transfer-encoding", "upgrade",    NULL};
/* End at this hop. Sec-WebSocket-Key and -Accept: see struct bt_message. */
static const char *const dropped[] = {
    "te", "trailer", "http2-settings", "sec-websocket-key", "sec-websocket-accept", NULL};
/* RFC 9110, 6.5.1: framing, routing, authentication and what says how to read the content come before it. */
static const char *const not_in_trailers[] = {"host",   "content-length", "content-type",  "content-encoding",
                                              "expect", "content-range",  "authorization", "cookie",
                                              "te",     "set-cookie",     "trailer",       NULL};

static bool is_one_of(struct bt_http_slice name, const char *const *list)
{
    for (; *list != NULL; list++)
        if (bt_http_slice_is(name, *list))
            return true;
    return false;
}

static bool starts_with(struct bt_http_slice text, const char *prefix)
{
    return text.length >= strlen(prefix) && memcmp(text.data, prefix, strlen(prefix)) == 0;
}

static bool is_token(struct bt_http_slice text, bool may_be_upper)
{
    for (size_t i = 0; i < text.length; i++) {
        char byte = text.data[i];
        bool is_fine = (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') ||
                       (may_be_upper && byte >= 'A' && byte <= 'Z') ||
                       (byte != '\0' && strchr("!#$%&'*+-.^_`|~", byte) != NULL);
        if (!is_fine)
            return false;
    }
    return text.length > 0;
}

static bool is_blank(char byte)
{
    return byte == ' ' || byte == '\t';
}

/* As HTTP/1.1 has it on a line: no control byte, no blanks around it. */
static bool is_value(struct bt_http_slice text)
{
    for (size_t i = 0; i < text.length; i++) {
        unsigned char byte = (unsigned char)text.data[i];
        if ((byte < ' ' && byte != '\t') || byte == 0x7f)
            return false;
    }
    return text.length == 0 || (!is_blank(text.data[0]) && !is_blank(text.data[text.length - 1]));
}

/* Visible ASCII without the given bytes: a blank would end a request line early. */
static bool is_visible_without(struct bt_http_slice text, const char *bytes)
{
    for (size_t i = 0; i < text.length; i++)
        if (text.data[i] <= ' ' || text.data[i] >= 0x7f || strchr(bytes, text.data[i]) != NULL)
            return false;
    return text.length > 0;
}

struct bt_http2_head *bt_http2_head_new(enum bt_http2_head_kind kind)
{
    struct bt_http2_head *head = bt_new(1, sizeof(*head));
    head->kind = kind;
    head->message.content_length = -1;
    /* What is stored is counted in size, with 32 bytes a field more, so neither limit is ever met. */
    head->text.limit = head->cookie.limit = (size_t)2 * BT_HTTP_HEAD_MAX;
    return head;
}

struct bt_http2_head *bt_http2_head_free(struct bt_http2_head *head)
{
    if (head == NULL)
        return NULL;
    bt_buffer_wipe(&head->text);
    bt_buffer_wipe(&head->cookie);
    free(head);
    return NULL;
}

static void fail(struct bt_http2_head *head, const char *error)
{
    if (head->error == NULL)
        head->error = error;
}

static void fail_size(struct bt_http2_head *head)
{
    fail(head, "the header list is too large");
    head->is_too_large = true;
}

static struct bt_http2_piece store(struct bt_http2_head *head, struct bt_http_slice text)
{
    struct bt_http2_piece piece = {true, (uint32_t)head->text.length, (uint32_t)text.length};
    if (bt_buffer_add(&head->text, text.data, text.length) < 0)
        fail_size(head);
    return piece;
}

static struct bt_http_slice text_of(const struct bt_http2_head *head, struct bt_http2_piece piece)
{
    if (!piece.is_there || piece.length == 0)
        return (struct bt_http_slice){"", 0};
    return (struct bt_http_slice){head->text.data + piece.at, piece.length};
}

static void add_pseudo(struct bt_http2_head *head, struct bt_http_slice name, struct bt_http_slice value)
{
    size_t which = 0;
    while (which < BT_HTTP2_PSEUDO_COUNT && !bt_http_slice_is(name, pseudo_names[which]))
        which++;
    if (which == BT_HTTP2_PSEUDO_COUNT || head->kind == BT_HTTP2_TRAILERS ||
        (which == BT_HTTP2_STATUS) != (head->kind == BT_HTTP2_RESPONSE)) {
        fail(head, "a pseudo-header field that does not belong here");
    } else if (head->has_fields) {
        fail(head, "a pseudo-header field behind other fields");
    } else if (head->pseudo[which].is_there) {
        fail(head, "a pseudo-header field twice");
    } else {
        head->pseudo[which] = store(head, value);
    }
}

static void add_length(struct bt_http2_head *head, struct bt_http_slice value)
{
    uint64_t length;
    if (head->message.content_length >= 0)
        fail(head, "content-length twice");
    else if (bt_number_parse(value.data, value.length, 0, INT64_MAX, &length) < 0)
        fail(head, "a content-length that is no number");
    else
        head->message.content_length = (int64_t)length;
}

static void add_cookie(struct bt_http2_head *head, struct bt_http_slice value)
{
    if ((head->cookie.length > 0 && bt_buffer_add_text(&head->cookie, "; ") < 0) ||
        bt_buffer_add(&head->cookie, value.data, value.length) < 0)
        fail_size(head);
}

/* Fields of requests that have a place of their own. Returns whether this is one. */
static bool add_request_field(struct bt_http2_head *head, struct bt_http_slice name,
                              struct bt_http_slice value)
{
    if (bt_http_slice_is(name, "host")) {
        if (head->host.is_there)
            fail(head, "host twice");
        head->host = store(head, value);
    } else if (bt_http_slice_is(name, "cookie")) {
        add_cookie(head, value);
    } else if (bt_http_slice_is(name, "expect")) {
        if (!bt_http_slice_is_nocase(value, "100-continue"))
            fail(head, "an unknown expectation");
        head->message.expects_continue = true;
    } else if (bt_http_slice_is(name, "te")) {
        if (!bt_http_slice_is_nocase(value, "trailers"))
            fail(head, "a te field other than trailers");
    } else {
        return false;
    }
    return true;
}

static void add_field(struct bt_http2_head *head, struct bt_http_slice name, struct bt_http_slice value)
{
    size_t count = head->message.field_count;
    head->has_fields = true;
    if (!is_token(name, false))
        fail(head, "a field name with bytes that it must not have");
    else if (!is_value(value))
        fail(head, "a field value with bytes that it must not have");
    else if (is_one_of(name, forbidden))
        fail(head, "a field that is of one HTTP/1.1 connection");
    else if (head->kind == BT_HTTP2_TRAILERS && is_one_of(name, not_in_trailers))
        fail(head, "a trailer field that belongs into the head");
    if (head->error != NULL || (head->kind == BT_HTTP2_REQUEST && add_request_field(head, name, value)))
        return;
    if (bt_http_slice_is(name, "content-length")) {
        add_length(head, value);
        return;
    }
    if (is_one_of(name, dropped) || starts_with(name, "proxy-") || bt_http_slice_is(name, "host"))
        return;
    /* One is kept for the cookies. */
    if (count == BT_HTTP_FIELDS_MAX - 1) {
        fail_size(head);
        return;
    }
    head->names[count] = store(head, name);
    head->values[count] = store(head, value);
    head->message.field_count++;
}

void bt_http2_head_add(struct bt_http2_head *head, struct bt_http_slice name, struct bt_http_slice value)
{
    /* Each length is below 2^24 by the framing, and nothing is added above the limit. */
    if (head->size <= BT_HTTP_HEAD_MAX)
        head->size += name.length + value.length + 32;
    if (head->size > BT_HTTP_HEAD_MAX)
        fail_size(head);
    if (head->error != NULL)
        return;
    if (name.length > 0 && name.data[0] == ':')
        add_pseudo(head, name, value);
    else
        add_field(head, name, value);
}

/* ---- the whole
 * ---------------------------------------------------------------------------------------------
 */

static bool is_same_authority(struct bt_http_slice one, struct bt_http_slice other)
{
    return one.length == other.length && strncasecmp(one.data, other.data, one.length) == 0;
}

static void finish_authority(struct bt_http2_head *head)
{
    struct bt_http_slice host = text_of(head, head->host);
    struct bt_message *message = &head->message;
    message->authority = text_of(head, head->pseudo[BT_HTTP2_AUTHORITY]);
    if (!head->pseudo[BT_HTTP2_AUTHORITY].is_there)
        message->authority = host;
    else if (head->host.is_there && !is_same_authority(message->authority, host))
        fail(head, ":authority and host differ");
    if (!is_visible_without(message->authority, "@/?#\\\"<>{}|^`,"))
        fail(head, "no :authority, or one with bytes that it must not have");
}

static void finish_request(struct bt_http2_head *head, const char *scheme)
{
    struct bt_message *message = &head->message;
    bool has_protocol = head->pseudo[BT_HTTP2_PROTOCOL].is_there;
    message->method = text_of(head, head->pseudo[BT_HTTP2_METHOD]);
    message->scheme = text_of(head, head->pseudo[BT_HTTP2_SCHEME]);
    message->path = text_of(head, head->pseudo[BT_HTTP2_PATH]);
    message->protocol = text_of(head, head->pseudo[BT_HTTP2_PROTOCOL]);
    bool is_connect = bt_http_slice_is(message->method, "CONNECT");
    bool is_asterisk = bt_http_slice_is(message->path, "*") && bt_http_slice_is(message->method, "OPTIONS");
    if (!is_token(message->method, true) || message->method.length > METHOD_MAX)
        fail(head, "no :method, or one that is no token");
    if (is_connect && !has_protocol)
        fail(head, "CONNECT inside a connection that is a tunnel already");
    if (has_protocol &&
        (!is_connect || !is_token(message->protocol, true) || message->protocol.length > PROTOCOL_MAX))
        fail(head, "a :protocol that is no token, or without CONNECT");
    if (has_protocol && message->content_length >= 0)
        fail(head, "content-length with :protocol");
    if (!bt_http_slice_is(message->scheme, scheme))
        fail(head, "no :scheme, or another one than the connection's");
    if (!is_asterisk && (!is_visible_without(message->path, "#") || message->path.data[0] != '/'))
        fail(head, "no :path, or one that a request line could not carry");
    finish_authority(head);
    if (has_protocol)
        message->method = (struct bt_http_slice){"GET", 3};
}

static void finish_response(struct bt_http2_head *head)
{
    struct bt_http_slice text = text_of(head, head->pseudo[BT_HTTP2_STATUS]);
    struct bt_message *message = &head->message;
    uint64_t status;
    if (text.length != 3 || bt_number_parse(text.data, text.length, 100, 599, &status) < 0 || status == 101) {
        fail(head, "no :status, or one that there is not in HTTP/2");
        return;
    }
    message->status = (unsigned)status;
    /* RFC 9110, 8.6: these have no content, whatever somebody says about its length. */
    if (status < 200 || status == 204)
        message->content_length = -1;
}

const struct bt_message *bt_http2_head_finish(struct bt_http2_head *head, const char *scheme)
{
    struct bt_message *message = &head->message;
    if (head->error != NULL)
        return NULL;
    for (size_t i = 0; i < message->field_count; i++)
        message->fields[i] =
            (struct bt_http_field){text_of(head, head->names[i]), text_of(head, head->values[i])};
    if (head->cookie.length > 0)
        message->fields[message->field_count++] =
            (struct bt_http_field){{"cookie", 6}, {head->cookie.data, head->cookie.length}};
    if (head->kind == BT_HTTP2_REQUEST)
        finish_request(head, scheme);
    else if (head->kind == BT_HTTP2_RESPONSE)
        finish_response(head);
    return head->error == NULL ? message : NULL;
}

/* ---- writing
 * -----------------------------------------------------------------------------------------------
 */

/* nghttp2 copies names and values at once and does not write to them; its structure just has no const. */
static void put(struct bt_http2_fields *fields, struct bt_http_slice name, struct bt_http_slice value)
{
    union {
        const char *text;
        uint8_t *bytes;
    } name_of = {name.data}, value_of = {value.data};
    fields->fields[fields->count++] =
        (nghttp2_nv){name_of.bytes, value_of.bytes, name.length, value.length, NGHTTP2_NV_FLAG_NONE};
}

static void put_text(struct bt_http2_fields *fields, const char *name, struct bt_http_slice value)
{
    put(fields, (struct bt_http_slice){name, strlen(name)}, value);
}

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static void put_request(struct bt_http2_fields *fields, const struct bt_message *message)
{
    bool has_protocol = message->protocol.length > 0;
    put_text(fields, ":method", has_protocol ? slice("CONNECT") : message->method);
    if (has_protocol)
        put_text(fields, ":protocol", message->protocol);
    put_text(fields, ":scheme", message->scheme);
    put_text(fields, ":authority", message->authority);
    put_text(fields, ":path", message->path);
    /* Trailers are passed on, whatever the agent's leg is; gRPC servers insist on being told. */
    if (!has_protocol)
        put_text(fields, "te", slice("trailers"));
    if (message->expects_continue)
        put_text(fields, "expect", slice("100-continue"));
}

static int put_response(struct bt_http2_fields *fields, const struct bt_message *message, bool is_protocol)
{
    unsigned status = message->status;
    if (status < 100 || status > 599 || (status == 101 && !is_protocol))
        return -EINVAL;
    if (status == 101)
        status = 200;
    else if (is_protocol && status >= 200 && status < 300)
        status = 502;
    (void)snprintf(fields->status, sizeof(fields->status), "%u", status);
    put_text(fields, ":status", slice(fields->status));
    return 0;
}

int bt_http2_fields_set(struct bt_http2_fields *fields, enum bt_http2_head_kind kind,
                        const struct bt_message *message, bool is_protocol)
{
    bool has_length = message->content_length >= 0 && message->protocol.length == 0 &&
                      kind != BT_HTTP2_TRAILERS &&
                      (kind == BT_HTTP2_REQUEST || (message->status >= 200 && message->status != 204));
    fields->count = 0;
    if (kind == BT_HTTP2_REQUEST)
        put_request(fields, message);
    else if (kind == BT_HTTP2_RESPONSE && put_response(fields, message, is_protocol) < 0)
        return -EINVAL;
    if (has_length) {
        (void)snprintf(fields->length, sizeof(fields->length), "%lld", (long long)message->content_length);
        put_text(fields, "content-length", slice(fields->length));
    }
    for (size_t i = 0; i < message->field_count && i < BT_HTTP_FIELDS_MAX; i++) {
        const struct bt_http_field *field = &message->fields[i];
        if (!is_token(field->name, false) || !is_value(field->value) || is_one_of(field->name, forbidden))
            return -EINVAL;
        if (!is_one_of(field->name, dropped))
            put(fields, field->name, field->value);
    }
    return 0;
}

static uint8_t *copy_text(uint8_t **at, const uint8_t *text, size_t length)
{
    uint8_t *copy = *at;
    memcpy(copy, text, length);
    *at += length;
    return copy;
}

struct bt_http2_fields *bt_http2_fields_copy(const struct bt_http2_fields *fields)
{
    size_t size = sizeof(*fields);
    for (size_t i = 0; i < fields->count; i++)
        size += fields->fields[i].namelen + fields->fields[i].valuelen;
    struct bt_http2_fields *copy = bt_new(1, size);
    uint8_t *at = (uint8_t *)(copy + 1);
    copy->count = fields->count;
    for (size_t i = 0; i < fields->count; i++) {
        const nghttp2_nv *from = &fields->fields[i];
        uint8_t *name = copy_text(&at, from->name, from->namelen);
        uint8_t *value = copy_text(&at, from->value, from->valuelen);
        copy->fields[i] = (nghttp2_nv){name, value, from->namelen, from->valuelen, from->flags};
    }
    return copy;
}
