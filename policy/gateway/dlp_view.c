/* See dlp_view.h. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/dlp_view.h"
#include "policy/rules/slice.h"

#define ESCAPE_MAX 6 /* \u0041 */
#define FOREIGN 0xFF /* stands for what no token consists of */
#define CALM 4096    /* bytes without an escape worth it, after which waiting begins again */

struct bt_view {
    enum bt_view_kind kind;
    struct bt_scanner_settings settings;
    struct bt_scanner *scanner; /* NULL while there is no escape worth it */
    struct bt_finds finds;      /* of scanners before */
    size_t calm;                /* bytes since the last such escape */
    uint8_t history[BT_VIEW_HISTORY];
    size_t history_length;
    bool is_escaped;             /* an odd number of backslashes stands before the history */
    uint8_t pending[ESCAPE_MAX]; /* an escape that is not complete */
    size_t pending_length;
};

struct bt_view *bt_view_new(enum bt_view_kind kind, const struct bt_scanner_settings *settings)
{
    struct bt_view *view = bt_new(1, sizeof(*view));
    view->kind = kind;
    view->settings = *settings;
    view->settings.masks_detectors = view->settings.masks_secrets = false;
    return view;
}

struct bt_view *bt_view_free(struct bt_view *view)
{
    if (view == NULL)
        return NULL;
    view->scanner = bt_scanner_free(view->scanner);
    explicit_bzero(view, sizeof(*view));
    free(view);
    return NULL;
}

struct bt_finds bt_view_finds(const struct bt_view *view)
{
    struct bt_finds finds = view->scanner != NULL ? bt_scanner_finds(view->scanner) : (struct bt_finds){0};
    return (struct bt_finds){finds.detectors | view->finds.detectors, finds.secrets | view->finds.secrets};
}

void bt_view_clear_finds(struct bt_view *view)
{
    view->finds = (struct bt_finds){0};
    if (view->scanner != NULL)
        bt_scanner_clear_finds(view->scanner);
}

size_t bt_view_held(const struct bt_view *view)
{
    size_t held = view->scanner != NULL ? bt_scanner_held(view->scanner) : 0;
    return held != 0 ? held + view->pending_length : 0;
}

/* ---- escapes --------------------------------------------------------------------------------------------
 */

/* The number that count hex digits say, or -1. */
static int hex_number(const uint8_t *digits, size_t count)
{
    int number = 0;
    for (size_t i = 0; i < count; i++) {
        int digit = bt_hex_value((char)digits[i]);
        if (digit < 0)
            return -1;
        number = number * 16 + digit;
    }
    return number;
}

enum escape { ESCAPE_NONE, ESCAPE_PARTIAL, ESCAPE_WHOLE };

/* Reads an escape at the beginning of text. */
static enum escape read_percent(const uint8_t *text, size_t length, size_t *ret_length, uint8_t *ret_byte)
{
    if (length > 1 && bt_hex_value((char)text[1]) < 0)
        return ESCAPE_NONE;
    if (length < 3)
        return ESCAPE_PARTIAL;
    int number = hex_number(text + 1, 2);
    if (number < 0)
        return ESCAPE_NONE;
    *ret_length = 3;
    *ret_byte = (uint8_t)number;
    return ESCAPE_WHOLE;
}

static enum escape read_json(const uint8_t *text, size_t length, size_t *ret_length, uint8_t *ret_byte)
{
    static const char letters[] = "nrtbf\"\\/", values[] = "\n\r\t\b\f\"\\/";
    if (length < 2)
        return ESCAPE_PARTIAL;
    const char *letter = text[1] != '\0' ? strchr(letters, text[1]) : NULL;
    if (letter != NULL) {
        *ret_length = 2;
        *ret_byte = (uint8_t)values[letter - letters];
        return ESCAPE_WHOLE;
    }
    if (text[1] != 'u')
        return ESCAPE_NONE;
    for (size_t i = 2; i < ESCAPE_MAX; i++) {
        if (i >= length)
            return ESCAPE_PARTIAL;
        if (bt_hex_value((char)text[i]) < 0)
            return ESCAPE_NONE;
    }
    int number = hex_number(text + 2, 4);
    *ret_length = ESCAPE_MAX;
    *ret_byte = number < 128 ? (uint8_t)number : FOREIGN;
    return ESCAPE_WHOLE;
}

static enum escape read_escape(enum bt_view_kind kind, const uint8_t *text, size_t length, size_t *ret_length,
                               uint8_t *ret_byte)
{
    return kind == BT_VIEW_PERCENT ? read_percent(text, length, ret_length, ret_byte)
                                   : read_json(text, length, ret_length, ret_byte);
}

static uint8_t escape_byte(enum bt_view_kind kind)
{
    return kind == BT_VIEW_PERCENT ? '%' : '\\';
}

size_t bt_view_decode_percent(const char *text, size_t length, char *ret_text)
{
    size_t count = 0;
    for (size_t at = 0; at < length;) {
        size_t taken = 1;
        uint8_t byte = (uint8_t)text[at];
        if (byte == '%')
            (void)read_percent((const uint8_t *)text + at, length - at, &taken, &byte);
        ret_text[count++] = (char)byte;
        at += taken;
    }
    return count;
}

/* ---- the decoded stream ---------------------------------------------------------------------------------
 */

