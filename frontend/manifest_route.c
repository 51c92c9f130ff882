/* The keys of a route, and of an entry of a narrowing list, from YAML to the form of the policy document.
 *
 * Called by manifest_bottle.c and manifest_policy.c. What a key may hold is said in one place,
 * policy/rules/route.c; here it gets its position.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/manifest_internal.h"

#define BT_RULE_LIST_MAX 64U

static int bt_rule_list(const struct bt_yaml *mapping, const char *key, json_t *rules, struct bt_error *error)
{
    const struct bt_yaml *list = bt_yaml_get(mapping, key);
    json_t *array;

    if (!list)
        return 0;
    if (list->kind != BT_YAML_SEQUENCE || list->count == 0 || list->count > BT_RULE_LIST_MAX)
        return bt_yaml_fail(list, error, "leave the key out to allow any", "'%s' must be a list of 1 to %u",
                            key, BT_RULE_LIST_MAX);
    array = json_array();
    for (size_t i = 0; i < list->count; i++) {
        json_t *text = list->values[i]->kind == BT_YAML_SCALAR ? json_string(list->values[i]->text) : NULL;
        if (!text) {
            json_decref(array);
            return bt_yaml_fail(list->values[i], error, NULL, "each entry of '%s' must be a text", key);
        }
        json_array_append_new(array, text);
    }
    json_object_set_new(rules, key, array);
    return 0;
}

/* Field names are the same in any case; the document has them in lower case. */
static char *bt_rule_lower(const char *text)
{
    char *lower = bt_string_copy(text);

    for (char *at = lower; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    return lower;
}

static int bt_rule_headers(const struct bt_yaml *mapping, json_t *rules, struct bt_error *error)
{
    const struct bt_yaml *headers = bt_yaml_get(mapping, "headers");
    json_t *named;

    if (!headers)
        return 0;
    if (headers->kind != BT_YAML_MAPPING || headers->count == 0 || headers->count > BT_RULE_LIST_MAX)
        return bt_yaml_fail(headers, error, "write headers: {name: value}",
                            "'headers' must be a mapping of 1 to %u names to values", BT_RULE_LIST_MAX);
    named = json_object();
    json_object_set_new(rules, "headers", named);
    for (size_t i = 0; i < headers->count; i++) {
        bt_auto_free char *name = bt_rule_lower(headers->keys[i]->text);
        const struct bt_yaml *value = headers->values[i];
        if (json_object_get(named, name))
            return bt_yaml_fail(headers->keys[i], error, NULL, "'headers' has '%.64s' twice", name);
        if (value->kind != BT_YAML_SCALAR || json_object_set_new(named, name, json_string(value->text)) < 0)
            return bt_yaml_fail(value, error, NULL, "the value of '%.64s' must be a text", name);
    }
    return 0;
}

static int bt_rule_auth(const struct bt_yaml *mapping, json_t *rules, struct bt_error *error)
{
    static const char *const known[] = {"scheme", "header", "from"};
    const struct bt_yaml *auth = bt_yaml_get(mapping, "auth");
    json_t *named;
    int r = auth ? bt_yaml_check_keys(auth, known, BT_ARRAY_LENGTH(known), error) : 0;

    if (r < 0 || !auth)
        return r;
    named = json_object();
    json_object_set_new(rules, "auth", named);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(known) && r == 0; i++) {
        const char *text = NULL;
        r = bt_yaml_string(auth, known[i], NULL, &text, error);
        bt_auto_free char *value =
            r == 0 && text ? strcmp(known[i], "header") == 0 ? bt_rule_lower(text) : bt_string_copy(text)
                           : NULL;
        if (value)
            json_object_set_new(named, known[i], json_string(value));
    }
    return r;
}

int bt_rules_read_dlp(const struct bt_yaml *mapping, json_t **ret_dlp, struct bt_error *error)
{
    static const char *const known[] = {"outbound", "inbound", "entropy"};
    const struct bt_yaml *dlp = bt_yaml_get(mapping, "dlp");
    json_t *object;
    int r = dlp ? bt_yaml_check_keys(dlp, known, BT_ARRAY_LENGTH(known), error) : 0;

    if (r < 0 || !dlp)
        return r;
    object = json_object();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(known) && r == 0; i++) {
        const char *text = NULL;
        r = bt_yaml_string(dlp, known[i], NULL, &text, error);
        if (r == 0 && text)
            json_object_set_new(object, known[i], json_string(text));
    }
    if (r < 0)
        json_decref(object);
    else
        *ret_dlp = object;
    return r;
}

static int bt_rule_text(const struct bt_yaml *mapping, const char *key, json_t *rules, struct bt_error *error)
{
    const char *text = NULL;
    int r = bt_yaml_string(mapping, key, NULL, &text, error);

    if (r == 0 && text)
        json_object_set_new(rules, key, json_string(text));
    return r;
}

static int bt_rule_flag(const struct bt_yaml *mapping, const char *key, json_t *rules, struct bt_error *error)
{
    bool is_set = false;
    int r = bt_yaml_bool(mapping, key, false, &is_set, error);

    if (r == 0 && is_set)
        json_object_set_new(rules, key, json_true());
    return r;
}

