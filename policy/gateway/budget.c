/* See budget.h. */
#include "policy/gateway/budget.h"

#include <malloc.h>

#include "policy/gateway/clock.h"
#include "policy/gateway/held.h"
#include "policy/gateway/session.h"
#include "policy/gateway/upstream.h"

/* Of the guest: its kernel with the buffers of sockets, its programs and files. Measured inside it
 * (Linux 6.1) under tests/e2e/gateway_load.sh, all that is neither free nor a gateway's own: 83 MiB without
 * connections; 182 MiB after minutes of 3600 connections in which data lies unread: 40 the kernel's from the
 * start, 32 of slabs, 19 of files, and 90 that sockets pin, three times what they count (vm/init/boot.c
 * limits that). */
#define SYSTEM_MEMORY (208ULL << 20)
/* Of a process: the program itself, and what one callback may take before anybody looks (the largest window
 * of a decoder). */
#define PROCESS_MEMORY (24ULL << 20)
#define BUDGET_MIN (16ULL << 20)
#define BUDGET_MAX (1ULL << 30)
#define WEIGH_MS 100

size_t bt_budget_of(uint64_t memory, unsigned workers)
{
    uint64_t share = memory > SYSTEM_MEMORY ? (memory - SYSTEM_MEMORY) / workers : 0;
    /* A fifth is for what lies between the pieces in use. */
    uint64_t budget = share > PROCESS_MEMORY ? (share - PROCESS_MEMORY) / 5 * 4 : 0;
    return budget < BUDGET_MIN ? 0 : (size_t)(budget < BUDGET_MAX ? budget : BUDGET_MAX);
}

static size_t near(const struct bt_gateway *gateway)
{
    return gateway->budget / 4 * 3;
}

/* Sets what each session and each agent with sessions holds. */
static void weigh(struct bt_gateway *gateway)
{
    struct bt_session *session;
    gateway->weighed_ms = bt_clock_ms();
    gateway->holder_count = 0;
    TAILQ_FOREACH(session, &gateway->sessions, link)
    session->agent->weight = 0;
    TAILQ_FOREACH(session, &gateway->sessions, link)
    {
        gateway->holder_count += session->agent->weight == 0;
        session->weight = bt_session_weight(session);
        session->agent->weight += session->weight;
    }
    bt_upstreams_weigh(gateway->upstreams);
}

bool bt_budget_allows(struct bt_gateway *gateway, const struct bt_agent *agent)
{
    if (bt_held() <= near(gateway) || agent->session_count == 0)
        return true;
    if (bt_clock_ms() - gateway->weighed_ms >= WEIGH_MS)
        weigh(gateway);
    size_t holders = gateway->holder_count > 0 ? gateway->holder_count : 1; /* 0: DNS alone */
    return agent->weight <= near(gateway) / holders;
}

/* NULL: there are none. */
static struct bt_session *find_heaviest(const struct bt_gateway *gateway)
{
    struct bt_session *session, *found = NULL;
    TAILQ_FOREACH(session, &gateway->sessions, link)
    if (found == NULL || session->agent->weight > found->agent->weight ||
        (session->agent == found->agent && session->weight > found->weight))
        found = session;
    return found;
}

void bt_budget_enforce(struct bt_gateway *gateway)
{
    struct bt_session *session;
    if (bt_held() <= gateway->budget || TAILQ_EMPTY(&gateway->sessions))
        return;
    bt_upstreams_close_idle(gateway->upstreams);
    weigh(gateway);
    while (bt_held() > near(gateway) && (session = find_heaviest(gateway)) != NULL) {
        struct bt_agent *agent = session->agent;
        agent->weight -= session->weight < agent->weight ? session->weight : agent->weight;
        bt_session_record(session, false, "too-many", BT_BUDGET_REASON);
        bt_session_cut(session);
        if (agent->exchange_count == 0)
            bt_upstreams_close_all(gateway->upstreams, agent); /* what it had been using */
    }
    (void)malloc_trim(0);
    bt_held_measure();
}
