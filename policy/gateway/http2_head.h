/* HTTP/2 heads and trailers (RFC 9113, 8.2 and 8.3; RFC 8441), read strictly and written.
 *
 * nghttp2 has checked much of this before; here nothing depends on it. Whatever an HTTP/1.1 leg would read
 * in another way, or not at all, is an error. Called by http2_frames.c and http2_stream.c. Pure: no I/O.
 */
#ifndef BERTH_POLICY_GATEWAY_HTTP2_HEAD_H
#define BERTH_POLICY_GATEWAY_HTTP2_HEAD_H

#include <nghttp2/nghttp2.h>

#include "lib/memory.h"
#include "policy/gateway/stream.h"

enum bt_http2_head_kind { BT_HTTP2_REQUEST, BT_HTTP2_RESPONSE, BT_HTTP2_TRAILERS };

enum {
    BT_HTTP2_METHOD,
    BT_HTTP2_SCHEME,
    BT_HTTP2_AUTHORITY,
    BT_HTTP2_PATH,
    BT_HTTP2_PROTOCOL,
    BT_HTTP2_STATUS
};
#define BT_HTTP2_PSEUDO_COUNT 6

/* Where a text lies in the buffer, which moves while it grows. */
struct bt_http2_piece {
    bool is_there;
    uint32_t at, length;
};

/* A head while it comes. */
struct bt_http2_head {
    enum bt_http2_head_kind kind;
    const char *error; /* the first thing that is wrong: a phrase; NULL: nothing so far */
    bool is_too_large; /* that is what is wrong */
    bool has_fields;   /* pseudo-fields are over */
    size_t size;       /* RFC 9113, 6.5.2: each field is its name, its value and 32 */
    struct bt_buffer text, cookie;
    struct bt_http2_piece pseudo[BT_HTTP2_PSEUDO_COUNT], host;
    struct bt_http2_piece names[BT_HTTP_FIELDS_MAX], values[BT_HTTP_FIELDS_MAX];
    struct bt_message message;
};

struct bt_http2_head *bt_http2_head_new(enum bt_http2_head_kind kind);
struct bt_http2_head *bt_http2_head_free(struct bt_http2_head *head); /* accepts NULL; returns NULL */

/* Takes the next field, pseudo-fields included. */
void bt_http2_head_add(struct bt_http2_head *head, struct bt_http_slice name, struct bt_http_slice value);
/* The whole of it, borrowed until bt_http2_head_free; or NULL, and head->error says why. scheme: what
 * requests must name. Cookie fields come joined as one (RFC 9113, 8.2.3). */
const struct bt_message *bt_http2_head_finish(struct bt_http2_head *head, const char *scheme);

#define BT_HTTP2_FIELDS_MAX (BT_HTTP_FIELDS_MAX + 8)
/* A message as nghttp2 takes it: fields borrow from the message and from numbers. */
struct bt_http2_fields {
    size_t count;
    nghttp2_nv fields[BT_HTTP2_FIELDS_MAX];
    char status[4], length[21];
};

/* Returns 0 or -EINVAL: something in it must not be written. is_protocol (responses): the request was for
 * another protocol, so 101 is written as 200, and another 2xx, which would mean the same, as 502. */
int bt_http2_fields_set(struct bt_http2_fields *fields, enum bt_http2_head_kind kind,
                        const struct bt_message *message, bool is_protocol) BT_MUST_CHECK;
/* A copy that owns its texts. The caller frees it with free(). */
struct bt_http2_fields *bt_http2_fields_copy(const struct bt_http2_fields *fields);

#endif
