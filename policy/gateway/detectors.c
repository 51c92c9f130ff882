/* Hyperscan's runtime behind detectors.h (hs.h of libhyperscan, "Runtime" in its developer's reference). */
#include <errno.h>
#include <hs/hs_common.h>
#include <hs/hs_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/detectors.h"
#include "policy/gateway/held.h"

struct bt_detectors {
    const struct bt_detector_data *data;
    hs_database_t *database;
    struct bt_literals *anchors;
};

struct bt_detector_stream {
    const struct bt_detectors *detectors;
    hs_stream_t *stream;
};

static struct bt_detectors *outbound, *inbound;
static hs_scratch_t *scratch;

/* Nothing that is fed to the runtime makes these calls fail, only a lack of memory or a mistake of ours. */
static void must(hs_error_t result)
{
    if (result != HS_SUCCESS)
        abort();
}

void bt_detectors_add_anchors(const struct bt_detectors *detectors, struct bt_literals *literals)
{
    for (size_t i = 0; i < detectors->data->count; i++) {
        const struct bt_detector *detector = &detectors->data->detectors[i];
        for (size_t j = 0; j < BT_ARRAY_LENGTH(detector->anchors) && detector->anchors[j] != NULL; j++)
            if (bt_literals_add(literals, detector->anchors[j], strlen(detector->anchors[j]), false,
                                (uint16_t)(BT_ANCHOR_ID + detector->span), UINT32_MAX) < 0)
                abort();
    }
}

static struct bt_detectors *detectors_free(struct bt_detectors *detectors)
{
    if (detectors == NULL)
        return NULL;
    (void)hs_free_database(detectors->database);
    detectors->anchors = bt_literals_free(detectors->anchors);
    free(detectors);
    return NULL;
}

static int detectors_new(const struct bt_detector_data *data, struct bt_detectors **ret_detectors,
                         struct bt_error *error)
{
    struct bt_detectors *detectors = bt_new(1, sizeof(*detectors));
    detectors->data = data;
    hs_error_t result =
        hs_deserialize_database((const char *)data->database, data->database_length, &detectors->database);
    if (result == HS_SUCCESS)
        result = hs_alloc_scratch(detectors->database, &scratch);
    if (result != HS_SUCCESS) {
        (void)detectors_free(detectors);
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "build berth anew",
                       "the built-in detectors cannot be loaded (Hyperscan error %d)", result);
    }
    if (data->detectors[0].anchors[0] != NULL) {
        detectors->anchors = bt_literals_new();
        bt_detectors_add_anchors(detectors, detectors->anchors);
        bt_literals_ready(detectors->anchors);
    }
    *ret_detectors = detectors;
    return 0;
}

/* What Hyperscan asks for at least; its runtime alone has no function that tells. */
static bool is_processor_fit(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("ssse3") != 0;
#else
    return true;
#endif
}

int bt_detectors_start(struct bt_error *error)
{
    if (outbound != NULL)
        return 0;
    if (!is_processor_fit())
        return bt_fail(error, BT_EXIT_ERROR, ENOTSUP,
                       "use a machine or a virtual processor that has SSSE3 (qemu: -cpu max)",
                       "this processor lacks SSSE3, which the detectors of secrets need");
    must(hs_set_stream_allocator(bt_held_take, bt_held_give));
    int result = detectors_new(&bt_detector_data_outbound, &outbound, error);
    if (result == 0)
        result = detectors_new(&bt_detector_data_inbound, &inbound, error);
    if (result < 0)
        bt_detectors_stop();
    return result;
}

void bt_detectors_stop(void)
{
    outbound = detectors_free(outbound);
    inbound = detectors_free(inbound);
    (void)hs_free_scratch(scratch);
    scratch = NULL;
}

const struct bt_detectors *bt_detectors_outbound(void)
{
    return outbound;
}

const struct bt_detectors *bt_detectors_inbound(void)
{
    return inbound;
}

const struct bt_detector *bt_detector_get(const struct bt_detectors *detectors, unsigned index)
{
    return &detectors->data->detectors[index];
}

const struct bt_literals *bt_detectors_anchors(const struct bt_detectors *detectors)
{
    return detectors->anchors;
}

struct bt_detector_stream *bt_detector_stream_new(const struct bt_detectors *detectors)
{
    struct bt_detector_stream *stream = bt_new(1, sizeof(*stream));
    stream->detectors = detectors;
    must(hs_open_stream(detectors->database, 0, &stream->stream));
    return stream;
}

struct bt_detector_stream *bt_detector_stream_free(struct bt_detector_stream *stream)
{
    if (stream == NULL)
        return NULL;
    must(hs_close_stream(stream->stream, scratch, NULL, NULL));
    free(stream);
    return NULL;
}

void bt_detector_stream_reset(struct bt_detector_stream *stream)
{
    must(hs_reset_stream(stream->stream, 0, scratch, NULL, NULL));
}

struct found {
    bt_detector_found *function;
    void *context;
};

static int on_match(unsigned id, unsigned long long from, unsigned long long to, unsigned flags,
                    void *context)
{
    const struct found *found = context;
    (void)from;
    (void)flags;
    found->function(found->context, id, to);
    return 0;
}

void bt_detector_stream_scan(struct bt_detector_stream *stream, const void *data, size_t length,
                             bt_detector_found *found, void *context)
{
    struct found target = {found, context};
    must(hs_scan_stream(stream->stream, data, (unsigned)length, 0, scratch, on_match, &target));
}
