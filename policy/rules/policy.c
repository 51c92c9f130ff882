/* The policy document: taken whole or refused, then only read.
 *
 * Called by the orchestrator (to validate), the gateway (to enforce) and `berth why` (to explain). Must not
 * do I/O.
 */
#include "policy/rules/policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int bt_policy_check_keys(const json_t *object, const char *const *known, size_t count, const char *where,
                         struct bt_error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        bool is_known = false;
        for (size_t i = 0; i < count; i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        if (!is_known)
            return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/POLICY.md for the keys of this version",
                           "policy: %s has the unknown key \"%.64s\"", where, key);
    }
    return 0;
}

static int parse_routes(const json_t *routes, struct bt_policy *policy, struct bt_error *error)
{
    policy->routes = bt_new(json_array_size(routes) + 1, sizeof(*policy->routes));
    for (size_t i = 0; i < json_array_size(routes); i++) {
        int result = bt_policy_route_parse(json_array_get(routes, i), i, &policy->routes[i], error);
        if (result < 0)
            return result;
        policy->count++;
    }
    return 0;
}

int bt_policy_parse(const json_t *document, struct bt_policy **ret_policy, struct bt_error *error)
{
    static const char *const known[] = {"version", "routes"};
    if (!json_is_object(document))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/POLICY.md", "policy: not a JSON object");
    int result = bt_policy_check_keys(document, known, BT_ARRAY_LENGTH(known), "the document", error);
    if (result < 0)
        return result;
    const json_t *version = json_object_get(document, "version");
    if (!json_is_integer(version) || json_integer_value(version) != 1)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "this program reads version 1",
                       "policy: \"version\" is missing or not 1");
    const json_t *routes = json_object_get(document, "routes");
    if (!json_is_array(routes) || json_array_size(routes) > BT_POLICY_ROUTES_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "an empty list allows nothing",
                       "policy: \"routes\" is missing or not a list of at most %d routes",
                       BT_POLICY_ROUTES_MAX);
    struct bt_policy *policy = bt_new(1, sizeof(*policy));
    result = parse_routes(routes, policy, error);
    if (result < 0) {
        bt_policy_free(policy);
        return result;
    }
    *ret_policy = policy;
    return 0;
}

struct bt_policy *bt_policy_free(struct bt_policy *policy)
{
    if (policy == NULL)
        return NULL;
    for (size_t i = 0; i < policy->count; i++)
        bt_policy_route_free(&policy->routes[i]);
    free(policy->routes);
    free(policy);
    return NULL;
}

json_t *bt_policy_credentials(const struct bt_policy *policy)
{
    struct bt_list names = {0};
    json_t *credentials = json_array();
    for (size_t i = 0; i < policy->count; i++) {
        const struct bt_policy_route *route = &policy->routes[i];
        if (route->auth == BT_AUTH_NONE || bt_list_has(&names, route->credential))
            continue;
        bt_list_add(&names, route->credential);
        json_array_append_new(credentials, json_string(route->credential));
    }
    bt_list_free(&names);
    return credentials;
}
