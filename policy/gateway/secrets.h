/* The values that one agent must not send, in every spelling that the gateway looks for, compiled once when
 * the agent's registration arrives.
 *
 * Spellings: as it is; base64 and base64url in all three alignments; hex in both cases; percent-encoded as
 * browsers and RFC 3986 do, both cases, and of credentials of at most 256 bytes with every byte encoded, too;
 * as a JSON string (with and without "\/"). Of values above 1 KiB, which are files: as it is, base64, JSON.
 * Made by agents.c, used by filter.h.
 */
#ifndef BERTH_POLICY_GATEWAY_SECRETS_H
#define BERTH_POLICY_GATEWAY_SECRETS_H

#include "lib/error.h"
#include "policy/gateway/literals.h"

#define BT_SECRET_MIN 8            /* shorter values would be found everywhere */
#define BT_SECRET_MAX 4096         /* bytes of one */
#define BT_SECRETS_MAX 64          /* of one agent */
#define BT_SECRETS_BYTES_MAX 65536 /* of one agent, together */

enum bt_secret_kind {
    BT_SECRET_CREDENTIAL, /* injected by the gateway: also overwritten in responses */
    BT_SECRET_IDENTITY,   /* the agent's own token */
    BT_SECRET_CANARY,     /* a bait: whoever sends it was looking for secrets */
};
#define BT_SECRET_KINDS 3

struct bt_secret {
    enum bt_secret_kind kind;
    const char *value;
    size_t length;
};

struct bt_secrets; /* immutable, reference-counted */

/* After bt_filters_start. Values that are too short are left out; what is above the other bounds is -E2BIG
 * (nothing of it is in the error). count 0, or nothing left: 0 and *ret_secrets NULL. The caller owns one
 * reference. */
int bt_secrets_new(const struct bt_secret *secrets, size_t count, struct bt_secrets **ret_secrets,
                   struct bt_error *error);
struct bt_secrets *bt_secrets_keep(struct bt_secrets *secrets); /* one more reference; accepts NULL */
struct bt_secrets *
bt_secrets_free(struct bt_secrets *secrets); /* gives one back; wipes with the last; NULL */

/* What dlp_scanner.c looks for; ids are enum bt_secret_kind, or those of the anchors (detectors.h), which are
 * in it, too. */
const struct bt_literals *bt_secrets_literals(const struct bt_secrets *secrets);
bool bt_secrets_have(const struct bt_secrets *secrets, enum bt_secret_kind kind);

#endif
