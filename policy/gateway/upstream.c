/* The pool of upstream connections. See upstream.h. */
#include "policy/gateway/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/budget.h"
#include "policy/gateway/clock.h"
#include "policy/gateway/dial.h"
#include "policy/gateway/http1_codec.h"
#include "policy/gateway/http2_codec.h"
#include "policy/gateway/tls.h"

#define BUCKETS 1024

enum state {
    DIALLING,
    SECURING, /* the TLS handshake is under way */
    IDLE,
    BUSY, /* carries a request, or, with HTTP/2, some */
};

struct bt_upstream {
    LIST_ENTRY(bt_upstream) bucket_link;
    TAILQ_ENTRY(bt_upstream) age_link; /* by when it changed its state */
    struct bt_upstreams *pool;
    /* Whose it is, and where it leads. */
    uint32_t agent_address, generation;
    uint16_t slot, port;
    bool is_tls, may_be_private;
    bool may_http2; /* it was offered */
    char host[BT_HOST_NAME_SIZE];

    enum state state;
    int64_t since_ms;
    bool is_retired; /* carries what it carries, and nothing more */
    bool has_carried;
    struct bt_dial *dial;
    struct bt_channel *channel; /* until a codec owns it */
    struct bt_http1 *http1;     /* one of the two, once it is established */
    struct bt_http2 *http2;
    uint32_t address;
    struct bt_upstream_waits waits;
    size_t wait_count; /* of all that ever waited here */
};

struct bt_upstreams {
    struct bt_gateway *gateway;
    size_t count;
    /* By agent; those that share an entry share its allowance. */
    struct {
        unsigned all, idle;
    } counts[BUCKETS];
    LIST_HEAD(upstream_bucket, bt_upstream) buckets[BUCKETS];
    TAILQ_HEAD(upstream_ages, bt_upstream) ages[BUSY + 1]; /* oldest first */
};

struct bt_upstreams *bt_upstreams_new(struct bt_gateway *gateway)
{
    struct bt_upstreams *upstreams = bt_new(1, sizeof(*upstreams));
    upstreams->gateway = gateway;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(upstreams->ages); i++)
        TAILQ_INIT(&upstreams->ages[i]);
    return upstreams;
}

static unsigned *idle_count(const struct bt_upstream *upstream)
{
    return &upstream->pool->counts[upstream->agent_address % BUCKETS].idle;
}

static unsigned *count_of(struct bt_upstreams *upstreams, uint32_t agent_address)
{
    return &upstreams->counts[agent_address % BUCKETS].all;
}

static void set_state(struct bt_upstream *upstream, enum state state)
{
    *idle_count(upstream) -= upstream->state == IDLE;
    *idle_count(upstream) += state == IDLE;
    TAILQ_REMOVE(&upstream->pool->ages[upstream->state], upstream, age_link);
    upstream->state = state;
    upstream->since_ms = bt_clock_ms();
    TAILQ_INSERT_TAIL(&upstream->pool->ages[state], upstream, age_link);
}

static void free_upstream(struct bt_upstream *upstream)
{
    struct bt_upstream_wait *wait;
    TAILQ_FOREACH(wait, &upstream->waits, link)
    wait->list = NULL;
    LIST_REMOVE(upstream, bucket_link);
    TAILQ_REMOVE(&upstream->pool->ages[upstream->state], upstream, age_link);
    upstream->pool->count--;
    *count_of(upstream->pool, upstream->agent_address) -= 1;
    *idle_count(upstream) -= upstream->state == IDLE;
    bt_dial_cancel(upstream->dial);
    bt_channel_free(upstream->channel);
    bt_http1_free(upstream->http1);
    bt_http2_free(upstream->http2);
    free(upstream);
}

struct bt_upstreams *bt_upstreams_free(struct bt_upstreams *upstreams)
{
    if (upstreams == NULL)
        return NULL;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(upstreams->ages); i++)
        while (!TAILQ_EMPTY(&upstreams->ages[i]))
            free_upstream(TAILQ_FIRST(&upstreams->ages[i]));
    free(upstreams);
    return NULL;
}

