/* Answers of the gateway itself: JSON that says what was refused, why, by which rule, and what to do.
 *
 * Called by exchange.c and session*.c. Never echoes anything of a request but the host as it was asked for.
 */
#ifndef BERTH_POLICY_GATEWAY_REFUSAL_H
#define BERTH_POLICY_GATEWAY_REFUSAL_H

#include "policy/gateway/stream.h"

struct bt_refusal {
    unsigned status; /* of HTTP; 407 carries a challenge */
    const char *rule, *reason, *hint;
};

/* Answers a stream that has no response head yet, to its end; the caller releases it. */
void bt_refusal_answer(const struct bt_refusal *refusal, const char *host, struct bt_stream *stream);

/* Sends what fits at once: for a connection that is turned away before anybody reads from it. */
void bt_refusal_send(const struct bt_refusal *refusal, int fd);

/* Printable ASCII of some text: for records and answers. */
#define BT_SHOWN_HOST_SIZE 254
void bt_refusal_show(struct bt_http_slice text, char ret_shown[BT_SHOWN_HOST_SIZE]);

#endif
