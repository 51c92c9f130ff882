/* Bodies: as they are, compressed, or as WebSocket frames. See filter.h.
 *
 * A plain body goes through the scanner, which holds back what may begin a match and gives out the rest. Of
 * the other kinds a copy is scanned; the bytes as they came wait meanwhile and pass once nothing in the copy
 * is the beginning of a match.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "policy/gateway/filter_internal.h"

#define WAITING_MAX (64U * 1024) /* of a copy's original; what is more passes */

void bt_filter_body_clear(struct bt_filter *filter)
{
    filter->scanner = bt_scanner_free(filter->scanner);
    filter->control = bt_scanner_free(filter->control);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(filter->joined); i++)
        filter->joined[i] = bt_scanner_free(filter->joined[i]);
    for (size_t i = 0; i < BT_VIEWS; i++)
        filter->views[i] = bt_view_free(filter->views[i]);
    filter->inflate = bt_inflate_free(filter->inflate);
    if (filter->waiting != NULL)
        evbuffer_free(filter->waiting);
    if (filter->rest != NULL)
        evbuffer_free(filter->rest);
    filter->waiting = filter->rest = NULL;
    filter->body = BT_FILTER_BODY_OPEN;
}

/* ---- what kind of body follows a head -------------------------------------------------------------------
 */

static bool has_word(struct bt_http_slice text, const char *word)
{
    size_t length = strlen(word);
    for (size_t at = 0; at + length <= text.length; at++)
        if (strncasecmp(text.data + at, word, length) == 0)
            return true;
    return false;
}

/* Whether people or models would read it: what instructions to the agent can hide in. Of several types, or
 * none, nobody knows which one the reader goes by. */
static bool is_text(const struct bt_message *head)
{
    static const char *const kinds[] = {"text/", "json",     "xml",      "javascript",
                                        "yaml",  "markdown", "form-data"};
    size_t count = 0;
    for (size_t i = 0; i < head->field_count; i++) {
        struct bt_http_slice type = head->fields[i].value;
        if (!bt_http_slice_is_nocase(head->fields[i].name, "content-type"))
            continue;
        count++;
        for (size_t j = 0; j < BT_ARRAY_LENGTH(kinds); j++)
            if (type.length == 0 || has_word(type, kinds[j]))
                return true;
    }
    return count == 0;
}

/* All values of Content-Encoding, joined; the caller frees. */
static char *join_codings(const struct bt_message *head)
{
    bt_auto_buffer joined = {0};
    for (size_t i = 0; i < head->field_count; i++) {
        struct bt_http_slice value = head->fields[i].value;
        if (bt_http_slice_is_nocase(head->fields[i].name, "content-encoding") &&
            bt_buffer_add_format(&joined, "%.*s,", (int)value.length, value.data) < 0)
            abort(); /* a head has a limit far below a buffer's */
    }
    return BT_TAKE(joined.data);
}

static void start_scanners(struct bt_filter *filter, const struct bt_scanner_settings *settings)
{
    filter->scanner = bt_scanner_new(settings);
    for (size_t i = 0; i < BT_VIEWS && filter->is_request; i++)
        filter->views[i] = bt_view_new((enum bt_view_kind)i, settings);
    if (filter->body == BT_FILTER_BODY_WEBSOCKET) {
        bt_websocket_start(&filter->websocket, filter->is_request);
        filter->control = bt_scanner_new(settings);
        for (size_t i = 0; i < BT_ARRAY_LENGTH(filter->joined); i++)
            filter->joined[i] = bt_scanner_new(settings);
    }
    filter->waiting = evbuffer_new();
}

enum bt_filter_verdict bt_filter_body_start(struct bt_filter *filter, const struct bt_message *head)
{
    bool is_switching = filter->is_request ? head->protocol.length != 0 : head->status == 101;
    bool is_interim = !filter->is_request && head->status < 200 && !is_switching;
    bt_auto_free char *codings = join_codings(head);
    bt_filter_body_clear(filter);
    if (is_interim || (filter->is_request && filter->settings.dlp.outbound == BT_DLP_OUTBOUND_OFF &&
                       !filter->settings.dlp.warns_of_entropy))
        return BT_FILTER_PASS;
    struct bt_scanner_settings settings = bt_filter_scanner_settings(filter, false);
    if (!filter->is_request && !is_switching && !is_text(head))
        settings.detectors = NULL;
    bool has_secrets = filter->is_request || bt_secrets_have(settings.secrets, BT_SECRET_CREDENTIAL);
    if (settings.detectors == NULL && !has_secrets)
        return BT_FILTER_PASS;
    if (is_switching && filter->settings.is_websocket) {
        filter->body = BT_FILTER_BODY_WEBSOCKET;
    } else if (codings != NULL && !is_switching) {
        if (bt_inflate_new(codings, strlen(codings), filter->settings.share, &filter->inflate) < 0)
            return bt_filter_judge_unreadable(filter, "a content coding that cannot be looked into");
        filter->body = filter->inflate != NULL ? BT_FILTER_BODY_CODED : BT_FILTER_BODY_PLAIN;
    } else {
        filter->body = BT_FILTER_BODY_PLAIN;
    }
    if (filter->body == BT_FILTER_BODY_PLAIN) {
        struct bt_scanner_settings masking = bt_filter_scanner_settings(filter, true);
        settings.masks_detectors = masking.masks_detectors;
        settings.masks_secrets = masking.masks_secrets;
    }
    start_scanners(filter, &settings);
    return BT_FILTER_PASS;
}