/* ---- answers ----------------------------------------------------------------------------------------------
 */

/* Moves all waits to a list of the caller's, from where each may still be cancelled. */
static void take_waits(struct bt_upstream *upstream, struct bt_upstream_waits *waits)
{
    struct bt_upstream_wait *wait;
    TAILQ_INIT(waits);
    TAILQ_CONCAT(waits, &upstream->waits, link);
    TAILQ_FOREACH(wait, waits, link)
    wait->list = waits;
}

static struct bt_upstream_wait *next_wait(struct bt_upstream_waits *waits)
{
    struct bt_upstream_wait *wait = TAILQ_FIRST(waits);
    bt_upstream_wait_cancel(wait);
    return wait;
}

/* The connection does not come up: whoever waits for it is told, and it goes. */
static void fail(struct bt_upstream *upstream, const struct bt_upstream_result *result)
{
    struct bt_upstream_waits waits;
    take_waits(upstream, &waits);
    free_upstream(upstream);
    while (!TAILQ_EMPTY(&waits)) {
        struct bt_upstream_wait *wait = next_wait(&waits);
        wait->done(wait->context, result);
    }
}

/* Hands a stream of an established connection to a caller. */
static void serve(struct bt_upstream *upstream,
                  void (*done)(void *context, const struct bt_upstream_result *result), void *context)
{
    struct bt_upstream_result result = {.address = upstream->address, .is_reused = upstream->has_carried};
    result.stream = upstream->http2 != NULL ? bt_http2_open(upstream->http2) : bt_http1_open(upstream->http1);
    if (result.stream == NULL) { /* its codec ends the connection from the loop */
        result.status = 502;
        result.rule = "bad-response";
        (void)snprintf(result.reason, sizeof(result.reason),
                       "the host spoke or closed the connection before it was asked anything");
        done(context, &result);
        return;
    }
    upstream->has_carried = true;
    if (upstream->state != BUSY)
        set_state(upstream, BUSY);
    done(context, &result);
}

/* ---- coming up --------------------------------------------------------------------------------------------
 */

static void on_idle(void *context)
{
    struct bt_upstream *upstream = context;
    if (upstream->is_retired || *idle_count(upstream) >= BT_UPSTREAM_IDLE_MAX)
        free_upstream(upstream);
    else
        set_state(upstream, IDLE);
}

static void on_close(void *context)
{
    free_upstream(context);
}

static const struct bt_http1_events http1_events = {.on_idle = on_idle, .on_close = on_close};

static void on_capacity(void *context)
{
    struct bt_upstream *upstream = context;
    if (upstream->state == BUSY && bt_http2_stream_count(upstream->http2) == 0)
        on_idle(upstream);
}

static void on_http2_end(void *context, const char *reason)
{
    (void)reason;
    free_upstream(context);
}

static const struct bt_http2_events http2_events = {.on_capacity = on_capacity, .on_end = on_http2_end};

static void place(struct bt_upstreams *upstreams, const struct bt_upstream_target *target,
                  struct bt_upstream_wait *wait);

static void start_codec(struct bt_upstream *upstream)
{
    const struct bt_parent_proxy *parent = &upstream->pool->gateway->settings.parent;
    struct bt_http1_settings settings = {
        .is_client = true,
        .is_proxy = parent->is_set && !upstream->is_tls,
        .scheme = upstream->is_tls ? "https" : "http",
        .authorization = parent->authorization[0] != '\0' ? parent->authorization : NULL,
    };
    const SSL *ssl = bt_channel_ssl(upstream->channel);
    if (ssl != NULL && bt_tls_is_http2(ssl))
        upstream->http2 = bt_http2_new(upstream->pool->gateway->base, BT_TAKE(upstream->channel),
                                       BT_HTTP2_CLIENT, settings.scheme, &http2_events, upstream);
    else
        upstream->http1 = bt_http1_new(BT_TAKE(upstream->channel), &settings, &http1_events, upstream);
    set_state(upstream, IDLE);
}

