/* The orchestrator's queue of questions, with a clock that the test plays: bounds, expiry, answers, and that
 * only what it should be gets in. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/orchestrator/approval_queue.h"

#define DIGEST "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void ticket_of(unsigned number, char ret_ticket[33])
{
    snprintf(ret_ticket, 33, "%032x", number);
}

static json_t *make_question(unsigned ticket, int slot, int generation)
{
    char text[33];
    ticket_of(ticket, text);
    return json_pack("{s:s, s:i, s:i, s:s, s:i, s:s, s:s, s:s, s:[{s:s, s:s, s:s, s:i, s:s}], s:i}", "ticket",
                     text, "slot", slot, "generation", generation, "host", "api.example", "port", 443,
                     "method", "POST", "path", "/v1", "place", "body", "finds", "rule", "dlp:github-token",
                     "title", "a GitHub token", "excerpt", "ghp_****", "offset", 40, "digest", DIGEST, "more",
                     0);
}

static int add(struct bt_queue *queue, unsigned ticket, int slot, int number, int64_t now_ms)
{
    json_t *question = make_question(ticket, slot, 7), *answer = NULL;
    int result = bt_queue_add(queue, question, "one", number, now_ms, &answer);
    json_decref(answer);
    json_decref(question);
    return result;
}

/* The state of one ticket, as the gateway is told. */
static const char *ask(struct bt_queue *queue, unsigned ticket, int64_t now_ms)
{
    static char state[16];
    char text[33];
    ticket_of(ticket, text);
    json_t *body = json_pack("{s:[s], s:[]}", "held", text, "withdrawn"), *answers = NULL;
    assert_int_equal(bt_queue_poll(queue, body, now_ms, &answers), 0);
    snprintf(state, sizeof(state), "%s",
             json_string_value(json_object_get(json_object_get(answers, "answers"), text)));
    json_decref(answers);
    json_decref(body);
    return state;
}

static void withdraw(struct bt_queue *queue, unsigned ticket, int64_t now_ms)
{
    char text[33];
    ticket_of(ticket, text);
    json_t *body = json_pack("{s:[], s:[s]}", "held", "withdrawn", text), *answers = NULL;
    assert_int_equal(bt_queue_poll(queue, body, now_ms, &answers), 0);
    json_decref(answers);
    json_decref(body);
}

static size_t count(struct bt_queue *queue, int64_t now_ms)
{
    json_t *list = bt_queue_list(queue, now_ms);
    size_t size = json_array_size(list);
    json_decref(list);
    return size;
}

static int make_queue(void **state)
{
    *state = bt_queue_new(BT_QUEUE_SECONDS_MAX);
    return 0;
}

static int free_queue(void **state)
{
    bt_queue_free(*state);
    return 0;
}

static void test_answers(void **state)
{
    static const struct bt_queue_answer yes = {true, false}, always = {true, true}, no = {false, false};
    struct bt_queue *queue = *state;
    for (unsigned i = 1; i <= 3; i++)
        assert_int_equal(add(queue, i, 3, (int)i, 0), 0);
    assert_string_equal(ask(queue, 1, 1), "waiting");
    assert_int_equal(bt_queue_answer(queue, 1, yes, 2), 0);
    assert_int_equal(bt_queue_answer(queue, 2, always, 2), 0);
    assert_int_equal(bt_queue_answer(queue, 3, no, 2), 0);
    assert_int_equal(count(queue, 2), 0);
    assert_string_equal(ask(queue, 1, 3), "allowed");
    assert_string_equal(ask(queue, 1, 4), "allowed"); /* an answer may be lost on its way */
    assert_string_equal(ask(queue, 2, 3), "remembered");
    assert_string_equal(ask(queue, 3, 3), "denied");
    /* An answer is given once, and to what is there. */
    assert_int_equal(bt_queue_answer(queue, 3, yes, 5), -ENOENT);
    assert_int_equal(bt_queue_answer(queue, 4, yes, 5), -ENOENT);
    withdraw(queue, 1, 5);
    assert_string_equal(ask(queue, 1, 6), "gone");
    assert_string_equal(ask(queue, 99, 6), "gone");
}