/* ---- scanning -------------------------------------------------------------------------------------------
 */

/* Looks at a block as its reader will see it. */
static enum bt_filter_verdict scan_views(struct bt_filter *filter, const void *data, size_t length)
{
    struct bt_finds hidden = {0};
    for (size_t i = 0; i < BT_VIEWS && filter->views[i] != NULL; i++) {
        bt_view_scan(filter->views[i], data, length);
        struct bt_finds finds = bt_view_finds(filter->views[i]);
        hidden.detectors |= finds.detectors;
        hidden.secrets |= finds.secrets;
    }
    return bt_filter_judge(filter, hidden, false);
}

static size_t views_held(const struct bt_filter *filter)
{
    size_t held = 0;
    for (size_t i = 0; i < BT_VIEWS && filter->views[i] != NULL; i++)
        held += bt_view_held(filter->views[i]);
    return held;
}

/* Looks at a part of a copy, which is then dropped. */
static void scan_copy(void *context, const void *data, size_t length)
{
    struct bt_filter *filter = context;
    const uint8_t *bytes = data;
    for (size_t at = 0; at < length; at += BT_SCANNER_BLOCK) {
        size_t count = length - at < BT_SCANNER_BLOCK ? length - at : BT_SCANNER_BLOCK;
        bt_filter_look_at_randomness(filter, bytes + at, count);
        bt_scanner_scan(filter->scanner, bytes + at, count);
        (void)bt_filter_judge(filter, bt_scanner_finds(filter->scanner), false);
        (void)scan_views(filter, bytes + at, count);
        bt_scanner_release(filter->scanner, false, NULL);
    }
}

/* length: at most BT_SCANNER_BLOCK. */
static void scan_joined(struct bt_filter *filter, const uint8_t *data, size_t length, bool is_control)
{
    struct bt_scanner *joined = filter->joined[is_control];
    bt_scanner_scan(joined, data, length);
    (void)bt_filter_judge(filter, bt_scanner_finds(joined), false);
    bt_scanner_release(joined, false, NULL);
}

static void on_payload(void *context, const uint8_t *data, size_t length, bool is_control)
{
    struct bt_filter *filter = context;
    for (size_t at = 0; at < length; at += BT_SCANNER_BLOCK)
        scan_joined(filter, data + at, length - at < BT_SCANNER_BLOCK ? length - at : BT_SCANNER_BLOCK,
                    is_control);
    if (!is_control) {
        scan_copy(filter, data, length);
        return;
    }
    bt_scanner_scan(filter->control, data, length);
    (void)bt_filter_judge(filter, bt_scanner_finds(filter->control), false);
}

/* Whoever waits for a message gets all of it: nothing is held over its end. What follows is another text,
 * which a line's end says to the detectors. */
static void on_message_end(void *context, bool is_control)
{
    struct bt_filter *filter = context;
    bt_scanner_release(filter->joined[is_control], true, NULL);
    if (is_control) {
        bt_scanner_reset(filter->control);
        return;
    }
    scan_copy(filter, "\n", 1);
    bt_scanner_release(filter->scanner, true, NULL);
}

/* ---- pieces ---------------------------------------------------------------------------------------------
 */

static bool is_redacting(const struct bt_filter *filter)
{
    return filter->is_request && filter->settings.dlp.outbound == BT_DLP_OUTBOUND_REDACT;
}

static void pass_waiting(struct bt_filter *filter, struct evbuffer *out)
{
    size_t held = views_held(filter);
    if (filter->body != BT_FILTER_BODY_PLAIN)
        held += bt_scanner_held(filter->scanner);
    if (filter->body == BT_FILTER_BODY_WEBSOCKET)
        held += bt_scanner_held(filter->joined[0]);
    if (held == 0 || evbuffer_get_length(filter->waiting) > WAITING_MAX)
        (void)evbuffer_add_buffer(out, filter->waiting);
}

