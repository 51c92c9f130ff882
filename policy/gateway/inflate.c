/* See inflate.h. One stage a coding; the first coding that was applied is the last to be undone. */
#include <brotli/decode.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

#include "lib/memory.h"
#include "policy/gateway/held.h"
#include "policy/gateway/inflate.h"

#define BLOCK 16384
#define ZSTD_WINDOW_LOG_MAX 23 /* 8 MiB: what RFC 9659 lets content codings use */

enum coding { CODING_GZIP, CODING_DEFLATE, CODING_BROTLI, CODING_ZSTD };

struct stage {
    enum coding coding;
    struct bt_inflate_share *share; /* or NULL */
    bool is_started, is_finished;   /* at the end of a member or frame, where another may begin */
    size_t memory;
    union {
        z_stream zlib;
        BrotliDecoderState *brotli;
        ZSTD_DStream *zstd;
    };
};

struct bt_inflate {
    struct stage stages[BT_INFLATE_CODINGS_MAX];
    size_t count;
    uint64_t taken, made;
    bt_inflate_sink *sink;
    void *context;
};

static size_t total_memory;

size_t bt_inflate_memory(void)
{
    return total_memory;
}

/* ---- memory: what a library asks for counts -------------------------------------------------------------
 */

struct piece {
    size_t size;
    max_align_t data[];
};

/* zstd is counted after it took memory, so any of the sums may lie above its bound already. */
static bool is_above(size_t taken, size_t size, size_t bound)
{
    return taken > bound || size > bound - taken;
}

static bool has_room(const struct stage *stage, size_t size)
{
    return !is_above(stage->memory, size, BT_INFLATE_STREAM_MAX) &&
           (stage->share == NULL || !is_above(stage->share->memory, size, BT_INFLATE_SHARE_MAX));
}

/* Sets what a stage takes, in all sums. */
static void count_memory(struct stage *stage, size_t memory)
{
    total_memory = total_memory - stage->memory + memory;
    bt_held_change(stage->memory, memory);
    if (stage->share != NULL)
        stage->share->memory = stage->share->memory - stage->memory + memory;
    stage->memory = memory;
}

static void *take_memory(void *opaque, size_t size)
{
    struct stage *stage = opaque;
    if (!has_room(stage, size))
        return NULL;
    struct piece *piece = calloc(1, sizeof(*piece) + size);
    if (piece == NULL)
        return NULL;
    piece->size = size;
    count_memory(stage, stage->memory + size);
    // cppcheck-suppress memleak ; give_memory() finds the piece again in front of its data
    return piece->data;
}

static void give_memory(void *opaque, void *data)
{
    struct stage *stage = opaque;
    if (data == NULL)
        return;
    struct piece *piece = (struct piece *)(void *)((char *)data - offsetof(struct piece, data));
    count_memory(stage, stage->memory - piece->size);
    free(piece);
}

static void *take_array(void *opaque, unsigned count, unsigned size)
{
    size_t bytes;
    return __builtin_mul_overflow((size_t)count, (size_t)size, &bytes) ? NULL : take_memory(opaque, bytes);
}

/* zstd's own allocator is not part of its stable interface: its size is asked for instead. */
static int count_zstd(struct stage *stage)
{
    count_memory(stage, ZSTD_sizeof_DStream(stage->zstd));
    return has_room(stage, 0) ? 0 : -ENOMEM;
}

/* ---- stages ---------------------------------------------------------------------------------------------
 */

static int stage_start(struct stage *stage, uint8_t first)
{
    switch (stage->coding) {
    case CODING_GZIP:
    case CODING_DEFLATE: {
        /* "deflate" is the zlib format; many send it without that format's two bytes. */
        bool is_raw = stage->coding == CODING_DEFLATE && (first & 15) != Z_DEFLATED;
        int bits = stage->coding == CODING_GZIP ? 16 + MAX_WBITS : is_raw ? -MAX_WBITS : MAX_WBITS;
        stage->zlib = (z_stream){.zalloc = take_array, .zfree = give_memory, .opaque = stage};
        stage->is_started = inflateInit2(&stage->zlib, bits) == Z_OK;
        break;
    }
    case CODING_BROTLI:
        stage->brotli = BrotliDecoderCreateInstance(take_memory, give_memory, stage);
        stage->is_started = stage->brotli != NULL;
        break;
    case CODING_ZSTD:
        stage->zstd = ZSTD_createDStream();
        stage->is_started = stage->zstd != NULL;
        if (stage->is_started)
            (void)ZSTD_DCtx_setParameter(stage->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG_MAX);
        break;
    }
    return stage->is_started ? 0 : -ENOMEM;
}

