/* The pf anchors of macOS as text, from leases of kind pf: com.apple/berth for environment 0,
 * com.apple/berth.N for the others. Pure; compiled and tested on every system. pf.conf(5).
 *
 * An agent there is a virtual machine of Apple's `container` on a host-only network of its own, number i of
 * the block for bridges: .1 the host, .2 its gateway, .3 itself. What stays within the network never meets
 * pf; everything else that comes from it, or goes to it, does.
 *
 * Numbers only: no text of this module comes from a caller, and none is copied from its input.
 */
#ifndef BERTH_HELPER_MACOS_ANCHOR_H
#define BERTH_HELPER_MACOS_ANCHOR_H

#include "helper/kernel.h"

#define BT_ANCHOR_NAME_SIZE 24
#define BT_ANCHOR_RULES_A_SLOT_MAX 20U
#define BT_ANCHOR_RULE_SIZE_MAX 128U
/* Rules for the whole pool fit: 2.5 MiB, once in a process. */
#define BT_ANCHOR_TEXT_SIZE (BT_POOL_SLOTS_MAX * BT_ANCHOR_RULES_A_SLOT_MAX * BT_ANCHOR_RULE_SIZE_MAX)
#define BT_ANCHOR_NETWORK_SIZE 19 /* "255.255.255.255/29" */

struct bt_anchor_text {
    size_t length;
    char bytes[BT_ANCHOR_TEXT_SIZE]; /* not terminated by a NUL */
};

/* -ERANGE: environment is 16 or more. */
int bt_anchor_name(uint8_t environment, char ret_name[BT_ANCHOR_NAME_SIZE]) BT_MUST_CHECK;

/* The network of a slot, "10.242.0.8/29". -ERANGE: a slot outside the pool, or a block that wraps. */
int bt_anchor_network(const struct bt_pool *pool, uint16_t slot,
                      char ret_network[BT_ANCHOR_NETWORK_SIZE]) BT_MUST_CHECK;

/* All rules of one anchor, for `pfctl -f`. leases: of kind pf and of that environment, ascending by slot,
 * each slot once (-EINVAL otherwise; -ERANGE as above). Each rule bears a label of the lease's numbers, by
 * which it is found again. No leases: no rules. */
int bt_anchor_encode(const struct bt_kernel_config *config, uint8_t environment,
                     const struct bt_lease *leases, size_t count,
                     struct bt_anchor_text *ret_text) BT_MUST_CHECK;

/* Does what `pfctl -sr` printed have the rules of text, in this order, and no others? By their labels: pfctl
 * words the rules themselves in its own way. */
bool bt_anchor_is_in_force(const struct bt_anchor_text *text, const char *printed, size_t length);

#endif
