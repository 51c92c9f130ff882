/* TLS on both legs: what an agent is shown, and what an upstream must show.
 *
 * Towards agents: TLS 1.2 and up, the host's leaf (certificate.h), tickets whose key lives as long as the
 * process, no early data, no renegotiation. Towards upstreams: TLS 1.2 and up, verified against the roots and
 * gateway.trust, the host name checked (RFC 6125). Called by session*.c and upstream.c.
 */
#ifndef BERTH_POLICY_GATEWAY_TLS_H
#define BERTH_POLICY_GATEWAY_TLS_H

#include <openssl/ssl.h>

#include "lib/error.h"
#include "lib/memory.h"

struct bt_tls;

struct bt_tls_settings {
    const char *authority;           /* its certificate and private key, PEM */
    const struct bt_buffer *anchors; /* PEM; certificates that are no longer readable are an error */
    size_t anchor_count;
};

int bt_tls_new(const struct bt_tls_settings *settings, struct bt_tls **ret_tls, struct bt_error *error);
struct bt_tls *bt_tls_free(struct bt_tls *tls); /* accepts NULL */

/* A connection for bt_channel_start_tls; host is canonical. NULL: out of memory. */
SSL *bt_tls_accept(struct bt_tls *tls, const char *host);
/* may_http2: offer "h2" too. */
SSL *bt_tls_connect(struct bt_tls *tls, const char *host, bool may_http2);

/* Whether ALPN chose HTTP/2. */
bool bt_tls_is_http2(const SSL *ssl);

#endif
