/* What narrows a plan: the administrator's and the project's lists of allowed hosts.
 *
 * Called by manifest.c. Must only ever take away.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/manifest_internal.h"

struct bt_pattern_parts {
    bool is_wildcard;
    char host[BT_HOST_NAME_SIZE];
    unsigned port; /* 0 = 80 and 443 */
};

static int bt_pattern_split(const char *pattern, struct bt_pattern_parts *ret_parts)
{
    struct bt_pattern_parts parts = {0};
    const char *colon = strchr(pattern, ':');
    size_t length = colon ? (size_t)(colon - pattern) : strlen(pattern);
    uint64_t port = 0;

    if (colon && bt_number_parse(colon + 1, strlen(colon + 1), 1, 65535, &port) < 0)
        return -EINVAL;
    if (length > 2 && strncmp(pattern, "*.", 2) == 0) {
        parts.is_wildcard = true;
        pattern += 2;
        length -= 2;
    }
    if (bt_host_canonical(pattern, length, parts.host) < 0)
        return -EINVAL;
    parts.port = (unsigned)port;
    *ret_parts = parts;
    return 0;
}

static void bt_pattern_format(const struct bt_pattern_parts *parts, char ret_pattern[BT_PATTERN_SIZE])
{
    char port[16] = "";

    if (parts->port)
        snprintf(port, sizeof(port), ":%u", parts->port);
    snprintf(ret_pattern, BT_PATTERN_SIZE, "%s%s%s", parts->is_wildcard ? "*." : "", parts->host, port);
}

int bt_pattern_canonical(const char *pattern, char ret_pattern[BT_PATTERN_SIZE])
{
    struct bt_pattern_parts parts;
    int r = bt_pattern_split(pattern, &parts);

    if (r == 0)
        bt_pattern_format(&parts, ret_pattern);
    return r;
}

/* Whether host lies below domain: one label or more in front of it. */
static bool bt_host_is_below(const char *host, const char *domain)
{
    size_t host_length = strlen(host), domain_length = strlen(domain);

    return host_length > domain_length + 1 && host[host_length - domain_length - 1] == '.' &&
           strcmp(host + host_length - domain_length, domain) == 0;
}

/* Whether every name that inner matches is matched by outer, ports aside. */
static bool bt_pattern_covers(const struct bt_pattern_parts *outer, const struct bt_pattern_parts *inner)
{
    if (strcmp(outer->host, inner->host) == 0)
        return outer->is_wildcard == inner->is_wildcard;
    return outer->is_wildcard && bt_host_is_below(inner->host, outer->host);
}

static bool bt_port_has(const struct bt_pattern_parts *parts, unsigned port)
{
    return parts->port == port || (parts->port == 0 && (port == 80 || port == 443));
}

void bt_pattern_intersect(const char *left, const char *right, char ret_pattern[BT_PATTERN_SIZE])
{
    struct bt_pattern_parts a, b, both;

    ret_pattern[0] = '\0';
    if (bt_pattern_split(left, &a) < 0 || bt_pattern_split(right, &b) < 0)
        return;
    if (bt_pattern_covers(&b, &a))
        both = a;
    else if (bt_pattern_covers(&a, &b))
        both = b;
    else
        return;
    if (a.port == 0 || (b.port != 0 && b.port == a.port))
        both.port = b.port;
    else
        both.port = a.port;
    if (both.port && (!bt_port_has(&a, both.port) || !bt_port_has(&b, both.port)))
        return;
    bt_pattern_format(&both, ret_pattern);
}

void bt_route_add(struct bt_route **routes, size_t *count, const char *host, json_t *rules,
                  const char *granted_by, const char *source)
{
    /* Grows at powers of two. */
    if ((*count & (*count - 1)) == 0) {
        struct bt_route *grown = bt_new(*count ? *count * 2 : 1, sizeof(*grown));
        if (*count)
            memcpy(grown, *routes, *count * sizeof(*grown));
        free(*routes);
        *routes = grown;
    }
    (*routes)[(*count)++] = (struct bt_route){.host = bt_string_copy(host),
                                              .rules = rules,
                                              .granted_by = bt_string_copy(granted_by),
                                              .source = bt_string_copy(source)};
}

