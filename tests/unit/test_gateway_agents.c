/* The gateway's table of agents, with a clock and an orchestrator that the test plays: who is believed, and
 * for how long. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/gateway/agents.h"
#include "tests/lib/fake/gateway_clock.h"

#define AGENT 0x0af30007U
#define DIGEST_ONE "1111111111111111111111111111111111111111111111111111111111111111"
#define DIGEST_TWO "2222222222222222222222222222222222222222222222222222222222222222"

static unsigned question_count, change_count;
static struct {
    bt_control_done *done;
    void *context;
    char digest[BT_DIGEST_TEXT_SIZE];
} asked; /* the question that waits for its answer */

void bt_control_post(struct bt_control *control, const char *path, json_t *body, bool is_urgent,
                     bt_control_done *done, void *context)
{
    const char *digest = json_string_value(json_object_get(body, "token_sha256"));
    (void)control;
    assert_string_equal(path, "/v1/resolve");
    assert_string_equal(json_string_value(json_object_get(body, "address")), "10.243.0.7");
    assert_true(is_urgent);
    assert_null(asked.done); /* one at a time */
    asked.done = done;
    asked.context = context;
    snprintf(asked.digest, sizeof(asked.digest), "%s", digest != NULL ? digest : "");
    question_count++;
    json_decref(body);
}

static void answer(unsigned status, int generation, int version)
{
    bt_control_done *done = BT_TAKE(asked.done);
    json_t *document = json_pack("{s:s, s:i, s:i, s:i, s:{s:i, s:[]}, s:s, s:i}", "agent", "one", "slot", 3,
                                 "generation", generation, "policy_version", version, "policy", "version", 1,
                                 "routes", "gateway_address", "10.243.0.6", "ttl", 5);
    assert_non_null(done);
    done(asked.context, status, status == 200 ? document : NULL);
    json_decref(document);
}

static void on_change(void *context, struct bt_agent *agent)
{
    (void)context;
    (void)agent;
    change_count++;
}

struct caller {
    struct bt_agent_waiter waiter;
    int identity; /* -1: none yet */
};

static void on_identified(void *context, enum bt_identity identity)
{
    struct caller *caller = context;
    assert_int_equal(caller->identity, -1);
    caller->identity = (int)identity;
}

static void identify(struct bt_agents *agents, const char *digest, struct caller *caller)
{
    memset(caller, 0, sizeof(*caller));
    caller->identity = -1;
    bt_agents_identify(agents, bt_agents_get(agents, AGENT), digest, &caller->waiter, on_identified, caller);
}

static int make_agents(void **state)
{
    now_ms = 1000000;
    question_count = change_count = 0;
    memset(&asked, 0, sizeof(asked));
    *state = bt_agents_new(NULL, NULL, on_change, NULL);
    return 0;
}

static int free_agents(void **state)
{
    bt_agents_free(*state);
    return 0;
}

static void test_fresh(void **state)
{
    struct caller one, two;
    identify(*state, DIGEST_ONE, &one);
    assert_string_equal(asked.digest, DIGEST_ONE);
    identify(*state, NULL, &two); /* waits for the same answer */
    answer(200, 7, 1);
    assert_int_equal(one.identity, BT_IDENTITY_OK);
    assert_int_equal(two.identity, BT_IDENTITY_OK);
    now_ms += 1000;
    identify(*state, NULL, &two); /* the address alone is believed for less */
    assert_int_equal(two.identity, -1);
    bt_agent_waiter_cancel(&two.waiter);
    answer(200, 7, 1);
    question_count = 1;
    now_ms += 4999;
    identify(*state, DIGEST_ONE, &one);
    assert_int_equal(one.identity, BT_IDENTITY_OK);
    assert_int_equal(question_count, 1);
    now_ms += 1;
    identify(*state, DIGEST_ONE, &one);
    assert_int_equal(one.identity, -1);
    answer(200, 7, 1);
    assert_int_equal(one.identity, BT_IDENTITY_OK);
    assert_int_equal(question_count, 2);
    assert_int_equal(change_count, 0);
}

static void test_tokens(void **state)
{
    struct caller right, wrong, none;
    identify(*state, DIGEST_TWO, &wrong);
    identify(*state, DIGEST_ONE, &right);
    identify(*state, NULL, &none);
    answer(403, 0, 0);
    assert_int_equal(wrong.identity, BT_IDENTITY_WRONG_TOKEN);
    assert_int_equal(right.identity, -1);
    assert_string_equal(asked.digest, DIGEST_ONE);
    answer(200, 7, 1);
    assert_int_equal(right.identity, BT_IDENTITY_OK);
    assert_int_equal(none.identity, BT_IDENTITY_OK);
    /* A fresh answer says nothing about another token. */
    identify(*state, DIGEST_TWO, &wrong);
    assert_int_equal(wrong.identity, -1);
    answer(403, 0, 0);
    assert_int_equal(wrong.identity, BT_IDENTITY_WRONG_TOKEN);
}

