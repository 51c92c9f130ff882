/* The pool of upstream connections. See upstream.h. */
#include "policy/gateway/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/clock.h"
#include "policy/gateway/dial.h"
#include "policy/gateway/http1_codec.h"
#include "policy/gateway/tls.h"

#define BUCKETS 1024

enum state {
    DIALLING,
    SECURING, /* the TLS handshake is under way */
    IDLE,
    BUSY,
};

struct bt_upstream {
    LIST_ENTRY(bt_upstream) bucket_link;
    TAILQ_ENTRY(bt_upstream) age_link; /* by when it changed its state */
    struct bt_upstreams *pool;
    /* Whose it is, and where it leads. */
    uint32_t agent_address, generation;
    uint16_t slot, port;
    bool is_tls, may_be_private;
    char host[BT_HOST_NAME_SIZE];

    enum state state;
    int64_t since_ms;
    bool is_retired; /* carries what it carries, and nothing more */
    struct bt_dial *dial;
    struct bt_channel *channel; /* until a codec owns it */
    struct bt_http1 *http1;
    uint32_t address;
    TAILQ_HEAD(bt_upstream_waits, bt_upstream_wait) waits;
};

struct bt_upstreams {
    struct bt_gateway *gateway;
    size_t count;
    uint16_t idle_counts[BUCKETS]; /* by agent */
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

/* How many idle connections an agent has; agents that share an entry share its allowance. */
static uint16_t *idle_count(const struct bt_upstream *upstream)
{
    return &upstream->pool->idle_counts[upstream->agent_address % BUCKETS];
}

static void set_state(struct bt_upstream *upstream, enum state state)
{
    *idle_count(upstream) = (uint16_t)(*idle_count(upstream) - (upstream->state == IDLE) + (state == IDLE));
    TAILQ_REMOVE(&upstream->pool->ages[upstream->state], upstream, age_link);
    upstream->state = state;
    upstream->since_ms = bt_clock_ms();
    TAILQ_INSERT_TAIL(&upstream->pool->ages[state], upstream, age_link);
}

static void free_upstream(struct bt_upstream *upstream)
{
    struct bt_upstream_wait *wait;
    TAILQ_FOREACH(wait, &upstream->waits, link)
    wait->upstream = NULL;
    LIST_REMOVE(upstream, bucket_link);
    TAILQ_REMOVE(&upstream->pool->ages[upstream->state], upstream, age_link);
    upstream->pool->count--;
    *idle_count(upstream) = (uint16_t)(*idle_count(upstream) - (upstream->state == IDLE));
    bt_dial_cancel(upstream->dial);
    bt_channel_free(upstream->channel);
    bt_http1_free(upstream->http1);
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

/* The connection does not come up: whoever waits for it is told, and it goes. */
static void fail(struct bt_upstream *upstream, const struct bt_upstream_result *result)
{
    struct bt_upstream_waits waits = TAILQ_HEAD_INITIALIZER(waits);
    struct bt_upstream_wait *wait;
    TAILQ_CONCAT(&waits, &upstream->waits, link);
    TAILQ_FOREACH(wait, &waits, link)
    wait->upstream = NULL;
    free_upstream(upstream);
    while ((wait = TAILQ_FIRST(&waits)) != NULL) {
        TAILQ_REMOVE(&waits, wait, link);
        wait->done(wait->context, result);
    }
}

/* Hands a stream of an idle connection to a caller. */
static void serve(struct bt_upstream *upstream, bool is_reused,
                  void (*done)(void *context, const struct bt_upstream_result *result), void *context)
{
    struct bt_upstream_result result = {.address = upstream->address, .is_reused = is_reused};
    result.stream = bt_http1_open(upstream->http1);
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

static void establish(struct bt_upstream *upstream)
{
    const struct bt_parent_proxy *parent = &upstream->pool->gateway->settings.parent;
    struct bt_http1_settings settings = {
        .is_client = true,
        .is_proxy = parent->is_set && !upstream->is_tls,
        .scheme = upstream->is_tls ? "https" : "http",
        .authorization = parent->authorization[0] != '\0' ? parent->authorization : NULL,
    };
    struct bt_upstream_wait *wait = TAILQ_FIRST(&upstream->waits);
    upstream->http1 = bt_http1_new(BT_TAKE(upstream->channel), &settings, &http1_events, upstream);
    set_state(upstream, IDLE);
    if (wait == NULL)
        return; /* cancelled meanwhile; the next request may use it */
    TAILQ_REMOVE(&upstream->waits, wait, link);
    wait->upstream = NULL;
    serve(upstream, false, wait->done, wait->context);
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
    SSL *ssl = bt_tls_connect(upstream->pool->gateway->tls, upstream->host, false, NULL);
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

static struct bt_upstream *find_idle(struct bt_upstreams *upstreams, const struct bt_upstream_target *target)
{
    struct bt_upstream *upstream;
    int64_t oldest_ms = bt_clock_ms() - target->idle_ms_max;
    LIST_FOREACH(upstream, bucket_of(upstreams, target), bucket_link)
    if (upstream->state == IDLE && !upstream->is_retired && is_for(upstream, target) &&
        upstream->since_ms >= oldest_ms && bt_http1_state_of(upstream->http1) == BT_HTTP1_IDLE)
        return upstream;
    return NULL;
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
    upstream->since_ms = bt_clock_ms();
    memcpy(upstream->host, target->host, strlen(target->host) + 1);
    TAILQ_INIT(&upstream->waits);
    LIST_INSERT_HEAD(bucket_of(upstreams, target), upstream, bucket_link);
    TAILQ_INSERT_TAIL(&upstreams->ages[DIALLING], upstream, age_link);
    upstreams->count++;
    upstream->dial = bt_dial_start(upstreams->gateway, target->agent, target->host, target->port,
                                   target->may_be_private, target->is_tls, on_dialled, upstream);
    return upstream;
}

void bt_upstreams_ask(struct bt_upstreams *upstreams, const struct bt_upstream_target *target,
                      struct bt_upstream_wait *wait,
                      void (*done)(void *context, const struct bt_upstream_result *result), void *context)
{
    struct bt_upstream *upstream = find_idle(upstreams, target);
    if (upstream != NULL) {
        serve(upstream, true, done, context);
        return;
    }
    if (upstreams->count >= upstreams->gateway->session_limit && !TAILQ_EMPTY(&upstreams->ages[IDLE]))
        free_upstream(TAILQ_FIRST(&upstreams->ages[IDLE]));
    if (upstreams->count >= upstreams->gateway->session_limit) {
        struct bt_upstream_result result = {
            .status = 503, .rule = "too-many", .reason = "too many connections to hosts at once"};
        done(context, &result);
        return;
    }
    *wait = (struct bt_upstream_wait){.upstream = start(upstreams, target), .done = done, .context = context};
    TAILQ_INSERT_TAIL(&wait->upstream->waits, wait, link);
}

void bt_upstream_wait_cancel(struct bt_upstream_wait *wait)
{
    if (wait->upstream == NULL)
        return;
    TAILQ_REMOVE(&wait->upstream->waits, wait, link);
    wait->upstream = NULL;
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

void bt_upstreams_sweep(struct bt_upstreams *upstreams)
{
    int64_t now_ms = bt_clock_ms();
    struct bt_upstream *upstream;
    while ((upstream = TAILQ_FIRST(&upstreams->ages[IDLE])) != NULL &&
           now_ms - upstream->since_ms >= BT_UPSTREAM_IDLE_MS)
        free_upstream(upstream);
    while ((upstream = TAILQ_FIRST(&upstreams->ages[SECURING])) != NULL &&
           now_ms - upstream->since_ms >= BT_UPSTREAM_SECURE_MS) {
        struct bt_upstream_result result = {.address = upstream->address,
                                            .status = 504,
                                            .rule = "tls-failed",
                                            .reason =
                                                "the host did not finish the TLS handshake in 10 seconds"};
        fail(upstream, &result);
    }
}
