/* The user's certificate authority: what lets the gateway open TLS, and what agents trust because of it.
 *
 * Minted once, kept in the user's state (0600), handed to each gateway in its initrd; agents get the
 * certificate alone. P-256, ten years, may sign leaves only (RFC 5280). Called by keeper_trust.c.
 */
#ifndef BERTH_FRONTEND_AUTHORITY_H
#define BERTH_FRONTEND_AUTHORITY_H

#include "lib/error.h"
#include "lib/file.h"
#include "lib/memory.h"

/* Reads the authority, minting it when there is none: its certificate and its private key, PEM, in one text.
 * The caller wipes it. */
int bt_authority_get(const struct bt_paths *paths, struct bt_buffer *ret_authority, struct bt_error *error);

/* The certificate in such a text; borrowed. NULL: there is none. */
const char *bt_authority_certificate(const struct bt_buffer *authority, size_t *ret_length);

#endif
