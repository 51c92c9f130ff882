/* GET /v1/metrics: what the gateway counted, in Prometheus' text format (version 0.0.4). For the host alone,
 * on the control network: names of agents and what they do are nobody else's business.
 */
#include <event2/buffer.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/orchestrator/api.h"

#define METRICS_MAX (1024 * 1024)

static const struct metric {
    const char *key; /* of bt_counters_get */
    const char *name, *help;
} metrics[] = {
    {"allowed", "berth_gateway_allowed_total", "Connections and requests that the policy allowed"},
    {"refused", "berth_gateway_refused_total", "Connections, requests and questions that were refused"},
    {"bytes", "berth_gateway_bytes_total", "Bytes between agents and the internet"},
    {"dns_questions", "berth_gateway_dns_questions_total", "Questions that agents asked"},
    {"upstream_questions", "berth_gateway_upstream_questions_total",
     "Questions that the gateway asked for agents"},
};

struct page {
    const struct bt_api *api;
    const struct metric *metric; /* NULL: agents are counted */
    int64_t now_ms;
    unsigned agents;
    struct bt_buffer text;
    bool is_full;
};

/* Label values may hold anything but what ends them. */
static void add_label(struct page *page, const char *value)
{
    for (; *value != '\0'; value++) {
        const char *escaped = *value == '"'    ? "\\\""
                              : *value == '\\' ? "\\\\"
                              : *value == '\n' ? "\\n"
                                               : NULL;
        int result =
            escaped != NULL ? bt_buffer_add_text(&page->text, escaped) : bt_buffer_add(&page->text, value, 1);
        page->is_full = page->is_full || result < 0;
    }
}

static void add_agent(void *context, const struct bt_registry_agent *agent)
{
    struct page *page = context;
    page->agents++;
    if (page->metric == NULL)
        return;
    json_t *counters = bt_counters_get(page->api->counters, agent->slot, agent->generation, page->now_ms);
    int result = bt_buffer_add_format(&page->text, "%s{agent=\"", page->metric->name);
    add_label(page, agent->name);
    if (result == 0)
        result =
            bt_buffer_add_format(&page->text, "\",slot=\"%u\"} %lld\n", agent->slot,
                                 (long long)json_integer_value(json_object_get(counters, page->metric->key)));
    page->is_full = page->is_full || result < 0;
    json_decref(counters);
}

/* One metric, all agents; NULL: how many agents there are. */
static int add_metric(struct page *page, const struct metric *metric, struct bt_error *error)
{
    page->metric = metric;
    page->agents = 0;
    int result = metric == NULL ? 0
                                : bt_buffer_add_format(&page->text, "# HELP %s %s.\n# TYPE %s counter\n",
                                                       metric->name, metric->help, metric->name);
    page->is_full = page->is_full || result < 0;
    return bt_registry_visit(page->api->registry, add_agent, page, error);
}

static int add_gauges(struct page *page, struct bt_error *error)
{
    int result = add_metric(page, NULL, error);
    int added = bt_buffer_add_format(&page->text,
                                     "# HELP berth_agents Registered agents.\n# TYPE berth_agents gauge\n"
                                     "berth_agents %u\n",
                                     page->agents);
    if (added == 0 && page->api->gateway_seen_ms >= 0)
        added =
            bt_buffer_add_format(&page->text,
                                 "# HELP berth_gateway_seen_seconds Since the gateway's last call.\n"
                                 "# TYPE berth_gateway_seen_seconds gauge\nberth_gateway_seen_seconds %lld\n",
                                 (long long)((page->now_ms - page->api->gateway_seen_ms) / 1000));
    page->is_full = page->is_full || added < 0;
    return result;
}

static void send_page(struct evhttp_request *request, const struct bt_buffer *text)
{
    struct evbuffer *body = evbuffer_new();
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    bool is_whole = body != NULL && evbuffer_add(body, text->data, text->length) == 0;
    evhttp_add_header(headers, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    evhttp_add_header(headers, "Cache-Control", "no-store");
    evhttp_send_reply(request, is_whole ? 200 : 500, NULL, body);
    if (body != NULL)
        evbuffer_free(body);
}

void bt_api_get_metrics(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    struct page page = {.api = api, .now_ms = bt_api_now_ms(), .text = {.limit = METRICS_MAX}};
    struct bt_error error;
    int result = add_gauges(&page, &error);
    (void)parts;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(metrics) && result == 0; i++)
        result = add_metric(&page, &metrics[i], &error);
    if (result < 0)
        bt_api_refuse_error(request, &error);
    else if (page.is_full)
        bt_api_refuse(request, 500, "the metrics are larger than can be answered", NULL);
    else
        send_page(request, &page.text);
    bt_buffer_free(&page.text);
}
