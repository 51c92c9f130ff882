/* The table of agents. See agents.h. */
#include "policy/gateway/agents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/clock.h"
#include "policy/rules/service.h"

#define BUCKETS 1024
#define TTL_MAX_MS 5000
/* Where the address alone decides, an answer is believed for less: the slot's next agent has the same
 * address, and no token of its own that would tell the two apart. */
#define TTL_ADDRESS_MS 1000
#define ABSENT_MS                                                                                            \
    500 /* an agent is registered before it boots, so an early question is rare and short-lived */

/* So often at most the other workers hear of an agent that is served, so that none of them has an older
 * answer than that and a moment when the orchestrator goes. */
#define TELL_MS 15000

LIST_HEAD(bucket, bt_agent);

struct bt_agents {
    struct event_base *base;
    struct bt_control *control;
    const struct bt_peers *peers; /* NULL: no other workers */
    void (*on_change)(void *context, struct bt_agent *agent);
    void *context;
    size_t count;
    struct bucket buckets[BUCKETS];
};

/* What one question to the orchestrator carries until its answer. */
struct question {
    struct bt_agents *agents;
    struct bt_agent *agent;
    char token_sha256[BT_DIGEST_TEXT_SIZE];
    bool is_heard; /* another worker spoke of it, and needs not be told */
};

static const char no_token[BT_DIGEST_TEXT_SIZE]; /* the address alone */

static void ask(struct bt_agents *agents, struct bt_agent *agent, const char *digest, bool is_heard);

struct bt_agents *bt_agents_new(struct event_base *base, struct bt_control *control,
                                void (*on_change)(void *context, struct bt_agent *agent), void *context)
{
    struct bt_agents *agents = bt_new(1, sizeof(*agents));
    agents->base = base;
    agents->control = control;
    agents->on_change = on_change;
    agents->context = context;
    return agents;
}

static void free_agent(struct bt_agents *agents, struct bt_agent *agent)
{
    LIST_REMOVE(agent, bucket_link);
    agents->count--;
    bt_policy_free(agent->policy);
    bt_credentials_free(agent->credentials);
    bt_approved_free(agent->approved);
    free(agent);
}

struct bt_agents *bt_agents_free(struct bt_agents *agents)
{
    if (agents == NULL)
        return NULL;
    for (size_t i = 0; i < BUCKETS; i++) {
        struct bt_agent *next;
        for (struct bt_agent *agent = LIST_FIRST(&agents->buckets[i]); agent != NULL; agent = next) {
            next = LIST_NEXT(agent, bucket_link);
            free_agent(agents, agent);
        }
    }
    free(agents);
    return NULL;
}

static bool is_idle(const struct bt_agent *agent)
{
    return agent->session_count == 0 && agent->waiter_count == 0 && !agent->is_asking &&
           !(agent->is_known && agent->has_news);
}

/* Makes room by forgetting an entry that nobody uses: unknown ones first, as only they come without limit. */
static bool evict(struct bt_agents *agents)
{
    struct bt_agent *victim = NULL;
    for (size_t i = 0; i < BUCKETS; i++) {
        struct bt_agent *agent;
        LIST_FOREACH(agent, &agents->buckets[i], bucket_link)
        if (is_idle(agent) && (victim == NULL || (victim->is_known && !agent->is_known)))
            victim = agent;
    }
    if (victim == NULL)
        return false;
    free_agent(agents, victim);
    return true;
}

struct bt_agent *bt_agents_get(struct bt_agents *agents, uint32_t address)
{
    struct bucket *bucket = &agents->buckets[(address ^ address >> 10) % BUCKETS];
    struct bt_agent *agent;
    LIST_FOREACH(agent, bucket, bucket_link)
    if (agent->address == address)
        return agent;
    if (agents->count >= BT_AGENTS_MAX && !evict(agents))
        return NULL;
    agent = bt_new(1, sizeof(*agent));
    agent->address = address;
    TAILQ_INIT(&agent->waiters);
    LIST_INSERT_HEAD(bucket, agent, bucket_link);
    agents->count++;
    return agent;
}

