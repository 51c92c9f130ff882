/* A request that is held until its owner answered. See exchange.h, approvals.h.
 *
 * Its head, and what of its body was read, stay where they are; what still comes is kept as it is, and the
 * sender gets no leave to send more than a stream may have under way. Nothing goes on to the host meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>

#include "policy/gateway/exchange_internal.h"

/* "the request carries a GitHub token (dlp:github-token)" */
static void say_what(struct bt_exchange *exchange)
{
    const struct bt_matches *matches = bt_filter_matches(exchange->request.filter);
    char rule[64];
    const char *title;
    bt_filter_name_match(&matches->items[0], rule, &title);
    (void)snprintf(exchange->asked, sizeof(exchange->asked), "the request carries %s (%s)%s", title, rule,
                   matches->count > 1 ? " and more" : "");
}

static void refuse(struct bt_exchange *exchange, const struct bt_approval_answer *answer)
{
    static const struct {
        const char *rule, *what, *hint;
    } words[] = {
        [BT_APPROVAL_DENIED] = {"approval:denied", "its owner refused it", "take it out of the request"},
        [BT_APPROVAL_EXPIRED] = {"approval:expired", "nobody answered in time",
                                 "try again while the owner of this agent looks at berth approvals list"},
        [BT_APPROVAL_TOO_MANY] = {"approval:too-many", "too many requests wait for the owner already",
                                  "try again later; the owner sees them with berth approvals list"},
        [BT_APPROVAL_UNAVAILABLE] = {"approval:unavailable", "its owner cannot be asked now",
                                     "try again later"},
    };
    char reason[256];
    (void)snprintf(reason, sizeof(reason), "%s, and %s", exchange->asked, words[answer->result].what);
    const struct bt_refusal refusal = {403, words[answer->result].rule, reason, words[answer->result].hint};
    bt_exchange_refuse(exchange, &refusal);
}

/* What came while nobody might look at it. Returns whether the exchange goes on. */
static bool take_behind(struct bt_exchange *exchange)
{
    struct bt_half *half = &exchange->request;
    struct evbuffer *behind = BT_TAKE(half->behind);
    size_t length = behind != NULL ? evbuffer_get_length(behind) : 0;
    bool goes_on =
        length == 0 || bt_exchange_filter_data(exchange, half, evbuffer_pullup(behind, -1), length);
    if (behind != NULL)
        evbuffer_free(behind);
    return goes_on && (!half->is_ended || bt_exchange_filter_kept_end(exchange, half));
}

static void on_answer(void *context, const struct bt_approval_answer *answer)
{
    struct bt_exchange *exchange = context;
    char reason[256];
    exchange->is_held = false;
    if (answer->result != BT_APPROVAL_ALLOWED && answer->result != BT_APPROVAL_REMEMBERED) {
        refuse(exchange, answer);
        return;
    }
    if (answer->result == BT_APPROVAL_REMEMBERED)
        bt_approved_add(&exchange->session->agent->approved, exchange->host,
                        bt_filter_matches(exchange->request.filter));
    if (answer->is_earlier)
        (void)snprintf(reason, sizeof(reason), "%s, which its owner allowed until the agent ends",
                       exchange->asked);
    else
        (void)snprintf(reason, sizeof(reason), "%s, and its owner allowed it (question %lld)",
                       exchange->asked, (long long)answer->number);
    bt_exchange_record(exchange, true, answer->is_earlier ? "approval:remembered" : "approval:allowed",
                       reason);
    if (bt_exchange_filter_resume(exchange) && take_behind(exchange))
        bt_exchange_resume(exchange);
}

void bt_exchange_hold(struct bt_exchange *exchange)
{
    struct bt_session *session = exchange->session;
    struct bt_message head;
    char path[BT_FILTER_PATH_SIZE];
    bt_kept_message_get(exchange->head, &head);
    bt_filter_show_path(exchange->request.filter, head.path, path);
    const struct bt_approval_question question = {
        .host = exchange->host,
        .port = exchange->port,
        .method = exchange->method,
        .path = path,
        .is_head = exchange->filtered == NULL,
        .matches = bt_filter_matches(exchange->request.filter),
    };
    say_what(exchange);
    exchange->is_held = true;
    bt_approvals_ask(session->gateway->approvals, session->agent, &question, &exchange->approval, on_answer,
                     exchange);
}

void bt_exchange_hold_data(struct bt_half *half, const void *data, size_t length)
{
    if (half->behind == NULL)
        half->behind = evbuffer_new();
    if (half->behind == NULL || evbuffer_add(half->behind, data, length) < 0)
        abort(); /* out of memory, as in bt_new */
}
