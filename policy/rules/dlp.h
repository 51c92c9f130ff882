/* What a route wants looked for in what passes: the form of the key `dlp` of a route (policy/POLICY.md).
 *
 * Read by policy.c from the policy document, carried in a verdict, acted upon by policy/gateway/filter.h.
 */
#ifndef BERTH_POLICY_RULES_DLP_H
#define BERTH_POLICY_RULES_DLP_H

#include "ipc/base/base.h"

/* Requests: what happens when a detector finds a token or one of this agent's secrets. */
enum bt_dlp_outbound {
    BT_DLP_OUTBOUND_BLOCK,  /* the request is refused or cut; the default */
    BT_DLP_OUTBOUND_REDACT, /* what was found is overwritten with asterisks; where that cannot be done, block
                             */
    BT_DLP_OUTBOUND_SUPERVISE, /* the request is held and its owner asked; without an answer, block */
    BT_DLP_OUTBOUND_OFF,
};

/* Responses: what happens when text reads like instructions to the agent ("ignore previous instructions"). */
enum bt_dlp_inbound {
    BT_DLP_INBOUND_WARN, /* a record; the default */
    BT_DLP_INBOUND_BLOCK,
    BT_DLP_INBOUND_OFF,
};

/* Zero is the default. */
struct bt_dlp {
    enum bt_dlp_outbound outbound;
    enum bt_dlp_inbound inbound;
    bool warns_of_entropy; /* a record when a request carries what looks random; off by default */
};

#endif