static void remove_waiter(struct bt_agent_waiter *waiter)
{
    TAILQ_REMOVE(&waiter->agent->waiters, waiter, link);
    waiter->agent->waiter_count--;
    waiter->is_waiting = false;
}

void bt_agent_waiter_cancel(struct bt_agent_waiter *waiter)
{
    if (waiter->is_waiting)
        remove_waiter(waiter);
}

static bool is_token_confirmed(const struct bt_agent *agent, const char *digest)
{
    return digest[0] == '\0' || bt_service_digest_equal(agent->token_sha256, digest);
}

/* What can be said without asking. Returns false when the orchestrator must be asked. */
static bool answer_from_cache(const struct bt_agent *agent, const char *digest, bool is_unreachable,
                              enum bt_identity *ret_identity)
{
    int64_t now_ms = bt_clock_ms();
    if (!agent->is_known && now_ms < agent->absent_until_ms) {
        *ret_identity = BT_IDENTITY_UNKNOWN;
        return true;
    }
    int64_t good_until_ms = agent->fresh_until_ms;
    if (is_unreachable)
        good_until_ms = agent->confirmed_ms + BT_AGENT_GRACE_MS;
    else if (digest[0] == '\0' && agent->confirmed_ms + TTL_ADDRESS_MS < good_until_ms)
        good_until_ms = agent->confirmed_ms + TTL_ADDRESS_MS;
    if (!agent->is_known || now_ms >= good_until_ms || !is_token_confirmed(agent, digest))
        return false;
    *ret_identity = BT_IDENTITY_OK;
    return true;
}

static void forget(struct bt_agents *agents, struct bt_agent *agent)
{
    bool was_known = agent->is_known;
    agent->is_known = false;
    agent->token_sha256[0] = '\0';
    agent->policy = bt_policy_free(agent->policy);
    agent->credentials = bt_credentials_free(agent->credentials);
    agent->approved = bt_approved_free(agent->approved);
    if (was_known)
        agents->on_change(agents->context, agent);
}

/* Credentials of another version come with another policy_version, so they are read only then: making them
 * searchable takes a while. */
static int take_credentials(struct bt_agent *agent, const json_t *answer)
{
    struct bt_credentials *credentials;
    int result = bt_credentials_take(answer, &credentials);
    if (result < 0)
        return result;
    bt_credentials_free(agent->credentials);
    agent->credentials = credentials;
    return 0;
}

