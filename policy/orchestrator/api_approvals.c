/* Approvals: what the gateway asks and is told, and what the owner is shown and answers. Authorisation was
 * checked by api.c: the gateway's token opens none of the owner's calls.
 */
#include <errno.h>
#include <string.h>

#include "policy/orchestrator/api.h"
#include "policy/rules/service.h"

/* The agent that a question is about must hold its slot now. */
static int add(struct bt_api *api, const json_t *question, json_t **ret_answer, struct bt_error *error)
{
    struct bt_registry_agent agent = {0};
    uint16_t slot = 0;
    uint32_t generation = 0;
    int64_t number = 0;
    if (bt_queue_agent_of(question, &slot, &generation) < 0)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/API.md", "this is no question");
    int result = bt_registry_find_slot(api->registry, slot, &agent, error);
    if (result == 0 && agent.generation != generation)
        result = bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "the agent of this question has ended");
    if (result == 0)
        result = bt_registry_next_number(api->registry, &number, error);
    if (result == 0) {
        result =
            bt_queue_add(api->queue, question, agent.name, (json_int_t)number, bt_api_now_ms(), ret_answer);
        if (result == -ENOSPC)
            (void)bt_fail(error, BT_EXIT_ERROR, EBUSY, "answer or wait", "too many questions wait already");
        else if (result < 0)
            (void)bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/API.md", "this is no question");
    }
    bt_registry_agent_clear(&agent);
    return result;
}

void bt_api_post_approvals(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    struct bt_error error;
    json_t *answer = NULL, *body = bt_api_body(request);
    if (body == NULL)
        return;
    if (add(api, body, &answer, &error) == 0)
        bt_api_reply(request, answer);
    else if (error.code == EBUSY)
        bt_api_refuse(request, 429, error.message, error.hint);
    else
        bt_api_refuse_error(request, &error);
    json_decref(body);
}

void bt_api_post_held(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    json_t *answers, *body = bt_api_body(request);
    if (body == NULL)
        return;
    if (bt_queue_poll(api->queue, body, bt_api_now_ms(), &answers) < 0)
        bt_api_refuse(request, 400, "not lists of what is held and withdrawn", "see policy/API.md");
    else
        bt_api_reply(request, answers);
    json_decref(body);
}

void bt_api_get_approvals(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    bt_api_reply(request, json_pack("{s:o}", "approvals", bt_queue_list(api->queue, bt_api_now_ms())));
}

/* {"answer": "allow" or "deny"[, "remember": true]}, and nothing else. */
static bool read_answer(const json_t *body, struct bt_queue_answer *ret_answer)
{
    const char *word = json_string_value(json_object_get(body, "answer"));
    const json_t *remember = json_object_get(body, "remember");
    size_t known = 1 + (remember != NULL);
    if (word == NULL || json_object_size(body) != known || (remember != NULL && !json_is_boolean(remember)))
        return false;
    *ret_answer = (struct bt_queue_answer){strcmp(word, "allow") == 0, json_is_true(remember)};
    return ret_answer->is_allowed || (strcmp(word, "deny") == 0 && !ret_answer->is_remembered);
}

void bt_api_put_approval(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    uint64_t number;
    struct bt_queue_answer answer;
    if (bt_number_parse(parts[0], strlen(parts[0]), 1, INT64_MAX, &number) < 0) {
        bt_api_refuse(request, 400, "this is no number of a question", "see policy/API.md");
        return;
    }
    json_t *body = bt_api_body(request);
    if (body == NULL)
        return;
    if (!read_answer(body, &answer))
        bt_api_refuse(request, 400, "\"answer\" is not allow or deny", "see policy/API.md");
    else if (bt_queue_answer(api->queue, (json_int_t)number, answer, bt_api_now_ms()) < 0)
        bt_api_refuse(request, 404, "no request of this number waits",
                      "it was answered, it waited too long, or its agent gave up");
    else
        bt_api_reply(request, json_object());
    json_decref(body);
}
