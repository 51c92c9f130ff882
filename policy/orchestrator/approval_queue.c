/* See approval_queue.h. */
#include "policy/orchestrator/approval_queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "lib/file.h"
#include "lib/memory.h"
#include "policy/rules/ports.h"

#define TICKET_LENGTH 32
#define TEXT_MAX 300
#define POLL_MAX 512       /* tickets of a call */
#define REMEMBERED_MAX 256 /* values that owners allowed agents for good; the oldest make room */

enum state { STATE_WAITING, STATE_ALLOWED, STATE_REMEMBERED, STATE_DENIED, STATE_EXPIRED };
static const char *const state_names[] = {[STATE_WAITING] = "waiting",
                                          [STATE_ALLOWED] = "allowed",
                                          [STATE_REMEMBERED] = "remembered",
                                          [STATE_DENIED] = "denied",
                                          [STATE_EXPIRED] = "expired"};

struct entry {
    TAILQ_ENTRY(entry) link;
    char ticket[TICKET_LENGTH + 1];
    uint16_t slot;
    uint32_t generation;
    json_int_t number;
    enum state state;
    int64_t since_ms, asked_for_ms;
    json_t *question; /* as its owner sees it */
};

/* A value for a host, of one lease. */
struct remembered {
    bool is_used;
    uint16_t slot;
    uint32_t generation;
    char host[TEXT_MAX + 1];
    char digest[BT_DIGEST_TEXT_SIZE];
};

struct bt_queue {
    TAILQ_HEAD(entries, entry) entries; /* oldest first */
    size_t count;
    int64_t wait_ms;
    struct remembered remembered[REMEMBERED_MAX]; /* a ring */
    size_t next_remembered;
};

struct bt_queue *bt_queue_new(unsigned seconds)
{
    struct bt_queue *queue = bt_new(1, sizeof(*queue));
    TAILQ_INIT(&queue->entries);
    queue->wait_ms = (int64_t)seconds * 1000;
    return queue;
}

static void remove_entry(struct bt_queue *queue, struct entry *entry)
{
    TAILQ_REMOVE(&queue->entries, entry, link);
    queue->count--;
    json_decref(entry->question);
    free(entry);
}

struct bt_queue *bt_queue_free(struct bt_queue *queue)
{
    if (queue == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&queue->entries))
        remove_entry(queue, TAILQ_FIRST(&queue->entries));
    free(queue);
    return NULL;
}

/* What the time did: questions expire, and those that nobody asks for are gone. */
static void tidy(struct bt_queue *queue, int64_t now_ms)
{
    struct entry *next;
    for (struct entry *entry = TAILQ_FIRST(&queue->entries); entry != NULL; entry = next) {
        next = TAILQ_NEXT(entry, link);
        if (now_ms - entry->asked_for_ms >= BT_QUEUE_SILENCE_MS)
            remove_entry(queue, entry);
        else if (entry->state == STATE_WAITING && now_ms - entry->since_ms >= queue->wait_ms)
            entry->state = STATE_EXPIRED;
    }
}

static struct entry *find(const struct bt_queue *queue, const char *ticket)
{
    struct entry *entry;
    TAILQ_FOREACH(entry, &queue->entries, link)
    if (strcmp(entry->ticket, ticket) == 0)
        return entry;
    return NULL;
}

/* ---- questions ------------------------------------------------------------------------------------------
 */

/* A member that is printable ASCII; NULL when it is something else. */
static const char *text_member(const json_t *document, const char *key)
{
    const json_t *value = json_object_get(document, key);
    const char *text = json_string_value(value);
    if (text == NULL || json_string_length(value) > TEXT_MAX)
        return NULL;
    for (size_t i = 0; i < json_string_length(value); i++)
        if (text[i] < ' ' || text[i] > '~')
            return NULL;
    return text;
}

static bool number_member(const json_t *document, const char *key, json_int_t maximum, json_int_t *ret_number)
{
    const json_t *value = json_object_get(document, key);
    *ret_number = json_integer_value(value);
    return json_is_integer(value) && *ret_number >= 0 && *ret_number <= maximum;
}

static const char *hex_member(const json_t *document, const char *key, size_t length)
{
    const char *text = text_member(document, key);
    return text != NULL && strlen(text) == length && strspn(text, "0123456789abcdef") == length ? text : NULL;
}

static json_t *copy_find(const json_t *find)
{
    const char *rule = text_member(find, "rule"), *title = text_member(find, "title");
    const char *excerpt = text_member(find, "excerpt");
    const char *digest = hex_member(find, "digest", BT_DIGEST_TEXT_SIZE - 1);
    json_int_t offset;
    if (rule == NULL || title == NULL || excerpt == NULL || digest == NULL ||
        !number_member(find, "offset", INT64_MAX, &offset))
        return NULL;
    return json_pack("{s:s, s:s, s:s, s:I, s:s}", "rule", rule, "title", title, "excerpt", excerpt, "offset",
                     offset, "digest", digest);
}

