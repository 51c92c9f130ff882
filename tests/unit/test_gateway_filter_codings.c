/* Coded bodies: each coding, stacks of them, unknown ones, bombs, and the memory that decoders take. */
#include <brotli/encode.h>
#include <errno.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "policy/gateway/held.h"
#include "policy/gateway/inflate.h"
#include "tests/lib/filter_run.h"
#include "tests/unit/filter_fixture.h"

enum pack { PACK_GZIP, PACK_DEFLATE, PACK_RAW_DEFLATE, PACK_BROTLI, PACK_ZSTD, PACKS };
static const char *const pack_names[PACKS] = {"gzip", "deflate", "deflate", "br", "zstd"};

static uint8_t *pack(enum pack kind, const void *data, size_t length, size_t *ret_length)
{
    size_t room = length + 4096;
    uint8_t *packed = bt_new(room, 1);
    if (kind == PACK_BROTLI) {
        *ret_length = room;
        assert_true(BrotliEncoderCompress(5, 22, BROTLI_MODE_GENERIC, length, data, ret_length, packed));
        return packed;
    }
    if (kind == PACK_ZSTD) {
        *ret_length = ZSTD_compress(packed, room, data, length, 3);
        assert_false(ZSTD_isError(*ret_length));
        return packed;
    }
    z_stream stream = {0};
    int bits = kind == PACK_GZIP ? 31 : kind == PACK_DEFLATE ? 15 : -15;
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (Bytef *)(uintptr_t)data;
    stream.avail_in = (uInt)length;
    stream.next_out = packed;
    stream.avail_out = (uInt)room;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *ret_length = room - stream.avail_out;
    (void)deflateEnd(&stream);
    return packed;
}

static void run_coded(struct filter_run *run, const char *coding, const void *data, size_t length)
{
    const struct bt_http_field field = {{"content-encoding", 16}, {coding, strlen(coding)}};
    run->fields = &field;
    run->field_count = 1;
    filter_run_clear(run);
    filter_run(run, data, length);
    run->fields = NULL;
}

static void test_codings(void **state)
{
    (void)state;
    for (enum pack kind = 0; kind < PACKS; kind++)
        for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_RANDOM; cut++) {
            bt_auto_free char *bad =
                bt_string_format("{\"text\": \"hello\", \"token\": \"%s\"}", github_token());
            const char *good = "{\"text\": \"hello\", \"token\": \"none\"}";
            struct filter_run run = {.cut = cut, .seed = kind + 1};
            size_t length;
            bt_auto_free uint8_t *packed = pack(kind, bad, strlen(bad), &length);
            run_coded(&run, pack_names[kind], packed, length);
            assert_int_equal(run.verdict, BT_FILTER_BLOCK);
            assert_true(filter_run_found(&run, "dlp:github-token"));
            bt_auto_free uint8_t *harmless = pack(kind, good, strlen(good), &length);
            run_coded(&run, pack_names[kind], harmless, length);
            assert_int_equal(run.verdict, BT_FILTER_PASS);
            assert_int_equal(run.output_length, length);
            assert_memory_equal(run.output, harmless, length);
            /* What cannot be overwritten is blocked. */
            run.settings.dlp.outbound = BT_DLP_OUTBOUND_REDACT;
            bt_auto_free uint8_t *again = pack(kind, bad, strlen(bad), &length);
            run_coded(&run, pack_names[kind], again, length);
            assert_int_equal(run.verdict, BT_FILTER_BLOCK);
            filter_run_clear(&run);
        }
    assert_int_equal(bt_inflate_memory(), 0);
}

static void test_stacked_and_unknown(void **state)
{
    size_t inner_length, outer_length;
    bt_auto_free uint8_t *inner = pack(PACK_BROTLI, github_token(), strlen(github_token()), &inner_length);
    bt_auto_free uint8_t *outer = pack(PACK_GZIP, inner, inner_length, &outer_length);
    struct filter_run run = {.cut = CUT_BYTES};
    (void)state;
    run_coded(&run, "br, GZIP", outer, outer_length);
    assert_true(filter_run_found(&run, "dlp:github-token"));
    run_coded(&run, "br, gzip, gzip", outer, outer_length);
    assert_true(run.is_head && filter_run_found(&run, "dlp:content-coding"));
    run_coded(&run, "compress", outer, outer_length);
    assert_true(run.is_head && filter_run_found(&run, "dlp:content-coding"));
    run_coded(&run, "gzip", "this is none", 12);
    assert_true(run.verdict == BT_FILTER_BLOCK && filter_run_found(&run, "dlp:content-coding"));
    run_coded(&run, "identity", "plain", 5);
    assert_int_equal(run.verdict, BT_FILTER_PASS);
    /* Bytes behind the end hide what a lenient reader may see. */
    bt_auto_buffer trailing = {0};
    (void)!bt_buffer_add(&trailing, outer, outer_length);
    (void)!bt_buffer_add_text(&trailing, "behind");
    run_coded(&run, "gzip", trailing.data, trailing.length);
    assert_int_equal(run.verdict, BT_FILTER_BLOCK);
    /* Members one behind the other are one body. */
    bt_auto_buffer members = {0};
    bt_auto_free uint8_t *first = pack(PACK_GZIP, "ghp_R7dkW2mQ9xLc", 16, &outer_length);
    (void)!bt_buffer_add(&members, first, outer_length);
    bt_auto_free uint8_t *second =
        pack(PACK_GZIP, github_token() + 16, strlen(github_token()) - 16, &outer_length);
    (void)!bt_buffer_add(&members, second, outer_length);
    run_coded(&run, "gzip", members.data, members.length);
    assert_true(filter_run_found(&run, "dlp:github-token"));
    filter_run_clear(&run);
}

