/* Certificates for agents: one leaf a host name, signed on demand by the user's own authority (RFC 5280).
 *
 * All leaves share one P-256 key, made at each start. Called by tls.c; must not touch the disk.
 */
#ifndef BERTH_POLICY_GATEWAY_CERTIFICATE_H
#define BERTH_POLICY_GATEWAY_CERTIFICATE_H

#include <openssl/ssl.h>

#include "lib/error.h"

#define BT_CERTIFICATES_MAX 1024 /* kept; the one that was not used for longest goes first */

struct bt_certificates;

/* authority: certificate and private key, PEM. -EINVAL when they are not one, or do not belong together. */
int bt_certificates_new(const char *authority, struct bt_certificates **ret_certificates,
                        struct bt_error *error);
struct bt_certificates *bt_certificates_free(struct bt_certificates *certificates); /* accepts NULL */

/* Gives a connection the leaf of a canonical host name (1 to 253 bytes). Returns 0 or -EIO. */
int bt_certificates_use(struct bt_certificates *certificates, const char *host, SSL *ssl) BT_MUST_CHECK;

#endif
