/* Reports to the orchestrator. See report.h.
 *
 * An agent can cause decisions as fast as it can send packets: each agent has RECORD_RATE records a second
 * (with a burst) of what it reached and as many of what was refused, the queue has QUEUE_MAX, and what is
 * above is only counted.
 */
#include "policy/gateway/report.h"

#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/clock.h"

#define QUEUE_MAX 4096
#define BATCH_MAX 256
#define RECORD_RATE 50
#define RECORD_BURST 500
#define ALIVE_MS 2000
#define RETRY_MS 300

struct bt_report {
    struct bt_control *control;
    struct bt_agents *agents;
    unsigned worker;
    struct event *flush;
    struct event *alive;
    json_t *queue;     /* array of records, oldest first */
    size_t in_flight;  /* of them, being sent */
    bool has_news;     /* of counters */
    bool is_counting;  /* counters are being sent */
    bool was_answered; /* the last report arrived */
    uint64_t dropped;
};

static void schedule(struct event *timer, int delay_ms)
{
    struct timeval delay = {delay_ms / 1000, (delay_ms % 1000) * 1000};
    if (!evtimer_pending(timer, NULL))
        (void)event_add(timer, &delay);
}

static json_t *printable(const char *text)
{
    char clean[256];
    size_t length = 0;
    for (; text[length] != '\0' && length + 1 < sizeof(clean); length++)
        clean[length] = (char)(text[length] >= ' ' && text[length] < 0x7f ? text[length] : '?');
    return json_stringn(clean, length);
}

static json_t *make_record(const struct bt_agent *agent, const struct bt_decision *decision)
{
    char address[BT_IPV4_TEXT_SIZE] = "";
    static const struct bt_agent nobody;
    if (agent == NULL)
        agent = &nobody;
    if (decision->address != 0)
        bt_ipv4_format(decision->address, address);
    json_t *record = json_pack(
        "{s:I, s:i, s:I, s:s, s:s, s:o, s:i, s:o, s:b, s:s, s:o, s:o, s:s}", "time",
        (json_int_t)bt_clock_wall_ms(), "slot", agent->is_known ? (int)agent->slot : -1, "generation",
        agent->is_known ? (json_int_t)agent->generation : 0, "agent", agent->name, "kind", decision->kind,
        "host", printable(decision->host), "port", (int)decision->port, "method", printable(decision->method),
        "allowed", decision->is_allowed, "rule", decision->rule, "reason", printable(decision->reason),
        "granted_by", printable(decision->granted_by), "address", address);
    if (decision->path != NULL)
        (void)json_object_set_new(record, "path", printable(decision->path));
    return record;
}

/* A token bucket kept as a point in time: credit is how far it lies behind now. What was allowed has one of
 * its own: refusals cost an agent nothing, and must not crowd out the record of what it reached. */
static bool may_record(struct bt_agent *agent, bool is_allowed)
{
    int64_t *credit_ms = &agent->record_credit_ms[is_allowed];
    int64_t now_ms = bt_clock_ms();
    int64_t oldest_ms = now_ms - RECORD_BURST * 1000 / RECORD_RATE;
    if (*credit_ms < oldest_ms)
        *credit_ms = oldest_ms;
    if (*credit_ms >= now_ms)
        return false;
    *credit_ms += 1000 / RECORD_RATE;
    return true;
}

void bt_report_decision(struct bt_report *report, struct bt_agent *agent, const struct bt_decision *decision)
{
    if (decision->is_allowed)
        agent->counters.allowed++;
    else
        agent->counters.refused++;
    bt_report_counters(report, agent);
    size_t limit = decision->is_allowed ? QUEUE_MAX : QUEUE_MAX / 4 * 3;
    if (json_array_size(report->queue) < limit && may_record(agent, decision->is_allowed))
        (void)json_array_append_new(report->queue, make_record(agent, decision));
    else
        report->dropped++;
}

void bt_report_counters(struct bt_report *report, struct bt_agent *agent)
{
    agent->has_news = true;
    report->has_news = true;
    schedule(report->flush, report->was_answered ? BT_REPORT_FLUSH_MS : RETRY_MS);
}

static void settle(struct bt_report *report, bool is_answered)
{
    report->was_answered = is_answered;
    if (json_array_size(report->queue) > 0 || report->has_news)
        schedule(report->flush, is_answered ? BT_REPORT_FLUSH_MS : RETRY_MS);
}

