/* Where filters stand in an exchange, and what their verdicts mean for it. See exchange.h, filter.h. */
#include <string.h>

#include "policy/gateway/clock.h"
#include "policy/gateway/exchange_internal.h"

static struct bt_filter_settings settings_of(const struct bt_exchange *exchange)
{
    const struct bt_verdict *verdict = &exchange->verdict;
    return (struct bt_filter_settings){
        .dlp = verdict->dlp,
        .secrets = bt_credentials_secrets(exchange->session->agent->credentials),
        .keeps_authorization = !verdict->strips_credentials,
        .share = &exchange->session->agent->inflate_share,
        .is_injected = verdict->auth != BT_AUTH_NONE,
        .is_websocket = exchange->is_asking_websocket,
        .approved = exchange->session->agent->approved,
        .host = exchange->host,
    };
}

/* Records what was overwritten or only noticed; *ret_reason is the last find, which is why a filter stopped.
 */
static void record_findings(struct bt_exchange *exchange, struct bt_filter *filter,
                            struct bt_filter_finding *ret_reason)
{
    struct bt_filter_finding finding;
    while (bt_filter_take_finding(filter, &finding)) {
        *ret_reason = finding;
        if (finding.act != BT_FILTER_BLOCKED && finding.act != BT_FILTER_ASKED)
            bt_exchange_record(exchange, true, finding.rule, finding.reason);
    }
}

/* Follows a verdict. Returns whether the exchange goes on now. */
static bool follow(struct bt_exchange *exchange, struct bt_filter *filter, enum bt_filter_verdict verdict)
{
    struct bt_filter_finding finding = {.rule = "dlp"};
    record_findings(exchange, filter, &finding);
    if (verdict == BT_FILTER_PASS)
        return true;
    if (verdict == BT_FILTER_ASK) {
        bt_exchange_hold(exchange);
        return false;
    }
    const struct bt_refusal refusal = {403, finding.rule, finding.reason, finding.hint};
    bt_exchange_refuse(exchange, &refusal);
    return false;
}

void bt_exchange_filters_free(struct bt_exchange *exchange)
{
    exchange->request.filter = bt_filter_free(exchange->request.filter);
    exchange->response.filter = bt_filter_free(exchange->response.filter);
    exchange->filtered = bt_kept_message_free(exchange->filtered);
}

/* Bytes that came while it was found out who asks. */
static bool filter_early(struct bt_exchange *exchange, struct bt_half *half)
{
    struct evbuffer *early = half->waiting;
    bool goes_on = true;
    if (early != NULL) {
        size_t length = evbuffer_get_length(early);
        half->waiting = evbuffer_new();
        if (length != 0)
            goes_on = bt_exchange_filter_data(exchange, half, evbuffer_pullup(early, -1), length);
        evbuffer_free(early);
    }
    return goes_on;
}

bool bt_exchange_filter_kept_end(struct bt_exchange *exchange, struct bt_half *half)
{
    struct bt_message trailers;
    if (half->filter == NULL)
        return true;
    if (half->trailers == NULL)
        return bt_exchange_filter_end(exchange, half, NULL);
    bt_kept_message_get(half->trailers, &trailers);
    if (!bt_exchange_filter_end(exchange, half, &trailers))
        return false;
    struct bt_kept_message *kept = bt_message_keep(&trailers);
    (void)bt_kept_message_free(half->trailers);
    half->trailers = kept;
    return true;
}

static bool filter_head(struct bt_exchange *exchange, struct bt_message *head)
{
    if (!follow(exchange, exchange->request.filter, bt_filter_head(exchange->request.filter, head)))
        return false;
    exchange->filtered = bt_message_keep(head);
    return filter_early(exchange, &exchange->request);
}

bool bt_exchange_filter_request(struct bt_exchange *exchange, struct bt_message *head)
{
    const struct bt_filter_settings settings = settings_of(exchange);
    exchange->request.filter = bt_filter_request_new(&settings);
    exchange->request.filtered_ms = bt_clock_ms();
    exchange->response.filter = bt_filter_response_new(&settings);
    if (exchange->request.filter == NULL)
        return true;
    return filter_head(exchange, head) &&
           (!exchange->request.is_ended || bt_exchange_filter_kept_end(exchange, &exchange->request));
}

bool bt_exchange_filter_resume(struct bt_exchange *exchange)
{
    struct bt_filter *filter = exchange->request.filter;
    struct bt_message head;
    if (exchange->filtered != NULL)
        return follow(exchange, filter, bt_filter_answer(filter, true, exchange->request.waiting));
    (void)bt_filter_answer(filter, true, NULL);
    bt_exchange_get_shown_head(exchange, &head);
    return filter_head(exchange, &head);
}

bool bt_exchange_filter_response(struct bt_exchange *exchange, struct bt_message *head)
{
    struct bt_filter *filter = exchange->response.filter;
    return follow(exchange, filter, bt_filter_head(filter, head));
}

bool bt_exchange_filter_data(struct bt_exchange *exchange, struct bt_half *half, const void *data,
                             size_t length)
{
    half->filtered_ms = bt_clock_ms();
    return follow(exchange, half->filter, bt_filter_data(half->filter, data, length, half->waiting));
}

bool bt_exchange_filter_end(struct bt_exchange *exchange, struct bt_half *half, struct bt_message *trailers)
{
    if (half->filter == NULL)
        return true;
    if (half->waiting == NULL)
        half->waiting = evbuffer_new();
    return follow(exchange, half->filter, bt_filter_end(half->filter, trailers, half->waiting));
}

bool bt_exchange_filter_pause(struct bt_exchange *exchange, struct bt_half *half, int64_t now_ms)
{
    if (bt_filter_held(half->filter) == 0 || half->is_ended ||
        now_ms - half->filtered_ms < BT_FILTER_PAUSE_MS)
        return true;
    return follow(exchange, half->filter, bt_filter_flush(half->filter, half->waiting));
}