/* Gives out what a plain body's scanner does not hold. Where tokens are overwritten, views see what is left
 * then, so that what they find was hidden from the scanner. */
static enum bt_filter_verdict give_out(struct bt_filter *filter, bool is_all, struct evbuffer *out)
{
    enum bt_filter_verdict verdict = BT_FILTER_PASS;
    if (!is_redacting(filter)) {
        bt_scanner_release(filter->scanner, is_all, filter->waiting);
    } else {
        struct evbuffer *shown = evbuffer_new();
        bt_scanner_release(filter->scanner, is_all, shown);
        size_t length = evbuffer_get_length(shown);
        const uint8_t *bytes = length != 0 ? evbuffer_pullup(shown, -1) : NULL;
        for (size_t at = 0; at < length && verdict == BT_FILTER_PASS; at += BT_SCANNER_BLOCK)
            verdict = scan_views(filter, bytes + at,
                                 length - at < BT_SCANNER_BLOCK ? length - at : BT_SCANNER_BLOCK);
        (void)evbuffer_add_buffer(filter->waiting, shown);
        evbuffer_free(shown);
    }
    if (verdict == BT_FILTER_PASS)
        pass_waiting(filter, out);
    return verdict;
}

static enum bt_filter_verdict plain_data(struct bt_filter *filter, const uint8_t *data, size_t length,
                                         struct evbuffer *out)
{
    enum bt_filter_verdict verdict = BT_FILTER_PASS;
    for (size_t at = 0; at < length && verdict == BT_FILTER_PASS;) {
        size_t count = length - at < BT_SCANNER_BLOCK ? length - at : BT_SCANNER_BLOCK;
        bt_filter_look_at_randomness(filter, data + at, count);
        bt_scanner_scan(filter->scanner, data + at, count);
        verdict = bt_filter_judge(filter, bt_scanner_finds(filter->scanner), true);
        if (verdict != BT_FILTER_BLOCK && !is_redacting(filter))
            verdict = scan_views(filter, data + at, count);
        at += count;
        if (verdict == BT_FILTER_ASK) {
            filter->rest = evbuffer_new();
            (void)evbuffer_add(filter->rest, data + at, length - at);
        } else if (verdict == BT_FILTER_PASS) {
            verdict = give_out(filter, false, out);
        }
    }
    return verdict;
}

/* A body that cannot be read: in a request that is a refusal; in a response what is left passes unread,
 * unless a credential may be in it. */
static enum bt_filter_verdict unreadable(struct bt_filter *filter, const char *reason, struct evbuffer *out)
{
    enum bt_filter_verdict verdict = bt_filter_judge_unreadable(filter, reason);
    if (verdict == BT_FILTER_PASS) {
        (void)evbuffer_add_buffer(out, filter->waiting);
        bt_filter_body_clear(filter);
    }
    return verdict;
}

static enum bt_filter_verdict coded_data(struct bt_filter *filter, const void *data, size_t length,
                                         struct evbuffer *out)
{
    (void)evbuffer_add(filter->waiting, data, length);
    int result = bt_inflate_feed(filter->inflate, data, length, scan_copy, filter);
    enum bt_filter_verdict verdict = bt_filter_verdict_of(filter);
    if (verdict == BT_FILTER_BLOCK)
        return verdict;
    if (result == -E2BIG)
        return unreadable(filter, "compressed data that grows beyond measure", out);
    if (result == -ENOMEM)
        return unreadable(filter, "compressed data that needs too much memory to look into", out);
    if (result < 0)
        return unreadable(filter, "data that is not in its content coding", out);
    if (verdict == BT_FILTER_PASS)
        pass_waiting(filter, out);
    return verdict;
}

static enum bt_filter_verdict websocket_data(struct bt_filter *filter, const void *data, size_t length,
                                             struct evbuffer *out)
{
    static const struct bt_websocket_events events = {on_payload, on_message_end};
    (void)evbuffer_add(filter->waiting, data, length);
    int result = bt_websocket_feed(&filter->websocket, data, length, &events, filter);
    enum bt_filter_verdict verdict = bt_filter_verdict_of(filter);
    if (verdict == BT_FILTER_BLOCK)
        return verdict;
    if (result < 0)
        return unreadable(filter, "frames that are none of a WebSocket", out);
    if (verdict == BT_FILTER_PASS)
        pass_waiting(filter, out);
    return verdict;
}

