/* The decision: a connection or a request held against a policy. See rules.h.
 *
 * Called by the gateway for each connection, DNS question and request, and by `berth why`. Must not allocate:
 * it runs for every request.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "policy/rules/policy.h"

/* How far the most fitting route came; a refusal is explained by what was missing there. */
enum stage { STAGE_NONE, STAGE_HOST, STAGE_PORT, STAGE_METHOD, STAGE_HEADERS };

struct search {
    const struct bt_policy *policy;
    const struct bt_policy_request *request;
    char host[BT_HOST_NAME_SIZE];
    enum stage stage;
    size_t nearest; /* the route that came that far */
    char path[BT_POLICY_PATH_SIZE];
    int path_state; /* 1: not looked at yet, 0: normal, negative: it has no normal form */
};

static void refuse(struct bt_verdict *verdict, const char *rule, const char *reason, const char *hint)
{
    verdict->is_allowed = false;
    snprintf(verdict->rule, sizeof(verdict->rule), "%s", rule);
    snprintf(verdict->reason, sizeof(verdict->reason), "%s", reason);
    snprintf(verdict->hint, sizeof(verdict->hint), "%s", hint);
}

static void allow(struct bt_verdict *verdict, const struct bt_policy *policy, size_t index)
{
    const struct bt_policy_route *route = &policy->routes[index];
    verdict->is_allowed = true;
    verdict->is_intercepted = !route->is_passed;
    verdict->may_be_private = route->may_be_private;
    verdict->strips_credentials = !route->preserves_auth;
    verdict->dlp = route->dlp;
    verdict->log = route->log;
    snprintf(verdict->rule, sizeof(verdict->rule), "route:%zu", index);
    snprintf(verdict->reason, sizeof(verdict->reason), "allowed by the route for %s%.120s",
             route->pattern.is_wildcard ? "*." : "", route->pattern.host);
    memcpy(verdict->granted_by, route->granted_by, sizeof(verdict->granted_by));
}

static bool is_port_matching(const struct bt_policy_route *route, uint16_t port)
{
    if (route->pattern.port == 0)
        return port == 80 || port == 443;
    return route->pattern.port == port;
}

bool bt_policy_is_credential_field(struct bt_http_slice name)
{
    static const char *const fields[] = {
        "authorization", "x-api-key",      "api-key",       "x-goog-api-key", "x-auth-token",
        "x-auth-key",    "x-access-token", "private-token", "job-token",      "x-vault-token",
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(fields); i++)
        if (bt_http_name_is_like(name, fields[i]))
            return true;
    return false;
}

bool bt_policy_route_has_method(const struct bt_policy_route *route, struct bt_http_slice method)
{
    if (route->methods.count == 0)
        return true;
    bool is_head = bt_http_slice_is(method, "HEAD");
    for (size_t i = 0; i < route->methods.count; i++)
        if (bt_http_slice_is(method, route->methods.items[i]) ||
            (is_head && strcmp(route->methods.items[i], "GET") == 0))
            return true;
    return false;
}

/* Exactly one field of that name, with exactly that value: of two, one reader takes the first and another the
 * last. */
static bool has_field(const struct bt_policy_request *request, const char *name, const char *value)
{
    size_t count = 0;
    bool is_equal = false;
    for (size_t i = 0; i < request->field_count; i++) {
        const struct bt_http_field *field = &request->fields[i];
        if (!bt_http_name_is_like(field->name, name))
            continue;
        count++;
        is_equal = bt_http_slice_is(field->value, value);
    }
    return count == 1 && is_equal;
}

static bool are_headers_matching(const struct bt_policy_route *route, const struct bt_policy_request *request)
{
    for (size_t i = 0; i < route->header_names.count; i++)
        if (!has_field(request, route->header_names.items[i], route->header_values.items[i]))
            return false;
    return true;
}

/* -EINVAL: the route distinguishes paths, and this one could be read as several. */
static int match_path(const struct bt_policy_route *route, struct search *search)
{
    if (route->paths.count == 0)
        return 1;
    if (search->path_state == 1)
        search->path_state =
            bt_policy_path_normalise(search->request->path, search->path, sizeof(search->path));
    if (search->path_state < 0)
        return -EINVAL;
    for (size_t i = 0; i < route->paths.count; i++)
        if (bt_policy_path_matches(route->paths.items[i], search->path))
            return 1;
    return 0;
}