/* Characters that tokens are made of. */
static bool is_worth_it(uint8_t byte)
{
    return isalnum(byte) || (byte != '\0' && strchr("+/=-._~", byte) != NULL);
}

/* Decodes and scans text; an incomplete escape at its end waits for the next piece. */
static void decode(struct bt_view *view, const uint8_t *text, size_t length)
{
    uint8_t *decoded = bt_new(length + 1, 1);
    size_t count = 0, at = 0;
    while (at < length) {
        size_t taken = 1;
        uint8_t byte = text[at];
        enum escape escape = byte == escape_byte(view->kind)
                                 ? read_escape(view->kind, text + at, length - at, &taken, &byte)
                                 : ESCAPE_NONE;
        if (escape == ESCAPE_PARTIAL)
            break;
        decoded[count++] = byte;
        at += taken;
        view->calm = escape == ESCAPE_WHOLE && is_worth_it(byte) ? 0 : view->calm + 1;
    }
    view->pending_length = length - at;
    memcpy(view->pending, text + at, view->pending_length);
    bt_scanner_scan(view->scanner, decoded, count);
    bt_scanner_release(view->scanner, false, NULL);
    free(decoded);
}

static void decode_piece(struct bt_view *view, const uint8_t *data, size_t length)
{
    uint8_t joined[2 * ESCAPE_MAX];
    if (view->pending_length != 0) {
        /* The pending escape ends within the next bytes, or is none. */
        size_t pending = view->pending_length, more = length < ESCAPE_MAX ? length : ESCAPE_MAX;
        memcpy(joined, view->pending, pending);
        memcpy(joined + pending, data, more);
        decode(view, joined, pending + more);
        if (length <= ESCAPE_MAX)
            return;
        /* What waits now lies in data: it is read from there. */
        data += more - view->pending_length;
        length -= more - view->pending_length;
    }
    decode(view, data, length);
}

/* ---- waiting for an escape worth it ---------------------------------------------------------------------
 */

static bool begins_escape(enum bt_view_kind kind, const uint8_t *text, size_t length)
{
    size_t taken;
    uint8_t byte;
    return read_escape(kind, text, length, &taken, &byte) == ESCAPE_WHOLE && is_worth_it(byte);
}

/* Whether an escape worth it may begin in text[0..within); what lies behind may complete it. Of two
 * backslashes either may be the one that begins it: text can begin in the middle of a pair. */
static bool has_escape(enum bt_view_kind kind, const uint8_t *text, size_t length, size_t within)
{
    for (size_t at = 0; at < within;) {
        const uint8_t *escape = memchr(text + at, escape_byte(kind), within - at);
        if (escape == NULL)
            return false;
        at = (size_t)(escape - text);
        if (begins_escape(kind, escape, length - at))
            return true;
        at++;
    }
    return false;
}

static bool has_escape_between(const struct bt_view *view, const uint8_t *data, size_t length)
{
    uint8_t joined[2 * ESCAPE_MAX];
    size_t before = view->history_length < ESCAPE_MAX - 1 ? view->history_length : ESCAPE_MAX - 1;
    size_t behind = length < ESCAPE_MAX ? length : ESCAPE_MAX;
    memcpy(joined, view->history + view->history_length - before, before);
    memcpy(joined + before, data, behind);
    return has_escape(view->kind, joined, before + behind, before);
}

/* Drops bytes from the front of the history, and knows of their backslashes how the last ones pair. */
static void pass_by(struct bt_view *view, const uint8_t *data, size_t length)
{
    size_t count = 0;
    while (count < length && data[length - 1 - count] == '\\')
        count++;
    view->is_escaped = (count % 2 != 0) != (count == length && view->is_escaped);
}

static void remember(struct bt_view *view, const uint8_t *data, size_t length)
{
    size_t all = view->history_length + length;
    size_t dropped = all > BT_VIEW_HISTORY ? all - BT_VIEW_HISTORY : 0;
    size_t old = dropped < view->history_length ? dropped : view->history_length;
    pass_by(view, view->history, old);
    pass_by(view, data, dropped - old);
    size_t kept = view->history_length - old;
    memmove(view->history, view->history + old, kept);
    memcpy(view->history + kept, data + (dropped - old), length - (dropped - old));
    view->history_length = all - dropped;
}

/* What was found stays found; nothing of a match may be under way. */
static void calm_down(struct bt_view *view)
{
    if (view->calm < CALM || view->pending_length != 0 || bt_scanner_held(view->scanner) != 0)
        return;
    view->finds = bt_view_finds(view);
    view->scanner = bt_scanner_free(view->scanner);
}

/* Begins with what came last. */
static void start_decoding(struct bt_view *view)
{
    size_t skipped = view->is_escaped && view->history_length != 0 ? 1 : 0;
    view->scanner = bt_scanner_new(&view->settings);
    view->calm = 0;
    decode_piece(view, view->history + skipped, view->history_length - skipped);
}

void bt_view_scan(struct bt_view *view, const void *data, size_t length)
{
    if (length == 0)
        return;
    if (view->scanner == NULL &&
        (has_escape_between(view, data, length) || has_escape(view->kind, data, length, length)))
        start_decoding(view);
    if (view->scanner != NULL) {
        decode_piece(view, data, length);
        calm_down(view);
    }
    remember(view, data, length);
}