enum bt_filter_verdict bt_filter_data(struct bt_filter *filter, const void *data, size_t length,
                                      struct evbuffer *out)
{
    if (filter != NULL && filter->is_blocked)
        return BT_FILTER_BLOCK;
    if (filter != NULL && length != 0)
        switch (filter->body) {
        case BT_FILTER_BODY_PLAIN:
            return plain_data(filter, data, length, out);
        case BT_FILTER_BODY_CODED:
            return coded_data(filter, data, length, out);
        case BT_FILTER_BODY_WEBSOCKET:
            return websocket_data(filter, data, length, out);
        case BT_FILTER_BODY_OPEN:
            break;
        }
    (void)evbuffer_add(out, data, length);
    return BT_FILTER_PASS;
}

size_t bt_filter_held(const struct bt_filter *filter)
{
    if (filter == NULL || filter->scanner == NULL)
        return 0;
    size_t held = evbuffer_get_length(filter->waiting);
    if (filter->rest != NULL)
        held += evbuffer_get_length(filter->rest);
    return held + (filter->body == BT_FILTER_BODY_PLAIN ? bt_scanner_held(filter->scanner) : 0);
}

enum bt_filter_verdict bt_filter_flush(struct bt_filter *filter, struct evbuffer *out)
{
    enum bt_filter_verdict verdict = BT_FILTER_PASS;
    if (filter != NULL && filter->is_blocked)
        return BT_FILTER_BLOCK;
    if (filter == NULL || filter->scanner == NULL)
        return BT_FILTER_PASS;
    if (filter->body == BT_FILTER_BODY_PLAIN)
        verdict = give_out(filter, true, out);
    if (verdict == BT_FILTER_PASS)
        (void)evbuffer_add_buffer(out, filter->waiting);
    return verdict;
}

enum bt_filter_verdict bt_filter_end(struct bt_filter *filter, struct bt_message *trailers,
                                     struct evbuffer *out)
{
    if (filter == NULL)
        return BT_FILTER_PASS;
    if (filter->is_blocked)
        return BT_FILTER_BLOCK;
    bool is_to_read = trailers != NULL && !filter->are_trailers_asked;
    enum bt_filter_verdict trailing = is_to_read ? bt_filter_trailers(filter, trailers) : BT_FILTER_PASS;
    filter->are_trailers_asked = filter->are_trailers_asked || trailing == BT_FILTER_ASK;
    if (trailing != BT_FILTER_PASS)
        return trailing;
    if (filter->body != BT_FILTER_BODY_OPEN)
        bt_filter_look_at_randomness(filter, "\n", 1);
    enum bt_filter_verdict verdict = bt_filter_flush(filter, out);
    return verdict != BT_FILTER_PASS ? verdict : bt_filter_verdict_of(filter);
}

/* These values pass from now on; of the same kinds others may come. */
static void allow_matches(struct bt_filter *filter)
{
    bt_matches_allow(filter->matches);
    filter->asked = (struct bt_finds){0};
    if (filter->scanner != NULL)
        bt_scanner_clear_finds(filter->scanner);
    struct bt_scanner *others[] = {filter->control, filter->joined[0], filter->joined[1]};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(others); i++)
        if (others[i] != NULL)
            bt_scanner_clear_finds(others[i]);
    for (size_t i = 0; i < BT_VIEWS && filter->views[i] != NULL; i++)
        bt_view_clear_finds(filter->views[i]);
}

enum bt_filter_verdict bt_filter_answer(struct bt_filter *filter, bool is_allowed, struct evbuffer *out)
{
    if (filter == NULL)
        return BT_FILTER_PASS;
    filter->is_asking = false;
    filter->is_blocked = filter->is_blocked || !is_allowed;
    if (filter->is_blocked)
        return BT_FILTER_BLOCK;
    allow_matches(filter);
    if (filter->scanner == NULL) {
        filter->is_head_allowed = true;
        return BT_FILTER_PASS;
    }
    if (filter->body != BT_FILTER_BODY_PLAIN) {
        pass_waiting(filter, out);
        return BT_FILTER_PASS;
    }
    enum bt_filter_verdict verdict = give_out(filter, false, out);
    struct evbuffer *rest = filter->rest;
    filter->rest = NULL;
    size_t length = rest != NULL ? evbuffer_get_length(rest) : 0;
    if (length != 0 && verdict == BT_FILTER_PASS)
        verdict = plain_data(filter, evbuffer_pullup(rest, -1), length, out);
    if (rest != NULL)
        evbuffer_free(rest);
    return verdict;
}