static void test_unknown(void **state)
{
    struct caller caller;
    identify(*state, DIGEST_ONE, &caller);
    answer(404, 0, 0);
    assert_int_equal(caller.identity, BT_IDENTITY_UNKNOWN);
    identify(*state, DIGEST_ONE, &caller); /* believed for a moment */
    assert_int_equal(caller.identity, BT_IDENTITY_UNKNOWN);
    now_ms += 1000;
    identify(*state, DIGEST_ONE, &caller);
    answer(200, 7, 1);
    assert_int_equal(caller.identity, BT_IDENTITY_OK);
}

static void test_unreachable(void **state)
{
    struct caller caller;
    identify(*state, DIGEST_ONE, &caller);
    answer(0, 0, 0);
    assert_int_equal(caller.identity, BT_IDENTITY_UNREACHABLE); /* never known */
    identify(*state, DIGEST_ONE, &caller);
    answer(200, 7, 1);
    now_ms += BT_AGENT_GRACE_MS - 1;
    identify(*state, DIGEST_ONE, &caller);
    answer(0, 0, 0);
    assert_int_equal(caller.identity, BT_IDENTITY_OK);
    identify(*state, NULL, &caller);
    answer(500, 0, 0);
    assert_int_equal(caller.identity, BT_IDENTITY_OK);
    identify(*state, DIGEST_TWO, &caller); /* a token that was never confirmed has no grace */
    answer(0, 0, 0);
    assert_int_equal(caller.identity, BT_IDENTITY_UNREACHABLE);
    now_ms += 1;
    identify(*state, DIGEST_ONE, &caller);
    answer(0, 0, 0);
    assert_int_equal(caller.identity, BT_IDENTITY_UNREACHABLE);
    assert_int_equal(change_count, 1); /* its open sessions hear of it */
}

static void test_changes(void **state)
{
    struct bt_agents *agents = *state;
    struct bt_agent *agent = bt_agents_get(agents, AGENT);
    struct caller caller;
    identify(agents, DIGEST_ONE, &caller);
    answer(200, 7, 1);
    agent->counters.bytes = 9;
    now_ms += 5000;
    bt_agents_revalidate(agents); /* nothing is open: nobody asks */
    assert_int_equal(question_count, 1);
    agent->session_count = 1;
    bt_agents_revalidate(agents);
    answer(200, 7, 2);
    assert_int_equal(change_count, 1);
    assert_int_equal(agent->counters.bytes, 9);
    now_ms += 5000;
    bt_agents_revalidate(agents);
    answer(200, 8, 1); /* the slot's next lease: nothing of the first one counts */
    assert_int_equal(change_count, 2);
    assert_int_equal(agent->counters.bytes, 0);
    identify(agents, DIGEST_ONE, &caller);
    assert_int_equal(caller.identity, -1);
    answer(403, 0, 0);
    assert_int_equal(caller.identity, BT_IDENTITY_WRONG_TOKEN);
    now_ms += 5000;
    bt_agents_revalidate(agents);
    answer(404, 0, 0);
    assert_int_equal(change_count, 3);
    assert_false(agent->is_known);
    agent->session_count = 0;
}

static void test_cancel_and_limits(void **state)
{
    struct bt_agents *agents = *state;
    struct caller *callers = bt_new(BT_AGENT_WAITERS_MAX, sizeof(*callers));
    struct caller late;
    for (size_t i = 0; i < BT_AGENT_WAITERS_MAX; i++)
        identify(agents, NULL, &callers[i]);
    identify(agents, NULL, &late);
    assert_int_equal(late.identity, BT_IDENTITY_BUSY);
    bt_agent_waiter_cancel(&callers[5].waiter);
    bt_agent_waiter_cancel(&callers[5].waiter);
    answer(200, 7, 1);
    assert_int_equal(callers[5].identity, -1);
    assert_int_equal(callers[6].identity, BT_IDENTITY_OK);
    free(callers);
    /* Addresses without limit: entries that nobody uses make room. */
    for (uint32_t i = 1; i < 3 * BT_AGENTS_MAX; i++)
        assert_non_null(bt_agents_get(agents, 0x0a000000 + i));
    assert_true(bt_agents_get(agents, AGENT)->is_known); /* unknown ones go first */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fresh, make_agents, free_agents),
        cmocka_unit_test_setup_teardown(test_tokens, make_agents, free_agents),
        cmocka_unit_test_setup_teardown(test_unknown, make_agents, free_agents),
        cmocka_unit_test_setup_teardown(test_unreachable, make_agents, free_agents),
        cmocka_unit_test_setup_teardown(test_changes, make_agents, free_agents),
        cmocka_unit_test_setup_teardown(test_cancel_and_limits, make_agents, free_agents),
    };
    return cmocka_run_group_tests_name("gateway_agents", tests, NULL, NULL);
}
