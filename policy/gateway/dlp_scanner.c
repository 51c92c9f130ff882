/* See dlp_scanner.h. Offsets are those of the stream unless a name says index (of bytes). */
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/dlp_scanner.h"

#define ANCHOR_MAX 32 /* bytes of history before what is held, so that an anchor can be seen again */
#define SPARE_SIZE (2 * BT_SCANNER_BLOCK)
#define SPARES 4
#define TAIL_MAX 4096 /* a shorter tail gets a buffer of its own size while it waits */

/* The run of bytes behind an anchor of a span, as far as it is known to be unbroken. */
struct run {
    bool is_open;
    uint64_t start;   /* where its first anchor ends */
    uint64_t checked; /* unbroken up to here */
};

/* What is being overwritten: behind a match, to the end of its span. */
struct masking {
    bool is_open; /* reaches the end of what was scanned */
    enum bt_span span;
    unsigned index; /* of the detector */
    uint64_t from, to;
    unsigned dashes, dash_lines; /* of a PEM: five dashes twice are its last line */
};

struct bt_scanner {
    struct bt_scanner_settings settings;
    struct bt_detector_stream *stream;
    const struct bt_literals *literals; /* the agent's secrets with the anchors, or these alone, or NULL */
    struct bt_literals_state literals_state;
    bool has_anchors; /* of the detectors */
    struct run runs[BT_SPANS];
    struct masking masking;
    struct bt_finds finds;
    uint64_t block;    /* where the block that is being scanned begins */
    uint64_t offset;   /* scanned */
    uint64_t masked;   /* where what was overwritten last ends */
    uint64_t released; /* given out; what lies before is history */
    uint8_t *bytes;    /* as they came; they end at offset */
    uint8_t *shown;    /* NULL, or the same with what was found overwritten */
    size_t length, capacity;
};

/* ---- spans ----------------------------------------------------------------------------------------------
 */

enum { IN_TOKEN = 1U << BT_SPAN_TOKEN, IN_ASSIGNMENT = 1U << BT_SPAN_ASSIGNMENT, IN_PEM = 1U << BT_SPAN_PEM };
#define TOKEN (IN_TOKEN | IN_ASSIGNMENT)
#define ALL (IN_TOKEN | IN_ASSIGNMENT | IN_PEM)

static const uint8_t span_bytes[256] = {
    ['0' ... '9'] = ALL,
    ['A' ... 'Z'] = ALL,
    ['a' ... 'z'] = ALL,
    ['+'] = ALL,
    ['/'] = ALL,
    ['='] = ALL,
    ['-'] = ALL,
    ['.'] = TOKEN,
    ['_'] = TOKEN,
    ['~'] = TOKEN,
    ['"'] = IN_ASSIGNMENT,
    ['\''] = IN_ASSIGNMENT,
    [' '] = IN_ASSIGNMENT | IN_PEM,
    [':'] = IN_ASSIGNMENT | IN_PEM,
    ['\t'] = IN_ASSIGNMENT | IN_PEM,
    ['\\'] = IN_ASSIGNMENT | IN_PEM,
    ['\n'] = IN_PEM,
    ['\r'] = IN_PEM,
    [','] = IN_PEM,
};

static bool is_in_span(enum bt_span span, uint8_t byte)
{
    return (span_bytes[byte] >> span & 1) != 0;
}

static size_t index_of(const struct bt_scanner *scanner, uint64_t offset)
{
    return (size_t)(offset - (scanner->offset - scanner->length));
}

/* Whether a run goes on up to an offset; it is closed when not. */
static bool follow_run(struct bt_scanner *scanner, enum bt_span span, uint64_t to)
{
    struct run *run = &scanner->runs[span];
    if (!run->is_open)
        return false;
    while (run->checked < to && is_in_span(span, scanner->bytes[index_of(scanner, run->checked)]))
        run->checked++;
    run->is_open = run->checked >= to;
    return run->is_open;
}

/* ---- buffers: nearly all are of one size and live for one block -------------------------------------------
 */

static uint8_t *spares[SPARES];

static uint8_t *take_buffer(size_t *capacity)
{
    if (*capacity > SPARE_SIZE)
        return bt_new(*capacity, 1);
    *capacity = SPARE_SIZE;
    for (size_t i = 0; i < SPARES; i++)
        if (spares[i] != NULL)
            return BT_TAKE(spares[i]);
    return bt_new(SPARE_SIZE, 1);
}

static void give_buffer(uint8_t **buffer, size_t capacity)
{
    for (size_t i = 0; i < SPARES && capacity == SPARE_SIZE && *buffer != NULL; i++)
        if (spares[i] == NULL)
            spares[i] = BT_TAKE(*buffer);
    free(*buffer);
    *buffer = NULL;
}

