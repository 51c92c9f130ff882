/* Bottles: one file, and the chain of its parents.
 *
 * Called by manifest.c. Must accept no key that this version does not enforce: a rule that is written and not
 * kept is worse than none.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/guest_environment.h"
#include "frontend/manifest_internal.h"
#include "frontend/state.h"

#define BT_ENVIRONMENT_BYTES_MAX (64U * 1024U)

void bt_bottle_free(struct bt_bottle *bottle)
{
    bt_routes_free(bottle->routes, bottle->route_count);
    bt_list_free(&bottle->environment);
    free(bottle->image);
    free(bottle->dockerfile);
    free(bottle->overlay);
    *bottle = (struct bt_bottle){0};
}

void bt_bottles_free(struct bt_bottles *bottles)
{
    for (size_t i = 0; i < bottles->count; i++)
        bt_bottle_free(&bottles->items[i]);
    free(bottles->items);
    *bottles = (struct bt_bottles){0};
}

static int bt_bottle_host(const struct bt_yaml *route, char ret_host[BT_PATTERN_SIZE], struct bt_error *error)
{
    const char *host = NULL;
    const struct bt_yaml *at = bt_yaml_get(route, "host");
    struct bt_error reason = {0};
    int r = bt_yaml_string(route, "host", NULL, &host, error);

    if (r < 0)
        return r;
    if (!host)
        return bt_yaml_fail(route, error, "add host: example.com", "a route needs 'host'");
    if (bt_host_pattern_check(host, &reason) < 0 || bt_pattern_canonical(host, ret_host) < 0)
        return bt_yaml_fail(at, error, *reason.hint ? reason.hint : NULL, "%s",
                            *reason.message ? reason.message : "not a host pattern");
    return 0;
}

static bool bt_rules_pass(const json_t *rules)
{
    const char *tls = json_string_value(json_object_get(rules, "tls"));
    return tls && strcmp(tls, "pass") == 0;
}

/* Several routes for one host are told apart by their requests; one that could never be reached is a slip. */
static int bt_bottle_check_reachable(const struct bt_yaml *route, const struct bt_bottle *bottle,
                                     const char *host, const json_t *rules, struct bt_error *error)
{
    for (size_t i = 0; i < bottle->route_count; i++) {
        const struct bt_route *other = &bottle->routes[i];
        if (strcmp(other->host, host) != 0)
            continue;
        if (bt_rules_pass(other->rules) != bt_rules_pass(rules))
            return bt_yaml_fail(route, error, "use the same 'tls' for both",
                                "'%s' cannot be both intercepted and passed through (%s)", host,
                                other->source);
        if (!json_object_get(other->rules, "methods") && !json_object_get(other->rules, "paths") &&
            !json_object_get(other->rules, "headers"))
            return bt_yaml_fail(route, error, "put the narrower route first, or keep one of the two",
                                "'%s' has a route already that takes every request (%s)", host,
                                other->source);
    }
    return 0;
}

/* What the bottle says of dlp holds where the route does not say otherwise. */
static void bt_bottle_default_dlp(json_t *rules, const json_t *defaults)
{
    json_t *own = json_object_get(rules, "dlp");

    if (!defaults || bt_rules_pass(rules))
        return;
    if (!own)
        json_object_set_new(rules, "dlp", json_deep_copy(defaults));
    else
        json_object_update_missing(own, (json_t *)(uintptr_t)defaults);
}

static int bt_bottle_route(const struct bt_yaml *route, const json_t *dlp, struct bt_bottle *bottle,
                           struct bt_error *error)
{
    static const char *const known[] = {"host", "tls",           "private",     "methods", "paths", "headers",
                                        "auth", "preserve_auth", "transparent", "dlp",     "log"};
    char host[BT_PATTERN_SIZE], granted_by[64];
    bt_auto_free char *position = NULL;
    json_t *rules = NULL;
    int r = bt_yaml_check_keys(route, known, BT_ARRAY_LENGTH(known), error);

