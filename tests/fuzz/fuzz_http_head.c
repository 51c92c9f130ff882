/* Request and response heads, authorities, tokens and bodies. Invariants: a head that was taken has one Host
 * (or is a CONNECT), no byte that ends a line early, and one framing; a body is followed alike in one piece
 * and in many. */
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/http_body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns the number of bytes taken, or -1; *ret_sum is a sum over the data. */
static long follow_in(const struct bt_http_head *head, const char *body, size_t length, size_t piece,
                      unsigned long *ret_sum)
{
    struct bt_http_body_reader reader;
    size_t at = 0;
    *ret_sum = 0;
    bt_http_body_start(&reader, head->body, head->body_length);
    while (at < length) {
        struct bt_http_slice data;
        size_t taken, part = length - at < piece ? length - at : piece;
        int result = bt_http_body_read(&reader, body + at, part, &taken, &data);
        if (result < 0)
            return -1;
        for (size_t i = 0; result == BT_HTTP_PIECE_DATA && i < data.length; i++)
            *ret_sum = *ret_sum * 31 + (unsigned char)data.data[i] + 1;
        at += taken;
        if (result == BT_HTTP_PIECE_END || result == BT_HTTP_PIECE_TRAILERS)
            break;
    }
    return (long)at;
}

static void follow(const struct bt_http_head *head, const char *body, size_t length)
{
    unsigned long whole, pieces;
    if (follow_in(head, body, length, length, &whole) != follow_in(head, body, length, 1, &pieces) ||
        whole != pieces)
        abort();
}

static void check_request(const char *text, size_t size)
{
    struct bt_http_head head;
    char token[BT_HTTP_TOKEN_SIZE];
    char host[BT_HOST_NAME_SIZE], again[BT_HOST_NAME_SIZE];
    uint16_t port;
    size_t hosts, lengths, codings;
    struct bt_http_slice authority, path;
    if (bt_http_request_parse(text, size, &head) < 0)
        return;
    (void)bt_http_find(&head, "host", &hosts);
    (void)bt_http_find(&head, "content-length", &lengths);
    (void)bt_http_find(&head, "transfer-encoding", &codings);
    bool is_connect = bt_http_slice_is(head.method, "CONNECT");
    if (head.length > size || lengths + codings > 1 || hosts > 1 ||
        (hosts == 0 && !is_connect && !head.is_old) || (codings > 0 && head.is_old) ||
        memchr(text, '\0', head.length) != NULL)
        abort();
    for (size_t i = 0; i < head.field_count; i++)
        if (memchr(head.fields[i].value.data, '\n', head.fields[i].value.length) != NULL ||
            memchr(head.fields[i].value.data, '\r', head.fields[i].value.length) != NULL)
            abort();
    (void)!bt_http_proxy_token(&head, token);
    authority = head.target;
    if (!is_connect && bt_http_absolute_parse(head.target, &authority, &path) < 0)
        return;
    if (bt_http_authority_parse(authority, 80, host, &port) == 0 &&
        (port == 0 || bt_host_canonical(host, strlen(host), again) < 0 || strcmp(host, again) != 0))
        abort();
    follow(&head, text + head.length, size - head.length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bt_http_head head;
    check_request((const char *)data, size);
    if (bt_http_response_parse((const char *)data, size, &head) == 0)
        follow(&head, (const char *)data + head.length, size - head.length);
    return 0;
}
