/* HTTP/1.1 heads. See http.h. */
#include "policy/gateway/http.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

static bool is_token_byte(char byte)
{
    if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9'))
        return true;
    return byte != '\0' && strchr("!#$%&'*+-.^_`|~", byte) != NULL;
}

static bool is_blank(char byte)
{
    return byte == ' ' || byte == '\t';
}

/* Visible ASCII, blanks, and bytes above it (obs-text): no control byte, so no NUL, bare CR or bare LF. */
static bool is_value_byte(char byte)
{
    return is_blank(byte) || (unsigned char)byte >= 0x80 || (byte > ' ' && byte != 0x7f);
}

const struct bt_http_field *bt_http_find(const struct bt_http_head *head, const char *name, size_t *ret_count)
{
    const struct bt_http_field *found = NULL;
    size_t count = 0;
    for (size_t i = 0; i < head->field_count; i++) {
        if (!bt_http_slice_is_nocase(head->fields[i].name, name))
            continue;
        found = found != NULL ? found : &head->fields[i];
        count++;
    }
    if (ret_count != NULL)
        *ret_count = count;
    return found;
}

/* Takes one line that must end in CR LF. 0, -EAGAIN, or -EBADMSG for a bare LF or another control byte. */
static int take_line(const char *data, size_t length, size_t *at, struct bt_http_slice *ret_line)
{
    size_t start = *at;
    for (size_t i = start; i < length; i++) {
        if (data[i] == '\r') {
            if (i + 1 == length)
                return -EAGAIN;
            if (data[i + 1] != '\n')
                return -EBADMSG;
            *ret_line = (struct bt_http_slice){data + start, i - start};
            *at = i + 2;
            return 0;
        }
        if (!is_value_byte(data[i]))
            return -EBADMSG;
    }
    return -EAGAIN;
}

static int parse_field(struct bt_http_slice line, struct bt_http_head *head)
{
    size_t colon = 0;
    while (colon < line.length && is_token_byte(line.data[colon]))
        colon++;
    /* No name, a blank before the colon, or a folded line, which starts with a blank. */
    if (colon == 0 || colon == line.length || line.data[colon] != ':')
        return -EBADMSG;
    if (head->field_count == BT_HTTP_FIELDS_MAX)
        return -E2BIG;
    size_t start = colon + 1, end = line.length;
    while (start < end && is_blank(line.data[start]))
        start++;
    while (end > start && is_blank(line.data[end - 1]))
        end--;
    head->fields[head->field_count++] =
        (struct bt_http_field){{line.data, colon}, {line.data + start, end - start}};
    return 0;
}

/* RFC 9112, 6.3. What it lets a server repair (two lengths that agree, a list of codings) is an error here.
 */
static int parse_framing(struct bt_http_head *head, enum bt_http_body otherwise)
{
    size_t length_count, coding_count;
    const struct bt_http_field *length = bt_http_find(head, "content-length", &length_count);
    const struct bt_http_field *coding = bt_http_find(head, "transfer-encoding", &coding_count);
    head->body = otherwise;
    head->body_length = 0;
    if (length_count + coding_count > 1)
        return -EBADMSG;
    if (coding != NULL) {
        head->body = BT_HTTP_BODY_CHUNKED;
        return bt_http_slice_is_nocase(coding->value, "chunked") ? 0 : -EBADMSG;
    }
    if (length == NULL)
        return 0;
    if (bt_number_parse(length->value.data, length->value.length, 0, INT64_MAX, &head->body_length) < 0)
        return -EBADMSG;
    head->body = head->body_length > 0 ? BT_HTTP_BODY_LENGTH : BT_HTTP_BODY_NONE;
    return 0;
}

static int parse_fields(const char *data, size_t length, size_t *at, struct bt_http_head *head)
{
    for (;;) {
        struct bt_http_slice line;
        int result = take_line(data, length, at, &line);
        if (result < 0)
            return result;
        if (line.length == 0)
            return 0;
        result = parse_field(line, head);
        if (result < 0)
            return result;
    }
}

static int parse_request_line(struct bt_http_slice line, struct bt_http_head *head)
{
    static const char version[] = " HTTP/1.1", old_version[] = " HTTP/1.0";
    size_t method = 0;
    while (method < line.length && is_token_byte(line.data[method]))
        method++;
    if (method == 0 || method > 32 || method == line.length || line.data[method] != ' ')
        return -EBADMSG;
    size_t end = method + 1;
    while (end < line.length && line.data[end] > ' ' && line.data[end] != 0x7f)
        end++;
    if (end == method + 1)
        return -EBADMSG;
    head->method = (struct bt_http_slice){line.data, method};
    head->target = (struct bt_http_slice){line.data + method + 1, end - method - 1};
    struct bt_http_slice rest = {line.data + end, line.length - end};
    head->is_old = bt_http_slice_is(rest, old_version);
    if (head->is_old || bt_http_slice_is(rest, version))
        return 0;
    return rest.length == sizeof(version) - 1 && memcmp(rest.data, " HTTP/", 6) == 0 ? -EPROTONOSUPPORT
                                                                                     : -EBADMSG;
}

