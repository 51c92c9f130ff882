/* Agent manifests, bottles and policies of arbitrary bytes. The first byte chooses which. What is accepted
 * must keep the promises that the rest of berth relies on. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/manifest_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool is_kept)
{
    if (!is_kept)
        abort();
}

static void fuzz_agent(const char *text, size_t size)
{
    struct bt_agent_manifest manifest;
    struct bt_error error = {0};
    if (bt_agent_manifest_parse("agent.md", text, size, &manifest, &error) < 0) {
        require(error.message[0] != '\0');
        return;
    }
    json_t *prompt = json_string(manifest.prompt);
    require(prompt != NULL);
    json_decref(prompt);
    require(manifest.harness < BT_HARNESS_MAX);
    bt_agent_manifest_free(&manifest);
}

static void fuzz_bottle(const char *text, size_t size)
{
    struct bt_bottle bottle;
    struct bt_error error = {0};
    char *extends = NULL, *extends_at = NULL;
    if (bt_bottle_parse("bottle.yaml", text, size, "b", &bottle, &extends, &extends_at, &error) < 0) {
        require(error.message[0] != '\0');
        return;
    }
    require(bottle.has_egress || bottle.route_count == 0);
    for (size_t i = 0; i < bottle.route_count; i++) {
        char pattern[BT_PATTERN_SIZE];
        require(bt_pattern_canonical(bottle.routes[i].host, pattern) == 0);
        require(strcmp(pattern, bottle.routes[i].host) == 0);
    }
    for (size_t i = 0; i < bottle.environment.count; i++)
        require(strchr(bottle.environment.items[i], '=') > bottle.environment.items[i]);
    free(extends);
    free(extends_at);
    bt_bottle_free(&bottle);
}

/* What a list leaves of a route must be within both. */
static void fuzz_policy(const char *text, size_t size)
{
    struct bt_allow_list list;
    struct bt_error error = {0};
    if (bt_allow_parse("policy.yaml", "policy", text, size, &list, &error) < 0) {
        require(error.message[0] != '\0');
        return;
    }
    for (size_t i = 0; i + 1 < list.count && i < 64; i++) {
        char both[BT_PATTERN_SIZE], again[BT_PATTERN_SIZE];
        bt_pattern_intersect(list.entries[i].pattern, list.entries[i + 1].pattern, both);
        if (!*both)
            continue;
        bt_pattern_intersect(both, list.entries[i].pattern, again);
        require(strcmp(both, again) == 0);
        bt_pattern_intersect(list.entries[i + 1].pattern, both, again);
        require(strcmp(both, again) == 0);
    }
    bt_allow_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    char *text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    if (data[0] % 3 == 0)
        fuzz_agent(text, size - 1);
    else if (data[0] % 3 == 1)
        fuzz_bottle(text, size - 1);
    else
        fuzz_policy(text, size - 1);
    free(text);
    return 0;
}
