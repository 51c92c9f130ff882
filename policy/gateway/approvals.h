/* Requests that wait for their owner's word: each is told to the orchestrator, and asked for there until it
 * is answered. What is asked about is in matches.h; what becomes of the request in exchange_hold.c.
 *
 * An answer holds for the one request that was held. The orchestrator gives none, and none can come from an
 * agent: the gateway's token opens no call that answers. Bounds: BT_APPROVALS_AGENT_MAX at once of an agent
 * and a few a minute, BT_APPROVALS_MAX in all; what is above is refused at once.
 */
#ifndef BERTH_POLICY_GATEWAY_APPROVALS_H
#define BERTH_POLICY_GATEWAY_APPROVALS_H

#include "policy/gateway/agents.h"
#include "policy/gateway/matches.h"

#define BT_APPROVALS_MAX 64
#define BT_APPROVALS_AGENT_MAX 4
#define BT_APPROVALS_BURST 20      /* questions of an agent at once... */
#define BT_APPROVALS_EACH_MS 10000 /* ...and then one in this time */
#define BT_APPROVALS_POLL_MS 300   /* an answer is known within this time */
#define BT_APPROVALS_SLACK_MS 5000 /* beyond what the orchestrator grants, when it does not answer */

struct bt_approvals;
struct bt_hold;

enum bt_approval {
    BT_APPROVAL_ALLOWED,
    BT_APPROVAL_REMEMBERED, /* allowed, and these values for this host until the agent ends */
    BT_APPROVAL_DENIED,
    BT_APPROVAL_EXPIRED,
    BT_APPROVAL_TOO_MANY,
    BT_APPROVAL_UNAVAILABLE, /* nobody can be asked, or the orchestrator forgot it */
};

/* Borrowed for the call. */
struct bt_approval_question {
    const char *host;
    uint16_t port;
    const char *method;
    const char *path; /* bt_filter_show_path */
    bool is_head;     /* found there, not in the body */
    const struct bt_matches *matches;
};

struct bt_approval_answer {
    enum bt_approval result;
    bool is_earlier;   /* BT_APPROVAL_REMEMBERED: from another worker's question; nobody was asked now */
    json_int_t number; /* of the question, as its owner sees it; 0: it never got one */
    int seconds;       /* that it could wait */
};

/* Waiting for an answer; in the caller's memory until the callback came or it was cancelled. */
struct bt_approval_wait {
    struct bt_hold *hold; /* NULL: idle */
    void (*done)(void *context, const struct bt_approval_answer *answer);
    void *context;
};

struct bt_approvals *bt_approvals_new(struct event_base *base, struct bt_control *control);
/* After the control, whose calls refer to it, and after every wait was cancelled. */
struct bt_approvals *bt_approvals_free(struct bt_approvals *approvals);

/* The callback may come at once, with a refusal. */
void bt_approvals_ask(struct bt_approvals *approvals, struct bt_agent *agent,
                      const struct bt_approval_question *question, struct bt_approval_wait *wait,
                      void (*done)(void *context, const struct bt_approval_answer *answer), void *context);
void bt_approval_wait_cancel(struct bt_approval_wait *wait); /* accepts an idle one */

/* Asks for answers and ends what waited too long: every BT_APPROVALS_POLL_MS by itself while there is
 * something to ask for. */
void bt_approvals_poll(struct bt_approvals *approvals);

#endif
