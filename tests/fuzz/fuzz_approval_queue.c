/* What a gateway may send about requests that it holds: any JSON as a question and as a poll. Invariants: no
 * more is kept than the bounds say, what is kept is shown whole, and a number answers at most one question.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/orchestrator/approval_queue.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(struct bt_queue *queue, int64_t now_ms)
{
    static const char *const members[] = {"number", "agent", "host",  "port",           "method",
                                          "path",   "place", "finds", "waited_seconds", "left_seconds"};
    json_t *list = bt_queue_list(queue, now_ms);
    if (json_array_size(list) > BT_QUEUE_MAX)
        abort();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *shown = json_array_get(list, i);
        for (size_t k = 0; k < BT_ARRAY_LENGTH(members); k++)
            if (json_object_get(shown, members[k]) == NULL)
                abort();
        char *text = json_dumps(shown, 0);
        if (text == NULL || strlen(text) > 16384)
            abort();
        free(text);
    }
    json_decref(list);
}

/* One document a line: a question, and a poll. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct bt_queue_answer yes = {true, false};
    struct bt_queue *queue = bt_queue_new(BT_QUEUE_SECONDS_MAX);
    int64_t now_ms = 0;
    json_int_t number = 0;
    for (size_t at = 0; at < size;) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t length = end != NULL ? (size_t)(end - data) - at : size - at;
        json_t *document = json_loadb((const char *)data + at, length, JSON_REJECT_DUPLICATES, NULL);
        json_t *answer = NULL, *answers = NULL;
        if (bt_queue_add(queue, document, "one", ++number, now_ms, &answer) == 0 &&
            json_integer_value(json_object_get(answer, "number")) > number)
            abort();
        check_list(queue, now_ms);
        if (bt_queue_poll(queue, document, now_ms, &answers) == 0 && !json_is_object(answers))
            abort();
        if (number % 3 == 0 && bt_queue_answer(queue, number, yes, now_ms) == 0 &&
            bt_queue_answer(queue, number, yes, now_ms) == 0)
            abort();
        json_decref(answers);
        json_decref(answer);
        json_decref(document);
        now_ms += 500;
        at += length + 1;
    }
    bt_queue_free(queue);
    return 0;
}