void bt_scanner_free_spares(void)
{
    for (size_t i = 0; i < SPARES; i++) {
        free(spares[i]);
        spares[i] = NULL;
    }
}

/* ---- overwriting ----------------------------------------------------------------------------------------
 */

static void mask(struct bt_scanner *scanner, uint64_t from, uint64_t to)
{
    if (from < scanner->released)
        from = scanner->released;
    if (from >= to)
        return;
    if (scanner->shown == NULL) {
        size_t capacity = scanner->capacity;
        scanner->shown = take_buffer(&capacity);
        memcpy(scanner->shown, scanner->bytes, scanner->length);
    }
    memset(scanner->shown + index_of(scanner, from), '*', (size_t)(to - from));
    if (scanner->masked < to)
        scanner->masked = to;
}

/* A PEM ends with its second line of dashes. */
static bool is_pem_end(struct masking *masking, uint8_t byte)
{
    masking->dashes = byte == '-' ? masking->dashes + 1 : 0;
    if (masking->dashes == 5)
        masking->dash_lines++;
    return masking->dash_lines == 2;
}

/* Overwrites on, from masking.to to the end of its span or of the bytes. */
static void mask_on(struct bt_scanner *scanner)
{
    struct masking *masking = &scanner->masking;
    uint64_t from = masking->to;
    masking->is_open = true;
    while (masking->to < scanner->offset && masking->is_open) {
        uint8_t byte = scanner->bytes[index_of(scanner, masking->to)];
        masking->is_open = is_in_span(masking->span, byte);
        if (masking->is_open) {
            masking->to++;
            masking->is_open = masking->span != BT_SPAN_PEM || !is_pem_end(masking, byte);
        }
    }
    mask(scanner, from, masking->to);
}

/* ---- finds ----------------------------------------------------------------------------------------------
 */

/* Whether a value that ends at an offset was not allowed yet. The first bytes of a secret may have passed:
 * they do not count. */
static bool is_find(struct bt_scanner *scanner, bool is_secret, unsigned index, const char *anchor,
                    uint64_t from, uint64_t to)
{
    if (scanner->settings.matches == NULL)
        return true;
    const struct bt_match match = {
        .is_secret = is_secret,
        .index = index,
        .offset = to,
        .is_partial = !is_secret && bt_detector_get(scanner->settings.detectors, index)->span == BT_SPAN_PEM,
    };
    uint64_t first = scanner->offset - scanner->length;
    from = from < first ? first : from;
    return bt_matches_note(scanner->settings.matches, &match, anchor,
                           scanner->bytes + index_of(scanner, from), (size_t)(to - from));
}

static void on_secret(void *context, unsigned id, size_t length, size_t end)
{
    struct bt_scanner *scanner = context;
    if ((scanner->settings.secret_kinds >> id & 1) == 0)
        return;
    uint64_t to = scanner->block + end;
    if (!is_find(scanner, true, id, "", to - (length - BT_SCANNER_VISIBLE), to))
        return;
    scanner->finds.secrets |= 1U << id;
    if (scanner->settings.masks_secrets)
        mask(scanner, to - length + BT_SCANNER_VISIBLE, to);
}

static void on_anchor(void *context, unsigned id, size_t length, size_t end)
{
    struct bt_scanner *scanner = context;
    struct run *run = &scanner->runs[id - BT_ANCHOR_ID];
    uint64_t to = scanner->block + end;
    (void)length;
    if (!follow_run(scanner, (enum bt_span)(id - BT_ANCHOR_ID), to))
        *run = (struct run){.is_open = true, .start = to, .checked = to};
}

/* The literals of secrets hold the anchors, too. */
static void on_literal(void *context, unsigned id, size_t length, size_t end)
{
    const struct bt_scanner *scanner = context;
    if (id < BT_ANCHOR_ID)
        on_secret(context, id, length, end);
    else if (scanner->has_anchors)
        on_anchor(context, id, length, end);
}

static bool ends_with(const struct bt_scanner *scanner, size_t end, const char *text)
{
    size_t length = strlen(text);
    return length <= end && memcmp(scanner->bytes + end - length, text, length) == 0;
}

/* Where the secret parts of what a detector looks for may begin, in the span that leads to the end of a
 * match. */
struct beginning {
    uint64_t first; /* behind the first anchor, at most BT_SCANNER_WINDOW before the end */
    uint64_t last; /* behind the last one: what stands before is another token, or the same one's beginning */
    const char *anchor; /* the first one, or "" */
};

