/* The gateway's side of approvals, with a clock and an orchestrator that the test plays: who waits, for how
 * long, and what an answer ends. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/gateway/approvals.h"
#include "tests/lib/fake/gateway_clock.h"

#define CALLS_MAX 64

static struct call {
    char path[32];
    json_t *body;
    bt_control_done *done;
    void *context;
} calls[CALLS_MAX]; /* that wait for their answer, oldest first */
static size_t call_count;

void bt_control_post(struct bt_control *control, const char *path, json_t *body, bool is_urgent,
                     bt_control_done *done, void *context)
{
    (void)control;
    assert_false(is_urgent); /* who is waited for by other agents goes first */
    assert_true(call_count < CALLS_MAX);
    struct call *call = &calls[call_count++];
    *call = (struct call){.body = body, .done = done, .context = context};
    snprintf(call->path, sizeof(call->path), "%s", path);
}

/* Answers the oldest call, which must be to this path. document: taken over. */
static void answer(const char *path, unsigned status, json_t *document)
{
    assert_true(call_count > 0);
    struct call call = calls[0];
    assert_string_equal(call.path, path);
    memmove(calls, calls + 1, --call_count * sizeof(*calls));
    call.done(call.context, status, document);
    json_decref(call.body);
    json_decref(document);
}

static void told(int number)
{
    answer("/v1/approvals", 200, json_pack("{s:i, s:i}", "number", number, "expires_in_ms", 300000));
}

struct world {
    struct event_base *base;
    struct bt_approvals *approvals;
    struct bt_agent agents[2];
    struct bt_matches matches;
};

struct waiter {
    struct bt_approval_wait wait;
    bool is_done;
    struct bt_approval_answer answer;
};

static void on_done(void *context, const struct bt_approval_answer *given)
{
    struct waiter *waiter = context;
    assert_false(waiter->is_done);
    waiter->is_done = true;
    waiter->answer = *given;
}

static void ask(struct world *world, size_t agent, struct waiter *waiter)
{
    const struct bt_approval_question question = {
        .host = "api.example", .port = 443, .method = "POST", .path = "/v1", .matches = &world->matches};
    *waiter = (struct waiter){0};
    bt_approvals_ask(world->approvals, &world->agents[agent], &question, &waiter->wait, on_done, waiter);
}

/* The ticket of the question that was asked last. */
static const char *ticket(void)
{
    static char text[33];
    snprintf(text, sizeof(text), "%s",
             json_string_value(json_object_get(calls[call_count - 1].body, "ticket")));
    return text;
}

static int make_world(void **state)
{
    struct world *world = bt_new(1, sizeof(*world));
    now_ms = 1000000;
    call_count = 0;
    world->base = event_base_new();
    world->approvals = bt_approvals_new(world->base, NULL);
    world->agents[0].slot = 3;
    world->agents[1].slot = 4;
    world->matches.items[0] = (struct bt_match){.is_secret = true, .excerpt = "****"};
    world->matches.count = 1;
    *state = world;
    return 0;
}

static int free_world(void **state)
{
    struct world *world = *state;
    while (call_count > 0)
        answer(calls[0].path, 0, NULL);
    bt_approvals_free(world->approvals);
    event_base_free(world->base);
    free(world);
    return 0;
}

static void poll_with(struct world *world, const char *text, const char *word)
{
    bt_approvals_poll(world->approvals);
    answer("/v1/held", 200, json_pack("{s:{s:s}}", "answers", text, word));
}

static void expect(struct world *world, const char *word, enum bt_approval wanted)
{
    struct waiter waiter;
    ask(world, 0, &waiter);
    bt_auto_free char *text = bt_string_copy(ticket());
    told(12);
    poll_with(world, text, "waiting");
    assert_false(waiter.is_done);
    poll_with(world, text, word);
    assert_true(waiter.is_done);
    assert_int_equal(waiter.answer.result, wanted);
    assert_int_equal(waiter.answer.number, 12);
    assert_int_equal(world->agents[0].held_count, 0);
    /* The orchestrator hears that nobody waits for it any more, once. */
    bt_approvals_poll(world->approvals);
    assert_int_equal(call_count, 1);
    assert_string_equal(json_string_value(json_array_get(json_object_get(calls[0].body, "withdrawn"), 0)),
                        text);
    answer("/v1/held", 200, json_pack("{s:{}}", "answers"));
    bt_approvals_poll(world->approvals);
    assert_int_equal(call_count, 0);
}

static void test_answers(void **state)
{
    expect(*state, "allowed", BT_APPROVAL_ALLOWED);
    expect(*state, "remembered", BT_APPROVAL_REMEMBERED);
    expect(*state, "denied", BT_APPROVAL_DENIED);
    expect(*state, "expired", BT_APPROVAL_EXPIRED);
    expect(*state, "gone", BT_APPROVAL_UNAVAILABLE); /* it started anew */
    expect(*state, "whatever", BT_APPROVAL_UNAVAILABLE);
}

