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

/* The samples of one metric are together in the page, and agents are visited once: a text a metric. */
struct page {
    const struct bt_api *api;
    int64_t now_ms;
    unsigned agents;
    struct bt_buffer samples[BT_ARRAY_LENGTH(metrics)];
    bool is_full;
};

/* Label values may hold anything but what ends them. */
static int add_label(struct bt_buffer *text, const char *value)
{
    int result = 0;
    for (; *value != '\0' && result == 0; value++) {
        const char *escaped = *value == '"'    ? "\\\""
                              : *value == '\\' ? "\\\\"
                              : *value == '\n' ? "\\n"
                                               : NULL;
        result = escaped != NULL ? bt_buffer_add_text(text, escaped) : bt_buffer_add(text, value, 1);
    }
    return result;
}

static int add_sample(struct bt_buffer *text, const struct metric *metric,
                      const struct bt_registry_agent *agent, long long value)
{
    int result = bt_buffer_add_format(text, "%s{agent=\"", metric->name);
    if (result == 0)
        result = add_label(text, agent->name);
    return result == 0 ? bt_buffer_add_format(text, "\",slot=\"%u\"} %lld\n", agent->slot, value) : result;
}

static void add_agent(void *context, const struct bt_registry_agent *agent)
{
    struct page *page = context;
    json_t *counters = bt_counters_get(page->api->counters, agent->slot, agent->generation, page->now_ms);
    page->agents++;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(metrics); i++)
        if (add_sample(&page->samples[i], &metrics[i], agent,
                       json_integer_value(json_object_get(counters, metrics[i].key))) < 0)
            page->is_full = true;
    json_decref(counters);
}

/* Puts the gauges, and the metrics with their samples, one behind the other. */
static int write_page(const struct page *page, struct bt_buffer *text)
{
    int result = bt_buffer_add_format(text,
                                      "# HELP berth_agents Registered agents.\n# TYPE berth_agents gauge\n"
                                      "berth_agents %u\n",
                                      page->agents);
    if (result == 0 && page->api->gateway_seen_ms >= 0)
        result =
            bt_buffer_add_format(text,
                                 "# HELP berth_gateway_seen_seconds Since the gateway's last call.\n"
                                 "# TYPE berth_gateway_seen_seconds gauge\nberth_gateway_seen_seconds %lld\n",
                                 (long long)((page->now_ms - page->api->gateway_seen_ms) / 1000));
    for (size_t i = 0; i < BT_ARRAY_LENGTH(metrics) && result == 0; i++) {
        result = bt_buffer_add_format(text, "# HELP %s %s.\n# TYPE %s counter\n", metrics[i].name,
                                      metrics[i].help, metrics[i].name);
        if (result == 0 && page->samples[i].length != 0)
            result = bt_buffer_add(text, page->samples[i].data, page->samples[i].length);
    }
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
    struct page page = {.api = api, .now_ms = bt_api_now_ms()};
    bt_auto_buffer text = {.limit = METRICS_MAX};
    struct bt_error error;
    (void)parts;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(metrics); i++)
        page.samples[i].limit = METRICS_MAX;
    int result = bt_registry_visit(api->registry, add_agent, &page, &error);
    if (result < 0)
        bt_api_refuse_error(request, &error);
    else if (page.is_full || write_page(&page, &text) < 0)
        bt_api_refuse(request, 500, "the metrics are larger than can be answered", NULL);
    else
        send_page(request, &text);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(metrics); i++)
        bt_buffer_free(&page.samples[i]);
}