int bt_http_trailers_parse(const char *data, size_t length, struct bt_http_head *ret_head)
{
    size_t at = 0;
    ret_head->field_count = 0;
    if (length > BT_HTTP_HEAD_MAX)
        length = BT_HTTP_HEAD_MAX;
    int result = parse_fields(data, length, &at, ret_head);
    ret_head->length = at;
    return result == -EAGAIN && length >= BT_HTTP_HEAD_MAX ? -E2BIG : result;
}

/* Turns "more is needed" into an error once the limit is reached. */
static int bounded(int result, size_t length)
{
    return result == -EAGAIN && length >= BT_HTTP_HEAD_MAX ? -E2BIG : result;
}

int bt_http_request_parse(const char *data, size_t length, struct bt_http_head *ret_head)
{
    struct bt_http_slice line;
    size_t at = 0;
    size_t host_count;
    ret_head->field_count = 0;
    if (length > BT_HTTP_HEAD_MAX)
        length = BT_HTTP_HEAD_MAX;
    int result = take_line(data, length, &at, &line);
    if (result == 0)
        result = parse_request_line(line, ret_head);
    if (result == 0)
        result = parse_fields(data, length, &at, ret_head);
    if (result < 0)
        return bounded(result, length);
    ret_head->length = at;
    (void)bt_http_find(ret_head, "host", &host_count);
    bool is_connect = bt_http_slice_is(ret_head->method, "CONNECT");
    if (host_count > 1 || (host_count == 0 && !is_connect && !ret_head->is_old))
        return -EBADMSG;
    result = parse_framing(ret_head, BT_HTTP_BODY_NONE);
    if (result == 0 && ret_head->is_old && ret_head->body == BT_HTTP_BODY_CHUNKED)
        return -EBADMSG; /* RFC 9112, 6.1 */
    if (result == 0 && is_connect && ret_head->body != BT_HTTP_BODY_NONE)
        return -EBADMSG;
    return result;
}

static int parse_status_line(struct bt_http_slice line, struct bt_http_head *head)
{
    uint64_t status;
    if (line.length < 12 || memcmp(line.data, "HTTP/", 5) != 0)
        return -EBADMSG;
    if (memcmp(line.data + 5, "1.1 ", 4) != 0 && memcmp(line.data + 5, "1.0 ", 4) != 0)
        return -EPROTONOSUPPORT;
    if (bt_number_parse(line.data + 9, 3, 100, 599, &status) < 0 ||
        (line.length > 12 && line.data[12] != ' '))
        return -EBADMSG;
    head->status = (unsigned)status;
    head->is_old = line.data[7] == '0';
    head->reason = (struct bt_http_slice){line.data + 12, line.length - 12};
    return 0;
}

int bt_http_response_parse(const char *data, size_t length, struct bt_http_head *ret_head)
{
    struct bt_http_slice line;
    size_t at = 0;
    ret_head->field_count = 0;
    if (length > BT_HTTP_HEAD_MAX)
        length = BT_HTTP_HEAD_MAX;
    int result = take_line(data, length, &at, &line);
    if (result == 0)
        result = parse_status_line(line, ret_head);
    if (result == 0)
        result = parse_fields(data, length, &at, ret_head);
    if (result < 0)
        return bounded(result, length);
    ret_head->length = at;
    return parse_framing(ret_head, BT_HTTP_BODY_UNTIL_CLOSE);
}

/* Whether a comma-separated list holds a token. */
static bool list_has(struct bt_http_slice list, struct bt_http_slice token)
{
    size_t at = 0;
    while (at < list.length) {
        size_t start = at;
        while (at < list.length && list.data[at] != ',')
            at++;
        size_t end = at++;
        while (start < end && is_blank(list.data[start]))
            start++;
        while (end > start && is_blank(list.data[end - 1]))
            end--;
        if (end - start == token.length && strncasecmp(list.data + start, token.data, token.length) == 0)
            return true;
    }
    return false;
}

bool bt_http_lists(const struct bt_http_head *head, const char *name, struct bt_http_slice token)
{
    for (size_t i = 0; i < head->field_count; i++)
        if (bt_http_slice_is_nocase(head->fields[i].name, name) && list_has(head->fields[i].value, token))
            return true;
    return false;
}

void bt_http_lower(struct bt_http_slice name)
{
    char *text = (char *)(uintptr_t)name.data;
    for (size_t i = 0; i < name.length; i++)
        if (text[i] >= 'A' && text[i] <= 'Z')
            text[i] = (char)(text[i] | 0x20);
}

