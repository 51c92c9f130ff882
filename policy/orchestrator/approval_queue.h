/* Questions of the gateway about requests that it holds, until their owner answers, they expire, or nobody
 * asks for the answer any more. In memory only: a request that was held when this process ended is refused.
 *
 * Called by api_approvals.c with the time (monotonic). Knows nothing of HTTP or of who may ask. What the
 * gateway sends is checked and copied piece by piece.
 */
#ifndef BERTH_POLICY_ORCHESTRATOR_APPROVAL_QUEUE_H
#define BERTH_POLICY_ORCHESTRATOR_APPROVAL_QUEUE_H

#include <jansson.h>

#include "ipc/base/base.h"

#define BT_QUEUE_MAX 64           /* questions in all */
#define BT_QUEUE_AGENT_MAX 4      /* of one agent */
#define BT_QUEUE_SECONDS_MAX 300  /* that one may wait, unless the configuration says less */
#define BT_QUEUE_SILENCE_MS 10000 /* the gateway asks several times a second; after this it is gone */
#define BT_QUEUE_FINDS_MAX 4      /* that a question describes */

struct bt_queue;

struct bt_queue *bt_queue_new(unsigned seconds);
struct bt_queue *bt_queue_free(struct bt_queue *queue);

struct bt_queue_answer {
    bool is_allowed, is_remembered;
};

/* What a question is about. Returns 0, or -EINVAL when it is not what API.md says. */
int bt_queue_agent_of(const json_t *question, uint16_t *ret_slot, uint32_t *ret_generation) BT_MUST_CHECK;

/* Takes a question under this number. -EINVAL; -ENOSPC: too many wait. One that is there already (the gateway
 * had no answer) keeps its number. *ret_answer is owned: what the gateway is told. */
int bt_queue_add(struct bt_queue *queue, const json_t *question, const char *agent, json_int_t number,
                 int64_t now_ms, json_t **ret_answer) BT_MUST_CHECK;

/* {"held": [ticket...], "withdrawn": [ticket...]} to {"answers": {ticket: state}}, owned, or -EINVAL. */
int bt_queue_poll(struct bt_queue *queue, const json_t *body, int64_t now_ms,
                  json_t **ret_answers) BT_MUST_CHECK;

/* Those that wait, oldest first: an owned array. */
json_t *bt_queue_list(struct bt_queue *queue, int64_t now_ms);

/* -ENOENT: no question of this number waits. */
int bt_queue_answer(struct bt_queue *queue, json_int_t number, struct bt_queue_answer answer,
                    int64_t now_ms) BT_MUST_CHECK;

/* Those of a slot are gone: of this generation, or (is_others) of every other one. */
void bt_queue_forget(struct bt_queue *queue, uint16_t slot, uint32_t generation, bool is_others);

#endif