static void stage_stop(struct stage *stage)
{
    if (!stage->is_started)
        return;
    stage->is_started = false;
    switch (stage->coding) {
    case CODING_GZIP:
    case CODING_DEFLATE:
        (void)inflateEnd(&stage->zlib);
        break;
    case CODING_BROTLI:
        BrotliDecoderDestroyInstance(stage->brotli);
        break;
    case CODING_ZSTD:
        count_memory(stage, 0);
        (void)ZSTD_freeDStream(stage->zstd);
        break;
    }
}

struct step {
    const uint8_t *in;
    size_t in_length;
    uint8_t out[BLOCK];
    size_t made;
    bool is_drained; /* gives nothing more without more input */
};

static int step_zlib(struct stage *stage, struct step *step)
{
    z_stream *zlib = &stage->zlib;
    if (stage->is_finished) {
        /* gzip allows members one behind the other (RFC 1952, 2.2). */
        if (step->in_length == 0) {
            step->is_drained = true;
            return 0;
        }
        if (stage->coding != CODING_GZIP || inflateReset(zlib) != Z_OK)
            return -EBADMSG;
        stage->is_finished = false;
    }
    zlib->next_in = step->in;
    zlib->avail_in = (uInt)step->in_length;
    zlib->next_out = step->out;
    zlib->avail_out = BLOCK;
    int result = inflate(zlib, Z_NO_FLUSH);
    step->in = zlib->next_in;
    step->in_length = zlib->avail_in;
    step->made = BLOCK - zlib->avail_out;
    stage->is_finished = result == Z_STREAM_END;
    step->is_drained = step->in_length == 0 && zlib->avail_out != 0;
    if (result == Z_OK || result == Z_STREAM_END || (result == Z_BUF_ERROR && step->is_drained))
        return 0;
    return result == Z_MEM_ERROR ? -ENOMEM : -EBADMSG;
}

static int step_brotli(struct stage *stage, struct step *step)
{
    size_t room = BLOCK;
    uint8_t *out = step->out;
    if (stage->is_finished) {
        step->is_drained = true;
        return step->in_length == 0 ? 0 : -EBADMSG;
    }
    BrotliDecoderResult result =
        BrotliDecoderDecompressStream(stage->brotli, &step->in_length, &step->in, &room, &out, NULL);
    step->made = BLOCK - room;
    stage->is_finished = result == BROTLI_DECODER_RESULT_SUCCESS;
    step->is_drained = result == BROTLI_DECODER_RESULT_NEEDS_MORE_INPUT;
    if (result != BROTLI_DECODER_RESULT_ERROR)
        return 0;
    BrotliDecoderErrorCode code = BrotliDecoderGetErrorCode(stage->brotli);
    return code <= BROTLI_DECODER_ERROR_ALLOC_CONTEXT_MODES &&
                   code >= BROTLI_DECODER_ERROR_ALLOC_BLOCK_TYPE_TREES
               ? -ENOMEM
               : -EBADMSG;
}

static int step_zstd(struct stage *stage, struct step *step)
{
    ZSTD_inBuffer in = {step->in, step->in_length, 0};
    ZSTD_outBuffer out = {step->out, BLOCK, 0};
    if (stage->is_finished && step->in_length == 0) {
        step->is_drained = true;
        return 0;
    }
    size_t result = ZSTD_decompressStream(stage->zstd, &out, &in);
    step->in += in.pos;
    step->in_length -= in.pos;
    step->made = out.pos;
    if (ZSTD_isError(result))
        return -EBADMSG;
    stage->is_finished = result == 0;
    step->is_drained = step->in_length == 0 && out.pos < BLOCK;
    return count_zstd(stage);
}

