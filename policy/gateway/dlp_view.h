/* A stream as its reader will see it, who undoes percent-encodings or the escapes of JSON strings: so that a
 * token is found that was written with needless ones.
 *
 * Called by filter_body.c beside the scanner of the bytes themselves. Encoders leave letters and digits
 * alone, so nearly every stream passes with a search for one byte; from the first escape of a character that
 * tokens are made of, the decoded stream is scanned, too.
 */
#ifndef BERTH_POLICY_GATEWAY_DLP_VIEW_H
#define BERTH_POLICY_GATEWAY_DLP_VIEW_H

#include "policy/gateway/dlp_scanner.h"

enum bt_view_kind { BT_VIEW_PERCENT, BT_VIEW_JSON };
#define BT_VIEWS 2
#define BT_VIEW_HISTORY 512 /* bytes before the first escape that are looked at again */

struct bt_view;

/* settings: of the scanner; nothing is overwritten in a view. */
struct bt_view *bt_view_new(enum bt_view_kind kind, const struct bt_scanner_settings *settings);
struct bt_view *bt_view_free(struct bt_view *view);                       /* accepts NULL, returns NULL */
void bt_view_scan(struct bt_view *view, const void *data, size_t length); /* at most BT_SCANNER_BLOCK */
struct bt_finds bt_view_finds(const struct bt_view *view);
void bt_view_clear_finds(struct bt_view *view); /* the next ones are others */
/* Bytes at its end that may be the beginning of a match, or of an escape in one. */
size_t bt_view_held(const struct bt_view *view);

/* Undoes percent-encodings; a percent sign without two hex digits stays. ret_text has room for length bytes.
 * Returns the length of what it wrote. */
size_t bt_view_decode_percent(const char *text, size_t length, char *ret_text);

#endif
