/* The TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3): the server name that a tunnel really asks for.
 *
 * Called by session.c before the first byte goes upstream. Pure: no allocation, no I/O. The bytes are the
 * agent's.
 */
#ifndef BERTH_POLICY_GATEWAY_HELLO_H
#define BERTH_POLICY_GATEWAY_HELLO_H

#include "policy/rules/rules.h"

/* Records and handshake headers included; a ClientHello with post-quantum key shares has about 2 KiB. */
#define BT_HELLO_MAX (32U * 1024)

struct bt_hello {
    bool has_name;
    bool
        has_encrypted_hello; /* ECH (RFC 9849) or its draft ESNI: the name in clear may not be the real one */
    char name[BT_HOST_NAME_SIZE]; /* canonical */
};

/* Reads a ClientHello from the start of a connection, possibly split over records. Returns 0, -EAGAIN (more
 * bytes are needed), -EPROTO (this is not TLS), -E2BIG or -EBADMSG (malformed, or the name has no canonical
 * form). */
int bt_hello_parse(const uint8_t *data, size_t length, struct bt_hello *ret_hello) BT_MUST_CHECK;

#endif
