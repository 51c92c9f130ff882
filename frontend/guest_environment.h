/* What commands in an agent's guest find in their environment, and the files that belong to it: the way to
 * the gateway, and what to trust because of it. The same for every backend.
 */
#ifndef BERTH_FRONTEND_GUEST_ENVIRONMENT_H
#define BERTH_FRONTEND_GUEST_ENVIRONMENT_H

#include "lib/error.h"
#include "lib/memory.h"

/* Appends user, proxy with the identity token, trust, canary (NULL: none) and the bottle's own variables.
 * gateway_address: as the guest sees it. terminal: TERM, or NULL. */
void bt_guest_environment(uint32_t gateway_address, const char *token, const char *canary,
                          const char *const *own, const char *terminal, struct bt_list *ret_environment);

/* Whether berth sets this variable: a bottle cannot. Case is ignored for the proxy variables. */
bool bt_guest_environment_is_reserved(const char *name);

/* A Java key store (JKS, password "changeit") of the certificates in a PEM text; what is no certificate is
 * passed over. Java reads no PEM, and trusts a PKCS #12 store only with attributes that OpenSSL before 3.2
 * does not write. The caller frees it. */
int bt_guest_trust_jks(const char *pem, size_t length, struct bt_buffer *ret_store, struct bt_error *error);

#endif