static json_t *copy_finds(const json_t *finds)
{
    json_t *copy = json_array();
    size_t count = json_array_size(finds);
    for (size_t i = 0; i < count && i < BT_QUEUE_FINDS_MAX; i++) {
        json_t *find = copy_find(json_array_get(finds, i));
        if (find == NULL || json_array_append_new(copy, find) < 0)
            break;
    }
    if (count > 0 && json_array_size(copy) == count)
        return copy;
    json_decref(copy);
    return NULL;
}

/* The question as its owner sees it, or NULL. */
static json_t *copy_question(const json_t *question, const char *agent, json_int_t number)
{
    const char *host = text_member(question, "host"), *method = text_member(question, "method");
    const char *path = text_member(question, "path"), *place = text_member(question, "place");
    json_int_t port, more;
    if (host == NULL || method == NULL || path == NULL || place == NULL ||
        !number_member(question, "port", UINT16_MAX, &port) ||
        !number_member(question, "more", INT32_MAX, &more))
        return NULL;
    json_t *finds = copy_finds(json_object_get(question, "finds"));
    if (finds == NULL)
        return NULL;
    return json_pack("{s:I, s:s, s:s, s:I, s:s, s:s, s:s, s:o, s:I}", "number", number, "agent", agent,
                     "host", host, "port", port, "method", method, "path", path, "place", place, "finds",
                     finds, "more", more);
}

int bt_queue_agent_of(const json_t *question, uint16_t *ret_slot, uint32_t *ret_generation)
{
    json_int_t slot, generation;
    if (!number_member(question, "slot", BT_SLOTS_MAX - 1, &slot) ||
        !number_member(question, "generation", UINT32_MAX, &generation))
        return -EINVAL;
    *ret_slot = (uint16_t)slot;
    *ret_generation = (uint32_t)generation;
    return 0;
}

static bool has_room(const struct bt_queue *queue, uint16_t slot)
{
    const struct entry *entry;
    size_t waiting = 0;
    TAILQ_FOREACH(entry, &queue->entries, link)
    waiting += entry->slot == slot && entry->state == STATE_WAITING;
    return waiting < BT_QUEUE_AGENT_MAX && queue->count < BT_QUEUE_MAX;
}

/* ---- values for good: the gateway's workers remember theirs themselves, and ask for those of the others
 * ----
 */

static const char *text_of(const json_t *document, const char *key)
{
    return json_string_value(json_object_get(document, key));
}

static void remember(struct bt_queue *queue, const struct entry *entry)
{
    const json_t *finds = json_object_get(entry->question, "finds");
    for (size_t i = 0; i < json_array_size(finds); i++) {
        struct remembered *value = &queue->remembered[queue->next_remembered];
        *value = (struct remembered){.is_used = true, .slot = entry->slot, .generation = entry->generation};
        (void)snprintf(value->host, sizeof(value->host), "%s", text_of(entry->question, "host"));
        (void)snprintf(value->digest, sizeof(value->digest), "%s",
                       text_of(json_array_get(finds, i), "digest"));
        queue->next_remembered = (queue->next_remembered + 1) % REMEMBERED_MAX;
    }
}

static bool is_value_remembered(const struct bt_queue *queue, const struct entry *entry, const char *digest)
{
    for (size_t i = 0; i < REMEMBERED_MAX; i++) {
        const struct remembered *value = &queue->remembered[i];
        if (value->is_used && value->slot == entry->slot && value->generation == entry->generation &&
            strcmp(value->digest, digest) == 0 && strcmp(value->host, text_of(entry->question, "host")) == 0)
            return true;
    }
    return false;
}

/* Whether all that a question is about was allowed for good. */
static bool is_remembered(const struct bt_queue *queue, const struct entry *entry)
{
    const json_t *finds = json_object_get(entry->question, "finds");
    for (size_t i = 0; i < json_array_size(finds); i++)
        if (!is_value_remembered(queue, entry, text_of(json_array_get(finds, i), "digest")))
            return false;
    return json_integer_value(json_object_get(entry->question, "more")) == 0;
}

static json_t *told(const struct bt_queue *queue, const struct entry *entry, int64_t now_ms)
{
    return json_pack("{s:I, s:I, s:b}", "number", entry->number, "expires_in_ms",
                     (json_int_t)(entry->since_ms + queue->wait_ms - now_ms), "remembered",
                     entry->state == STATE_REMEMBERED);
}

