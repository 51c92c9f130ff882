/* One request of an agent and its response: who asks, whether they may, where it goes, and the bytes of both
 * ways.
 *
 * Joins a stream of the agent's connection with one of an upstream connection. Made by session*.c for every
 * stream, frees itself when it is over. Every link of the identity chain (policy/gateway/README.md) that a
 * request adds is checked here. Must not know versions of HTTP.
 */
#ifndef BERTH_POLICY_GATEWAY_EXCHANGE_H
#define BERTH_POLICY_GATEWAY_EXCHANGE_H

#include "policy/gateway/session.h"

/* Takes a stream whose head is about to come. */
void bt_exchange_start(struct bt_session *session, struct bt_stream *stream);

/* Ends one early: towards the agent by an abort, so that it cannot take what it has for complete. */
void bt_exchange_abort(struct bt_exchange *exchange, enum bt_abort reason);

/* The agent's registration or policy changed: what is not allowed any more is cut, with a record. */
void bt_exchange_recheck(struct bt_exchange *exchange);

/* About how many bytes it takes. */
size_t bt_exchange_weight(const struct bt_exchange *exchange);

/* Once a second: answers for a host that does not. */
#define BT_EXCHANGE_ANSWER_MS (20 * 60 * 1000) /* for a response to begin; afterwards there is no limit */
/* A client that ended its direction may have gone for good, which shows only when it is sent something: its
 * host is waited for this long, and no longer, before an answer and between two pieces of one. nginx and
 * Envoy take such a client for gone at once; then who asks with `nc -N` would have no answer. */
#define BT_EXCHANGE_LEFT_MS (60 * 1000)
void bt_exchange_sweep(struct bt_exchange *exchange, int64_t now_ms);

#endif
