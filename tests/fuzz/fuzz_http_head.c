/* Request and response heads, authorities, tokens and bodies. Invariants: a head that was taken has one Host
 * (or is a CONNECT), no byte that ends a line early, and one framing; a body is followed alike in one piece
 * and in many. */
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void follow(const struct bt_http_head *head, const char *body, size_t length)
{
    struct bt_http_follower whole, pieces;
    size_t taken_whole = 0, taken_pieces = 0, taken = 0;
    bt_http_follow_start(&whole, head);
    bt_http_follow_start(&pieces, head);
    int result_whole = bt_http_follow(&whole, body, length, &taken_whole);
    int result_pieces = head->body == BT_HTTP_BODY_NONE;
    for (size_t at = 0; at < length && result_pieces == 0; at++) {
        result_pieces = bt_http_follow(&pieces, body + at, 1, &taken);
        taken_pieces += taken;
    }
    if (result_whole != result_pieces || (result_whole >= 0 && taken_whole != taken_pieces))
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
    if (head.length > size || lengths + codings > 1 || hosts > 1 || (hosts == 0 && !is_connect) ||
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
