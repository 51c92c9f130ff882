/* The built-in detectors (policy/rules/detectors): patterns compiled at build time, one database a direction,
 * run over streams by Hyperscan's runtime.
 *
 * Used by dlp_scanner.c. The gateway carries no regular expression compiler. One thread: the scratch memory
 * of the runtime is shared by all streams.
 */
#ifndef BERTH_POLICY_GATEWAY_DETECTORS_H
#define BERTH_POLICY_GATEWAY_DETECTORS_H

#include "lib/error.h"
#include "policy/gateway/literals.h"

#define BT_DETECTORS_MAX 64 /* of a direction: they are bits of a word */
#define BT_DETECTOR_ANCHORS_MAX 12

/* Of which bytes a match consists behind its anchor. */
enum bt_span {
    BT_SPAN_TOKEN,
    BT_SPAN_ASSIGNMENT, /* a name, blanks, quotes, then a token */
    BT_SPAN_PEM,
};
#define BT_SPANS 3

struct bt_detector {
    const char *name, *title;
    enum bt_span span;
    const char *anchors[BT_DETECTOR_ANCHORS_MAX]; /* up to the first NULL */
    const char *except[4];                        /* up to the first NULL */
};

/* What compile.c writes into build/generated/detectors.c. */
struct bt_detector_data {
    const struct bt_detector *detectors; /* an expression's id is its index */
    size_t count;
    const unsigned char *database; /* of hs_serialize_database */
    size_t database_length;
};
extern const struct bt_detector_data bt_detector_data_outbound, bt_detector_data_inbound;

struct bt_detectors; /* of one direction, ready to run */

int bt_detectors_start(struct bt_error *error); /* see bt_filters_start */
void bt_detectors_stop(void);
/* NULL before bt_detectors_start. */
const struct bt_detectors *bt_detectors_outbound(void);
const struct bt_detectors *bt_detectors_inbound(void);

const struct bt_detector *bt_detector_get(const struct bt_detectors *detectors, unsigned index);
/* The anchors of all detectors; the id of each is BT_ANCHOR_ID and the span of its detector. NULL for inbound
 * ones. */
#define BT_ANCHOR_ID 16U
const struct bt_literals *bt_detectors_anchors(const struct bt_detectors *detectors);
/* Adds the same strings to others, so that one pass finds both. */
void bt_detectors_add_anchors(const struct bt_detectors *detectors, struct bt_literals *literals);

/* One stream of bytes. */
struct bt_detector_stream;

/* A match of a detector ends at this offset of the stream. May come more than once, and in any order. */
typedef void bt_detector_found(void *context, unsigned index, uint64_t end);

struct bt_detector_stream *bt_detector_stream_new(const struct bt_detectors *detectors);
struct bt_detector_stream *bt_detector_stream_free(struct bt_detector_stream *stream); /* returns NULL */
/* Offset 0 again, as if new: cheaper than another stream. */
void bt_detector_stream_reset(struct bt_detector_stream *stream);
void bt_detector_stream_scan(struct bt_detector_stream *stream, const void *data, size_t length,
                             bt_detector_found *found, void *context);

#endif