static struct beginning find_start(const struct bt_scanner *scanner, const struct bt_detector *detector,
                                   uint64_t end)
{
    size_t last = index_of(scanner, end), first = last;
    size_t lowest = last > BT_SCANNER_WINDOW ? last - BT_SCANNER_WINDOW : 0;
    while (first > lowest && is_in_span(detector->span, scanner->bytes[first - 1]))
        first--;
    struct beginning start = {end, end - (last - first), ""};
    for (size_t at = first; at < last; at++)
        for (size_t i = 0; i < BT_ARRAY_LENGTH(detector->anchors) && detector->anchors[i] != NULL; i++)
            if (ends_with(scanner, at, detector->anchors[i])) {
                start.last = end - (last - at);
                start.anchor = start.first < start.last ? start.anchor : detector->anchors[i];
                start.first = start.first < start.last ? start.first : start.last;
            }
    if (start.first == end)
        start.first = start.last;
    return start;
}

/* Of the last token alone: an example before it excuses nothing. */
static bool is_excepted(const struct bt_scanner *scanner, const struct bt_detector *detector, uint64_t start,
                        uint64_t end)
{
    const uint8_t *text = scanner->bytes + index_of(scanner, start);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(detector->except) && detector->except[i] != NULL; i++)
        if (memmem(text, (size_t)(end - start), detector->except[i], strlen(detector->except[i])) != NULL)
            return true;
    return false;
}

static void on_detector(void *context, unsigned index, uint64_t end)
{
    struct bt_scanner *scanner = context;
    const struct bt_detector *detector = bt_detector_get(scanner->settings.detectors, index);
    struct masking *masking = &scanner->masking;
    bool is_known = (scanner->finds.detectors >> index & 1) != 0;
    bool is_masked = masking->index == index && masking->from <= end && end <= masking->to;
    if (is_known && (is_masked || !scanner->settings.masks_detectors) && scanner->settings.matches == NULL)
        return;
    if (detector->anchors[0] != NULL) {
        struct beginning start = find_start(scanner, detector, end);
        if (is_excepted(scanner, detector, start.last, end) ||
            !is_find(scanner, false, index, start.anchor, start.first, end))
            return;
        if (scanner->settings.masks_detectors) {
            mask(scanner, start.first, end);
            *masking = (struct masking){.span = detector->span, .index = index, .from = end, .to = end};
            mask_on(scanner);
        }
    }
    scanner->finds.detectors |= 1ULL << index;
}

/* ---- scanning -------------------------------------------------------------------------------------------
 */

struct bt_scanner *bt_scanner_new(const struct bt_scanner_settings *settings)
{
    struct bt_scanner *scanner = bt_new(1, sizeof(*scanner));
    scanner->settings = *settings;
    scanner->has_anchors = settings->detectors != NULL && bt_detectors_anchors(settings->detectors) != NULL;
    if (settings->secrets != NULL && settings->secret_kinds != 0)
        scanner->literals = bt_secrets_literals(settings->secrets);
    else if (scanner->has_anchors)
        scanner->literals = bt_detectors_anchors(settings->detectors);
    return scanner;
}

struct bt_scanner *bt_scanner_free(struct bt_scanner *scanner)
{
    if (scanner == NULL)
        return NULL;
    scanner->stream = bt_detector_stream_free(scanner->stream);
    give_buffer(&scanner->bytes, scanner->capacity);
    give_buffer(&scanner->shown, scanner->capacity);
    free(scanner);
    return NULL;
}

void bt_scanner_reset(struct bt_scanner *scanner)
{
    struct bt_scanner fresh = {
        .settings = scanner->settings,
        .literals = scanner->literals,
        .has_anchors = scanner->has_anchors,
        .stream = scanner->stream,
    };
    give_buffer(&scanner->bytes, scanner->capacity);
    give_buffer(&scanner->shown, scanner->capacity);
    if (fresh.stream != NULL)
        bt_detector_stream_reset(fresh.stream);
    *scanner = fresh;
}

/* Moves what is there into buffers of this size, or of SPARE_SIZE; 0: nothing is there. */
static void resize(struct bt_scanner *scanner, size_t capacity)
{
    uint8_t **buffers[] = {&scanner->bytes, &scanner->shown};
    size_t old_capacity = scanner->capacity;
    scanner->capacity = capacity;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(buffers); i++) {
        uint8_t *old = *buffers[i];
        if (i == 1 && old == NULL)
            continue;
        *buffers[i] = capacity != 0 ? take_buffer(&scanner->capacity) : NULL;
        if (scanner->length != 0)
            memcpy(*buffers[i], old, scanner->length);
        give_buffer(&old, old_capacity);
    }
}

