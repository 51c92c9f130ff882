/* The policy document: taken whole or refused, then only read.
 *
 * Called by the orchestrator (to validate), the gateway (to enforce) and `berth why` (to explain). Must not
 * do I/O.
 */
#include "policy/rules/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"

struct route {
    struct bt_host_pattern pattern;
    bool may_be_private;
    char granted_by[96];
};

struct bt_policy {
    size_t count;
    struct route *routes;
};

static int check_keys(const json_t *object, const char *const *known, size_t count, const char *where,
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

static int route_fail(size_t index, const char *what, struct bt_error *error)
{
    return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/POLICY.md", "policy: route %zu: %s", index,
                   what);
}

static int parse_route(const json_t *item, size_t index, struct route *route, struct bt_error *error)
{
    static const char *const known[] = {"host", "tls", "private", "granted_by"};
    char where[32];
    snprintf(where, sizeof(where), "route %zu", index);
    if (!json_is_object(item))
        return route_fail(index, "is not an object", error);
    int result = check_keys(item, known, BT_ARRAY_LENGTH(known), where, error);
    if (result < 0)
        return result;
    /* jansson's json_string_value ends at a NUL; the length tells whether one hides in the text. */
    const json_t *host = json_object_get(item, "host");
    if (!json_is_string(host) || strlen(json_string_value(host)) != json_string_length(host))
        return route_fail(index, "\"host\" is missing or not a plain string", error);
    result = bt_host_pattern_check(json_string_value(host), error);
    if (result < 0)
        return bt_error_prefix(error, "policy: route %zu", index);
    result = bt_host_pattern_split(json_string_value(host), &route->pattern);
    if (result < 0)
        return result;
    const json_t *tls = json_object_get(item, "tls");
    if (tls != NULL && (!json_is_string(tls) || strcmp(json_string_value(tls), "pass") != 0))
        return route_fail(index, "\"tls\" must be \"pass\" in this version", error);
    const json_t *may_be_private = json_object_get(item, "private");
    if (may_be_private != NULL && !json_is_boolean(may_be_private))
        return route_fail(index, "\"private\" is not true or false", error);
    route->may_be_private = json_is_true(may_be_private);
    const json_t *granted_by = json_object_get(item, "granted_by");
    if (granted_by != NULL &&
        (!json_is_string(granted_by) || json_string_length(granted_by) >= sizeof(route->granted_by) ||
         strlen(json_string_value(granted_by)) != json_string_length(granted_by)))
        return route_fail(index, "\"granted_by\" is not a string of at most 95 bytes", error);
    if (granted_by != NULL)
        memcpy(route->granted_by, json_string_value(granted_by), json_string_length(granted_by) + 1);
    return 0;
}

int bt_policy_parse(const json_t *document, struct bt_policy **ret_policy, struct bt_error *error)
{
    static const char *const known[] = {"version", "routes"};
    if (!json_is_object(document))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/POLICY.md", "policy: not a JSON object");
    int result = check_keys(document, known, BT_ARRAY_LENGTH(known), "the document", error);
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
    policy->count = json_array_size(routes);
    policy->routes = bt_new(policy->count + 1, sizeof(*policy->routes));
    for (size_t i = 0; i < policy->count && result == 0; i++)
        result = parse_route(json_array_get(routes, i), i, &policy->routes[i], error);
    if (result < 0) {
        bt_policy_free(policy);
        return result;
    }
    *ret_policy = policy;
    return 0;
}

struct bt_policy *bt_policy_free(struct bt_policy *policy)
{
    if (policy != NULL)
        free(policy->routes);
    free(policy);
    return NULL;
}

static void refuse(struct bt_verdict *verdict, const char *rule, const char *reason, const char *hint)
{
    verdict->is_allowed = false;
    snprintf(verdict->rule, sizeof(verdict->rule), "%s", rule);
    snprintf(verdict->reason, sizeof(verdict->reason), "%s", reason);
    snprintf(verdict->hint, sizeof(verdict->hint), "%s", hint);
}

static void allow(struct bt_verdict *verdict, size_t index, const struct route *route)
{
    verdict->is_allowed = true;
    verdict->may_be_private = route->may_be_private;
    snprintf(verdict->rule, sizeof(verdict->rule), "route:%zu", index);
    snprintf(verdict->reason, sizeof(verdict->reason), "allowed by the route for %s%.120s",
             route->pattern.is_wildcard ? "*." : "", route->pattern.host);
    memcpy(verdict->granted_by, route->granted_by, sizeof(verdict->granted_by));
}

static bool is_port_matching(const struct route *route, uint16_t port)
{
    if (route->pattern.port == 0)
        return port == 80 || port == 443;
    return route->pattern.port == port;
}

/* port 0: any. */
static void decide(const struct bt_policy *policy, const char *host, uint16_t port,
                   struct bt_verdict *verdict)
{
    char canonical[BT_HOST_NAME_SIZE];
    bool is_host_listed = false;
    memset(verdict, 0, sizeof(*verdict));
    if (bt_host_canonical(host, strlen(host), canonical) < 0) {
        if (bt_host_is_literal(host, strlen(host)))
            refuse(verdict, "ip-literal", "addresses are not allowed, only names", "use the host's name");
        else
            refuse(verdict, "bad-host", "not a valid host name", "check the spelling of the host");
        return;
    }
    for (size_t i = 0; i < policy->count; i++) {
        const struct route *route = &policy->routes[i];
        if (!bt_host_pattern_matches(&route->pattern, canonical))
            continue;
        if (port == 0 || is_port_matching(route, port)) {
            allow(verdict, i, route);
            return;
        }
        is_host_listed = true;
    }
    if (is_host_listed)
        refuse(verdict, "port-not-allowed", "the policy names this host, but not this port",
               "add a route host:port to the bottle's egress.routes");
    else if (policy->count == 0)
        refuse(verdict, "default-deny", "the policy allows no host at all",
               "add the host to the bottle's egress.routes");
    else
        refuse(verdict, "default-deny", "no route of the policy names this host",
               "add the host to the bottle's egress.routes; *.example.com does not cover example.com");
}

void bt_policy_decide(const struct bt_policy *policy, const char *host, uint16_t port,
                      struct bt_verdict *ret_verdict)
{
    if (port == 0) {
        memset(ret_verdict, 0, sizeof(*ret_verdict));
        refuse(ret_verdict, "bad-port", "0 is not a port", "name a port of 1 to 65535");
        return;
    }
    decide(policy, host, port, ret_verdict);
}

void bt_policy_decide_name(const struct bt_policy *policy, const char *host, struct bt_verdict *ret_verdict)
{
    decide(policy, host, 0, ret_verdict);
}