/* What one of the gateway's workers was told to remember, the others need not ask for. */
static void test_remembered(void **state)
{
    static const struct bt_queue_answer always = {true, true};
    struct bt_queue *queue = *state;
    assert_int_equal(add(queue, 1, 3, 1, 0), 0);
    assert_int_equal(bt_queue_answer(queue, 1, always, 0), 0);
    assert_int_equal(add(queue, 2, 3, 2, 0), 0);
    assert_string_equal(ask(queue, 2, 0), "remembered");
    assert_int_equal(add(queue, 3, 4, 3, 0), 0); /* another agent */
    assert_string_equal(ask(queue, 3, 0), "waiting");
    json_t *question = make_question(4, 3, 7), *answer = NULL;
    json_object_set_new(question, "host", json_string("other.example"));
    assert_int_equal(bt_queue_add(queue, question, "one", 4, 0, &answer), 0);
    json_decref(answer);
    assert_string_equal(ask(queue, 4, 0), "waiting");
    json_object_set_new(question, "host", json_string("api.example"));
    json_object_set_new(question, "more", json_integer(1));
    json_object_set_new(question, "ticket", json_string("ffffffffffffffffffffffffffffffff"));
    assert_int_equal(bt_queue_add(queue, question, "one", 5, 0, &answer), 0);
    json_decref(answer);
    json_decref(question);
    assert_int_equal(count(queue, 0), 3);
    bt_queue_forget(queue, 3, 8, true); /* the slot's next agent */
    assert_int_equal(add(queue, 6, 3, 6, 0), 0);
    assert_string_equal(ask(queue, 6, 0), "waiting");
}

static void test_expiry(void **state)
{
    static const struct bt_queue_answer yes = {true, false};
    const int64_t limit_ms = BT_QUEUE_SECONDS_MAX * 1000;
    struct bt_queue *queue = *state;
    assert_int_equal(add(queue, 1, 3, 1, 0), 0);
    for (int64_t now_ms = 0; now_ms < limit_ms; now_ms += BT_QUEUE_SILENCE_MS / 2)
        assert_string_equal(ask(queue, 1, now_ms), "waiting");
    assert_string_equal(ask(queue, 1, limit_ms - 1), "waiting");
    assert_int_equal(count(queue, limit_ms - 1), 1);
    assert_int_equal(count(queue, limit_ms), 0);
    assert_int_equal(bt_queue_answer(queue, 1, yes, limit_ms), -ENOENT);
    assert_string_equal(ask(queue, 1, limit_ms), "expired");
}

/* A gateway that ended asks for nothing any more. */
static void test_silence(void **state)
{
    struct bt_queue *queue = *state;
    assert_int_equal(add(queue, 1, 3, 1, 0), 0);
    assert_int_equal(count(queue, BT_QUEUE_SILENCE_MS - 1), 1);
    assert_string_equal(ask(queue, 1, BT_QUEUE_SILENCE_MS - 1), "waiting");
    assert_int_equal(count(queue, 2 * BT_QUEUE_SILENCE_MS - 2), 1);
    assert_int_equal(count(queue, 2 * BT_QUEUE_SILENCE_MS - 1), 0);
    assert_string_equal(ask(queue, 1, 2 * BT_QUEUE_SILENCE_MS), "gone");
}

