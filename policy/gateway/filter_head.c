/* Heads and trailers: what is found in a target or a field, and what a request must not ask for. See
 * filter.h.
 *
 * A head is looked at as one text, a line for each part, so that a name gives its value a meaning
 * (aws_secret_access_key: ...); overwriting keeps lengths, so the parts are where they were.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/filter_internal.h"

static void add(struct bt_buffer *text, struct bt_http_slice slice)
{
    if (slice.length != 0 && bt_buffer_add(text, slice.data, slice.length) < 0)
        abort(); /* a head has a limit far below a buffer's */
}

static void add_text(struct bt_buffer *text, const char *addition)
{
    add(text, (struct bt_http_slice){addition, strlen(addition)});
}

/* Fields in which the agent's own credential is expected. */
static bool is_expected(const struct bt_filter *filter, struct bt_http_slice name)
{
    return filter->settings.keeps_authorization && bt_policy_is_credential_field(name);
}

/* Scans a text in one go and puts what was overwritten back into it. */
static struct bt_finds scan(const struct bt_scanner_settings *settings, char *text, size_t length)
{
    struct bt_scanner *scanner = bt_scanner_new(settings);
    struct evbuffer *out = settings->masks_detectors || settings->masks_secrets ? evbuffer_new() : NULL;
    for (size_t at = 0; at < length; at += BT_SCANNER_BLOCK) {
        bt_scanner_scan(scanner, text + at, length - at < BT_SCANNER_BLOCK ? length - at : BT_SCANNER_BLOCK);
        bt_scanner_release(scanner, false, out);
    }
    bt_scanner_release(scanner, true, out);
    struct bt_finds finds = bt_scanner_finds(scanner);
    (void)bt_scanner_free(scanner);
    if (out != NULL) {
        (void)evbuffer_remove(out, text, length);
        evbuffer_free(out);
    }
    return finds;
}

/* Makes the text of a head. Fields whose own credential is expected come last, from *ret_expected on. */
static void write_text(const struct bt_filter *filter, const struct bt_message *head, struct bt_buffer *text,
                       size_t *ret_expected)
{
    add(text, head->path);
    add_text(text, "\n");
    for (unsigned pass = 0; pass < 2; pass++) {
        if (pass == 1)
            *ret_expected = text->length;
        for (size_t i = 0; i < head->field_count; i++) {
            if (is_expected(filter, head->fields[i].name) != (pass == 1))
                continue;
            add(text, head->fields[i].name);
            add_text(text, ": ");
            add(text, head->fields[i].value);
            add_text(text, "\n");
        }
    }
}

/* Lets a slice point to its place in the text, where it may have been overwritten. Returns the place behind.
 */
static char *repoint(struct bt_http_slice *slice, char *at)
{
    char *behind = at + slice->length;
    slice->data = at;
    return behind + 1;
}

/* The text may differ from the head now. False when a field's name was overwritten, which cannot be sent. */
static bool read_text(const struct bt_filter *filter, struct bt_message *head, char *text)
{
    bool is_right = true;
    char *at = text;
    at = repoint(&head->path, at);
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < head->field_count; i++) {
            struct bt_http_field *field = &head->fields[i];
            if (is_expected(filter, field->name) != (pass == 1))
                continue;
            is_right = is_right && memcmp(at, field->name.data, field->name.length) == 0;
            at += field->name.length + 2;
            at = repoint(&field->value, at);
        }
    }
    return is_right;
}

/* What the reader of a head will make of it: the target without percent-encodings, and the host. */
static struct bt_finds scan_readings(const struct bt_filter *filter, const struct bt_message *head)
{
    struct bt_scanner_settings settings = bt_filter_scanner_settings(filter, false);
    bt_auto_free char *text = bt_new(head->path.length + 1 + head->authority.length + 1, 1);
    size_t length = 0;
    if (head->path.length != 0 && memchr(head->path.data, '%', head->path.length) != NULL) {
        length = bt_view_decode_percent(head->path.data, head->path.length, text);
        text[length++] = '\n';
    }
    if (head->authority.length != 0)
        memcpy(text + length, head->authority.data, head->authority.length);
    return scan(&settings, text, length + head->authority.length);
}

static struct bt_finds join(struct bt_finds left, struct bt_finds right)
{
    return (struct bt_finds){left.detectors | right.detectors, left.secrets | right.secrets};
}

