/* A message that outlives the bytes it was read from. Called by exchange.c. */
#ifndef BERTH_POLICY_GATEWAY_MESSAGE_H
#define BERTH_POLICY_GATEWAY_MESSAGE_H

#include "policy/gateway/stream.h"

struct bt_kept_message; /* one piece of memory */

/* Copies a head or trailers, everything they point to included. The caller frees it with
 * bt_kept_message_free. */
struct bt_kept_message *bt_message_keep(const struct bt_message *message);
struct bt_kept_message *bt_kept_message_free(struct bt_kept_message *kept); /* wipes it; accepts NULL */

/* The message again, to be changed at will; what it points to belongs to kept. */
void bt_kept_message_get(const struct bt_kept_message *kept, struct bt_message *ret_message);

/* Its bytes; 0 for NULL. */
size_t bt_kept_message_weight(const struct bt_kept_message *kept);

#endif