bool bt_http_is_hop_by_hop(const struct bt_http_head *head, struct bt_http_slice name)
{
    static const char *const always[] = {"connection", "keep-alive",        "te",
                                         "trailer",    "transfer-encoding", "upgrade"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(always); i++)
        if (bt_http_slice_is_nocase(name, always[i]))
            return true;
    if (name.length >= 6 && strncasecmp(name.data, "proxy-", 6) == 0)
        return true;
    return bt_http_lists(head, "connection", name);
}

int bt_http_authority_parse(struct bt_http_slice authority, uint16_t default_port,
                            char ret_host[BT_HOST_NAME_SIZE], uint16_t *ret_port)
{
    uint64_t port = default_port;
    char host[BT_HOST_NAME_SIZE];
    const char *colon = authority.length > 0 ? memrchr(authority.data, ':', authority.length) : NULL;
    size_t length = colon != NULL ? (size_t)(colon - authority.data) : authority.length;
    if (length > 0 && (authority.data[0] == '[' || memchr(authority.data, ':', length) != NULL))
        return -EADDRNOTAVAIL;
    if (colon != NULL && bt_number_parse(colon + 1, authority.length - length - 1, 1, UINT16_MAX, &port) < 0)
        return -EINVAL;
    if (port == 0)
        return -EINVAL;
    if (bt_host_canonical(authority.data, length, host) < 0)
        return bt_host_is_literal(authority.data, length) ? -EADDRNOTAVAIL : -EINVAL;
    memcpy(ret_host, host, sizeof(host));
    *ret_port = (uint16_t)port;
    return 0;
}

int bt_http_absolute_parse(struct bt_http_slice target, struct bt_http_slice *ret_authority,
                           struct bt_http_slice *ret_path)
{
    static const char scheme[] = "http://";
    static const char root[] = "/";
    size_t start = sizeof(scheme) - 1;
    if (target.length <= start || strncasecmp(target.data, scheme, start) != 0)
        return -EINVAL;
    size_t end = start;
    while (end < target.length && strchr("/?#", target.data[end]) == NULL)
        end++;
    struct bt_http_slice path = {target.data + end, target.length - end};
    if (path.length == 0)
        path = (struct bt_http_slice){root, 1};
    /* "http://host?query" has no path of its own to send; a fragment never belongs in a request. */
    if (path.data[0] != '/' || memchr(path.data, '#', path.length) != NULL)
        return -EINVAL;
    *ret_authority = (struct bt_http_slice){target.data + start, end - start};
    *ret_path = path;
    return 0;
}

static int base64_value(char byte)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = byte != '\0' ? strchr(alphabet, byte) : NULL;
    return at != NULL ? (int)(at - alphabet) : -1;
}

/* Decodes base64 (RFC 4648) into text of at most size - 1 bytes. Returns the length or -EINVAL. */
static int decode_base64(struct bt_http_slice encoded, char *text, size_t size)
{
    size_t length = 0;
    unsigned bits = 0, bit_count = 0;
    while (encoded.length > 0 && encoded.data[encoded.length - 1] == '=')
        encoded.length--;
    for (size_t i = 0; i < encoded.length; i++) {
        int value = base64_value(encoded.data[i]);
        if (value < 0)
            return -EINVAL;
        bits = (bits << 6 | (unsigned)value) & 0xffff;
        bit_count += 6;
        if (bit_count < 8)
            continue;
        bit_count -= 8;
        if (length + 1 >= size)
            return -EINVAL;
        text[length++] = (char)(unsigned char)(bits >> bit_count & 0xff);
    }
    text[length] = '\0';
    return (int)length;
}

int bt_http_proxy_token(const struct bt_http_head *head, char ret_token[BT_HTTP_TOKEN_SIZE])
{
    static const char user[] = "agent:";
    char text[sizeof(user) + BT_HTTP_TOKEN_SIZE];
    size_t count;
    const struct bt_http_field *field = bt_http_find(head, "proxy-authorization", &count);
    if (field == NULL)
        return -ENOENT;
    if (count > 1 || field->value.length < 6 || strncasecmp(field->value.data, "Basic ", 6) != 0)
        return -EINVAL;
    struct bt_http_slice encoded = {field->value.data + 6, field->value.length - 6};
    while (encoded.length > 0 && encoded.data[0] == ' ') {
        encoded.data++;
        encoded.length--;
    }
    int length = decode_base64(encoded, text, sizeof(text));
    size_t user_length = sizeof(user) - 1;
    if (length <= (int)user_length || strlen(text) != (size_t)length ||
        memcmp(text, user, user_length) != 0 || (size_t)length - user_length >= BT_HTTP_TOKEN_SIZE)
        return -EINVAL;
    memcpy(ret_token, text + user_length, (size_t)length - user_length + 1);
    explicit_bzero(text, sizeof(text));
    return 0;
}