/* Takes the answer to a question. Returns 0, or -EPROTO when it is not what API.md says. */
static int take_answer(struct bt_agents *agents, struct bt_agent *agent, const char *digest,
                       const json_t *answer)
{
    const char *name = json_string_value(json_object_get(answer, "agent"));
    const char *gateway_address = json_string_value(json_object_get(answer, "gateway_address"));
    json_int_t slot = json_integer_value(json_object_get(answer, "slot"));
    json_int_t generation = json_integer_value(json_object_get(answer, "generation"));
    json_int_t version = json_integer_value(json_object_get(answer, "policy_version"));
    json_int_t ttl_ms = json_integer_value(json_object_get(answer, "ttl")) * 1000;
    struct bt_policy *policy = NULL;
    uint32_t seen_at;
    if (name == NULL || strlen(name) >= sizeof(agent->name) || gateway_address == NULL || slot < 0 ||
        slot > UINT16_MAX || generation < 0 || generation > UINT32_MAX || version < 1 || ttl_ms < 0 ||
        bt_ipv4_parse(gateway_address, &seen_at) < 0 ||
        bt_policy_parse(json_object_get(answer, "policy"), &policy, NULL) < 0)
        return -EPROTO;
    bool is_same_lease =
        agent->is_known && agent->generation == (uint32_t)generation && agent->slot == (uint16_t)slot;
    bool is_changed = agent->is_known && (!is_same_lease || agent->policy_version != (uint64_t)version);
    if ((!agent->is_known || is_changed) && take_credentials(agent, answer) < 0) {
        bt_policy_free(policy);
        return -EPROTO;
    }
    if (!is_same_lease) {
        agent->told_ms = 0;
        agent->counters = (struct bt_agent_counters){0};
        agent->token_sha256[0] = '\0';
        agent->approved = bt_approved_free(agent->approved);
    }
    bt_policy_free(agent->policy);
    agent->policy = policy;
    agent->is_known = true;
    memcpy(agent->name, name, strlen(name) + 1);
    agent->slot = (uint16_t)slot;
    agent->generation = (uint32_t)generation;
    agent->policy_version = (uint64_t)version;
    agent->gateway_address = seen_at;
    agent->confirmed_ms = bt_clock_ms();
    agent->fresh_until_ms = agent->confirmed_ms + (ttl_ms < TTL_MAX_MS ? ttl_ms : TTL_MAX_MS);
    if (digest[0] != '\0' && !is_token_confirmed(agent, digest)) {
        memcpy(agent->token_sha256, digest, BT_DIGEST_TEXT_SIZE);
        agent->told_ms = 0;
    }
    if (is_changed)
        agents->on_change(agents->context, agent);
    return 0;
}

static void tell_others(const struct bt_agents *agents, struct bt_agent *agent)
{
    int64_t now_ms = bt_clock_ms();
    if (agents->peers == NULL || (agent->told_ms != 0 && now_ms < agent->told_ms + TELL_MS))
        return;
    agent->told_ms = now_ms;
    bt_peers_tell(agents->peers, agent->address, agent->token_sha256);
}

/* Answers every waiter whose answer is known now; asks for the first one whose is not. */
static void serve_waiters(struct bt_agents *agents, struct bt_agent *agent, const char *asked_digest,
                          enum bt_identity identity)
{
    struct bt_agent_waiter *waiter = TAILQ_FIRST(&agent->waiters);
    unsigned left = agent->waiter_count; /* those that came while this runs are not this round's */
    while (waiter != NULL && left-- > 0) {
        struct bt_agent_waiter *next = TAILQ_NEXT(waiter, link);
        enum bt_identity answer = identity;
        bool is_answered = true;
        if (identity == BT_IDENTITY_OK)
            is_answered = is_token_confirmed(agent, waiter->token_sha256);
        else if (identity == BT_IDENTITY_WRONG_TOKEN)
            is_answered = strcmp(waiter->token_sha256, asked_digest) == 0;
        else if (identity == BT_IDENTITY_UNREACHABLE)
            (void)answer_from_cache(agent, waiter->token_sha256, true, &answer);
        if (is_answered) {
            remove_waiter(waiter);
            waiter->done(waiter->context, answer);
            /* The callback may have cancelled others: start again from the first one left. */
            next = TAILQ_FIRST(&agent->waiters);
        }
        waiter = next;
    }
    if (!agent->is_asking && !TAILQ_EMPTY(&agent->waiters))
        ask(agents, agent, TAILQ_FIRST(&agent->waiters)->token_sha256, false);
}

static void on_answer(void *context, unsigned status, const json_t *answer)
{
    struct question question = *(struct question *)context;
    struct bt_agents *agents = question.agents;
    struct bt_agent *agent = question.agent;
    enum bt_identity identity = BT_IDENTITY_UNREACHABLE;
    free(context);
    agent->is_asking = false;
    if (status == 200 && take_answer(agents, agent, question.token_sha256, answer) == 0) {
        identity = BT_IDENTITY_OK;
        if (!question.is_heard)
            tell_others(agents, agent);
    } else if (status == 404) {
        forget(agents, agent);
        agent->absent_until_ms = bt_clock_ms() + ABSENT_MS;
        identity = BT_IDENTITY_UNKNOWN;
    } else if (status == 403) {
        identity = BT_IDENTITY_WRONG_TOKEN;
    } else if (agent->is_known && bt_clock_ms() >= agent->confirmed_ms + BT_AGENT_GRACE_MS) {
        forget(agents, agent);
    }
    serve_waiters(agents, agent, question.token_sha256, identity);
}