void bt_routes_free(struct bt_route *routes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(routes[i].host);
        json_decref(routes[i].rules);
        free(routes[i].granted_by);
        free(routes[i].source);
    }
    free(routes);
}

/* A pattern, or a mapping of host and limits. */
static int bt_allow_entry_read(const struct bt_yaml *node, struct bt_allow_entry *ret_entry,
                               struct bt_error *error)
{
    static const char *const known[] = {"host", "methods", "paths",         "headers",     "tls",    "dlp",
                                        "log",  "auth",    "preserve_auth", "transparent", "private"};
    const struct bt_yaml *host = node->kind == BT_YAML_MAPPING ? bt_yaml_get(node, "host") : node;
    struct bt_error reason = {0};
    char pattern[BT_PATTERN_SIZE];
    json_t *limits = NULL;
    int r =
        node->kind == BT_YAML_MAPPING ? bt_yaml_check_keys(node, known, BT_ARRAY_LENGTH(known), error) : 0;

    if (r < 0)
        return r;
    if (!host || host->kind != BT_YAML_SCALAR)
        return bt_yaml_fail(node, error, NULL,
                            "each entry of 'allow' must be a host pattern, or a mapping with 'host'");
    if (bt_host_pattern_check(host->text, &reason) < 0 || bt_pattern_canonical(host->text, pattern) < 0)
        return bt_yaml_fail(host, error, *reason.hint ? reason.hint : NULL, "%s",
                            *reason.message ? reason.message : "not a host pattern");
    if (node->kind == BT_YAML_MAPPING)
        r = bt_limits_read(node, pattern, &limits, error);
    else
        limits = json_object();
    if (r == 0)
        *ret_entry = (struct bt_allow_entry){bt_string_copy(pattern), limits};
    return r;
}

static int bt_allow_from_yaml(const struct bt_yaml *root, struct bt_allow_list *list, struct bt_error *error)
{
    static const char *const known[] = {"egress"};
    static const char *const known_egress[] = {"allow"};
    const struct bt_yaml *egress, *allow;
    int r = bt_yaml_check_keys(root, known, BT_ARRAY_LENGTH(known), error);

    egress = r == 0 ? bt_yaml_get(root, "egress") : NULL;
    if (!egress)
        return r;
    r = bt_yaml_check_keys(egress, known_egress, BT_ARRAY_LENGTH(known_egress), error);
    allow = r == 0 ? bt_yaml_get(egress, "allow") : NULL;
    if (r < 0)
        return r;
    if (!allow || allow->kind != BT_YAML_SEQUENCE)
        return bt_yaml_fail(allow ? allow : egress, error, "write allow: [] to allow nothing",
                            "'egress' needs 'allow', a list of host patterns");
    list->is_present = true;
    list->entries = bt_new(allow->count + 1, sizeof(*list->entries));
    for (size_t i = 0; i < allow->count && r == 0; i++) {
        r = bt_allow_entry_read(allow->values[i], &list->entries[i], error);
        list->count += r == 0;
    }
    return r;
}

int bt_allow_parse(const char *path, const char *label, const char *text, size_t length,
                   struct bt_allow_list *ret_list, struct bt_error *error)
{
    struct bt_allow_list list = {0};
    struct bt_yaml *root = NULL;
    int r = bt_yaml_parse(path, text, length, 1, &root, error);

    if (r < 0)
        return r;
    r = bt_allow_from_yaml(root, &list, error);
    bt_yaml_free(root);
    if (r < 0) {
        bt_allow_free(&list);
        return r;
    }
    list.source = bt_string_copy(path);
    list.label = label;
    *ret_list = list;
    return 0;
}

