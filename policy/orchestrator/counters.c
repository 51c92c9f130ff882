/* Counters by slot. See counters.h. */
#include "policy/orchestrator/counters.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/rules/service.h"

static const char *const names[] = {"dns_questions", "upstream_questions", "allowed", "refused", "bytes"};
#define NAMES BT_ARRAY_LENGTH(names)

struct entry {
    uint32_t generation;
    bool is_used;
    int64_t reported_ms;
    uint64_t earlier[NAMES];                         /* of gateways that ended */
    uint64_t current[BT_SERVICE_WORKERS_MAX][NAMES]; /* of the one that reports now, by worker */
};

struct bt_counters {
    struct entry slots[BT_SLOTS_MAX]; /* TAP and bridge slots share the number space of a registry */
};

struct bt_counters *bt_counters_new(void)
{
    return bt_new(1, sizeof(struct bt_counters));
}

struct bt_counters *bt_counters_free(struct bt_counters *counters)
{
    free(counters);
    return NULL;
}

int bt_counters_report(struct bt_counters *counters, const json_t *entry, int64_t now_ms)
{
    json_int_t slot = json_integer_value(json_object_get(entry, "slot"));
    json_int_t generation = json_integer_value(json_object_get(entry, "generation"));
    json_int_t worker = json_integer_value(json_object_get(entry, "worker"));
    uint64_t values[NAMES];
    if (!json_is_integer(json_object_get(entry, "slot")) || slot < 0 ||
        slot >= (json_int_t)BT_ARRAY_LENGTH(counters->slots) || generation < 0 || generation > UINT32_MAX ||
        worker < 0 || worker >= BT_SERVICE_WORKERS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < NAMES; i++) {
        const json_t *value = json_object_get(entry, names[i]);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return -EINVAL;
        values[i] = (uint64_t)json_integer_value(value);
    }
    struct entry *kept = &counters->slots[slot];
    if (!kept->is_used || kept->generation != (uint32_t)generation)
        *kept = (struct entry){.is_used = true, .generation = (uint32_t)generation};
    uint64_t *current = kept->current[worker];
    bool is_restarted = false;
    for (size_t i = 0; i < NAMES; i++)
        is_restarted = is_restarted || values[i] < current[i];
    for (size_t i = 0; i < NAMES && is_restarted; i++)
        kept->earlier[i] += current[i];
    memcpy(current, values, sizeof(values));
    kept->reported_ms = now_ms;
    return 0;
}

json_t *bt_counters_get(const struct bt_counters *counters, uint16_t slot, uint32_t generation,
                        int64_t now_ms)
{
    static const struct entry none;
    const struct entry *kept = &none;
    if (slot < BT_ARRAY_LENGTH(counters->slots) && counters->slots[slot].is_used &&
        counters->slots[slot].generation == generation)
        kept = &counters->slots[slot];
    json_t *document = json_pack("{s:i, s:I}", "slot", (int)slot, "generation", (json_int_t)generation);
    for (size_t i = 0; i < NAMES; i++) {
        uint64_t sum = kept->earlier[i];
        for (size_t worker = 0; worker < BT_SERVICE_WORKERS_MAX; worker++)
            sum += kept->current[worker][i];
        json_object_set_new(document, names[i], json_integer((json_int_t)sum));
    }
    json_object_set_new(document, "age_ms",
                        kept->is_used ? json_integer((json_int_t)(now_ms - kept->reported_ms)) : json_null());
    return document;
}
