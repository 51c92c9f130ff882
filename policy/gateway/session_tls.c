/* ClientHellos: on port 443, and first in every CONNECT tunnel. Nothing is decrypted; the name in clear must
 * be the one that was allowed.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <string.h>

#include "policy/gateway/session.h"

void bt_session_tls_alert(struct bt_session *session)
{
    /* RFC 8446, 6.2: a fatal access_denied, in a TLS 1.2 record as every client reads it. */
    static const uint8_t access_denied[] = {21, 3, 3, 0, 2, 2, 49};
    (void)bufferevent_write(session->client, access_denied, sizeof(access_denied));
    bt_session_close_after_flush(session);
}

static void refuse(struct bt_session *session, const char *rule, const char *reason, const char *hint)
{
    struct bt_refusal refusal = {403, rule, reason, hint};
    bt_session_refuse(session, &refusal);
}

/* Port 443: the name in the hello is the target. */
static void take_name(struct bt_session *session, const struct bt_hello *hello)
{
    memcpy(session->host, hello->name, sizeof(session->host));
    memcpy(session->shown_host, hello->name, sizeof(session->shown_host));
    bt_session_identify(session, NULL);
}

static void take_hello(struct bt_session *session, const struct bt_hello *hello)
{
    if (hello->has_encrypted_hello) {
        refuse(session, "ech", "the ClientHello is encrypted (ECH), so its real name cannot be checked",
               "switch Encrypted Client Hello off in the client");
    } else if (!hello->has_name) {
        refuse(session, "sni-missing", "the ClientHello names no server", "use a client that sends SNI");
    } else if (!session->is_tunnel_open) {
        take_name(session, hello);
    } else if (strcmp(hello->name, session->host) != 0) {
        refuse(session, "sni-mismatch", "the ClientHello names another server than CONNECT did",
               "ask for the host that is meant");
    } else {
        bt_session_record(session, true, session->verdict.rule, session->verdict.reason);
        bt_session_relay(session);
    }
}

void bt_session_hello_read(struct bt_session *session)
{
    struct evbuffer *input = bufferevent_get_input(session->client);
    size_t length = evbuffer_get_length(input);
    struct bt_hello hello;
    if (length == 0)
        return;
    const uint8_t *data = evbuffer_pullup(input, -1);
    int result = bt_hello_parse(data, length, &hello);
    if (result == -EAGAIN) {
        /* Bounded by BT_HELLO_MAX, which lies below the input's watermark, and by the deadline. */
        if (session->is_client_finished)
            bt_session_end(session);
        return;
    }
    if (result == 0) {
        take_hello(session, &hello);
    } else if (result == -EPROTO && session->is_tunnel_open && data[0] >= 'A' && data[0] <= 'Z') {
        session->stage =
            BT_STAGE_HEAD; /* some clients CONNECT for plain http:// too; same checks as without */
        bt_session_http_read(session);
    } else if (result == -EPROTO) {
        refuse(session, "not-tls", "this is neither TLS nor HTTP", "only these two may be tunnelled");
    } else {
        refuse(session, "bad-hello", "the ClientHello is malformed or its server name is no host name", "");
    }
}