/* 1: this route decides; 0: the next one may; -EINVAL: the path is ambiguous. */
static int match_route(const struct bt_policy_route *route, struct search *search, enum stage *ret_stage)
{
    *ret_stage = STAGE_NONE;
    if (!bt_host_pattern_matches(&route->pattern, search->host))
        return 0;
    *ret_stage = STAGE_HOST;
    if (!is_port_matching(route, search->request->port))
        return 0;
    *ret_stage = STAGE_PORT;
    if (!bt_policy_route_has_method(route, search->request->method))
        return 0;
    *ret_stage = STAGE_METHOD;
    if (!are_headers_matching(route, search->request))
        return 0;
    *ret_stage = STAGE_HEADERS;
    /* Last, so that an ambiguous path is refused only where nothing but the path could make a difference. */
    return match_path(route, search);
}

/* "the policy allows no POST for this host" and what to do about it. */
static void refuse_nearest(const struct search *search, struct bt_verdict *verdict)
{
    const struct bt_policy_route *route = &search->policy->routes[search->nearest];
    const struct bt_policy_request *request = search->request;
    char method[24];
    size_t length = request->method.length < sizeof(method) ? request->method.length : sizeof(method) - 1;
    if (search->stage == STAGE_NONE) {
        refuse(verdict, "default-deny",
               search->policy->count == 0 ? "the policy allows no host at all"
                                          : "no route of the policy names this host",
               search->policy->count == 0
                   ? "add the host to the bottle's egress.routes"
                   : "add the host to the bottle's egress.routes; *.example.com does not cover example.com");
        return;
    }
    if (search->stage == STAGE_HOST) {
        refuse(verdict, "port-not-allowed", "the policy names this host, but not this port",
               "add a route host:port to the bottle's egress.routes");
        return;
    }
    for (size_t i = 0; i < length; i++)
        method[i] =
            (char)(request->method.data[i] > ' ' && request->method.data[i] < 0x7f ? request->method.data[i]
                                                                                   : '?');
    method[length] = '\0';
    if (search->stage == STAGE_PORT)
        refuse(verdict, "method-not-allowed", "", "");
    else if (search->stage == STAGE_HEADERS)
        refuse(verdict, "path-not-allowed", "the policy names this host, but not this path", "");
    else
        refuse(verdict, "header-not-allowed",
               "the policy names this host for requests with certain header fields only", "");
    if (search->stage == STAGE_PORT)
        snprintf(verdict->reason, sizeof(verdict->reason), "the policy does not allow %s for this host",
                 method);
    snprintf(verdict->hint, sizeof(verdict->hint), "see %s of route %zu (%.60s%s), or add a route for it",
             search->stage == STAGE_PORT     ? "'methods'"
             : search->stage == STAGE_METHOD ? "'headers'"
                                             : "'paths'",
             search->nearest, route->granted_by[0] != '\0' ? route->granted_by : "granted by nobody named",
             strlen(route->granted_by) > 60 ? "..." : "");
}

/* What the deciding route does with credentials on this kind of connection. */
static void settle_auth(const struct bt_policy_route *route, const struct bt_policy_request *request,
                        struct bt_verdict *verdict)
{
    if (route->needs_tls && !request->is_tls) {
        refuse(verdict, "credential-needs-tls",
               "the route for this host carries a credential, which is never sent in clear", "use https://");
        return;
    }
    /* The agent's own value of that field has no business there, whether one is injected or not. */
    memcpy(verdict->auth_header, route->auth_header, sizeof(verdict->auth_header));
    if (route->auth == BT_AUTH_NONE)
        return;
    if (request->is_transparent && !route->injects_transparently) {
        size_t length = strlen(verdict->reason);
        snprintf(verdict->reason + length, sizeof(verdict->reason) - length, ", without its credential");
        return;
    }
    verdict->auth = route->auth;
    memcpy(verdict->credential, route->credential, sizeof(verdict->credential));
}