int bt_allow_load_admin(const char *path, struct bt_allow_list *ret_list, struct bt_error *error)
{
    bt_auto_buffer text = {0};
    int r = bt_file_read(path, BT_MANIFEST_BYTES_MAX, &text, error);

    /* Only a file that is not there allows everything; one that cannot be read stops the launch. */
    if (r == -ENOENT) {
        *ret_list = (struct bt_allow_list){0};
        return 0;
    }
    if (r < 0)
        return r;
    return bt_allow_parse(path, "admin policy", text.data ? text.data : "", text.length, ret_list, error);
}

int bt_allow_load_project(const char *project_folder, struct bt_allow_list *ret_list, struct bt_error *error)
{
    bt_auto_fd fd = -1;
    bt_auto_buffer text = {0};
    char folder[4096];
    int r;

    *ret_list = (struct bt_allow_list){0};
    if (!project_folder)
        return 0;
    r = bt_project_open(project_folder, &fd, folder, error);
    if (r < 0 || fd < 0)
        return r;
    r = bt_project_read(fd, folder, "policy.yaml", &text, error);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    bt_auto_free char *path = bt_string_format("%s/policy.yaml", folder);
    return bt_allow_parse(path, "project policy", text.data ? text.data : "", text.length, ret_list, error);
}

void bt_allow_free(struct bt_allow_list *list)
{
    free(list->source);
    for (size_t i = 0; i < list->count; i++) {
        free(list->entries[i].pattern);
        json_decref(list->entries[i].limits);
    }
    free(list->entries);
    *list = (struct bt_allow_list){0};
}

/* Whether one that is there takes every request that the same pattern with these rules would. */
static bool bt_routes_have(const struct bt_route *routes, size_t from, size_t count, const char *host,
                           const json_t *rules)
{
    for (size_t i = from; i < count; i++) {
        if (strcmp(routes[i].host, host) == 0 && json_equal(routes[i].rules, (json_t *)(uintptr_t)rules))
            return true;
    }
    return false;
}

/* What an entry leaves of a route, if anything. */
static void bt_allow_apply_entry(const struct bt_allow_list *list, const struct bt_allow_entry *entry,
                                 const struct bt_route *route, struct bt_plan *plan, struct bt_route **kept,
                                 size_t *count, size_t from)
{
    bt_auto_free char *granted_by = bt_string_format("%s, within %s", route->granted_by, list->label);
    char pattern[BT_PATTERN_SIZE];
    bool is_opened = false;
    json_t *rules;

    bt_pattern_intersect(route->host, entry->pattern, pattern);
    rules = *pattern ? bt_rules_narrow(route->rules, entry->limits, &is_opened) : NULL;
    if (!rules)
        return;
    if (bt_routes_have(*kept, from, *count, pattern, rules)) {
        json_decref(rules);
        return;
    }
    if (is_opened)
        bt_list_add_format(&plan->notes, "TLS to %s is opened, not passed through: %s asks for it", pattern,
                           list->source);
    bt_route_add(kept, count, pattern, rules, granted_by, route->source);
}

void bt_allow_apply(const struct bt_allow_list *list, struct bt_plan *plan)
{
    struct bt_route *kept = NULL;
    size_t count = 0;

    if (!list->is_present)
        return;
    for (size_t i = 0; i < plan->route_count; i++) {
        const struct bt_route *route = &plan->routes[i];
        size_t before = count;
        for (size_t k = 0; k < list->count; k++)
            bt_allow_apply_entry(list, &list->entries[k], route, plan, &kept, &count, before);
        if (count == before)
            bt_list_add_format(&plan->notes, "%s of %s is not allowed by %s", route->host, route->granted_by,
                               list->source);
    }
    bt_routes_free(plan->routes, plan->route_count);
    plan->routes = kept;
    plan->route_count = count;
}