int bt_queue_add(struct bt_queue *queue, const json_t *question, const char *agent, json_int_t number,
                 int64_t now_ms, json_t **ret_answer)
{
    const char *ticket = hex_member(question, "ticket", TICKET_LENGTH);
    uint16_t slot;
    uint32_t generation;
    tidy(queue, now_ms);
    if (ticket == NULL || bt_queue_agent_of(question, &slot, &generation) < 0)
        return -EINVAL;
    struct entry *entry = find(queue, ticket);
    if (entry == NULL) {
        json_t *copy = copy_question(question, agent, number);
        if (copy == NULL)
            return -EINVAL;
        if (!has_room(queue, slot)) {
            json_decref(copy);
            return -ENOSPC;
        }
        entry = bt_new(1, sizeof(*entry));
        *entry = (struct entry){.slot = slot, .generation = generation, .number = number, .question = copy};
        memcpy(entry->ticket, ticket, TICKET_LENGTH + 1);
        entry->since_ms = entry->asked_for_ms = now_ms;
        entry->state = is_remembered(queue, entry) ? STATE_REMEMBERED : STATE_WAITING;
        TAILQ_INSERT_TAIL(&queue->entries, entry, link);
        queue->count++;
    }
    *ret_answer = told(queue, entry, now_ms);
    return 0;
}

/* ---- the gateway asks for answers -----------------------------------------------------------------------
 */

int bt_queue_poll(struct bt_queue *queue, const json_t *body, int64_t now_ms, json_t **ret_answers)
{
    const json_t *held = json_object_get(body, "held"), *withdrawn = json_object_get(body, "withdrawn");
    if (!json_is_array(held) || !json_is_array(withdrawn) || json_array_size(held) > POLL_MAX ||
        json_array_size(withdrawn) > POLL_MAX)
        return -EINVAL;
    tidy(queue, now_ms);
    for (size_t i = 0; i < json_array_size(withdrawn); i++) {
        const char *ticket = json_string_value(json_array_get(withdrawn, i));
        struct entry *entry = ticket != NULL ? find(queue, ticket) : NULL;
        if (entry != NULL)
            remove_entry(queue, entry);
    }
    json_t *answers = json_object();
    for (size_t i = 0; i < json_array_size(held); i++) {
        const char *ticket = json_string_value(json_array_get(held, i));
        struct entry *entry = ticket != NULL ? find(queue, ticket) : NULL;
        if (entry != NULL)
            entry->asked_for_ms = now_ms;
        if (ticket != NULL)
            (void)json_object_set_new(answers, ticket,
                                      json_string(entry != NULL ? state_names[entry->state] : "gone"));
    }
    *ret_answers = json_pack("{s:o}", "answers", answers);
    return 0;
}

/* ---- the owner ------------------------------------------------------------------------------------------
 */

json_t *bt_queue_list(struct bt_queue *queue, int64_t now_ms)
{
    json_t *list = json_array();
    const struct entry *entry = NULL; /* cppcheck does not follow the macro */
    tidy(queue, now_ms);
    TAILQ_FOREACH(entry, &queue->entries, link)
    {
        if (entry->state != STATE_WAITING)
            continue;
        int64_t waited_ms = now_ms - entry->since_ms;
        json_t *shown = json_copy(entry->question);
        (void)json_object_set_new(shown, "waited_seconds", json_integer((json_int_t)(waited_ms / 1000)));
        (void)json_object_set_new(shown, "left_seconds",
                                  json_integer((json_int_t)((queue->wait_ms - waited_ms + 999) / 1000)));
        (void)json_array_append_new(list, shown);
    }
    return list;
}

static struct entry *find_waiting(const struct bt_queue *queue, json_int_t number)
{
    struct entry *entry;
    TAILQ_FOREACH(entry, &queue->entries, link)
    if (entry->number == number && entry->state == STATE_WAITING)
        return entry;
    return NULL;
}

int bt_queue_answer(struct bt_queue *queue, json_int_t number, struct bt_queue_answer answer, int64_t now_ms)
{
    tidy(queue, now_ms);
    struct entry *entry = find_waiting(queue, number);
    if (entry == NULL)
        return -ENOENT;
    entry->state = !answer.is_allowed     ? STATE_DENIED
                   : answer.is_remembered ? STATE_REMEMBERED
                                          : STATE_ALLOWED;
    if (entry->state == STATE_REMEMBERED)
        remember(queue, entry);
    return 0;
}

void bt_queue_forget(struct bt_queue *queue, uint16_t slot, uint32_t generation, bool is_others)
{
    for (size_t i = 0; i < REMEMBERED_MAX; i++) {
        struct remembered *value = &queue->remembered[i];
        if (value->slot == slot && (value->generation == generation) != is_others)
            value->is_used = false;
    }
    struct entry *next;
    for (struct entry *entry = TAILQ_FIRST(&queue->entries); entry != NULL; entry = next) {
        next = TAILQ_NEXT(entry, link);
        if (entry->slot == slot && (entry->generation == generation) != is_others)
            remove_entry(queue, entry);
    }
}