    if (r == 0)
        r = bt_bottle_host(route, host, error);
    if (r == 0)
        r = bt_rules_read(route, &rules, error);
    if (r == 0) {
        bt_bottle_default_dlp(rules, dlp);
        r = bt_rules_check(route, host, rules, error);
    }
    if (r == 0)
        r = bt_bottle_check_reachable(route, bottle, host, rules, error);
    if (r < 0) {
        json_decref(rules);
        return r;
    }
    position = bt_manifest_position(route);
    snprintf(granted_by, sizeof(granted_by), "bottle %s", bottle->name);
    bt_route_add(&bottle->routes, &bottle->route_count, host, rules, granted_by, position);
    return 0;
}

/* The dlp of all routes, checked by itself: there may be no route. */
static int bt_bottle_dlp(const struct bt_yaml *egress, json_t **ret_dlp, struct bt_error *error)
{
    json_t *dlp = NULL, *rules;
    int r = bt_rules_read_dlp(egress, &dlp, error);

    if (r < 0 || !dlp)
        return r;
    rules = json_pack("{s:O}", "dlp", dlp);
    r = bt_rules_check(egress, "a.example", rules, error);
    json_decref(rules);
    if (r < 0)
        json_decref(dlp);
    else
        *ret_dlp = dlp;
    return r;
}

static int bt_bottle_egress(const struct bt_yaml *root, struct bt_bottle *bottle, struct bt_error *error)
{
    static const char *const known[] = {"routes", "dlp"};
    const struct bt_yaml *egress = bt_yaml_get(root, "egress");
    const struct bt_yaml *routes;
    json_t *dlp = NULL;
    int r;

    if (!egress)
        return 0;
    r = bt_yaml_check_keys(egress, known, BT_ARRAY_LENGTH(known), error);
    if (r < 0)
        return r;
    routes = bt_yaml_get(egress, "routes");
    if (!routes)
        return bt_yaml_fail(egress, error, "write routes: [] to allow nothing", "'egress' needs 'routes'");
    if (routes->kind != BT_YAML_SEQUENCE)
        return bt_yaml_fail(routes, error, "write routes: [] to allow nothing, or a list of {host: ...}",
                            "'routes' must be a list");
    if (routes->count > BT_ROUTES_MAX)
        return bt_yaml_fail(routes, error, NULL, "more than %u routes", BT_ROUTES_MAX);
    r = bt_bottle_dlp(egress, &dlp, error);
    bottle->has_egress = r == 0;
    for (size_t i = 0; i < routes->count && r == 0; i++)
        r = bt_bottle_route(routes->values[i], dlp, bottle, error);
    json_decref(dlp);
    return r;
}

static int bt_bottle_resources(const struct bt_yaml *root, struct bt_bottle *bottle, struct bt_error *error)
{
    static const char *const known[] = {"memory", "cpus", "disk"};
    const struct bt_yaml *resources = bt_yaml_get(root, "resources");
    uint64_t cpus = 0;
    int r;

    if (!resources)
        return 0;
    r = bt_yaml_check_keys(resources, known, BT_ARRAY_LENGTH(known), error);
    if (r == 0)
        r = bt_yaml_size(resources, "memory", 0, BT_MEMORY_MINIMUM, BT_MEMORY_MAXIMUM, &bottle->memory_bytes,
                         error);
    if (r == 0)
        r = bt_yaml_number(resources, "cpus", 0, 1, BT_CPUS_MAXIMUM, &cpus, error);
    if (r == 0)
        r = bt_yaml_size(resources, "disk", 0, BT_DISK_MINIMUM, BT_DISK_MAXIMUM, &bottle->disk_bytes, error);
    bottle->cpus = (unsigned)cpus;
    return r;
}

static bool bt_environment_name_is_valid(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    size_t length = strlen(name);

    return length > 0 && length <= 128 && strspn(name, letters) == length && (name[0] < '0' || name[0] > '9');
}

