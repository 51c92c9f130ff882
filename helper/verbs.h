/* What each verb does. The engine has already checked the frame, the sequence, the epoch and the rate. */
#ifndef BERTH_HELPER_VERBS_H
#define BERTH_HELPER_VERBS_H

#include "helper/engine.h"

/* Fills reply (whose verb, sequence and epoch are set) and *ret_passed_fd (owned by the caller, or -1).
 * Returns true when the connection has to be closed after the reply. */
bool bt_verbs_answer(struct bt_engine *engine, struct bt_connection *connection,
                     const struct bt_request *request, struct bt_reply *reply,
                     int *ret_passed_fd) BT_MUST_CHECK;

/* False for SEAL, which must always get through. */
bool bt_verbs_is_charged(enum bt_verb verb);

#endif