static int bt_rule_log(const struct bt_yaml *mapping, json_t *rules, struct bt_error *error)
{
    uint64_t level = 0;
    int r = bt_yaml_number(mapping, "log", 0, 0, BT_LOG_REQUESTS, &level, error);

    if (r == 0 && bt_yaml_get(mapping, "log"))
        json_object_set_new(rules, "log", json_integer((json_int_t)level));
    return r;
}

/* The place of the key that a message of the policy's reader quotes, or the mapping's own. */
static const struct bt_yaml *bt_rule_place(const struct bt_yaml *mapping, const char *message)
{
    for (size_t i = 0; i < mapping->count; i++) {
        bt_auto_free char *quoted = bt_string_format("\"%s\"", mapping->keys[i]->text);
        if (strcmp(mapping->keys[i]->text, "host") != 0 && strstr(message, quoted))
            return mapping->keys[i];
    }
    return mapping;
}

int bt_rules_check(const struct bt_yaml *mapping, const char *host, const json_t *rules,
                   struct bt_error *error)
{
    struct bt_error reason = {0};
    struct bt_policy *policy = NULL;
    json_t *route = json_deep_copy(rules);
    json_object_set_new(route, "host", json_string(host));
    json_t *document = json_pack("{s:i, s:[o]}", "version", 1, "routes", route);
    int r = bt_policy_parse(document, &policy, &reason);
    const char *colon = strstr(reason.message, "route 0: ");

    bt_policy_free(policy);
    json_decref(document);
    if (r == 0)
        return 0;
    return bt_yaml_fail(bt_rule_place(mapping, reason.message), error, "see berth(1), AGENTS AND BOTTLES",
                        "%s", colon ? colon + strlen("route 0: ") : reason.message);
}

/* The keys that mean the same in a route and in an entry of a list. */
static int bt_rules_read_common(const struct bt_yaml *mapping, json_t *rules, struct bt_error *error)
{
    json_t *dlp = NULL;
    int r = bt_rule_list(mapping, "methods", rules, error);

    if (r == 0)
        r = bt_rule_list(mapping, "paths", rules, error);
    if (r == 0)
        r = bt_rule_headers(mapping, rules, error);
    if (r == 0)
        r = bt_rules_read_dlp(mapping, &dlp, error);
    if (r == 0 && dlp)
        json_object_set_new(rules, "dlp", dlp);
    if (r == 0)
        r = bt_rule_text(mapping, "tls", rules, error);
    if (r == 0)
        r = bt_rule_log(mapping, rules, error);
    return r;
}

int bt_rules_read(const struct bt_yaml *mapping, json_t **ret_rules, struct bt_error *error)
{
    json_t *rules = json_object();
    int r = bt_rules_read_common(mapping, rules, error);

    if (r == 0)
        r = bt_rule_auth(mapping, rules, error);
    if (r == 0)
        r = bt_rule_flag(mapping, "private", rules, error);
    if (r == 0)
        r = bt_rule_flag(mapping, "preserve_auth", rules, error);
    if (r == 0)
        r = bt_rule_text(mapping, "transparent", rules, error);
    if (r < 0)
        json_decref(rules);
    else
        *ret_rules = rules;
    return r;
}

/* A list takes away: what it may say of these keys is "not here". */
static int bt_limit_flags(const struct bt_yaml *mapping, json_t *limits, struct bt_error *error)
{
    static const char *const flags[] = {"private", "auth", "preserve_auth", "transparent"};
    int r = 0;

    for (size_t i = 0; i < BT_ARRAY_LENGTH(flags) && r == 0; i++) {
        bool is_left = false;
        if (!bt_yaml_get(mapping, flags[i]))
            continue;
        r = bt_yaml_bool(mapping, flags[i], false, &is_left, error);
        if (r == 0 && is_left)
            r = bt_yaml_fail(bt_yaml_get(mapping, flags[i]), error,
                             "leave the key out: what the bottle grants stays",
                             "'%s' can only be false here; a policy grants nothing", flags[i]);
        if (r == 0)
            json_object_set_new(limits, flags[i], json_false());
    }
    return r;
}

int bt_limits_read(const struct bt_yaml *mapping, const char *host, json_t **ret_limits,
                   struct bt_error *error)
{
    const char *tls;
    json_t *limits = json_object();
    int r = bt_rules_read_common(mapping, limits, error);

    if (r == 0)
        r = bt_rules_check(mapping, host, limits, error);
    tls = json_string_value(json_object_get(limits, "tls"));
    if (r == 0 && tls && strcmp(tls, "intercept") != 0)
        r = bt_yaml_fail(bt_yaml_get(mapping, "tls"), error, "leave the key out: what the bottle says stays",
                         "'tls' can only be intercept here; a policy grants nothing");
    if (r == 0)
        r = bt_limit_flags(mapping, limits, error);
    if (r < 0)
        json_decref(limits);
    else
        *ret_limits = limits;
    return r;
}