static int bt_bottle_environment(const struct bt_yaml *root, struct bt_bottle *bottle, struct bt_error *error)
{
    const struct bt_yaml *environment = bt_yaml_get(root, "env");
    size_t bytes = 0;

    if (!environment)
        return 0;
    if (environment->kind != BT_YAML_MAPPING)
        return bt_yaml_fail(environment, error, NULL, "'env' must be a mapping of names to values");
    for (size_t i = 0; i < environment->count; i++) {
        const struct bt_yaml *key = environment->keys[i];
        const char *value = NULL;
        if (!bt_environment_name_is_valid(key->text))
            return bt_yaml_fail(key, error, "use letters, digits and '_', not beginning with a digit",
                                "'%.60s' cannot be the name of a variable", key->text);
        if (bt_guest_environment_is_reserved(key->text))
            return bt_yaml_fail(key, error, "remove it", "the variable %s is set by berth", key->text);
        int r = bt_yaml_string(environment, key->text, NULL, &value, error);
        if (r < 0)
            return r;
        bytes += strlen(key->text) + strlen(value) + 2;
        if (bytes > BT_ENVIRONMENT_BYTES_MAX)
            return bt_yaml_fail(key, error, NULL, "'env' is larger than %u bytes", BT_ENVIRONMENT_BYTES_MAX);
        bt_list_add_format(&bottle->environment, "%s=%s", key->text, value);
    }
    return 0;
}

bool bt_image_is_berths_own(const char *image)
{
    return strcmp(image, "infra") == 0 || strcmp(image, "kernel") == 0;
}

/* image: {dockerfile: FILE} or {overlay: FOLDER}; relative to the folder of the bottle. */
static int bt_bottle_built_image(const struct bt_yaml *image, struct bt_bottle *bottle,
                                 struct bt_error *error)
{
    static const char *const known[] = {"dockerfile", "overlay"};
    const char *dockerfile = NULL, *overlay = NULL;
    const char *slash = strrchr(image->file, '/');
    int folder = slash ? (int)(slash - image->file) + 1 : 0;
    int r = bt_yaml_check_keys(image, known, BT_ARRAY_LENGTH(known), error);

    if (r == 0)
        r = bt_yaml_string(image, "dockerfile", NULL, &dockerfile, error);
    if (r == 0)
        r = bt_yaml_string(image, "overlay", NULL, &overlay, error);
    if (r < 0)
        return r;
    if (!dockerfile == !overlay || (dockerfile && !*dockerfile) || (overlay && !*overlay))
        return bt_yaml_fail(image, error, "write {dockerfile: FILE} or {overlay: FOLDER}",
                            "an image that is built needs one of 'dockerfile' and 'overlay'");
    const char *path = dockerfile ? dockerfile : overlay;
    char *absolute = bt_string_format("%.*s%s", *path == '/' ? 0 : folder, image->file, path);
    *(dockerfile ? &bottle->dockerfile : &bottle->overlay) = absolute;
    return 0;
}

static int bt_bottle_image(const struct bt_yaml *root, struct bt_bottle *bottle, struct bt_error *error)
{
    const struct bt_yaml *node = bt_yaml_get(root, "image");
    const char *image = NULL;

    if (node && node->kind == BT_YAML_MAPPING)
        return bt_bottle_built_image(node, bottle, error);
    int r = bt_yaml_string(root, "image", NULL, &image, error);

    if (r < 0 || !image)
        return r;
    if (!bt_name_is_valid(image))
        return bt_yaml_fail(bt_yaml_get(root, "image"), error, "name a recipe, such as shell",
                            "'%.60s' cannot be the name of an image", image);
    if (bt_image_is_berths_own(image))
        return bt_yaml_fail(bt_yaml_get(root, "image"), error, "name a recipe, such as shell",
                            "the image '%s' is berth's own, not one for agents", image);
    bottle->image = bt_string_copy(image);
    return 0;
}