/* What another worker's question settled for good needs no answer. */
static void test_known_already(void **state)
{
    struct world *world = *state;
    struct waiter waiter;
    ask(world, 0, &waiter);
    answer("/v1/approvals", 200,
           json_pack("{s:i, s:i, s:b}", "number", 7, "expires_in_ms", 300000, "remembered", true));
    assert_true(waiter.is_done);
    assert_int_equal(waiter.answer.result, BT_APPROVAL_REMEMBERED);
    assert_true(waiter.answer.is_earlier);
    assert_int_equal(world->agents[0].held_count, 0);
}

static void test_nobody_to_ask(void **state)
{
    static const struct {
        unsigned status;
        enum bt_approval result;
    } cases[] = {{0, BT_APPROVAL_UNAVAILABLE}, {404, BT_APPROVAL_UNAVAILABLE}, {429, BT_APPROVAL_TOO_MANY}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct waiter waiter;
        ask(*state, 0, &waiter);
        answer("/v1/approvals", cases[i].status, NULL);
        assert_true(waiter.is_done);
        assert_int_equal(waiter.answer.result, cases[i].result);
    }
    bt_approvals_poll(((struct world *)*state)->approvals);
    assert_int_equal(call_count, 0); /* there is nothing to withdraw */
}

/* An orchestrator that does not answer any more holds nobody for ever. */
static void test_deadline(void **state)
{
    struct world *world = *state;
    struct waiter waiter;
    ask(world, 0, &waiter);
    told(1);
    now_ms += 300000 + BT_APPROVALS_SLACK_MS - 1;
    bt_approvals_poll(world->approvals);
    answer("/v1/held", 0, NULL);
    assert_false(waiter.is_done);
    now_ms += 1;
    bt_approvals_poll(world->approvals);
    assert_true(waiter.is_done);
    assert_int_equal(waiter.answer.result, BT_APPROVAL_EXPIRED);
}

/* Who gives up before or after the orchestrator answered is not called, and leaves no question. */
static void test_cancel(void **state)
{
    struct world *world = *state;
    struct waiter early, late;
    ask(world, 0, &early);
    bt_approval_wait_cancel(&early.wait);
    assert_int_equal(world->agents[0].held_count, 0);
    told(1);
    ask(world, 0, &late);
    told(2);
    bt_approval_wait_cancel(&late.wait);
    bt_approval_wait_cancel(&late.wait);
    assert_false(early.is_done || late.is_done);
    bt_approvals_poll(world->approvals);
    assert_int_equal(json_array_size(json_object_get(calls[0].body, "withdrawn")), 2);
    assert_int_equal(json_array_size(json_object_get(calls[0].body, "held")), 0);
}

static void test_bounds(void **state)
{
    struct world *world = *state;
    struct waiter waiters[BT_APPROVALS_AGENT_MAX], more, other;
    for (size_t i = 0; i < BT_APPROVALS_AGENT_MAX; i++)
        ask(world, 0, &waiters[i]);
    ask(world, 0, &more);
    assert_true(more.is_done);
    assert_int_equal(more.answer.result, BT_APPROVAL_TOO_MANY);
    assert_int_equal(call_count, BT_APPROVALS_AGENT_MAX); /* nothing was asked for it */
    ask(world, 1, &other);
    assert_false(other.is_done);
    bt_approval_wait_cancel(&other.wait);
    for (size_t i = 0; i < BT_APPROVALS_AGENT_MAX; i++)
        bt_approval_wait_cancel(&waiters[i].wait);
}

/* Who asks and gives up, again and again, soon asks no more; time gives it leave again. */
static void test_rate(void **state)
{
    struct world *world = *state;
    struct waiter waiter;
    for (size_t i = 0; i < BT_APPROVALS_BURST; i++) {
        ask(world, 0, &waiter);
        assert_false(waiter.is_done);
        bt_approval_wait_cancel(&waiter.wait);
        told(1);
    }
    ask(world, 0, &waiter);
    assert_true(waiter.is_done);
    now_ms += BT_APPROVALS_EACH_MS;
    ask(world, 0, &waiter);
    assert_false(waiter.is_done);
    bt_approval_wait_cancel(&waiter.wait);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers, make_world, free_world),
        cmocka_unit_test_setup_teardown(test_known_already, make_world, free_world),
        cmocka_unit_test_setup_teardown(test_nobody_to_ask, make_world, free_world),
        cmocka_unit_test_setup_teardown(test_deadline, make_world, free_world),
        cmocka_unit_test_setup_teardown(test_cancel, make_world, free_world),
        cmocka_unit_test_setup_teardown(test_bounds, make_world, free_world),
        cmocka_unit_test_setup_teardown(test_rate, make_world, free_world),
    };
    return cmocka_run_group_tests_name("gateway_approvals", tests, NULL, NULL);
}
