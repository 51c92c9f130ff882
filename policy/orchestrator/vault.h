/* What an agent's registration holds that must not be on the registry's disk in clear: the values of its
 * credentials and its canary.
 *
 * Sealed with AES-256-GCM under a key that the host made for this agent and keeps in the agent's folder; here
 * it is in memory only. After a restart the rows are still there and closed, until the agent's keeper
 * registers it again and so brings the key back.
 */
#ifndef BERTH_POLICY_ORCHESTRATOR_VAULT_H
#define BERTH_POLICY_ORCHESTRATOR_VAULT_H

#include <jansson.h>

#include "lib/memory.h"

#define BT_VAULT_KEY_SIZE 32

struct bt_vault; /* keys, one a slot */

struct bt_vault *bt_vault_new(void);
struct bt_vault *bt_vault_free(struct bt_vault *vault); /* wipes; returns NULL, accepts NULL */

/* Takes 64 lower-case hex digits as the key of this slot and generation, in place of what was there. -EINVAL
 * when they are not. */
int bt_vault_take_key(struct bt_vault *vault, uint16_t slot, uint32_t generation,
                      const char *key) BT_MUST_CHECK;
void bt_vault_forget(struct bt_vault *vault, uint16_t slot, uint32_t generation);

/* Both: -ENOKEY when no key of this generation is known. Sealing adds to an empty buffer (-EIO when the
 * library refuses); opening gives an owned object, or -EBADMSG when the data is of another key, slot or
 * generation, or changed. */
int bt_vault_seal(const struct bt_vault *vault, uint16_t slot, uint32_t generation, const json_t *secrets,
                  struct bt_buffer *ret_sealed) BT_MUST_CHECK;
int bt_vault_open(const struct bt_vault *vault, uint16_t slot, uint32_t generation,
                  const struct bt_buffer *sealed, json_t **ret_secrets) BT_MUST_CHECK;

#endif
