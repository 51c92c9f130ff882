/* Reads a compressed body as it passes, so that filters see what is in it (RFC 9110, 8.4: Content-Encoding).
 *
 * Called by filter_body.c with a copy; what is forwarded stays as it came. Pure but for counters: the
 * decoders of an agent take at most BT_INFLATE_SHARE_MAX bytes; those of all are part of what held.h counts.
 * A body that grows to more than BT_INFLATE_RATIO_MAX times its size (beyond the first BT_INFLATE_FREE bytes)
 * is a bomb.
 */
#ifndef BERTH_POLICY_GATEWAY_INFLATE_H
#define BERTH_POLICY_GATEWAY_INFLATE_H

#include "ipc/base/base.h"

#define BT_INFLATE_CODINGS_MAX 2 /* one over the other */
#define BT_INFLATE_RATIO_MAX 256
#define BT_INFLATE_FREE (1024U * 1024)
#define BT_INFLATE_STREAM_MAX                                                                                \
    (20U * 1024 * 1024) /* memory of one decoder: brotli's largest window, and some */
#define BT_INFLATE_SHARE_MAX (48U * 1024 * 1024)

struct bt_inflate;

/* What the decoders of one agent take; zero at first. */
struct bt_inflate_share {
    size_t memory;
};

/* codings: values of Content-Encoding, joined with commas; gzip, x-gzip, deflate, br, zstd, identity, and
 * aws-chunked, which leaves bytes readable. share: whose decoder it is, or NULL; it must live longer. Returns
 * 0 (*ret_inflate NULL: nothing to decode) or -ENOTSUP (another one, or too many). The caller frees it. */
int bt_inflate_new(const char *codings, size_t length, struct bt_inflate_share *share,
                   struct bt_inflate **ret_inflate) BT_MUST_CHECK;
struct bt_inflate *bt_inflate_free(struct bt_inflate *inflate); /* accepts NULL, returns NULL */

/* Decodes a piece and gives the outcome to sink, in blocks of at most 16 KiB. Returns 0; -EBADMSG: not what
 * its coding says, or bytes behind its end; -E2BIG: a bomb; -ENOMEM: above the bounds of memory. After an
 * error it is over. */
typedef void bt_inflate_sink(void *context, const void *data, size_t length);
int bt_inflate_feed(struct bt_inflate *inflate, const void *data, size_t length, bt_inflate_sink *sink,
                    void *context) BT_MUST_CHECK;
/* Whether what was fed is complete: nothing at all, or up to the end that its coding marks. */
bool bt_inflate_is_complete(const struct bt_inflate *inflate);
size_t bt_inflate_memory(void);                             /* of all decoders of the process, in bytes */
size_t bt_inflate_weight(const struct bt_inflate *inflate); /* of this one */

#endif