static int feed_stage(struct bt_inflate *inflate, size_t index, const void *data, size_t length)
{
    struct stage *stage = &inflate->stages[index];
    struct step step = {.in = data, .in_length = length};
    int result = 0;
    if (length == 0)
        return 0;
    if (!stage->is_started)
        result = stage_start(stage, *step.in);
    while (result == 0 && !step.is_drained) {
        step.made = 0;
        if (stage->coding == CODING_BROTLI)
            result = step_brotli(stage, &step);
        else
            result = stage->coding == CODING_ZSTD ? step_zstd(stage, &step) : step_zlib(stage, &step);
        if (step.made == 0)
            continue;
        inflate->made += step.made;
        if (inflate->made > BT_INFLATE_FREE + inflate->taken * BT_INFLATE_RATIO_MAX)
            return -E2BIG;
        if (index + 1 < inflate->count) {
            int next = feed_stage(inflate, index + 1, step.out, step.made);
            result = result < 0 ? result : next;
        } else {
            inflate->sink(inflate->context, step.out, step.made);
        }
    }
    return result;
}

int bt_inflate_feed(struct bt_inflate *inflate, const void *data, size_t length, bt_inflate_sink *sink,
                    void *context)
{
    inflate->sink = sink;
    inflate->context = context;
    inflate->taken += length;
    return feed_stage(inflate, 0, data, length);
}

bool bt_inflate_is_complete(const struct bt_inflate *inflate)
{
    for (size_t i = 0; i < inflate->count; i++)
        if (inflate->stages[i].is_started && !inflate->stages[i].is_finished)
            return false;
    return true;
}

/* ---- codings --------------------------------------------------------------------------------------------
 */

static int add_coding(struct bt_inflate *inflate, const char *name, size_t length,
                      struct bt_inflate_share *share)
{
    static const struct {
        const char *name;
        int coding; /* -1: nothing to decode */
    } known[] = {
        {"gzip", CODING_GZIP}, {"x-gzip", CODING_GZIP}, {"deflate", CODING_DEFLATE}, {"br", CODING_BROTLI},
        {"zstd", CODING_ZSTD}, {"identity", -1},        {"aws-chunked", -1},         {"", -1},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(known); i++) {
        if (strlen(known[i].name) != length || strncasecmp(known[i].name, name, length) != 0)
            continue;
        if (known[i].coding < 0)
            return 0;
        if (inflate->count == BT_INFLATE_CODINGS_MAX)
            return -ENOTSUP;
        /* In front: codings are listed in the order in which they were applied. */
        memmove(inflate->stages + 1, inflate->stages, inflate->count * sizeof(*inflate->stages));
        inflate->stages[0] = (struct stage){.coding = (enum coding)known[i].coding, .share = share};
        inflate->count++;
        return 0;
    }
    return -ENOTSUP;
}

int bt_inflate_new(const char *codings, size_t length, struct bt_inflate_share *share,
                   struct bt_inflate **ret_inflate)
{
    struct bt_inflate *inflate = bt_new(1, sizeof(*inflate));
    int result = 0;
    for (size_t at = 0; at < length && result == 0;) {
        const char *comma = memchr(codings + at, ',', length - at);
        size_t end = comma != NULL ? (size_t)(comma - codings) : length;
        size_t first = at, last = end;
        while (first < last && (codings[first] == ' ' || codings[first] == '\t'))
            first++;
        while (last > first && (codings[last - 1] == ' ' || codings[last - 1] == '\t'))
            last--;
        result = add_coding(inflate, codings + first, last - first, share);
        at = end + 1;
    }
    if (result < 0 || inflate->count == 0)
        inflate = bt_inflate_free(inflate);
    if (result == 0)
        *ret_inflate = inflate;
    return result;
}

struct bt_inflate *bt_inflate_free(struct bt_inflate *inflate)
{
    if (inflate == NULL)
        return NULL;
    for (size_t i = 0; i < inflate->count; i++)
        stage_stop(&inflate->stages[i]);
    free(inflate);
    return NULL;
}

size_t bt_inflate_weight(const struct bt_inflate *inflate)
{
    size_t held = 0;
    for (size_t i = 0; i < inflate->count; i++)
        held += inflate->stages[i].memory;
    return held;
}