static int bt_bottle_isolation(const struct bt_yaml *root, struct bt_bottle *bottle, struct bt_error *error)
{
    const char *isolation = NULL;
    int r = bt_yaml_string(root, "isolation", NULL, &isolation, error);

    if (r < 0 || !isolation)
        return r;
    if (strcmp(isolation, "gvisor") != 0)
        return bt_yaml_fail(bt_yaml_get(root, "isolation"), error, "leave it out, or write gvisor",
                            "'%.60s' is no isolation", isolation);
    bottle->is_gvisor = true;
    return 0;
}

static int bt_bottle_from_yaml(const struct bt_yaml *root, struct bt_bottle *bottle, char **ret_extends,
                               char **ret_extends_at, struct bt_error *error)
{
    static const char *const known[] = {"egress", "resources", "env", "image", "isolation", "extends"};
    const char *extends = NULL;
    int r = bt_yaml_check_keys(root, known, BT_ARRAY_LENGTH(known), error);

    if (r == 0)
        r = bt_bottle_egress(root, bottle, error);
    if (r == 0)
        r = bt_bottle_resources(root, bottle, error);
    if (r == 0)
        r = bt_bottle_environment(root, bottle, error);
    if (r == 0)
        r = bt_bottle_image(root, bottle, error);
    if (r == 0)
        r = bt_bottle_isolation(root, bottle, error);
    if (r == 0)
        r = bt_yaml_string(root, "extends", NULL, &extends, error);
    if (r < 0 || !extends)
        return r;
    if (!bt_name_is_valid(extends))
        return bt_yaml_fail(bt_yaml_get(root, "extends"), error, NULL,
                            "'%.60s' cannot be the name of a bottle", extends);
    *ret_extends = bt_string_copy(extends);
    *ret_extends_at = bt_manifest_position(bt_yaml_get(root, "extends"));
    return 0;
}

int bt_bottle_parse(const char *path, const char *text, size_t length, const char *name,
                    struct bt_bottle *ret_bottle, char **ret_extends, char **ret_extends_at,
                    struct bt_error *error)
{
    struct bt_bottle bottle = {0};
    struct bt_yaml *root = NULL;
    char *extends = NULL, *extends_at = NULL;
    int r = bt_yaml_parse(path, text, length, 1, &root, error);

    if (r < 0)
        return r;
    snprintf(bottle.name, sizeof(bottle.name), "%s", name);
    r = bt_bottle_from_yaml(root, &bottle, &extends, &extends_at, error);
    bt_yaml_free(root);
    if (r < 0) {
        bt_bottle_free(&bottle);
        return r;
    }
    *ret_bottle = bottle;
    *ret_extends = extends;
    *ret_extends_at = extends_at;
    return 0;
}

static int bt_bottle_missing(const struct bt_paths *paths, const char *name, const char *at,
                             struct bt_error *error)
{
    bt_auto_list names = {0};
    const char *nearest = NULL;
    char hint[700];
    enum bt_exit status = at ? BT_EXIT_ERROR : BT_EXIT_NO_TARGET;

    if (bt_bottle_names(paths, &names, NULL) == 0)
        nearest = bt_nearest(name, (const char *const *)names.items, names.count);
    if (nearest)
        snprintf(hint, sizeof(hint), "did you mean '%s'?", nearest);
    else
        snprintf(hint, sizeof(hint), "make %s/bottles/%s.yaml", paths->config, name);
    return bt_fail(error, status, ENOENT, hint, "%s%sthere is no bottle '%.64s'", at ? at : "",
                   at ? ": " : "", name);
}

/* The user's file, else the one that comes with berth; *path becomes the one that was read. */
static int bt_bottle_read(char **path, const char *name, struct bt_buffer *ret_text, struct bt_error *error)
{
    char shipped[512];
    int r = bt_file_read(*path, BT_MANIFEST_BYTES_MAX, ret_text, error);

    if (r != -ENOENT)
        return r;
    r = bt_harness_bottle_path(name, shipped, error);
    if (r < 0)
        return r;
    free(*path);
    *path = bt_string_copy(shipped);
    return bt_file_read(*path, BT_MANIFEST_BYTES_MAX, ret_text, error);
}

