/* A route's rules held against the limits of a narrowing list: what both allow, and the stricter of what both
 * ask for.
 *
 * Called by manifest_policy.c. Must only ever take away: a request that the result allows is one that the
 * route allowed and the list allows, with no more said to the other side and no less looked at. Every request
 * that both match must match the result too, or a later route would decide instead of this one.
 */
#include <stdio.h>
#include <string.h>

#include "frontend/manifest_internal.h"

static bool bt_narrow_has(const json_t *list, const char *text)
{
    const json_t *item;
    size_t index;

    json_array_foreach(list, index, item)
    {
        if (strcmp(json_string_value(item), text) == 0)
            return true;
    }
    return false;
}

static void bt_narrow_add(json_t *list, const char *text)
{
    if (!bt_narrow_has(list, text))
        json_array_append_new(list, json_string(text));
}

static bool bt_narrow_allows_method(const json_t *methods, const char *method)
{
    return bt_narrow_has(methods, method) ||
           (strcmp(method, "HEAD") == 0 && bt_narrow_has(methods, "GET")); /* GET includes HEAD */
}

static json_t *bt_narrow_methods(const json_t *left, const json_t *right)
{
    const json_t *lists[] = {left, right}, *item;
    json_t *both = json_array();
    size_t index;

    for (size_t i = 0; i < BT_ARRAY_LENGTH(lists); i++) {
        json_array_foreach(lists[i], index, item)
        {
            const char *method = json_string_value(item);
            if (bt_narrow_allows_method(left, method) && bt_narrow_allows_method(right, method))
                bt_narrow_add(both, method);
        }
    }
    return both;
}

/* Whether every path that inner matches is matched by outer: a prefix ends in "/" and an asterisk. */
static bool bt_narrow_path_covers(const char *outer, const char *inner)
{
    size_t length = strlen(outer), inner_length = strlen(inner);

    if (strcmp(outer, inner) == 0)
        return true;
    if (length < 2 || strcmp(outer + length - 2, "/*") != 0)
        return false;
    /* "/a/" and an asterisk is not within itself shortened, and "/a*" does not exist. */
    return inner_length >= length - 1 && strncmp(outer, inner, length - 1) == 0;
}

static bool bt_narrow_path_is_covered(const json_t *list, const char *path)
{
    const json_t *item;
    size_t index;

    json_array_foreach(list, index, item)
    {
        if (bt_narrow_path_covers(json_string_value(item), path))
            return true;
    }
    return false;
}

/* Of any two patterns one covers the other, or they have nothing in common; so what both lists match is the
 * patterns of either that the other covers. */
static json_t *bt_narrow_paths(const json_t *left, const json_t *right)
{
    const json_t *item;
    json_t *both = json_array();
    size_t index;

    json_array_foreach(left, index, item)
    {
        if (bt_narrow_path_is_covered(right, json_string_value(item)))
            bt_narrow_add(both, json_string_value(item));
    }
    json_array_foreach(right, index, item)
    {
        if (bt_narrow_path_is_covered(left, json_string_value(item)))
            bt_narrow_add(both, json_string_value(item));
    }
    return both;
}

/* One side without the key allows any; returns false when nothing is left. */
static bool bt_narrow_list(json_t *rules, const json_t *limits, const char *key,
                           json_t *(*intersect)(const json_t *left, const json_t *right))
{
    const json_t *own = json_object_get(rules, key);
    json_t *limit = json_object_get(limits, key), *both;

    if (!limit)
        return true;
    both = own ? intersect(own, limit) : json_incref(limit);
    json_object_set_new(rules, key, both);
    return json_array_size(both) > 0;
}

static bool bt_narrow_headers(json_t *rules, const json_t *limits)
{
    const json_t *limit = json_object_get(limits, "headers");
    json_t *own = json_object_get(rules, "headers");
    json_t *both = own ? json_deep_copy(own) : json_object(), *value;
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)limit, name, value)
    {
        const json_t *held = json_object_get(both, name);
        if (held && !json_equal((json_t *)(uintptr_t)held, value)) {
            json_decref(both);
            return false; /* no request has both */
        }
        json_object_set(both, name, value);
    }
    if (json_object_size(both) > 0)
        json_object_set(rules, "headers", both);
    json_decref(both);
    return true;
}

