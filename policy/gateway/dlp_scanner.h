/* One stream of bytes looked through for an agent's secrets and for what the detectors know; overwrites what
 * it finds, or stops there.
 *
 * Called by filter*.c: scan a block, look at the finds, then release what may pass. What is kept back at the
 * end of a block is the beginning of what may become a match: exactly that for secrets, from its anchor on
 * (at most BT_SCANNER_WINDOW bytes) for detectors. So the result does not depend on how the stream is cut.
 * What is overwritten keeps its first bytes: two of a secret, the anchor of a token.
 */
#ifndef BERTH_POLICY_GATEWAY_DLP_SCANNER_H
#define BERTH_POLICY_GATEWAY_DLP_SCANNER_H

#include <event2/buffer.h>

#include "policy/gateway/detectors.h"
#include "policy/gateway/matches.h"
#include "policy/gateway/secrets.h"

#define BT_SCANNER_BLOCK 16384 /* what stays in the processor's nearest cache */
#define BT_SCANNER_WINDOW 512
#define BT_SCANNER_VISIBLE 2 /* bytes of a secret */

/* What was found, as bits: of the index of a detector, of enum bt_secret_kind. */
struct bt_finds {
    uint64_t detectors;
    unsigned secrets;
};

struct bt_scanner_settings {
    const struct bt_detectors *detectors; /* or NULL */
    const struct bt_secrets *secrets;     /* or NULL; lives longer than the scanner */
    unsigned secret_kinds;                /* bits: other kinds are overlooked */
    bool masks_detectors, masks_secrets;
    /* NULL, or where each value that is found is noted; one that was allowed is no find then. Lives longer
     * than the scanner. */
    struct bt_matches *matches;
};

struct bt_scanner;

struct bt_scanner *bt_scanner_new(const struct bt_scanner_settings *settings);
struct bt_scanner *bt_scanner_free(struct bt_scanner *scanner); /* accepts NULL, returns NULL */
/* As if new; what was not released is dropped. */
void bt_scanner_reset(struct bt_scanner *scanner);

/* Scans at most BT_SCANNER_BLOCK bytes. All are kept until bt_scanner_release. */
void bt_scanner_scan(struct bt_scanner *scanner, const void *data, size_t length);
/* Everything found so far, in this stream. */
struct bt_finds bt_scanner_finds(const struct bt_scanner *scanner);
void bt_scanner_clear_finds(struct bt_scanner *scanner); /* the next ones are others */

/* Gives out (or drops: out NULL) what cannot be part of a match any more; with is_all everything. */
void bt_scanner_release(struct bt_scanner *scanner, bool is_all, struct evbuffer *out);
size_t bt_scanner_held(const struct bt_scanner *scanner); /* bytes scanned and not released */

void bt_scanner_free_spares(void); /* buffers that are kept for the next one; at the end of the process */

#endif