/* Callers may end connections, this one too: what is needed of it is copied. */
static void establish(struct bt_upstream *upstream)
{
    struct bt_upstreams *pool = upstream->pool;
    struct bt_upstream_waits waits;
    char host[BT_HOST_NAME_SIZE];
    struct bt_upstream_target target = {
        .agent = bt_agents_get(pool->gateway->agents, upstream->agent_address),
        .host = host,
        .port = upstream->port,
        .is_tls = upstream->is_tls,
        .may_be_private = upstream->may_be_private,
        .is_protocol = upstream->is_tls && !upstream->may_http2,
    };
    memcpy(host, upstream->host, sizeof(host));
    take_waits(upstream, &waits);
    if (upstream->is_retired) /* what is allowed changed on the way */
        free_upstream(upstream);
    else
        start_codec(upstream); /* without a wait all were cancelled; the next request may use it */
    while (!TAILQ_EMPTY(&waits))
        place(pool, &target, next_wait(&waits));
}

static void on_secure(void *context)
{
    establish(context);
}

/* Before the handshake is done only its failure is news. */
static void on_secure_read(void *context)
{
    struct bt_upstream *upstream = context;
    struct bt_upstream_result result = {.address = upstream->address, .status = 502, .rule = "tls-failed"};
    if (bt_channel_end_of(upstream->channel) == BT_CHANNEL_OPEN)
        return;
    const char *why = bt_channel_error(upstream->channel);
    bool is_wrong = SSL_get_verify_result(bt_channel_ssl(upstream->channel)) != X509_V_OK;
    if (is_wrong)
        result.rule = "bad-certificate";
    (void)snprintf(result.reason, sizeof(result.reason), "%s: %s",
                   is_wrong ? "the host's certificate is not valid for it"
                            : "the TLS handshake with the host failed",
                   why[0] != '\0' ? why : "it closed the connection");
    fail(upstream, &result);
}

static const struct bt_channel_events secure_events = {.on_read = on_secure_read, .on_secure = on_secure};

static void on_dialled(void *context, const struct bt_dial_result *dialled)
{
    struct bt_upstream *upstream = context;
    struct bt_upstream_result result = {.address = dialled->address};
    upstream->dial = NULL;
    upstream->address = dialled->address;
    if (dialled->channel == NULL) {
        result.rule = dialled->rule;
        result.status = strcmp(dialled->rule, "private-answer") == 0 ? 403 : 502;
        (void)snprintf(result.reason, sizeof(result.reason), "%s", dialled->reason);
        fail(upstream, &result);
        return;
    }
    upstream->channel = dialled->channel;
    if (!upstream->is_tls) {
        establish(upstream);
        return;
    }
    SSL *ssl = bt_tls_connect(upstream->pool->gateway->tls, upstream->host, upstream->may_http2);
    if (ssl == NULL)
        abort(); /* out of memory, as in bt_new */
    set_state(upstream, SECURING);
    bt_channel_set_events(upstream->channel, &secure_events, upstream);
    bt_channel_start_tls(upstream->channel, ssl);
}

/* ---- asking -----------------------------------------------------------------------------------------------
 */