static void test_bounds(void **state)
{
    static const struct bt_queue_answer no = {false, false};
    struct bt_queue *queue = *state;
    unsigned ticket = 0;
    for (unsigned i = 0; i < BT_QUEUE_AGENT_MAX; i++, ticket++)
        assert_int_equal(add(queue, ticket, 3, (int)ticket, 0), 0);
    assert_int_equal(add(queue, 1000, 3, 1000, 0), -ENOSPC);
    assert_int_equal(add(queue, 1, 3, 1001, 0), 0); /* the same question once more */
    assert_int_equal(count(queue, 0), BT_QUEUE_AGENT_MAX);
    assert_int_equal(bt_queue_answer(queue, 1001, no, 0), -ENOENT); /* it kept its number */
    assert_int_equal(bt_queue_answer(queue, 1, no, 0), 0);
    assert_int_equal(add(queue, 1000, 3, 1000, 0), 0); /* what is answered does not count */
    ticket = 2000;
    for (int slot = 10; count(queue, 0) + 1 < BT_QUEUE_MAX;
         ticket++, slot += ticket % BT_QUEUE_AGENT_MAX == 0)
        assert_int_equal(add(queue, ticket, slot, (int)ticket, 0), 0);
    assert_int_equal(add(queue, 9000, 200, 9000, 0), -ENOSPC);
    withdraw(queue, 1, 0);
    assert_int_equal(add(queue, 9000, 200, 9000, 0), 0);
}

static void test_agents_end(void **state)
{
    struct bt_queue *queue = *state;
    assert_int_equal(add(queue, 1, 3, 1, 0), 0);
    assert_int_equal(add(queue, 2, 4, 2, 0), 0);
    bt_queue_forget(queue, 3, 7, true); /* registered again */
    bt_queue_forget(queue, 3, 6, false);
    assert_string_equal(ask(queue, 1, 1), "waiting");
    bt_queue_forget(queue, 3, 7, false);
    assert_string_equal(ask(queue, 1, 2), "gone");
    bt_queue_forget(queue, 4, 8, true); /* the slot's next agent */
    assert_string_equal(ask(queue, 2, 2), "gone");
}

/* Each member once missing, once of another type, once too long or not printable. */
static void test_malformed(void **state)
{
    static const char *const members[] = {"ticket", "slot", "generation", "host",  "port",
                                          "method", "path", "place",      "finds", "more"};
    static const char *const finds[] = {"rule", "title", "excerpt", "offset", "digest"};
    char large[400] = "";
    memset(large, 'a', sizeof(large) - 1);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(members) + BT_ARRAY_LENGTH(finds); i++) {
        bool is_find = i >= BT_ARRAY_LENGTH(members);
        const char *key = is_find ? finds[i - BT_ARRAY_LENGTH(members)] : members[i];
        json_t *values[] = {NULL, json_true(), json_string(large), json_string("a\x01"), json_integer(-1)};
        for (size_t k = 0; k < BT_ARRAY_LENGTH(values); k++) {
            json_t *question = make_question(1, 3, 7), *answer = NULL;
            json_t *place = is_find ? json_array_get(json_object_get(question, "finds"), 0) : question;
            if (values[k] == NULL)
                json_object_del(place, key);
            else
                json_object_set_new(place, key, values[k]);
            if (bt_queue_add(*state, question, "one", 1, 0, &answer) != -EINVAL)
                fail_msg("%s, wrong in way %zu", key, k);
            json_decref(question);
        }
    }
    json_t *question = make_question(1, 3, 7), *answer = NULL;
    for (unsigned i = 0; i < BT_QUEUE_FINDS_MAX; i++)
        json_array_append(json_object_get(question, "finds"),
                          json_array_get(json_object_get(question, "finds"), 0));
    assert_int_equal(bt_queue_add(*state, question, "one", 1, 0, &answer), -EINVAL);
    json_decref(question);
    assert_int_equal(count(*state, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers, make_queue, free_queue),
        cmocka_unit_test_setup_teardown(test_remembered, make_queue, free_queue),
        cmocka_unit_test_setup_teardown(test_expiry, make_queue, free_queue),
        cmocka_unit_test_setup_teardown(test_silence, make_queue, free_queue),
        cmocka_unit_test_setup_teardown(test_bounds, make_queue, free_queue),
        cmocka_unit_test_setup_teardown(test_agents_end, make_queue, free_queue),
        cmocka_unit_test_setup_teardown(test_malformed, make_queue, free_queue),
    };
    return cmocka_run_group_tests_name("approval_queue", tests, NULL, NULL);
}