static void on_decisions_sent(void *context, unsigned status, const json_t *answer)
{
    struct bt_report *report = context;
    size_t sent = report->in_flight;
    (void)answer;
    report->in_flight = 0;
    /* A batch that is refused as malformed would be refused for ever. */
    for (size_t i = 0; i < sent && (status == 200 || status == 400); i++)
        (void)json_array_remove(report->queue, 0);
    if (status == 400)
        report->dropped += sent;
    settle(report, status == 200);
}

static void on_counters_sent(void *context, unsigned status, const json_t *answer)
{
    struct bt_report *report = context;
    (void)answer;
    report->is_counting = false;
    report->has_news = report->has_news || status != 200;
    settle(report, status == 200);
}

static void add_dropped(struct bt_report *report)
{
    bt_auto_free char *reason = bt_string_format("%llu decision records were dropped: too many at once",
                                                 (unsigned long long)report->dropped);
    struct bt_decision note = {
        .kind = "gateway", .host = "", .method = "", .rule = "dropped", .reason = reason, .granted_by = ""};
    (void)json_array_append_new(report->queue, make_record(NULL, &note));
    report->dropped = 0;
}

static void send_decisions(struct bt_report *report)
{
    if (report->dropped > 0 && json_array_size(report->queue) < BATCH_MAX)
        add_dropped(report);
    json_t *batch = json_array();
    for (size_t i = 0; i < json_array_size(report->queue) && i < BATCH_MAX; i++)
        (void)json_array_append(batch, json_array_get(report->queue, i));
    report->in_flight = json_array_size(batch);
    bt_control_post(report->control, "/v1/decisions", batch, false, on_decisions_sent, report);
}

struct collection {
    json_t *entries;
    unsigned worker;
    bool wants_all; /* after a report was lost, or the orchestrator may have started anew */
};

static void collect(void *context, struct bt_agent *agent)
{
    struct collection *collection = context;
    if (!agent->has_news && !collection->wants_all)
        return;
    agent->has_news = false;
    const struct bt_agent_counters *counters = &agent->counters;
    (void)json_array_append_new(
        collection->entries,
        json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "worker", (int)collection->worker, "slot",
                  (int)agent->slot, "generation", (json_int_t)agent->generation, "dns_questions",
                  (json_int_t)counters->dns_questions, "upstream_questions",
                  (json_int_t)counters->upstream_questions, "allowed", (json_int_t)counters->allowed,
                  "refused", (json_int_t)counters->refused, "bytes", (json_int_t)counters->bytes));
}

static void send_counters(struct bt_report *report, bool wants_all)
{
    struct collection collection = {json_array(), report->worker, wants_all || !report->was_answered};
    report->has_news = false;
    report->is_counting = true;
    bt_agents_visit(report->agents, collect, &collection);
    bt_control_post(report->control, "/v1/counters", collection.entries, false, on_counters_sent, report);
}

static void on_flush(evutil_socket_t fd, short what, void *context)
{
    struct bt_report *report = context;
    (void)fd;
    (void)what;
    if (report->in_flight == 0 && (json_array_size(report->queue) > 0 || report->dropped > 0))
        send_decisions(report);
    if (!report->is_counting && report->has_news)
        send_counters(report, false);
}

/* The sign of life; also what makes the first connection and fetches the first token. */
static void on_alive(evutil_socket_t fd, short what, void *context)
{
    struct bt_report *report = context;
    (void)fd;
    (void)what;
    if (!report->is_counting)
        send_counters(report, true);
    schedule(report->alive, report->was_answered ? ALIVE_MS : RETRY_MS);
}

struct bt_report *bt_report_new(struct event_base *base, struct bt_control *control, struct bt_agents *agents,
                                unsigned worker)
{
    struct bt_report *report = bt_new(1, sizeof(*report));
    report->control = control;
    report->agents = agents;
    report->worker = worker;
    report->queue = json_array();
    report->flush = evtimer_new(base, on_flush, report);
    report->alive = evtimer_new(base, on_alive, report);
    if (report->queue == NULL || report->flush == NULL || report->alive == NULL)
        return bt_report_free(report);
    schedule(report->alive, 0);
    return report;
}

struct bt_report *bt_report_free(struct bt_report *report)
{
    if (report == NULL)
        return NULL;
    if (report->flush != NULL)
        event_free(report->flush);
    if (report->alive != NULL)
        event_free(report->alive);
    json_decref(report->queue);
    free(report);
    return NULL;
}