static struct upstream_bucket *bucket_of(struct bt_upstreams *upstreams,
                                         const struct bt_upstream_target *target)
{
    uint32_t hash = 2166136261U ^ target->agent->address ^ target->port; /* FNV-1a */
    for (const char *at = target->host; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619U;
    return &upstreams->buckets[hash % BUCKETS];
}

static bool is_for(const struct bt_upstream *upstream, const struct bt_upstream_target *target)
{
    return upstream->agent_address == target->agent->address && upstream->slot == target->agent->slot &&
           upstream->generation == target->agent->generation && upstream->port == target->port &&
           upstream->is_tls == target->is_tls && upstream->may_be_private == target->may_be_private &&
           strcmp(upstream->host, target->host) == 0;
}

/* An HTTP/2 connection that carries something is alive; any that carries nothing may have been closed by the
 * host just now, the more likely the longer ago it did. */
static bool can_serve(const struct bt_upstream *upstream, const struct bt_upstream_target *target,
                      int64_t oldest_ms)
{
    bool is_fresh = upstream->state == IDLE && upstream->since_ms >= oldest_ms;
    if (upstream->is_retired)
        return false;
    if (upstream->http1 != NULL)
        return is_fresh && bt_http1_state_of(upstream->http1) == BT_HTTP1_IDLE;
    return upstream->http2 != NULL && target->idle_ms_max >= 0 && (is_fresh || upstream->state == BUSY) &&
           bt_http2_capacity(upstream->http2) > 0 &&
           (!target->is_protocol || bt_http2_allows_protocol(upstream->http2));
}

static struct bt_upstream *find(struct bt_upstreams *upstreams, const struct bt_upstream_target *target)
{
    struct bt_upstream *upstream;
    int64_t oldest_ms = bt_clock_ms() - target->idle_ms_max;
    LIST_FOREACH(upstream, bucket_of(upstreams, target), bucket_link)
    if (is_for(upstream, target) && can_serve(upstream, target, oldest_ms))
        return upstream;
    return NULL;
}

/* One that is on its way and may turn out to be HTTP/2, unless the host is known to speak HTTP/1.1. */
static struct bt_upstream *find_promising(struct bt_upstreams *upstreams,
                                          const struct bt_upstream_target *target)
{
    struct bt_upstream *upstream, *found = NULL;
    LIST_FOREACH(upstream, bucket_of(upstreams, target), bucket_link)
    {
        if (!is_for(upstream, target) || upstream->is_retired)
            continue;
        if (upstream->http1 != NULL && upstream->may_http2)
            return NULL;
        if (upstream->may_http2 && upstream->wait_count < BT_HTTP2_STREAMS_MAX &&
            (upstream->state == DIALLING || upstream->state == SECURING))
            found = upstream;
    }
    return target->is_protocol ? NULL : found;
}

static struct bt_upstream *start(struct bt_upstreams *upstreams, const struct bt_upstream_target *target)
{
    struct bt_upstream *upstream = bt_new(1, sizeof(*upstream));
    upstream->pool = upstreams;
    upstream->agent_address = target->agent->address;
    upstream->slot = target->agent->slot;
    upstream->generation = target->agent->generation;
    upstream->port = target->port;
    upstream->is_tls = target->is_tls;
    upstream->may_be_private = target->may_be_private;
    upstream->may_http2 = target->is_tls && !target->is_protocol;
    upstream->since_ms = bt_clock_ms();
    memcpy(upstream->host, target->host, strlen(target->host) + 1);
    TAILQ_INIT(&upstream->waits);
    LIST_INSERT_HEAD(bucket_of(upstreams, target), upstream, bucket_link);
    TAILQ_INSERT_TAIL(&upstreams->ages[DIALLING], upstream, age_link);
    upstreams->count++;
    *count_of(upstreams, upstream->agent_address) += 1;
    upstream->dial = bt_dial_start(upstreams->gateway, target->agent, target->host, target->port,
                                   target->may_be_private, target->is_tls, on_dialled, upstream);
    return upstream;
}

static bool has_place(struct bt_upstreams *upstreams, const struct bt_agent *agent)
{
    size_t places = bt_agent_places(upstreams->gateway->session_limit, *count_of(upstreams, agent->address));
    if (upstreams->count >= places && !TAILQ_EMPTY(&upstreams->ages[IDLE]))
        free_upstream(TAILQ_FIRST(&upstreams->ages[IDLE]));
    return upstreams->count < places;
}

/* The wait is idle, and has its callback. */
static void place(struct bt_upstreams *upstreams, const struct bt_upstream_target *target,
                  struct bt_upstream_wait *wait)
{
    static const struct bt_upstream_result too_many = {
        .status = 503, .rule = "too-many", .reason = "too many connections to hosts at once"};
    struct bt_upstream *upstream = find(upstreams, target);
    if (upstream != NULL) {
        serve(upstream, wait->done, wait->context);
        return;
    }
    upstream = find_promising(upstreams, target);
    if (upstream == NULL && has_place(upstreams, target->agent))
        upstream = start(upstreams, target);
    if (upstream == NULL) {
        wait->done(wait->context, &too_many);
        return;
    }
    wait->list = &upstream->waits;
    upstream->wait_count++;
    TAILQ_INSERT_TAIL(wait->list, wait, link);
}

void bt_upstreams_ask(struct bt_upstreams *upstreams, const struct bt_upstream_target *target,
                      struct bt_upstream_wait *wait,
                      void (*done)(void *context, const struct bt_upstream_result *result), void *context)
{
    *wait = (struct bt_upstream_wait){.done = done, .context = context};
    place(upstreams, target, wait);
}

void bt_upstream_wait_cancel(struct bt_upstream_wait *wait)
{
    if (wait->list == NULL)
        return;
    TAILQ_REMOVE(wait->list, wait, link);
    wait->list = NULL;
}

/* ---- housekeeping -----------------------------------------------------------------------------------------
 */

void bt_upstreams_retire(struct bt_upstreams *upstreams, const struct bt_agent *agent)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(upstreams->ages); i++) {
        struct bt_upstream *next;
        for (struct bt_upstream *upstream = TAILQ_FIRST(&upstreams->ages[i]); upstream != NULL;
             upstream = next) {
            next = TAILQ_NEXT(upstream, age_link);
            if (upstream->agent_address != agent->address)
                continue;
            upstream->is_retired = true;
            if (upstream->state == IDLE)
                free_upstream(upstream);
        }
    }
}

