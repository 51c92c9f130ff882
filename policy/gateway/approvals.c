/* The gateway's side of approvals. See approvals.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/approvals.h"
#include "policy/gateway/clock.h"
#include "policy/gateway/filter.h"

#define TICKET_BYTES 16
#define SHOWN_MAX 4 /* values of a question that are described; the others are counted */
#define WITHDRAWN_MAX                                                                                        \
    256 /* more than can be withdrawn in one round; the orchestrator would forget them anyway */

struct bt_hold {
    TAILQ_ENTRY(bt_hold) link;
    struct bt_approvals *approvals;
    struct bt_agent *agent;
    struct bt_approval_wait *wait; /* NULL: it was cancelled */
    char ticket[2 * TICKET_BYTES + 1];
    bool is_told;    /* to the orchestrator, which has answered */
    bool is_earlier; /* ... that the owner allowed these values before, when another worker asked */
    json_int_t number;
    int seconds;
    int64_t deadline_ms;
};

struct bt_approvals {
    struct bt_control *control;
    struct event *timer;
    TAILQ_HEAD(bt_hold_list, bt_hold) holds;
    size_t count;
    json_t *withdrawn; /* tickets that nobody waits for any more */
    bool is_polling;
};

/* ---- the end of a wait ----------------------------------------------------------------------------------
 */

static void schedule(struct bt_approvals *approvals)
{
    static const struct timeval delay = {BT_APPROVALS_POLL_MS / 1000, (BT_APPROVALS_POLL_MS % 1000) * 1000};
    bool is_needed = !TAILQ_EMPTY(&approvals->holds) || json_array_size(approvals->withdrawn) > 0;
    if (is_needed && !evtimer_pending(approvals->timer, NULL))
        (void)event_add(approvals->timer, &delay);
}

static void withdraw(struct bt_approvals *approvals, const char *ticket)
{
    if (json_array_size(approvals->withdrawn) < WITHDRAWN_MAX)
        (void)json_array_append_new(approvals->withdrawn, json_string(ticket));
    schedule(approvals);
}

static void free_hold(struct bt_approvals *approvals, struct bt_hold *hold)
{
    TAILQ_REMOVE(&approvals->holds, hold, link);
    approvals->count--;
    free(hold);
}

/* Nobody waits for it any more, whoever ends it. */
static struct bt_approval_wait *detach(struct bt_hold *hold)
{
    struct bt_approval_wait *wait = BT_TAKE(hold->wait);
    wait->hold = NULL;
    hold->agent->held_count--;
    hold->agent = NULL;
    return wait;
}

static void finish(struct bt_approvals *approvals, struct bt_hold *hold, enum bt_approval result)
{
    const struct bt_approval_answer answer = {result, hold->is_earlier, hold->number, hold->seconds};
    struct bt_approval_wait *wait = detach(hold);
    if (hold->is_told)
        withdraw(approvals, hold->ticket);
    free_hold(approvals, hold);
    wait->done(wait->context, &answer);
}

void bt_approval_wait_cancel(struct bt_approval_wait *wait)
{
    struct bt_hold *hold = wait->hold;
    if (hold == NULL)
        return;
    (void)detach(hold);
    if (!hold->is_told)
        return; /* on_told ends it */
    withdraw(hold->approvals, hold->ticket);
    free_hold(hold->approvals, hold);
}

/* ---- telling --------------------------------------------------------------------------------------------
 */

static void on_told(void *context, unsigned status, const json_t *answer)
{
    struct bt_hold *hold = context;
    struct bt_approvals *approvals = hold->approvals;
    json_int_t wait_ms = json_integer_value(json_object_get(answer, "expires_in_ms"));
    bool is_taken = status == 200 && wait_ms > 0;
    if (hold->wait == NULL) {
        if (is_taken)
            withdraw(approvals, hold->ticket);
        free_hold(approvals, hold);
        return;
    }
    hold->is_told = is_taken;
    hold->number = json_integer_value(json_object_get(answer, "number"));
    hold->seconds = (int)(wait_ms / 1000);
    hold->deadline_ms = bt_clock_ms() + wait_ms + BT_APPROVALS_SLACK_MS;
    hold->is_earlier = is_taken && json_is_true(json_object_get(answer, "remembered"));
    if (!is_taken)
        finish(approvals, hold, status == 429 ? BT_APPROVAL_TOO_MANY : BT_APPROVAL_UNAVAILABLE);
    else if (hold->is_earlier)
        finish(approvals, hold, BT_APPROVAL_REMEMBERED);
}

static json_t *describe_match(const struct bt_match *match)
{
    char rule[64];
    const char *title;
    bt_filter_name_match(match, rule, &title);
    return json_pack("{s:s, s:s, s:s, s:I, s:s}", "rule", rule, "title", title, "excerpt", match->excerpt,
                     "offset", (json_int_t)match->offset, "digest", match->digest);
}

static json_t *describe(const struct bt_hold *hold, const struct bt_approval_question *question)
{
    const struct bt_matches *matches = question->matches;
    size_t shown = matches->count < SHOWN_MAX ? matches->count : SHOWN_MAX;
    json_t *finds = json_array();
    for (size_t i = 0; i < shown; i++)
        (void)json_array_append_new(finds, describe_match(&matches->items[i]));
    return json_pack("{s:s, s:i, s:I, s:s, s:i, s:s, s:s, s:s, s:o, s:i}", "ticket", hold->ticket, "slot",
                     (int)hold->agent->slot, "generation", (json_int_t)hold->agent->generation, "host",
                     question->host, "port", (int)question->port, "method", question->method, "path",
                     question->path, "place", question->is_head ? "head" : "body", "finds", finds, "more",
                     (int)(matches->count - shown));
}

