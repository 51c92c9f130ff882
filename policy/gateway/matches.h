/* What exactly was found in a request whose owner is asked (dlp.outbound: supervise), so that a yes holds for
 * these values and no others.
 *
 * Filled by dlp_scanner.c, read by filter.c and exchange_hold.c. A value is known by its digest alone, keyed
 * anew at each start of the gateway: whoever sees one cannot try passwords against it.
 */
#ifndef BERTH_POLICY_GATEWAY_MATCHES_H
#define BERTH_POLICY_GATEWAY_MATCHES_H

#include "lib/file.h"
#include "policy/rules/rules.h"

#define BT_MATCHES_MAX 16        /* values that one request may be allowed, or asked about at once */
#define BT_MATCHES_REMEMBERED 32 /* values that the owner allowed an agent for good */
#define BT_MATCH_EXCERPT_SIZE 48

struct bt_match {
    bool is_secret;
    unsigned index; /* enum bt_secret_kind, or the detector's */
    /* Only its beginning is known (a private key's first line, which many keys share): its digest equals no
     * other one, and it is asked about each time. */
    bool is_partial;
    uint64_t offset; /* where it ends, in the head or body as it is read */
    char digest[BT_DIGEST_TEXT_SIZE];
    char excerpt[BT_MATCH_EXCERPT_SIZE]; /* the known beginning of its kind ("ghp_"), then asterisks */
};

struct bt_matches {
    struct bt_match items[BT_MATCHES_MAX]; /* not answered yet */
    size_t count;
    size_t used;      /* answered */
    bool is_overfull; /* one request had more, together */
    char allowed[BT_MATCHES_MAX][BT_DIGEST_TEXT_SIZE];
    size_t allowed_count;
    char remembered[BT_MATCHES_REMEMBERED][BT_DIGEST_TEXT_SIZE];
    size_t remembered_count;
    bool was_remembered; /* one of them was met */
};

/* What an owner allowed one agent until it ends: values for hosts. */
struct bt_approved;
/* Allows all of these for a host; the oldest make room. *approved: NULL at first; the caller frees. */
void bt_approved_add(struct bt_approved **approved, const char *host, const struct bt_matches *matches);
struct bt_approved *bt_approved_free(struct bt_approved *approved); /* NULL; accepts NULL */
/* Those of a host become remembered ones. approved and host may be NULL. */
void bt_approved_get(const struct bt_approved *approved, const char *host, struct bt_matches *ret_matches);

/* Makes the key of the digests: before the workers, so that they have it in common. */
void bt_matches_start(void);

/* Notes a value of this length (offset, digest and excerpt of *match are made here). anchor: what of it may
 * be shown. False: it was allowed, and is no find. */
bool bt_matches_note(struct bt_matches *matches, const struct bt_match *match, const char *anchor,
                     const void *value, size_t length);
/* All that are not answered yet are allowed. */
void bt_matches_allow(struct bt_matches *matches);

#endif