/* The route decides, unless the request asks for something else than what was held against it. */
static void settle(const struct bt_policy *policy, size_t index, const struct bt_policy_request *request,
                   struct bt_verdict *verdict)
{
    const struct bt_policy_route *route = &policy->routes[index];
    if (bt_policy_method_is_overridden(route, request)) {
        refuse(verdict, "method-ambiguous", "a field or parameter asks for another method than the request",
               "send the method itself, without X-HTTP-Method-Override, its like, and _method");
        return;
    }
    if (bt_policy_path_is_overridden(route, request)) {
        refuse(verdict, "path-ambiguous", "a field asks for another path than the request",
               "send it without X-Original-URL and X-Rewrite-URL");
        return;
    }
    allow(verdict, policy, index);
    settle_auth(route, request, verdict);
}

/* Returns whether the host may be looked for; else the verdict is there. */
static bool take_host(const char *host, char ret_host[BT_HOST_NAME_SIZE], struct bt_verdict *verdict)
{
    if (bt_host_canonical(host, strlen(host), ret_host) == 0)
        return true;
    if (bt_host_is_literal(host, strlen(host)))
        refuse(verdict, "ip-literal", "addresses are not allowed, only names", "use the host's name");
    else
        refuse(verdict, "bad-host", "not a valid host name", "check the spelling of the host");
    return false;
}

static bool take_port(uint16_t port, struct bt_verdict *verdict)
{
    if (port == 0)
        refuse(verdict, "bad-port", "0 is not a port", "name a port of 1 to 65535");
    return port != 0;
}

void bt_policy_decide(const struct bt_policy *policy, const struct bt_policy_request *request,
                      struct bt_verdict *ret_verdict)
{
    struct search search;
    memset(ret_verdict, 0, sizeof(*ret_verdict));
    search.policy = policy;
    search.request = request;
    search.stage = STAGE_NONE;
    search.nearest = 0;
    search.path_state = 1;
    if (!take_port(request->port, ret_verdict) || !take_host(request->host, search.host, ret_verdict))
        return;
    for (size_t i = 0; i < policy->count; i++) {
        enum stage stage;
        int result = match_route(&policy->routes[i], &search, &stage);
        if (result < 0) {
            refuse(ret_verdict, "path-ambiguous", "this path could be read in more than one way",
                   "write it without dot segments, empty segments, ';', '\\' and needless percent-encoding");
            return;
        }
        if (result > 0) {
            settle(policy, i, request, ret_verdict);
            return;
        }
        if (stage > search.stage) {
            search.stage = stage;
            search.nearest = i;
        }
    }
    refuse_nearest(&search, ret_verdict);
}

/* port 0: any. */
static void decide_name(const struct bt_policy *policy, const char *name, uint16_t port,
                        struct bt_verdict *verdict)
{
    struct bt_policy_request request = {.host = name, .port = port};
    struct search search = {.policy = policy, .request = &request};
    if (!take_host(name, search.host, verdict))
        return;
    for (size_t i = 0; i < policy->count; i++) {
        const struct bt_policy_route *route = &policy->routes[i];
        if (!bt_host_pattern_matches(&route->pattern, search.host))
            continue;
        if (search.stage == STAGE_NONE)
            search.stage = STAGE_HOST;
        if (port != 0 && !is_port_matching(route, port))
            continue;
        if (!verdict->is_allowed)
            allow(verdict, policy, i);
        else
            verdict->may_be_private =
                verdict->may_be_private || (verdict->is_intercepted && route->may_be_private);
    }
    if (!verdict->is_allowed)
        refuse_nearest(&search, verdict);
}

void bt_policy_decide_connection(const struct bt_policy *policy, const char *host, uint16_t port,
                                 struct bt_verdict *ret_verdict)
{
    memset(ret_verdict, 0, sizeof(*ret_verdict));
    if (take_port(port, ret_verdict))
        decide_name(policy, host, port, ret_verdict);
}

void bt_policy_decide_name(const struct bt_policy *policy, const char *host, struct bt_verdict *ret_verdict)
{
    memset(ret_verdict, 0, sizeof(*ret_verdict));
    decide_name(policy, host, 0, ret_verdict);
}