/* A token bucket kept as a point in time, as report.c has them. */
static bool may_ask(struct bt_agent *agent)
{
    int64_t now_ms = bt_clock_ms();
    int64_t oldest_ms = now_ms - (int64_t)BT_APPROVALS_BURST * BT_APPROVALS_EACH_MS;
    if (agent->ask_credit_ms < oldest_ms)
        agent->ask_credit_ms = oldest_ms;
    if (agent->ask_credit_ms >= now_ms)
        return false;
    agent->ask_credit_ms += BT_APPROVALS_EACH_MS;
    return true;
}

void bt_approvals_ask(struct bt_approvals *approvals, struct bt_agent *agent,
                      const struct bt_approval_question *question, struct bt_approval_wait *wait,
                      void (*done)(void *context, const struct bt_approval_answer *answer), void *context)
{
    static const struct bt_approval_answer full = {.result = BT_APPROVAL_TOO_MANY};
    if (approvals->count >= BT_APPROVALS_MAX || agent->held_count >= BT_APPROVALS_AGENT_MAX ||
        !may_ask(agent)) {
        done(context, &full);
        return;
    }
    struct bt_hold *hold = bt_new(1, sizeof(*hold));
    *wait = (struct bt_approval_wait){hold, done, context};
    hold->approvals = approvals;
    hold->agent = agent;
    hold->wait = wait;
    hold->deadline_ms = INT64_MAX;
    bt_random_hex(hold->ticket, TICKET_BYTES);
    agent->held_count++;
    approvals->count++;
    TAILQ_INSERT_TAIL(&approvals->holds, hold, link);
    bt_control_post(approvals->control, "/v1/approvals", describe(hold, question), false, on_told, hold);
    schedule(approvals);
}

/* ---- asking for answers ---------------------------------------------------------------------------------
 */

static enum bt_approval result_of(const char *state)
{
    static const struct {
        const char *state;
        enum bt_approval result;
    } states[] = {{"allowed", BT_APPROVAL_ALLOWED},
                  {"remembered", BT_APPROVAL_REMEMBERED},
                  {"denied", BT_APPROVAL_DENIED},
                  {"expired", BT_APPROVAL_EXPIRED}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(states); i++)
        if (strcmp(states[i].state, state) == 0)
            return states[i].result;
    return BT_APPROVAL_UNAVAILABLE; /* it started anew, and knows nothing of it */
}

static struct bt_hold *find(const struct bt_approvals *approvals, const char *ticket)
{
    struct bt_hold *hold;
    TAILQ_FOREACH(hold, &approvals->holds, link)
    if (strcmp(hold->ticket, ticket) == 0)
        return hold;
    return NULL;
}

/* An answer ends requests, which may end others: each is looked for anew. */
static void on_polled(void *context, unsigned status, const json_t *answer)
{
    struct bt_approvals *approvals = context;
    const json_t *answers = json_object_get(answer, "answers");
    const char *ticket;
    json_t *state;
    approvals->is_polling = false;
    if (status == 200) {
        json_object_foreach((json_t *)(uintptr_t)answers, ticket, state)
        {
            const char *text = json_is_string(state) ? json_string_value(state) : "";
            struct bt_hold *hold = strcmp(text, "waiting") != 0 ? find(approvals, ticket) : NULL;
            if (hold != NULL && hold->wait != NULL && hold->is_told)
                finish(approvals, hold, result_of(text));
        }
    }
    schedule(approvals);
}

/* The first one that waited too long, or NULL. */
static struct bt_hold *find_late(const struct bt_approvals *approvals, int64_t now_ms)
{
    struct bt_hold *hold;
    TAILQ_FOREACH(hold, &approvals->holds, link)
    if (hold->wait != NULL && now_ms >= hold->deadline_ms)
        return hold;
    return NULL;
}

void bt_approvals_poll(struct bt_approvals *approvals)
{
    struct bt_hold *hold;
    while ((hold = find_late(approvals, bt_clock_ms())) != NULL)
        finish(approvals, hold, BT_APPROVAL_EXPIRED);
    json_t *held = json_array();
    TAILQ_FOREACH(hold, &approvals->holds, link)
    if (hold->is_told)
        (void)json_array_append_new(held, json_string(hold->ticket));
    bool is_empty = json_array_size(held) == 0 && json_array_size(approvals->withdrawn) == 0;
    if (approvals->is_polling || is_empty) {
        json_decref(held);
        schedule(approvals);
        return;
    }
    json_t *withdrawn = approvals->withdrawn;
    approvals->withdrawn = json_array();
    approvals->is_polling = true;
    bt_control_post(approvals->control, "/v1/held",
                    json_pack("{s:o, s:o}", "held", held, "withdrawn", withdrawn), false, on_polled,
                    approvals);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    bt_approvals_poll(context);
}

struct bt_approvals *bt_approvals_new(struct event_base *base, struct bt_control *control)
{
    struct bt_approvals *approvals = bt_new(1, sizeof(*approvals));
    approvals->control = control;
    approvals->withdrawn = json_array();
    TAILQ_INIT(&approvals->holds);
    approvals->timer = evtimer_new(base, on_timer, approvals);
    return approvals->timer != NULL ? approvals : bt_approvals_free(approvals);
}

struct bt_approvals *bt_approvals_free(struct bt_approvals *approvals)
{
    if (approvals == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&approvals->holds))
        free_hold(approvals, TAILQ_FIRST(&approvals->holds));
    json_decref(approvals->withdrawn);
    if (approvals->timer != NULL)
        event_free(approvals->timer);
    free(approvals);
    return NULL;
}
