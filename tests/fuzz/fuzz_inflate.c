/* Compressed bodies. The first byte chooses codings. Invariants: in one piece or in many the outcome is the
 * same; nothing grows beyond its bound; nothing is kept. */
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/inflate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct sum {
    size_t length;
    uint64_t hash;
};

static void on_output(void *context, const void *data, size_t length)
{
    struct sum *sum = context;
    const uint8_t *bytes = data;
    if (length == 0 || length > 16384)
        abort();
    for (size_t i = 0; i < length; i++)
        sum->hash = (sum->hash ^ bytes[i]) * 1099511628211U;
    sum->length += length;
}

static int run(const char *codings, const uint8_t *data, size_t size, size_t piece, struct sum *ret_sum,
               bool *ret_is_complete)
{
    struct bt_inflate *inflate = NULL;
    int result = bt_inflate_new(codings, strlen(codings), NULL, &inflate);
    *ret_sum = (struct sum){0};
    if (result < 0 || inflate == NULL)
        abort();
    for (size_t at = 0; at < size && result == 0; at += piece)
        result =
            bt_inflate_feed(inflate, data + at, size - at < piece ? size - at : piece, on_output, ret_sum);
    if (bt_inflate_memory() > BT_INFLATE_SHARE_MAX ||
        ret_sum->length > BT_INFLATE_FREE + size * BT_INFLATE_RATIO_MAX)
        abort();
    *ret_is_complete = result == 0 && bt_inflate_is_complete(inflate);
    (void)bt_inflate_free(inflate);
    if (bt_inflate_memory() != 0)
        abort();
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const codings[] = {"gzip", "deflate",  "br",
                                          "zstd", "gzip, br", "x-gzip , identity,zstd"};
    struct sum whole, pieces;
    bool is_whole_complete, are_pieces_complete;
    if (size < 2)
        return 0;
    const char *chosen = codings[data[0] % (sizeof(codings) / sizeof(codings[0]))];
    int whole_result = run(chosen, data + 1, size - 1, size, &whole, &is_whole_complete);
    int pieces_result = run(chosen, data + 1, size - 1, 1 + data[0] % 5, &pieces, &are_pieces_complete);
    /* A bomb is known earlier in pieces, and a decoder may have given more or less of a broken body. */
    if (whole_result == 0 && pieces_result == 0 &&
        (whole.length != pieces.length || whole.hash != pieces.hash ||
         is_whole_complete != are_pieces_complete))
        abort();
    struct bt_inflate *none = NULL;
    if (bt_inflate_new((const char *)data, size, NULL, &none) == 0)
        (void)bt_inflate_free(none);
    return 0;
}