static void ask(struct bt_agents *agents, struct bt_agent *agent, const char *digest, bool is_heard)
{
    struct question *question = bt_new(1, sizeof(*question));
    char address[BT_IPV4_TEXT_SIZE];
    question->agents = agents;
    question->agent = agent;
    question->is_heard = is_heard;
    memcpy(question->token_sha256, digest, BT_DIGEST_TEXT_SIZE);
    agent->is_asking = true;
    bt_ipv4_format(agent->address, address);
    json_t *body = json_pack("{s:s}", "address", address);
    if (digest[0] != '\0')
        json_object_set_new(body, "token_sha256", json_string(digest));
    bt_control_post(agents->control, "/v1/resolve", body, true, on_answer, question);
}

void bt_agents_identify(struct bt_agents *agents, struct bt_agent *agent, const char *digest,
                        struct bt_agent_waiter *waiter,
                        void (*done)(void *context, enum bt_identity identity), void *context)
{
    enum bt_identity identity;
    if (answer_from_cache(agent, digest != NULL ? digest : "", false, &identity)) {
        done(context, identity);
        return;
    }
    if (agent->waiter_count >= BT_AGENT_WAITERS_MAX) {
        done(context, BT_IDENTITY_BUSY);
        return;
    }
    *waiter = (struct bt_agent_waiter){.agent = agent, .is_waiting = true, .done = done, .context = context};
    if (digest != NULL)
        memcpy(waiter->token_sha256, digest, BT_DIGEST_TEXT_SIZE);
    TAILQ_INSERT_TAIL(&agent->waiters, waiter, link);
    agent->waiter_count++;
    if (!agent->is_asking)
        ask(agents, agent, waiter->token_sha256, false);
}

void bt_agents_meet(struct bt_agents *agents, struct bt_agent *agent)
{
    if (!agent->is_known && !agent->is_asking && bt_clock_ms() >= agent->absent_until_ms)
        ask(agents, agent, no_token, false);
}

/* Another worker serves who is at the address, by a token of this digest (or empty): asks the orchestrator,
 * unless it said so a moment ago. */
static void on_word(void *context, uint32_t address, const char *digest)
{
    struct bt_agents *agents = context;
    struct bt_agent *agent = bt_agents_get(agents, address);
    if (agent == NULL || agent->is_asking)
        return;
    bool is_fresh = agent->is_known && bt_clock_ms() < agent->fresh_until_ms;
    if (!is_fresh || !is_token_confirmed(agent, digest))
        ask(agents, agent, digest, true);
}

int bt_agents_share(struct bt_agents *agents, struct bt_peers *peers, unsigned own, struct bt_error *error)
{
    agents->peers = peers;
    return bt_peers_join(peers, own, agents->base, on_word, agents, error);
}

void bt_agents_revalidate(struct bt_agents *agents)
{
    int64_t now_ms = bt_clock_ms();
    for (size_t i = 0; i < BUCKETS; i++) {
        struct bt_agent *agent;
        LIST_FOREACH(agent, &agents->buckets[i], bucket_link)
        if (agent->session_count > 0 && agent->is_known && !agent->is_asking &&
            now_ms >= agent->fresh_until_ms)
            ask(agents, agent, no_token, false);
    }
}

void bt_agents_visit(struct bt_agents *agents, void (*visit)(void *context, struct bt_agent *agent),
                     void *context)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct bt_agent *agent;
        LIST_FOREACH(agent, &agents->buckets[i], bucket_link)
        if (agent->is_known)
            visit(context, agent);
    }
}
