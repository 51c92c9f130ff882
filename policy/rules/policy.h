/* A policy as it is held in memory, inside policy/rules only; the public side is rules.h. policy.c and
 * route.c make it, decide.c reads it.
 */
#ifndef BERTH_POLICY_RULES_POLICY_H
#define BERTH_POLICY_RULES_POLICY_H

#include "lib/memory.h"
#include "policy/rules/host.h"

#define BT_ROUTE_METHODS_MAX 64
/* More than a manifest may have: policies above it add theirs. */
#define BT_ROUTE_PATHS_MAX 256
#define BT_ROUTE_HEADERS_MAX 256
#define BT_ROUTE_TEXT_MAX 1024 /* bytes of one path or header value */

struct bt_policy_route {
    struct bt_host_pattern pattern;
    bool is_passed; /* tls: pass */
    bool may_be_private;
    bool preserves_auth;
    bool injects_transparently;
    struct bt_list methods, paths;              /* empty: any */
    struct bt_list header_names, header_values; /* all of them must be there; names are lower case */
    enum bt_auth_scheme auth;
    bool needs_tls; /* it has a credential, or had one before a policy above took it away */
    char auth_header[BT_AUTH_HEADER_SIZE];
    char credential[BT_CREDENTIAL_NAME_SIZE];
    struct bt_dlp dlp;
    enum bt_log_level log;
    char granted_by[96];
};

struct bt_policy {
    size_t count;
    struct bt_policy_route *routes;
};

/* Takes one route of a document; the error names it by its index. A route that failed is freed all the same.
 */
int bt_policy_route_parse(const json_t *item, size_t index, struct bt_policy_route *route,
                          struct bt_error *error) BT_MUST_CHECK;
void bt_policy_route_free(struct bt_policy_route *route);

/* Whether a route's methods have this one; GET includes HEAD. */
bool bt_policy_route_has_method(const struct bt_policy_route *route, struct bt_http_slice method);

/* override.c: whether a request that a route allows asks the host for a method that the route does not have,
 * or, where it has paths, for whatever other path. */
bool bt_policy_method_is_overridden(const struct bt_policy_route *route,
                                    const struct bt_policy_request *request);
bool bt_policy_path_is_overridden(const struct bt_policy_route *route,
                                  const struct bt_policy_request *request);

/* Refuses members of object that are not in known[0..count). where: for the message. */
int bt_policy_check_keys(const json_t *object, const char *const *known, size_t count, const char *where,
                         struct bt_error *error) BT_MUST_CHECK;

#endif