static void test_bombs(void **state)
{
    size_t length = 64U * 1024 * 1024;
    bt_auto_free uint8_t *zeros = bt_new(length, 1);
    (void)state;
    for (enum pack kind = 0; kind < PACKS; kind++) {
        size_t packed_length;
        bt_auto_free uint8_t *packed = pack(kind, zeros, length, &packed_length);
        struct filter_run run = {.cut = CUT_NONE};
        run_coded(&run, pack_names[kind], packed, packed_length);
        assert_int_equal(run.verdict, BT_FILTER_BLOCK);
        assert_true(filter_run_found(&run, "dlp:content-coding"));
        assert_int_equal(run.output_length, 0);
        /* A response is the agent's affair unless a credential may be in it. */
        run.is_response = true;
        run_coded(&run, pack_names[kind], packed, packed_length);
        assert_int_equal(run.verdict, BT_FILTER_PASS);
        assert_int_equal(run.output_length, packed_length);
        run.settings.is_injected = true;
        run_coded(&run, pack_names[kind], packed, packed_length);
        assert_int_equal(run.verdict, BT_FILTER_BLOCK);
        filter_run_clear(&run);
    }
    assert_int_equal(bt_inflate_memory(), 0);
}

/* A body that wants the largest window that is allowed, and is not complete. */
static size_t begin_large_window(uint8_t *text, size_t size)
{
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_inBuffer in = {"plain", 5, 0};
    ZSTD_outBuffer out = {text, size, 0};
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 23);
    assert_int_equal(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush), 0);
    (void)ZSTD_freeCCtx(context);
    return out.pos;
}

/* Decoders one after the other until one gets no memory; how many came before it. */
static size_t fill_memory(struct bt_inflate_share *share, struct bt_inflate *inflates[], size_t count)
{
    uint8_t window[64];
    size_t length = begin_large_window(window, sizeof(window));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(bt_inflate_new("zstd", 4, share, &inflates[i]), 0);
        int result = bt_inflate_feed(inflates[i], window, length, ignore, NULL);
        if (result < 0) {
            assert_int_equal(result, -ENOMEM);
            return i;
        }
    }
    fail_msg("memory without end");
    return count;
}

static void test_memory_of_decoders(void **state)
{
    struct bt_inflate *greedy[16] = {0}, *small = NULL;
    size_t held = bt_held();
    struct bt_inflate_share one = {0}, two = {0};
    size_t length;
    bt_auto_free uint8_t *packed = pack(PACK_GZIP, "plain", 5, &length);
    (void)state;
    /* An agent that takes its share leaves room for others. */
    assert_int_equal(fill_memory(&one, greedy, 16), 5);
    assert_int_equal(bt_inflate_new("gzip", 4, &one, &small), 0);
    assert_int_equal(bt_inflate_feed(small, packed, length, ignore, NULL), -ENOMEM);
    small = bt_inflate_free(small);
    assert_int_equal(bt_inflate_new("gzip", 4, &two, &small), 0);
    assert_int_equal(bt_inflate_feed(small, packed, length, ignore, NULL), 0);
    small = bt_inflate_free(small);
    /* They are part of what the process holds. */
    assert_true(bt_inflate_memory() > BT_INFLATE_SHARE_MAX / 2);
    assert_int_equal(bt_held(), held + bt_inflate_memory());
    for (size_t i = 0; i < BT_ARRAY_LENGTH(greedy); i++)
        greedy[i] = bt_inflate_free(greedy[i]);
    assert_int_equal(bt_held(), held);
    assert_int_equal(bt_inflate_memory(), 0);
    assert_int_equal(one.memory, 0);
    assert_int_equal(two.memory, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codings),
        cmocka_unit_test(test_stacked_and_unknown),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_memory_of_decoders),
    };
    return cmocka_run_group_tests(tests, filters_start, filters_stop);
}
