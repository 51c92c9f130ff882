/* The orchestrator's parts below its API: token, registry on disk, counters. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/orchestrator/counters.h"
#include "policy/orchestrator/jwt.h"
#include "policy/orchestrator/registry.h"
#include "policy/orchestrator/vault.h"
#include "policy/rules/service.h"
#include "tests/lib/test_folder.h"

static void test_token(void **state)
{
    static const uint8_t key[BT_JWT_KEY_SIZE] = "0123456789abcdef0123456789abcde";
    static const uint8_t other[BT_JWT_KEY_SIZE] = "another";
    char token[BT_JWT_TEXT_SIZE], changed[BT_JWT_TEXT_SIZE];
    (void)state;
    assert_int_equal(bt_jwt_make(key, 1000, token), 0);
    assert_int_equal(bt_jwt_check(key, 1000, token), 0);
    assert_int_equal(bt_jwt_check(key, 1000 + BT_JWT_LIFETIME_SECONDS - 1, token), 0);
    assert_int_equal(bt_jwt_check(key, 1000 + BT_JWT_LIFETIME_SECONDS, token), -EACCES);
    assert_int_equal(bt_jwt_check(other, 1000, token), -EACCES);
    for (size_t i = 0; token[i] != '\0'; i++) {
        memcpy(changed, token, sizeof(changed));
        changed[i] = changed[i] == 'A' ? 'B' : 'A';
        assert_int_equal(bt_jwt_check(key, 1000, changed), -EACCES);
        changed[i] = '\0';
        assert_int_equal(bt_jwt_check(key, 1000, changed), -EACCES);
    }
    /* {"alg":"none"} with nothing as signature. */
    assert_int_equal(
        bt_jwt_check(key, 1000, "eyJhbGciOiJub25lIn0.eyJhdWQiOiJnYXRld2F5IiwiZXhwIjo5OTk5OTk5OTk5fQ."),
        -EACCES);
    assert_int_equal(bt_jwt_check(key, 1000, ""), -EACCES);
    assert_int_equal(bt_jwt_check(key, 1000, "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."), -EACCES);
}

static struct bt_registry_agent make_agent(uint16_t slot, uint32_t generation, uint32_t address)
{
    struct bt_registry_agent agent = {
        .slot = slot, .generation = generation, .address = address, .gateway_address = address - 1};
    snprintf(agent.name, sizeof(agent.name), "agent-%u-%u", slot, generation);
    bt_service_secret_digest("token", 5, agent.token_sha256);
    agent.policy = json_loads("{\"version\": 1, \"routes\": []}", 0, NULL);
    return agent;
}

static void put(struct bt_registry *registry, uint16_t slot, uint32_t generation, uint32_t address,
                const char *policy, uint64_t wanted_version)
{
    struct bt_error error = {0};
    struct bt_registry_agent agent = make_agent(slot, generation, address);
    uint64_t version = 0;
    if (policy != NULL) {
        json_decref(agent.policy);
        agent.policy = json_loads(policy, 0, NULL);
    }
    assert_int_equal(bt_registry_put(registry, &agent, &version, &error), 0);
    assert_int_equal(version, wanted_version);
    bt_registry_agent_clear(&agent);
}

static struct bt_registry *open_registry(const char *path)
{
    struct bt_registry *registry = NULL;
    struct bt_error error = {0};
    if (bt_registry_open(path, &registry, &error) < 0)
        fail_msg("%s", error.message);
    return registry;
}

static void count_agent(void *context, const struct bt_registry_agent *agent)
{
    int *count = context;
    assert_true(json_is_object(agent->policy));
    (*count)++;
}

