/* See filter_run.h. */
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "tests/lib/filter_run.h"

static struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static void write_head(struct filter_run *run, const struct bt_message *message)
{
    bt_auto_buffer text = {0};
    (void)!bt_buffer_add_format(&text, "%.*s\n", (int)message->path.length, message->path.data);
    for (size_t i = 0; i < message->field_count; i++)
        (void)!bt_buffer_add_format(&text, "%.*s: %.*s\n", (int)message->fields[i].name.length,
                                    message->fields[i].name.data, (int)message->fields[i].value.length,
                                    message->fields[i].value.data);
    run->head = BT_TAKE(text.data);
}

static enum bt_filter_verdict run_head(struct filter_run *run, struct bt_filter *filter)
{
    struct bt_message message = {
        .method = slice("POST"),
        .scheme = slice("https"),
        .authority = slice("api.example.com"),
        .path = slice(run->path != NULL ? run->path : "/"),
        .protocol = slice(run->protocol != NULL ? run->protocol : ""),
        .status = run->status != 0 ? run->status : 200,
        .content_length = -1,
        .field_count = run->field_count,
    };
    if (run->is_response)
        message.method = message.scheme = message.authority = message.path = message.protocol = slice("");
    if (run->field_count != 0)
        memcpy(message.fields, run->fields, run->field_count * sizeof(*run->fields));
    enum bt_filter_verdict verdict = bt_filter_head(filter, &message);
    while (verdict == BT_FILTER_ASK) {
        run->questions++;
        if (bt_filter_answer(filter, run->answer, NULL) == BT_FILTER_BLOCK)
            return BT_FILTER_BLOCK;
        verdict = bt_filter_head(filter, &message);
    }
    write_head(run, &message);
    return verdict;
}

static size_t next_piece(const struct filter_run *run, unsigned *state, size_t left)
{
    size_t count = left;
    if (run->cut == CUT_BYTES)
        count = 1;
    *state = *state * 1103515245U + 12345U;
    if (run->cut == CUT_RANDOM)
        count = *state % 8 == 0 ? 1 + (*state >> 8) % 2000 : 1 + (*state >> 8) % 20;
    return count < left ? count : left;
}

static enum bt_filter_verdict answer(struct filter_run *run, struct bt_filter *filter,
                                     enum bt_filter_verdict verdict, struct evbuffer *out)
{
    while (verdict == BT_FILTER_ASK) {
        run->questions++;
        verdict = bt_filter_answer(filter, run->answer, out);
    }
    return verdict;
}

static enum bt_filter_verdict run_body(struct filter_run *run, struct bt_filter *filter, const uint8_t *body,
                                       size_t length, struct evbuffer *out)
{
    enum bt_filter_verdict verdict = BT_FILTER_PASS;
    unsigned state = run->seed;
    for (size_t at = 0; at < length && verdict == BT_FILTER_PASS;) {
        size_t count = next_piece(run, &state, length - at);
        verdict = answer(run, filter, bt_filter_data(filter, body + at, count, out), out);
        at += count;
        size_t held = bt_filter_held(filter);
        run->held_most = held > run->held_most ? held : run->held_most;
    }
    if (verdict == BT_FILTER_PASS)
        verdict = bt_filter_end(filter, NULL, out);
    return verdict;
}

void filter_run(struct filter_run *run, const void *body, size_t length)
{
    struct bt_filter *filter =
        run->is_response ? bt_filter_response_new(&run->settings) : bt_filter_request_new(&run->settings);
    struct evbuffer *out = evbuffer_new();
    run->verdict = run_head(run, filter);
    run->is_head = run->verdict != BT_FILTER_PASS;
    if (!run->is_head)
        run->verdict = run_body(run, filter, body, length, out);
    while (run->finding_count < BT_ARRAY_LENGTH(run->findings) &&
           bt_filter_take_finding(filter, &run->findings[run->finding_count]))
        run->finding_count++;
    run->output_length = evbuffer_get_length(out);
    run->output = bt_new(run->output_length + 1, 1);
    (void)evbuffer_remove(out, run->output, run->output_length);
    evbuffer_free(out);
    (void)bt_filter_free(filter);
}

bool filter_run_found(const struct filter_run *run, const char *rule)
{
    for (size_t i = 0; i < run->finding_count; i++)
        if (strcmp(run->findings[i].rule, rule) == 0)
            return true;
    return false;
}

void filter_run_clear(struct filter_run *run)
{
    free(run->output);
    free(run->head);
    run->output = run->head = NULL;
    run->finding_count = 0;
    run->questions = 0;
    run->held_most = 0;
}
