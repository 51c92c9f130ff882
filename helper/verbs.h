/* What each verb does. The engine has already checked the frame, the sequence, the epoch and the rate. */
#ifndef BERTH_HELPER_VERBS_H
#define BERTH_HELPER_VERBS_H

#include "helper/engine.h"

/* One request and what is answered to it. */
struct bt_exchange {
    struct bt_engine *engine;
    struct bt_connection *connection;
    struct bt_request request;
    struct bt_reply reply; /* verb, version, sequence and epoch are set before it is answered */
    int passed_fd;         /* owned; -1: none */
};

/* Fills reply and passed_fd. Returns true when the connection has to be closed after the reply. */
bool bt_verbs_answer(struct bt_exchange *exchange) BT_MUST_CHECK;

/* False for SEAL, which must always get through. */
bool bt_verbs_is_charged(enum bt_verb verb);

#endif
