/* What the gateway may say in an agent's name: the values of its credentials, and how one is written into a
 * request.
 *
 * Taken from the orchestrator's answer about the agent by agents.c, written by exchange.c. Values are in
 * memory only while the agent is known, and wiped after.
 */
#ifndef BERTH_POLICY_GATEWAY_CREDENTIAL_H
#define BERTH_POLICY_GATEWAY_CREDENTIAL_H

#include <jansson.h>

#include "policy/gateway/secrets.h"
#include "policy/gateway/stream.h"

struct bt_credentials; /* of one agent, immutable */

/* Takes "credentials", "canary" and "identity_token" of an answer of POST /v1/resolve (policy/API.md). An
 * older orchestrator sends none, a sealed registration sends null: then there are none, and requests that
 * need one are refused. NULL when there is nothing at all. -EPROTO: out of form. The caller owns
 * *ret_credentials. */
int bt_credentials_take(const json_t *answer, struct bt_credentials **ret_credentials) BT_MUST_CHECK;
struct bt_credentials *
bt_credentials_free(struct bt_credentials *credentials); /* wipes; NULL; accepts NULL */

/* Whether the credential that an allowing verdict names is there; true when it names none. */
bool bt_credentials_have(const struct bt_credentials *credentials, const struct bt_verdict *verdict);

/* "Basic " and the base64 of the largest value. */
#define BT_CREDENTIAL_FIELD_SIZE (8 + (BT_CREDENTIAL_VALUE_MAX + 2) / 3 * 4 + 1)

/* Takes the agent's own credentials out of a request's head as the verdict says, and adds the field that it
 * names; the field's value is written to field_text, which must live, and be wiped by the caller, until the
 * head was sent. 0, -ENOKEY (not there) or -E2BIG (no room for one more field). */
int bt_credentials_apply(const struct bt_credentials *credentials, const struct bt_verdict *verdict,
                         struct bt_message *head, char field_text[BT_CREDENTIAL_FIELD_SIZE]) BT_MUST_CHECK;

/* Takes out what the agent may not send: its own credentials where the verdict says so, and the field of the
 * route's credential, whether that is injected or not. bt_credentials_apply does this, too. */
void bt_credentials_strip(const struct bt_verdict *verdict, struct bt_message *head);

/* What the filters look for: every value, the canary, and the agent's own token. Borrowed; NULL when there is
 * nothing. */
struct bt_secrets *bt_credentials_secrets(const struct bt_credentials *credentials);

#endif