/* What is sealed comes back only with its key, slot and generation, and only as it was. */
static void test_vault(void **state)
{
    static const char key[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    struct bt_vault *vault = bt_vault_new();
    struct bt_buffer sealed = {0};
    json_t *secrets = json_pack("{s:{s:s}}", "credentials", "one", "value-of-one");
    json_t *opened = NULL;
    (void)state;
    assert_int_equal(bt_vault_take_key(vault, 3, 17, "0011"), -EINVAL);
    assert_int_equal(bt_vault_seal(vault, 3, 17, secrets, &sealed), -ENOKEY);
    assert_int_equal(bt_vault_take_key(vault, 3, 17, key), 0);
    assert_int_equal(bt_vault_take_key(vault, 4, 17, key), 0);
    assert_int_equal(bt_vault_seal(vault, 3, 17, secrets, &sealed), 0);
    assert_null(memmem(sealed.data, sealed.length, "value-of-one", 12));
    assert_int_equal(bt_vault_open(vault, 3, 17, &sealed, &opened), 0);
    assert_true(json_equal(secrets, opened));
    json_decref(opened);
    assert_int_equal(bt_vault_open(vault, 3, 18, &sealed, &opened), -ENOKEY);
    assert_int_equal(bt_vault_open(vault, 4, 17, &sealed, &opened), -EBADMSG);
    for (size_t i = 0; i < sealed.length; i++) {
        sealed.data[i] ^= 1;
        assert_int_equal(bt_vault_open(vault, 3, 17, &sealed, &opened), -EBADMSG);
        sealed.data[i] ^= 1;
    }
    sealed.length--;
    assert_int_equal(bt_vault_open(vault, 3, 17, &sealed, &opened), -EBADMSG);
    sealed.length = 5;
    assert_int_equal(bt_vault_open(vault, 3, 17, &sealed, &opened), -EBADMSG);
    bt_vault_forget(vault, 3, 16);
    bt_vault_forget(vault, 3, 17);
    assert_int_equal(bt_vault_seal(vault, 3, 17, secrets, &sealed), -ENOKEY);
    bt_buffer_free(&sealed);
    json_decref(secrets);
    bt_vault_free(vault);
}

/* Secrets survive in the registry as they were sealed; new ones make a new version. */
static void test_sealed_rows(void **state)
{
    struct bt_registry *registry = open_registry(*state);
    struct bt_registry_agent agent = make_agent(20, 1, 0x0af30041), found = {0};
    uint64_t version = 0;
    assert_int_equal(bt_buffer_add(&agent.sealed, "\0sealed", 7), 0);
    agent.has_new_secrets = true;
    assert_int_equal(bt_registry_put(registry, &agent, &version, NULL), 0);
    assert_int_equal(version, 1);
    agent.has_new_secrets = false;
    assert_int_equal(bt_registry_put(registry, &agent, &version, NULL), 0);
    assert_int_equal(version, 1);
    agent.has_new_secrets = true;
    assert_int_equal(bt_registry_put(registry, &agent, &version, NULL), 0);
    assert_int_equal(version, 2);
    /* A version that is sent rises with each change: a gateway would not look for it otherwise. */
    struct bt_error error = {0};
    agent.policy_version = 2;
    assert_int_equal(bt_registry_put(registry, &agent, &version, &error), -EINVAL);
    assert_non_null(strstr(error.message, "the next one of slot 20 is 3"));
    agent.has_new_secrets = false;
    assert_int_equal(bt_registry_put(registry, &agent, &version, NULL), 0);
    assert_int_equal(version, 2);
    agent.policy_version = 1;
    assert_int_equal(bt_registry_put(registry, &agent, &version, NULL), -EINVAL);
    agent.policy_version = 7;
    agent.has_new_secrets = true;
    assert_int_equal(bt_registry_put(registry, &agent, &version, NULL), 0);
    assert_int_equal(version, 7);
    bt_registry_close(registry);
    registry = open_registry(*state);
    assert_int_equal(bt_registry_find_slot(registry, 20, &found, NULL), 0);
    assert_int_equal(found.sealed.length, 7);
    assert_memory_equal(found.sealed.data, "\0sealed", 7);
    bt_registry_agent_clear(&found);
    bt_registry_agent_clear(&agent);
    bt_registry_close(registry);
}

static void test_registry(void **state)
{
    const char *path = *state;
    struct bt_registry *registry = open_registry(path);
    struct bt_registry_agent agent = {0};
    int agents = 0;
    put(registry, 3, 17, 0x0af30007, NULL, 1);
    put(registry, 3, 17, 0x0af30007, NULL, 1);
    put(registry, 3, 17, 0x0af30007, "{\"version\": 1, \"routes\": [{\"host\": \"a.example\"}]}", 2);
    put(registry, 3, 5, 0x0af30007, NULL, 1); /* after a reboot generations start anew */
    put(registry, 4, 6, 0x0af30009, NULL, 1);
    put(registry, 9, 7, 0x0af30009, NULL, 1); /* the address moved: its old row is stale */
    assert_int_equal(bt_registry_find_slot(registry, 4, &agent, NULL), -ENOENT);
    assert_int_equal(bt_registry_delete(registry, 3, 17, NULL), -ENOENT);
    /* A lease that comes back counts on: the same policy, another one, one that was replaced meanwhile. */
    put(registry, 12, 9, 0x0af30019, NULL, 1);
    assert_int_equal(bt_registry_delete(registry, 12, 9, NULL), 0);
    put(registry, 12, 9, 0x0af30019, NULL, 2);
    put(registry, 12, 10, 0x0af30019, NULL, 1);
    put(registry, 12, 9, 0x0af30019, NULL, 3);
    put(registry, 13, 2, 0x0af30019, NULL, 1);
    registry = bt_registry_close(registry);
    registry = open_registry(path);
    put(registry, 12, 9, 0x0af30019, NULL, 4);
    assert_int_equal(bt_registry_delete(registry, 12, 9, NULL), 0);
    assert_int_equal(bt_registry_find_address(registry, 0x0af30007, &agent, NULL), 0);
    assert_int_equal(agent.slot, 3);
    assert_int_equal(agent.generation, 5);
    assert_string_equal(agent.name, "agent-3-5");
    bt_registry_agent_clear(&agent);
    assert_int_equal(bt_registry_find_address(registry, 0x0af3000b, &agent, NULL), -ENOENT);
    assert_int_equal(bt_registry_visit(registry, count_agent, &agents, NULL), 0);
    assert_int_equal(agents, 2);
    assert_int_equal(bt_registry_delete(registry, 3, 5, NULL), 0);
    assert_int_equal(bt_registry_find_slot(registry, 3, &agent, NULL), -ENOENT);
    bt_registry_close(registry);
}

static void add_decisions(struct bt_registry *registry, int slot, int count)
{
    json_t *records = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(records, json_pack("{s:i, s:i, s:i}", "slot", slot, "generation", 1, "n", i));
    assert_int_equal(bt_registry_add_decisions(registry, records, NULL), 0);
    json_decref(records);
}

static size_t count_decisions(struct bt_registry *registry, int64_t slot, int64_t after, int64_t *last)
{
    struct bt_decision_query query = {.slot = slot, .generation = -1, .after = after, .limit = 1000};
    json_t *records = NULL;
    assert_int_equal(bt_registry_decisions(registry, &query, &records, last, NULL), 0);
    size_t count = json_array_size(records);
    json_decref(records);
    return count;
}

static void test_decisions(void **state)
{
    struct bt_registry *registry = open_registry(*state);
    int64_t last = 0;
    add_decisions(registry, 1, 3);
    add_decisions(registry, 2, 4);
    assert_int_equal(count_decisions(registry, -1, 0, &last), 7);
    assert_int_equal(count_decisions(registry, 2, 0, &last), 4);
    assert_int_equal(count_decisions(registry, -1, last, &last), 0);
    bt_registry_close(registry);
}

static size_t count_all_decisions(struct bt_registry *registry, int64_t *last)
{
    size_t total = 0, count;
    *last = 0;
    while ((count = count_decisions(registry, -1, *last, last)) > 0)
        total += count;
    return total;
}

/* There is an end to them; ids go on. Who floods pushes out its own, and of those the refusals. */
static void test_flood_of_decisions(void **state)
{
    struct bt_registry *registry = open_registry(*state);
    int64_t last;
    add_decisions(registry, 1, 3);
    json_t *reached = json_pack("[{s:i, s:i, s:b}]", "slot", 3, "generation", 1, "allowed", 1);
    assert_int_equal(bt_registry_add_decisions(registry, reached, NULL), 0);
    json_decref(reached);
    for (int i = 0; i < 11; i++)
        add_decisions(registry, 3, 1000);
    assert_int_equal(count_decisions(registry, 1, 0, &last), 3);
    assert_in_range(count_all_decisions(registry, &last), BT_REGISTRY_DECISIONS_MAX - 300,
                    BT_REGISTRY_DECISIONS_MAX);
    assert_int_equal(last, 11004);
    struct bt_decision_query query = {.slot = 3, .generation = -1, .limit = 1};
    assert_int_equal(bt_registry_decisions(registry, &query, &reached, &last, NULL), 0);
    assert_true(json_is_true(json_object_get(json_array_get(reached, 0), "allowed")));
    json_decref(reached);
    bt_registry_close(registry);
}

/* Many with few: then age decides, or those that ended long ago would stay for ever. */
static void test_old_decisions(void **state)
{
    struct bt_registry *registry = open_registry(*state);
    int64_t last;
    for (int slot = 0; slot < 40; slot++)
        add_decisions(registry, slot, BT_REGISTRY_DECISIONS_SHARE);
    assert_int_equal(count_decisions(registry, 0, 0, &last), 0);
    assert_int_equal(count_decisions(registry, 39, 0, &last), BT_REGISTRY_DECISIONS_SHARE);
    assert_in_range(count_all_decisions(registry, &last), 9000, BT_REGISTRY_DECISIONS_MAX);
    bt_registry_close(registry);
}

static json_int_t counter(struct bt_counters *counters, uint32_t generation, const char *name)
{
    json_t *document = bt_counters_get(counters, 3, generation, 500);
    json_int_t value = json_is_null(json_object_get(document, name))
                           ? -1
                           : json_integer_value(json_object_get(document, name));
    json_decref(document);
    return value;
}

static int report(struct bt_counters *counters, int slot, int generation, int questions)
{
    json_t *entry = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "slot", slot, "generation", generation,
                              "dns_questions", questions, "upstream_questions", 1, "allowed", 0, "refused", 0,
                              "bytes", 9);
    int result = bt_counters_report(counters, entry, 100);
    json_decref(entry);
    return result;
}