/* Looks at a head's or trailer's text, overwrites in it, and judges. */
static enum bt_filter_verdict look(struct bt_filter *filter, struct bt_message *head)
{
    struct bt_scanner_settings settings = bt_filter_scanner_settings(filter, true);
    size_t expected = 0;
    bt_buffer_wipe(&filter->text);
    write_text(filter, head, &filter->text, &expected);
    if (!filter->is_request)
        settings.detectors = NULL; /* instructions to the agent are text */
    struct bt_finds finds = scan(&settings, filter->text.data, expected);
    settings.detectors = NULL;
    if (expected < filter->text.length)
        finds = join(finds, scan(&settings, filter->text.data + expected, filter->text.length - expected));
    bool is_masked = settings.masks_secrets && (finds.detectors != 0 || finds.secrets != 0);
    bool can_mask = !is_masked || read_text(filter, head, filter->text.data);
    enum bt_filter_verdict verdict = bt_filter_judge(filter, finds, can_mask);
    if (filter->is_request && !filter->is_blocked)
        verdict = bt_filter_judge(filter, scan_readings(filter, head), false);
    return verdict;
}

/* ---- what requests must not ask for ---------------------------------------------------------------------
 */

static void remove_fields(struct bt_message *head, const char *name)
{
    size_t kept = 0;
    for (size_t i = 0; i < head->field_count; i++)
        if (!bt_http_slice_is_nocase(head->fields[i].name, name))
            head->fields[kept++] = head->fields[i];
    head->field_count = kept;
}

void bt_filter_strip_websocket_extensions(struct bt_message *head)
{
    remove_fields(head, "sec-websocket-extensions");
}

static void ask_for_identity(struct bt_message *head)
{
    static const struct bt_http_field identity = {{"accept-encoding", 15}, {"identity", 8}};
    remove_fields(head, "accept-encoding");
    if (head->field_count < BT_HTTP_FIELDS_MAX)
        head->fields[head->field_count++] = identity;
}

void bt_filter_show_path(struct bt_filter *filter, struct bt_http_slice path,
                         char ret_path[BT_FILTER_PATH_SIZE])
{
    const char *query = memchr(path.data, '?', path.length);
    size_t length = query != NULL ? (size_t)(query - path.data) : path.length;
    bt_auto_free char *text = bt_new(length + 1, 1);
    memcpy(text, path.data, length);
    if (filter != NULL && filter->settings.dlp.outbound != BT_DLP_OUTBOUND_OFF) {
        struct bt_scanner_settings settings = bt_filter_scanner_settings(filter, false);
        bt_auto_free char *decoded = bt_new(length + 1, 1);
        settings.matches = NULL;
        settings.masks_detectors = settings.masks_secrets = true;
        (void)scan(&settings, text, length);
        struct bt_finds hidden = scan(&settings, decoded, bt_view_decode_percent(text, length, decoded));
        if (hidden.detectors != 0 || hidden.secrets != 0)
            length = 0;
    }
    length = length < BT_FILTER_PATH_SIZE ? length : BT_FILTER_PATH_SIZE - 1;
    for (size_t i = 0; i < length; i++)
        ret_path[i] = (char)(text[i] > ' ' && text[i] < 0x7f ? text[i] : '?');
    ret_path[length] = '\0';
}

static bool looks(const struct bt_filter *filter)
{
    return filter->is_request ? filter->settings.dlp.outbound != BT_DLP_OUTBOUND_OFF
                              : bt_secrets_have(filter->settings.secrets, BT_SECRET_CREDENTIAL);
}

enum bt_filter_verdict bt_filter_trailers(struct bt_filter *filter, struct bt_message *trailers)
{
    trailers->path = trailers->authority = (struct bt_http_slice){"", 0};
    return looks(filter) ? look(filter, trailers) : BT_FILTER_PASS;
}

enum bt_filter_verdict bt_filter_head(struct bt_filter *filter, struct bt_message *head)
{
    enum bt_filter_verdict verdict = BT_FILTER_PASS;
    if (filter == NULL)
        return BT_FILTER_PASS;
    if (filter->is_blocked)
        return BT_FILTER_BLOCK;
    filter->is_asking = false;
    if (looks(filter) && !filter->is_head_allowed)
        verdict = look(filter, head);
    bt_filter_look_at_randomness(filter, head->path.data, head->path.length);
    bt_filter_look_at_randomness(filter, "\n", 1);
    if (verdict != BT_FILTER_PASS)
        return verdict;
    if (filter->is_request && filter->settings.is_injected)
        ask_for_identity(head);
    if (filter->is_request && head->protocol.length != 0)
        bt_filter_strip_websocket_extensions(head);
    return bt_filter_body_start(filter, head);
}
