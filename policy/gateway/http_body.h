/* Bodies of HTTP/1.1 messages (RFC 9112, 6 and 7.1) as they come: where the data is, where it ends.
 *
 * Strict about chunks: no extensions, sizes of at most 8 digits. Called by http1_codec.c and http1_read.c.
 * Pure.
 */
#ifndef BERTH_POLICY_GATEWAY_HTTP_BODY_H
#define BERTH_POLICY_GATEWAY_HTTP_BODY_H

#include "policy/gateway/http.h"

struct bt_http_body_reader {
    enum bt_http_body body;
    uint64_t left; /* of the body or of the current chunk */
    int state;
    unsigned digits;
};

enum bt_http_piece {
    BT_HTTP_PIECE_MORE,     /* everything was taken and there is no data in it */
    BT_HTTP_PIECE_DATA,     /* *ret_data is some of the body */
    BT_HTTP_PIECE_TRAILERS, /* the last chunk was taken: what follows is for bt_http_trailers_parse */
    BT_HTTP_PIECE_END,      /* the body is complete */
};

void bt_http_body_start(struct bt_http_body_reader *reader, enum bt_http_body body, uint64_t length);

/* Takes *ret_taken bytes, at most up to the end of the first piece of data. Returns an enum bt_http_piece, or
 * -EBADMSG. *ret_data borrows from data. */
int bt_http_body_read(struct bt_http_body_reader *reader, const char *data, size_t length, size_t *ret_taken,
                      struct bt_http_slice *ret_data) BT_MUST_CHECK;

#endif