static void test_counters(void **state)
{
    struct bt_counters *counters = bt_counters_new();
    (void)state;
    assert_int_equal(counter(counters, 7, "age_ms"), -1);
    assert_int_equal(counter(counters, 7, "bytes"), 0);
    assert_int_equal(report(counters, 3, 7, 10), 0);
    assert_int_equal(report(counters, 3, 7, 10), 0); /* repeated: no change */
    assert_int_equal(counter(counters, 7, "dns_questions"), 10);
    assert_int_equal(counter(counters, 7, "age_ms"), 400);
    assert_int_equal(report(counters, 3, 7, 2), 0); /* another gateway */
    assert_int_equal(counter(counters, 7, "dns_questions"), 12);
    assert_int_equal(counter(counters, 7, "upstream_questions"), 2);
    assert_int_equal(counter(counters, 8, "dns_questions"), 0); /* another generation */
    assert_int_equal(report(counters, 3, 8, 1), 0);
    assert_int_equal(counter(counters, 8, "dns_questions"), 1);
    assert_int_equal(report(counters, 5000, 8, 1), -EINVAL);
    assert_int_equal(report(counters, 3, 8, -1), -EINVAL);
    bt_counters_free(counters);
}

static void test_digests(void **state)
{
    char digest[BT_DIGEST_TEXT_SIZE], other[BT_DIGEST_TEXT_SIZE];
    (void)state;
    bt_service_secret_digest("abc", 3, digest);
    assert_string_equal(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    memcpy(other, digest, sizeof(other));
    assert_true(bt_service_digest_equal(digest, other));
    other[63] = '0';
    assert_false(bt_service_digest_equal(digest, other));
    assert_false(bt_service_digest_equal("", ""));
    assert_false(bt_service_digest_equal(digest, ""));
}

static int make_folder(void **state)
{
    char folder[256];
    test_folder_make(folder, sizeof(folder));
    *state = bt_string_format("%s/registry.db", folder);
    return 0;
}

static int remove_folder(void **state)
{
    char *path = *state;
    *strrchr(path, '/') = '\0';
    int result = bt_tree_remove(path, NULL);
    free(path);
    return result;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token),
        cmocka_unit_test(test_vault),
        cmocka_unit_test_setup_teardown(test_sealed_rows, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_registry, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_decisions, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_flood_of_decisions, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_old_decisions, make_folder, remove_folder),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests_name("orchestrator", tests, NULL, NULL);
}
