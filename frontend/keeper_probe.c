/* The isolation probe from an agent's keeper: gathers the facts that frontend/probe_run.h wants and keeps
 * what passed. See keeper_agent.h.
 */
#include <stdio.h>
#include <string.h>

#include "frontend/keeper_agent.h"
#include "frontend/probe_run.h"

#define PASSED_KEYS_MAX 8U
#define PASSED_FILE_MAX 16384U

static int read_drops(void *context, uint64_t *ret_packets, struct bt_error *error)
{
    struct bt_keeper_agent *agent = context;
    struct bt_helper_counters counters;
    int result = bt_helper_counters(&agent->keeper->helper, &counters);
    if (result < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, "is berth-helper running? see berth doctor",
                       "berth-helper gives no counters: %s", strerror(-result));
    *ret_packets = counters.dropped_packets;
    return 0;
}

static int read_gateway(void *context, struct bt_probe_gateway_counters *ret_counters, struct bt_error *error)
{
    struct bt_keeper_agent *agent = context;
    struct bt_orchestrator orchestrator = bt_keeper_orchestrator(agent);
    bt_auto_free char *path = bt_string_format("/v1/counters/%u", agent->keeper->lease.slot);
    json_t *document = NULL;
    int result = bt_orchestrator_get(&orchestrator, path, &document, error);
    if (result < 0)
        return result;
    ret_counters->dns_questions = (uint64_t)json_integer_value(json_object_get(document, "dns_questions"));
    ret_counters->upstream_questions =
        (uint64_t)json_integer_value(json_object_get(document, "upstream_questions"));
    json_decref(document);
    return 0;
}

/* The other slots of this user: their guests are the siblings that can be named. */
static void find_siblings(struct bt_keeper_agent *agent, struct bt_probe_facts *facts)
{
    struct bt_keeper *keeper = agent->keeper;
    struct bt_helper_status status;
    if (bt_helper_status(&keeper->helper, &status) < 0)
        return;
    for (uint16_t slot = 0; slot < keeper->helper.pool.slots && facts->sibling_count < BT_PROBE_SIBLINGS_MAX;
         slot++) {
        struct bt_place place;
        bool is_held = (status.own[slot / 8] >> (slot % 8) & 1) != 0;
        if (!is_held || slot == keeper->lease.slot || slot == agent->pair.gateway.slot ||
            slot == agent->pair.orchestrator.slot ||
            bt_pool_place(&keeper->helper.pool, keeper->lease.kind, BT_ROLE_AGENT, slot, &place) < 0)
            continue;
        facts->siblings[facts->sibling_count++] = place.guest_address;
    }
}

static void gather(struct bt_keeper_agent *agent, struct bt_probe_facts *facts)
{
    struct bt_keeper *keeper = agent->keeper;
    const char *public_address = bt_keeper_text(keeper, "probe_public_address");
    uint16_t other = (uint16_t)((keeper->lease.slot + 1U) % keeper->helper.pool.slots);
    struct bt_place place;
    *facts = (struct bt_probe_facts){
        .guest_address = keeper->lease.guest_address,
        .slot_host_address = keeper->lease.host_address,
        .own_gateway_address = keeper->gateway_address,
        .is_without_route = keeper->backend->lease_kind == BT_KIND_BRIDGE,
        .orchestrator_address = agent->pair.orchestrator.address,
        .gateway_address = agent->pair.gateway.address,
        .public_address = BT_PROBE_PUBLIC_ADDRESS_DEFAULT,
        .read_drops = read_drops,
        .read_gateway = read_gateway,
        .context = agent,
    };
    if (public_address != NULL && bt_ipv4_parse(public_address, &facts->public_address) < 0)
        facts->public_address = BT_PROBE_PUBLIC_ADDRESS_DEFAULT;
    if (bt_probe_primary_address(&facts->host_primary_address) < 0)
        facts->host_primary_address = 0; /* a host without a route has no address to protect but the slot's */
    if (bt_pool_place(&keeper->helper.pool, keeper->lease.kind, BT_ROLE_AGENT, other, &place) == 0)
        facts->foreign_address = place.guest_address;
    find_siblings(agent, facts);
}

/* $STATE/probe-passed.json: the newest keys under which the host-wide checks passed. Damaged or absent: none.
 */
static json_t *read_passed(const char *path)
{
    bt_auto_buffer text = {0};
    json_t *keys = NULL;
    if (bt_file_read(path, PASSED_FILE_MAX, &text, NULL) == 0 && text.data != NULL)
        keys = json_loadb(text.data, text.length, 0, NULL);
    if (json_is_array(keys))
        return keys;
    json_decref(keys);
    return json_array();
}

static void remember_passed(const char *path, json_t *keys, const char *key)
{
    struct bt_error error = {0};
    (void)json_array_insert_new(keys, 0, json_string(key));
    while (json_array_size(keys) > PASSED_KEYS_MAX)
        (void)json_array_remove(keys, PASSED_KEYS_MAX);
    bt_auto_free char *text = json_dumps(keys, JSON_COMPACT);
    if (text != NULL && bt_file_write(path, text, strlen(text), 0600, &error) < 0)
        (void)fprintf(stderr, "the host-wide checks will be repeated: %s\n", error.message);
}

static bool is_host_wide_needed(enum bt_probe_repeat repeat, const json_t *keys, const char *key)
{
    const char *passed[PASSED_KEYS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(keys) && count < PASSED_KEYS_MAX; i++) {
        passed[count] = json_string_value(json_array_get(keys, i));
        if (passed[count] != NULL)
            count++;
    }
    return bt_probe_is_needed(repeat, passed, count, key);
}

int bt_keeper_probe(struct bt_keeper_agent *agent, bool is_forced, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    enum bt_probe_repeat repeat = (enum bt_probe_repeat)bt_keeper_number(keeper, "probe_repeat");
    bt_auto_free char *path = bt_string_format("%s/probe-passed.json", keeper->paths.state);
    struct bt_probe_facts facts;
    json_t *document = NULL;
    char key[BT_DIGEST_TEXT_SIZE];
    int result = bt_probe_key(keeper->helper.epoch, key, error);
    if (result < 0)
        return result;
    json_t *keys = read_passed(path);
    gather(agent, &facts);
    facts.has_host_wide = is_forced || is_host_wide_needed(repeat, keys, key);
    result = bt_probe_run(agent->link, &facts, &document, error);
    if (result == 0) {
        json_decref(agent->probe);
        agent->probe = document;
        result = bt_probe_check(document, error);
    }
    if (result == 0 && facts.has_host_wide)
        remember_passed(path, keys, key);
    json_decref(keys);
    return result;
}
