/* Who is behind a source address: what the orchestrator said, for as long as it may be believed, and what was
 * counted for that agent. One entry a source address.
 *
 * Called by session.c and dns_server.c. An answer is fresh for its ttl (at most 5 s); an orchestrator that
 * cannot be reached is covered for 60 s by the last one. Identifying is asynchronous; its callback may also
 * come at once.
 */
#ifndef BERTH_POLICY_GATEWAY_AGENTS_H
#define BERTH_POLICY_GATEWAY_AGENTS_H

#include <sys/queue.h>

#include "lib/file.h"
#include "policy/gateway/control.h"
#include "policy/gateway/credential.h"
#include "policy/gateway/inflate.h"
#include "policy/gateway/matches.h"
#include "policy/gateway/peers.h"
#include "policy/rules/rules.h"

#define BT_AGENTS_MAX 4096         /* entries: more than there are slots */
#define BT_AGENT_WAITERS_MAX 512   /* callers that wait for one agent's answer */
#define BT_AGENT_SESSIONS_MAX 256  /* connections of one agent */
#define BT_AGENT_EXCHANGES_MAX 512 /* requests of one agent at once: HTTP/2 has many in a connection */
#define BT_AGENT_FEW 16            /* see bt_agent_places() */
#define BT_AGENT_GRACE_MS 60000    /* how long an unreachable orchestrator is covered */

struct bt_agents;
struct bt_session;

/* Of so many places for all agents (connections, or connections to hosts), how many may be taken when one
 * that holds so many asks for another: who has only a few gets it also from the last quarter, so that some
 * agents that take all they can do not leave the others without. */
static inline size_t bt_agent_places(size_t all, size_t held)
{
    return held >= BT_AGENT_FEW ? all - all / 4 : all;
}

struct bt_agent_counters {
    uint64_t dns_questions, upstream_questions, allowed, refused, bytes;
};

struct bt_agent {
    uint32_t address; /* host byte order */
    bool is_known;    /* what follows was answered and not taken back */
    char name[65];
    uint16_t slot;
    uint32_t generation;
    uint64_t policy_version;
    struct bt_policy *policy;
    struct bt_credentials *credentials; /* NULL: none */
    struct bt_inflate_share inflate_share;
    uint32_t gateway_address;
    struct bt_agent_counters counters;
    bool has_news;          /* counters changed since they were reported */
    unsigned session_count; /* connections, those of DNS among them */
    unsigned exchange_count;
    size_t weight;                                    /* bytes, as budget.c estimated it last */
    unsigned dns_connection_count, dns_pending_count; /* of dns_server.c */
    int64_t record_credit_ms[2];  /* of the records' rate limit (report.c): refused, allowed */
    unsigned held_count;          /* requests that wait for their owner (approvals.c) */
    int64_t ask_credit_ms;        /* of the rate limit of such questions */
    struct bt_approved *approved; /* what this lease may send for good (matches.h); NULL: nothing */
    /* Inside agents.c: */
    LIST_ENTRY(bt_agent) bucket_link;
    char token_sha256[BT_DIGEST_TEXT_SIZE]; /* confirmed by the orchestrator; empty: none yet */
    int64_t confirmed_ms, fresh_until_ms, absent_until_ms;
    int64_t told_ms; /* when the other workers heard of it; 0: not of what is known now */
    bool is_asking;
    TAILQ_HEAD(bt_agent_waiter_list, bt_agent_waiter) waiters;
    unsigned waiter_count;
};

enum bt_identity {
    BT_IDENTITY_OK,
    BT_IDENTITY_UNKNOWN,     /* nobody is registered at this address */
    BT_IDENTITY_WRONG_TOKEN, /* somebody is, with another token */
    BT_IDENTITY_UNREACHABLE, /* the orchestrator does not answer, and the last answer is too old */
    BT_IDENTITY_BUSY,        /* too many wait already */
};

/* Waiting for an answer; lives in the caller's memory until the callback came or it was cancelled. */
struct bt_agent_waiter {
    TAILQ_ENTRY(bt_agent_waiter) link;
    struct bt_agent *agent;
    bool is_waiting;
    char token_sha256[BT_DIGEST_TEXT_SIZE]; /* empty: the address alone decides */
    void (*done)(void *context, enum bt_identity identity);
    void *context;
};

struct bt_agents *bt_agents_new(struct event_base *base, struct bt_control *control,
                                void (*on_change)(void *context, struct bt_agent *agent), void *context);
struct bt_agents *bt_agents_free(struct bt_agents *agents);

/* From now on this worker (of that number) tells the others whom it serves, and hears it from them. peers:
 * ended before the agents are freed. */
int bt_agents_share(struct bt_agents *agents, struct bt_peers *peers, unsigned own, struct bt_error *error);

/* The entry of an address, made when it is missing; NULL when the table is full of entries in use. */
struct bt_agent *bt_agents_get(struct bt_agents *agents, uint32_t address);

/* Identifies who is at agent->address. digest: of the identity token, or NULL. The waiter must be idle. */
void bt_agents_identify(struct bt_agents *agents, struct bt_agent *agent, const char *digest,
                        struct bt_agent_waiter *waiter,
                        void (*done)(void *context, enum bt_identity identity), void *context);
void bt_agent_waiter_cancel(struct bt_agent_waiter *waiter); /* accepts an idle one */

/* Somebody is turned away at the address before any request: asks who it is, so that the next record says. */
void bt_agents_meet(struct bt_agents *agents, struct bt_agent *agent);

/* Asks again about every agent with open sessions whose answer is not fresh; on_change hears of what changed.
 */
void bt_agents_revalidate(struct bt_agents *agents);

/* Calls visit for every known agent. */
void bt_agents_visit(struct bt_agents *agents, void (*visit)(void *context, struct bt_agent *agent),
                     void *context);

#endif