/* From lax to strict; absent is the default of the document. */
static const char *bt_narrow_stricter(const char *const *words, size_t count, const char *fallback,
                                      const json_t *own, const json_t *limit)
{
    const char *left = own ? json_string_value(own) : fallback, *right = json_string_value(limit);
    const char *stricter = left;

    for (size_t i = 0; i < count; i++) {
        if ((right && strcmp(words[i], right) == 0) || strcmp(words[i], left) == 0)
            stricter = words[i];
    }
    return stricter;
}

static void bt_narrow_dlp(json_t *rules, const json_t *limits)
{
    static const char *const outbound[] = {"off", "supervise", "redact", "block"};
    static const char *const inbound[] = {"off", "warn", "block"};
    static const struct {
        const char *key, *fallback;
        const char *const *words;
        size_t count;
    } kinds[] = {
        {"outbound", "block", outbound, 4}, {"inbound", "warn", inbound, 3}, {"entropy", "off", inbound, 2}};
    const json_t *limit = json_object_get(limits, "dlp"), *own = json_object_get(rules, "dlp");
    json_t *both;

    if (!limit)
        return;
    both = json_object();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(kinds); i++)
        json_object_set_new(both, kinds[i].key,
                            json_string(bt_narrow_stricter(kinds[i].words, kinds[i].count, kinds[i].fallback,
                                                           json_object_get(own, kinds[i].key),
                                                           json_object_get(limit, kinds[i].key))));
    json_object_set_new(rules, "dlp", both);
}

static void bt_narrow_log(json_t *rules, const json_t *limits)
{
    const json_t *own = json_object_get(rules, "log"), *limit = json_object_get(limits, "log");
    json_int_t level = own ? json_integer_value(own) : BT_LOG_CONNECTIONS;

    if (limit && json_integer_value(limit) > level)
        json_object_set_new(rules, "log", json_integer(json_integer_value(limit)));
}

/* What can only be kept when the connection is read. */
static bool bt_narrow_needs_reading(const json_t *limits)
{
    static const char *const keys[] = {"methods", "paths", "headers", "dlp", "tls", "preserve_auth"};

    for (size_t i = 0; i < BT_ARRAY_LENGTH(keys); i++) {
        if (json_object_get(limits, keys[i]))
            return true;
    }
    return json_integer_value(json_object_get(limits, "log")) == BT_LOG_REQUESTS;
}

json_t *bt_rules_narrow(const json_t *rules, const json_t *limits, bool *ret_is_opened)
{
    static const char *const flags[] = {"private", "preserve_auth", "transparent"};
    const char *tls = json_string_value(json_object_get(rules, "tls"));
    bool is_opened = tls && strcmp(tls, "pass") == 0 && bt_narrow_needs_reading(limits);
    json_t *narrow = json_deep_copy(rules);
    json_t *auth = json_object_get(narrow, "auth");

    if (is_opened)
        json_object_del(narrow, "tls");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(flags); i++) {
        if (json_object_get(limits, flags[i]))
            json_object_del(narrow, flags[i]);
    }
    if (json_object_get(limits, "auth") && auth) {
        /* Without it the route would allow in clear, and in the credential's field, what it did not before.
         */
        json_object_set_new(
            narrow, "auth",
            json_pack("{s:s, s:O*}", "scheme", "none", "header", json_object_get(auth, "header")));
        json_object_del(narrow, "transparent");
    }
    if (!bt_narrow_list(narrow, limits, "methods", bt_narrow_methods) ||
        !bt_narrow_list(narrow, limits, "paths", bt_narrow_paths) || !bt_narrow_headers(narrow, limits)) {
        json_decref(narrow);
        return NULL;
    }
    bt_narrow_dlp(narrow, limits);
    bt_narrow_log(narrow, limits);
    *ret_is_opened = is_opened;
    return narrow;
}