#define UPSTREAM_SIZE (4U * 1024)

void bt_upstreams_weigh(struct bt_upstreams *upstreams)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(upstreams->ages); i++) {
        const struct bt_upstream *upstream;
        TAILQ_FOREACH(upstream, &upstreams->ages[i], age_link)
        {
            struct bt_agent *agent = bt_agents_get(upstreams->gateway->agents, upstream->agent_address);
            if (agent == NULL || agent->session_count == 0)
                continue;
            agent->weight += UPSTREAM_SIZE + (upstream->is_tls ? BT_BUDGET_TLS : 0) +
                             (upstream->http2 != NULL ? bt_http2_weight(upstream->http2) : 0);
        }
    }
}

void bt_upstreams_close_all(struct bt_upstreams *upstreams, const struct bt_agent *agent)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(upstreams->ages); i++) {
        struct bt_upstream *next;
        for (struct bt_upstream *upstream = TAILQ_FIRST(&upstreams->ages[i]); upstream != NULL;
             upstream = next) {
            next = TAILQ_NEXT(upstream, age_link);
            if (upstream->agent_address == agent->address)
                free_upstream(upstream);
        }
    }
}

void bt_upstreams_close_idle(struct bt_upstreams *upstreams)
{
    while (!TAILQ_EMPTY(&upstreams->ages[IDLE]))
        free_upstream(TAILQ_FIRST(&upstreams->ages[IDLE]));
}

void bt_upstreams_sweep(struct bt_upstreams *upstreams)
{
    int64_t now_ms = bt_clock_ms();
    struct bt_upstream *upstream, *next;
    for (upstream = TAILQ_FIRST(&upstreams->ages[IDLE]);
         upstream != NULL && now_ms - upstream->since_ms >= BT_UPSTREAM_IDLE_MS; upstream = next) {
        next = TAILQ_NEXT(upstream, age_link);
        free_upstream(upstream);
    }
    for (upstream = TAILQ_FIRST(&upstreams->ages[SECURING]);
         upstream != NULL && now_ms - upstream->since_ms >= BT_UPSTREAM_SECURE_MS; upstream = next) {
        next = TAILQ_NEXT(upstream, age_link);
        struct bt_upstream_result result = {.address = upstream->address,
                                            .status = 504,
                                            .rule = "tls-failed",
                                            .reason =
                                                "the host did not finish the TLS handshake in 10 seconds"};
        fail(upstream, &result);
    }
}