/* For a tail that waits: exactly its size. */
static void shrink(struct bt_scanner *scanner)
{
    uint8_t *tail = bt_new(scanner->length, 1);
    memcpy(tail, scanner->bytes, scanner->length);
    give_buffer(&scanner->bytes, scanner->capacity);
    scanner->bytes = tail;
    scanner->capacity = scanner->length;
}

static void append(struct bt_scanner *scanner, const void *data, size_t length)
{
    if (scanner->length + length > scanner->capacity)
        resize(scanner, scanner->length + length);
    memcpy(scanner->bytes + scanner->length, data, length);
    if (scanner->shown != NULL)
        memcpy(scanner->shown + scanner->length, data, length);
    scanner->length += length;
    scanner->block = scanner->offset;
    scanner->offset += length;
}

void bt_scanner_scan(struct bt_scanner *scanner, const void *data, size_t length)
{
    const struct bt_scanner_settings *settings = &scanner->settings;
    if (length == 0)
        return;
    append(scanner, data, length);
    if (scanner->masking.is_open)
        mask_on(scanner);
    const uint8_t *bytes = scanner->bytes + index_of(scanner, scanner->block);
    if (scanner->literals != NULL)
        bt_literals_scan(scanner->literals, &scanner->literals_state, bytes, length, on_literal, scanner);
    if (settings->detectors == NULL)
        return;
    if (scanner->stream == NULL)
        scanner->stream = bt_detector_stream_new(settings->detectors);
    bt_detector_stream_scan(scanner->stream, bytes, length, on_detector, scanner);
}

struct bt_finds bt_scanner_finds(const struct bt_scanner *scanner)
{
    return scanner->finds;
}

void bt_scanner_clear_finds(struct bt_scanner *scanner)
{
    scanner->finds = (struct bt_finds){0};
}

/* ---- giving out -----------------------------------------------------------------------------------------
 */

/* From where on bytes may be part of a match that is not complete; *ret_keep: from where on they are needed
 * to judge it. */
static uint64_t find_held(struct bt_scanner *scanner, uint64_t *ret_keep)
{
    uint64_t held = scanner->offset;
    size_t partial =
        scanner->literals != NULL ? bt_literals_partial(scanner->literals, &scanner->literals_state) : 0;
    if (partial > BT_SCANNER_VISIBLE)
        held -= partial - BT_SCANNER_VISIBLE;
    /* The beginning of an anchor may have passed already. */
    uint64_t history_length = scanner->has_anchors ? ANCHOR_MAX : 0;
    uint64_t keep = scanner->offset > history_length ? scanner->offset - history_length : 0;
    keep = held < keep ? held : keep;
    for (size_t span = 0; span < BT_SPANS; span++) {
        if (!follow_run(scanner, (enum bt_span)span, scanner->offset))
            continue;
        uint64_t from = scanner->runs[span].start;
        if (scanner->offset - from > BT_SCANNER_WINDOW)
            from = scanner->offset - BT_SCANNER_WINDOW;
        uint64_t history = from > ANCHOR_MAX ? from - ANCHOR_MAX : 0;
        held = from < held ? from : held;
        keep = history < keep ? history : keep;
    }
    *ret_keep = keep;
    return held;
}

/* Forgets what lies before an offset. */
static void forget(struct bt_scanner *scanner, uint64_t before)
{
    size_t count = index_of(scanner, before);
    scanner->length -= count;
    if (scanner->length != 0) {
        memmove(scanner->bytes, scanner->bytes + count, scanner->length);
        if (scanner->shown != NULL)
            memmove(scanner->shown, scanner->shown + count, scanner->length);
    }
    if (scanner->masked <= scanner->released)
        give_buffer(&scanner->shown, scanner->capacity);
    if (scanner->length == 0)
        resize(scanner, 0);
    else if (scanner->capacity >= SPARE_SIZE && scanner->length < TAIL_MAX && scanner->shown == NULL)
        shrink(scanner);
}

void bt_scanner_release(struct bt_scanner *scanner, bool is_all, struct evbuffer *out)
{
    uint64_t keep;
    uint64_t held = find_held(scanner, &keep);
    uint64_t to = is_all ? scanner->offset : held;
    uint64_t start = scanner->offset - scanner->length;
    if (to > scanner->released) {
        const uint8_t *bytes = scanner->shown != NULL ? scanner->shown : scanner->bytes;
        if (out != NULL)
            (void)evbuffer_add(out, bytes + index_of(scanner, scanner->released),
                               (size_t)(to - scanner->released));
        scanner->released = to;
    }
    uint64_t before = keep < scanner->released ? keep : scanner->released;
    if (before > start)
        forget(scanner, before);
}

size_t bt_scanner_held(const struct bt_scanner *scanner)
{
    return (size_t)(scanner->offset - scanner->released);
}