/* The names from the bottle that was asked for up to its first ancestor, to find circles and to insert
 * backwards. */
static int bt_bottle_chain_add(const struct bt_paths *paths, const char *name, const char *at,
                               struct bt_bottles *chain, char **ret_extends, char **ret_extends_at,
                               struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/bottles/%s.yaml", paths->config, name);
    bt_auto_buffer text = {0};
    int r;

    for (size_t i = 0; i < chain->count; i++) {
        if (strcmp(chain->items[i].name, name) == 0)
            return bt_fail(error, BT_EXIT_ERROR, ELOOP, "break the circle of 'extends'",
                           "%s: bottle '%s' extends itself", at ? at : path, name);
    }
    if (chain->count >= BT_EXTENDS_MAX)
        return bt_fail(error, BT_EXIT_ERROR, ELOOP, NULL, "%s: more than %u bottles extend each other",
                       at ? at : path, BT_EXTENDS_MAX);
    if (strcmp(name, BT_BOTTLE_NONE) == 0) {
        /* Built in: allows nothing, whatever files there are. */
        struct bt_bottle *none = &chain->items[chain->count++];
        snprintf(none->name, sizeof(none->name), "%s", name);
        none->has_egress = true;
        return 0;
    }
    r = bt_bottle_read(&path, name, &text, error);
    if (r == -ENOENT)
        return bt_bottle_missing(paths, name, at, error);
    if (r == 0)
        r = bt_bottle_parse(path, text.data ? text.data : "", text.length, name, &chain->items[chain->count],
                            ret_extends, ret_extends_at, error);
    if (r == 0)
        chain->count++;
    return r;
}

static bool bt_bottles_have(const struct bt_bottles *bottles, const char *name)
{
    for (size_t i = 0; i < bottles->count; i++) {
        if (strcmp(bottles->items[i].name, name) == 0)
            return true;
    }
    return false;
}

/* Appends the chain, its last (the oldest ancestor) first. One that is there already keeps its place: what
 * was applied later must not be undone by a parent that two bottles share. */
static void bt_bottles_append(struct bt_bottles *bottles, struct bt_bottles *chain)
{
    struct bt_bottle *items = bt_new(bottles->count + chain->count, sizeof(*items));

    if (bottles->count)
        memcpy(items, bottles->items, bottles->count * sizeof(*items));
    free(bottles->items);
    bottles->items = items;
    while (chain->count > 0) {
        struct bt_bottle *bottle = &chain->items[--chain->count];
        if (bt_bottles_have(bottles, bottle->name))
            bt_bottle_free(bottle);
        else
            bottles->items[bottles->count++] = *bottle;
    }
}

int bt_bottles_add(const struct bt_paths *paths, const char *name, const char *at, struct bt_bottles *bottles,
                   struct bt_error *error)
{
    struct bt_bottles chain = {.items = bt_new(BT_EXTENDS_MAX, sizeof(struct bt_bottle))};
    char *next = bt_string_copy(name), *next_at = at ? bt_string_copy(at) : NULL;
    int r = 0;

    if (!bt_name_is_valid(name))
        r = bt_fail(error, BT_EXIT_USAGE, EINVAL, "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                    "%s%s'%.64s' cannot be the name of a bottle", at ? at : "", at ? ": " : "", name);
    while (r == 0 && next) {
        char *extends = NULL, *extends_at = NULL;
        r = bt_bottle_chain_add(paths, next, next_at, &chain, &extends, &extends_at, error);
        free(next);
        free(next_at);
        next = extends;
        next_at = extends_at;
    }
    free(next);
    free(next_at);
    if (r == 0)
        bt_bottles_append(bottles, &chain);
    bt_bottles_free(&chain);
    return r;
}
