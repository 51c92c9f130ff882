/* One route of a policy document: its keys, their types and bounds, and which of them exclude each other.
 *
 * Called by policy.c. Must accept nothing that decide.c or the gateway does not keep.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/rules/policy.h"

struct place {
    size_t index;
    struct bt_error *error;
};

static int route_fail(const struct place *place, const char *what)
{
    return bt_fail(place->error, BT_EXIT_ERROR, EINVAL, "see policy/POLICY.md", "policy: route %zu: %s",
                   place->index, what);
}

/* A string with minimum..maximum bytes and no NUL inside, or NULL: jansson's json_string_value ends at a NUL.
 */
static const char *plain_text(const json_t *value, size_t minimum, size_t maximum)
{
    size_t length = json_string_length(value);
    if (!json_is_string(value) || length < minimum || length > maximum ||
        strlen(json_string_value(value)) != length)
        return NULL;
    return json_string_value(value);
}

/* RFC 9110, 5.6.2. */
static bool is_token(const char *text)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789"
                                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return *text != '\0' && strspn(text, token) == strlen(text);
}

static bool is_upper_case(const char *text)
{
    return strpbrk(text, "abcdefghijklmnopqrstuvwxyz") == NULL;
}

static bool is_lower_case(const char *text)
{
    return strpbrk(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == NULL;
}

/* Fields that belong to one hop or to the framing: no codec lets them through, or the gateway writes them. */
static bool is_framing_field(const char *name)
{
    static const char *const framing[] = {"host",    "content-length", "transfer-encoding",
                                          "te",      "trailer",        "connection",
                                          "upgrade", "keep-alive",     "expect"};
    if (strncmp(name, "proxy-", 6) == 0)
        return true;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(framing); i++)
        if (strcmp(name, framing[i]) == 0)
            return true;
    return false;
}

/* Visible ASCII, blanks inside only (RFC 9110, 5.5). */
static bool is_field_value(const char *value)
{
    size_t length = strlen(value);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)value[i] < 0x20 || (unsigned char)value[i] > 0x7e)
            return false;
    return length == 0 || (value[0] != ' ' && value[length - 1] != ' ');
}

static int parse_flag(const json_t *item, const char *key, const struct place *place, bool *flag)
{
    const json_t *value = json_object_get(item, key);
    char what[64];
    if (value != NULL && !json_is_boolean(value)) {
        snprintf(what, sizeof(what), "\"%s\" is not true or false", key);
        return route_fail(place, what);
    }
    *flag = json_is_true(value);
    return 0;
}

/* The place of a word in a list of words; absent: fallback; something else: -EINVAL. */
static int parse_word(const json_t *value, const char *const *words, size_t count, unsigned fallback,
                      unsigned *ret_index)
{
    const char *text = plain_text(value, 1, 32);
    if (value == NULL) {
        *ret_index = fallback;
        return 0;
    }
    for (unsigned i = 0; text != NULL && i < count; i++) {
        if (strcmp(text, words[i]) == 0) {
            *ret_index = i;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_host(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    const char *host = plain_text(json_object_get(item, "host"), 0, SIZE_MAX);
    if (host == NULL)
        return route_fail(place, "\"host\" is missing or not a plain string");
    if (bt_host_pattern_check(host, place->error) < 0)
        return bt_error_prefix(place->error, "policy: route %zu", place->index);
    return bt_host_pattern_split(host, &route->pattern);
}

static int parse_methods(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    const json_t *methods = json_object_get(item, "methods");
    if (methods == NULL)
        return 0;
    /* An empty list would be read as "none" by one and as "any" by another. */
    if (!json_is_array(methods) || json_array_size(methods) == 0 ||
        json_array_size(methods) > BT_ROUTE_METHODS_MAX)
        return route_fail(place, "\"methods\" is not a list of 1 to 64 methods");
    for (size_t i = 0; i < json_array_size(methods); i++) {
        const char *method = plain_text(json_array_get(methods, i), 1, 32);
        if (method == NULL || !is_token(method) || !is_upper_case(method) || strcmp(method, "CONNECT") == 0)
            return route_fail(place, "\"methods\" holds what is no method in upper case, or CONNECT");
        bt_list_add(&route->methods, method);
    }
    return 0;
}

static int parse_paths(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    const json_t *paths = json_object_get(item, "paths");
    if (paths == NULL)
        return 0;
    if (!json_is_array(paths) || json_array_size(paths) == 0 || json_array_size(paths) > BT_ROUTE_PATHS_MAX)
        return route_fail(place, "\"paths\" is not a list of 1 to 256 paths");
    for (size_t i = 0; i < json_array_size(paths); i++) {
        const char *path = plain_text(json_array_get(paths, i), 1, BT_ROUTE_TEXT_MAX);
        if (path == NULL || !bt_policy_path_pattern_is_valid(path))
            return route_fail(place,
                              "\"paths\" holds what is neither a plain path nor one that ends in \"/*\"");
        bt_list_add(&route->paths, path);
    }
    return 0;
}

static int parse_headers(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    const json_t *headers = json_object_get(item, "headers");
    const char *name;
    json_t *value;
    if (headers == NULL)
        return 0;
    if (!json_is_object(headers) || json_object_size(headers) == 0 ||
        json_object_size(headers) > BT_ROUTE_HEADERS_MAX)
        return route_fail(place, "\"headers\" is not an object of 1 to 256 names and values");
    json_object_foreach((json_t *)(uintptr_t)headers, name, value)
    {
        const char *text = plain_text(value, 0, BT_ROUTE_TEXT_MAX);
        if (!is_token(name) || !is_lower_case(name) || strlen(name) >= BT_AUTH_HEADER_SIZE ||
            is_framing_field(name) ||
            bt_policy_is_credential_field((struct bt_http_slice){name, strlen(name)}))
            return route_fail(place,
                              "\"headers\" names what is no field in lower case, or one that belongs to "
                              "the connection or holds credentials");
        if (text == NULL || !is_field_value(text))
            return route_fail(place,
                              "\"headers\" holds a value that is not plain text of at most 1024 bytes");
        bt_list_add(&route->header_names, name);
        bt_list_add(&route->header_values, text);
    }
    return 0;
}

static int parse_auth_header(const json_t *auth, const struct place *place, struct bt_policy_route *route)
{
    const json_t *value = json_object_get(auth, "header");
    const char *header = plain_text(value, 1, sizeof(route->auth_header) - 1);
    bool is_chosen = route->auth == BT_AUTH_HEADER || route->auth == BT_AUTH_NONE;
    if (!is_chosen && value != NULL)
        return route_fail(place, "\"auth\": \"header\" goes with the schemes \"header\" and \"none\" alone");
    if (!is_chosen || (route->auth == BT_AUTH_NONE && value == NULL))
        header = "authorization";
    if (header == NULL || !is_token(header) || !is_lower_case(header) || is_framing_field(header))
        return route_fail(place,
                          "\"auth\": \"header\" is missing or not a field name in lower case that may be "
                          "set");
    memcpy(route->auth_header, header, strlen(header) + 1);
    return 0;
}

bool bt_policy_credential_name_is_valid(const char *name)
{
    size_t length = strlen(name);
    return length != 0 && length < BT_CREDENTIAL_NAME_SIZE && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

static int parse_auth(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    static const char *const known[] = {"scheme", "header", "from"};
    static const char *const schemes[] = {[BT_AUTH_NONE] = "none",
                                          [BT_AUTH_BEARER] = "bearer",
                                          [BT_AUTH_BASIC] = "basic",
                                          [BT_AUTH_HEADER] = "header"};
    const json_t *auth = json_object_get(item, "auth");
    char where[48];
    unsigned scheme;
    if (auth == NULL)
        return 0;
    snprintf(where, sizeof(where), "\"auth\" of route %zu", place->index);
    if (!json_is_object(auth))
        return route_fail(place, "\"auth\" is not an object");
    int result = bt_policy_check_keys(auth, known, BT_ARRAY_LENGTH(known), where, place->error);
    if (result < 0)
        return result;
    if (json_object_get(auth, "scheme") == NULL ||
        parse_word(json_object_get(auth, "scheme"), schemes, BT_ARRAY_LENGTH(schemes), 0, &scheme) < 0)
        return route_fail(place, "\"auth\": \"scheme\" is not bearer, basic, header or none");
    route->auth = (enum bt_auth_scheme)scheme;
    route->needs_tls = true;
    if (route->auth == BT_AUTH_NONE && json_object_get(auth, "from") != NULL)
        return route_fail(place, "\"auth\": the scheme \"none\" has no \"from\"");
    if (route->auth == BT_AUTH_NONE)
        return parse_auth_header(auth, place, route);
    const char *from = plain_text(json_object_get(auth, "from"), 1, sizeof(route->credential) - 1);
    if (from == NULL || !bt_policy_credential_name_is_valid(from))
        return route_fail(place,
                          "\"auth\": \"from\" is not the name of a credential (1 to 31 of a-z, 0-9 and -)");
    memcpy(route->credential, from, strlen(from) + 1);
    return parse_auth_header(auth, place, route);
}

static int parse_dlp(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    static const char *const known[] = {"outbound", "inbound", "entropy"};
    static const char *const outbound[] = {[BT_DLP_OUTBOUND_BLOCK] = "block",
                                           [BT_DLP_OUTBOUND_REDACT] = "redact",
                                           [BT_DLP_OUTBOUND_SUPERVISE] = "supervise",
                                           [BT_DLP_OUTBOUND_OFF] = "off"};
    static const char *const inbound[] = {
        [BT_DLP_INBOUND_WARN] = "warn", [BT_DLP_INBOUND_BLOCK] = "block", [BT_DLP_INBOUND_OFF] = "off"};
    static const char *const entropy[] = {"off", "warn"};
    const json_t *dlp = json_object_get(item, "dlp");
    char where[48];
    unsigned word[3];
    snprintf(where, sizeof(where), "\"dlp\" of route %zu", place->index);
    if (dlp != NULL && !json_is_object(dlp))
        return route_fail(place, "\"dlp\" is not an object");
    int result = bt_policy_check_keys(dlp, known, BT_ARRAY_LENGTH(known), where, place->error);
    if (result < 0)
        return result;
    if (parse_word(json_object_get(dlp, "outbound"), outbound, 4, BT_DLP_OUTBOUND_BLOCK, &word[0]) < 0)
        return route_fail(place, "\"dlp\": \"outbound\" is not off, supervise, redact or block");
    if (parse_word(json_object_get(dlp, "inbound"), inbound, 3, BT_DLP_INBOUND_WARN, &word[1]) < 0)
        return route_fail(place, "\"dlp\": \"inbound\" is not off, warn or block");
    if (parse_word(json_object_get(dlp, "entropy"), entropy, 2, 0, &word[2]) < 0)
        return route_fail(place, "\"dlp\": \"entropy\" is not off or warn");
    route->dlp = (struct bt_dlp){(enum bt_dlp_outbound)word[0], (enum bt_dlp_inbound)word[1], word[2] == 1};
    return 0;
}

static int parse_rest(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    static const char *const tls_words[] = {"intercept", "pass"};
    static const char *const transparent_words[] = {"credentials"};
    const json_t *log = json_object_get(item, "log");
    const json_t *granted_by = json_object_get(item, "granted_by");
    unsigned word;
    if (parse_word(json_object_get(item, "tls"), tls_words, 2, 0, &word) < 0)
        return route_fail(place, "\"tls\" is not intercept or pass");
    route->is_passed = word == 1;
    if (parse_word(json_object_get(item, "transparent"), transparent_words, 1, 1, &word) < 0)
        return route_fail(place, "\"transparent\" is not \"credentials\"");
    route->injects_transparently = word == 0;
    if (log != NULL &&
        (!json_is_integer(log) || json_integer_value(log) < 0 || json_integer_value(log) > BT_LOG_REQUESTS))
        return route_fail(place, "\"log\" is not 0, 1 or 2");
    route->log = log != NULL ? (enum bt_log_level)json_integer_value(log) : BT_LOG_CONNECTIONS;
    if (granted_by != NULL && plain_text(granted_by, 0, sizeof(route->granted_by) - 1) == NULL)
        return route_fail(place, "\"granted_by\" is not a string of at most 95 bytes");
    if (granted_by != NULL)
        memcpy(route->granted_by, json_string_value(granted_by), json_string_length(granted_by) + 1);
    return 0;
}

/* What would be written and not kept is refused by both names. */
static int check_together(const json_t *item, const struct place *place, const struct bt_policy_route *route)
{
    static const char *const need_reading[] = {"methods",       "paths",       "headers", "auth",
                                               "preserve_auth", "transparent", "dlp"};
    char what[96];
    for (size_t i = 0; i < BT_ARRAY_LENGTH(need_reading) && route->is_passed; i++) {
        if (json_object_get(item, need_reading[i]) == NULL)
            continue;
        snprintf(what, sizeof(what), "\"tls\": \"pass\" and \"%s\" exclude each other", need_reading[i]);
        return route_fail(place, what);
    }
    if (route->is_passed && route->log == BT_LOG_REQUESTS)
        return route_fail(place, "\"tls\": \"pass\" and \"log\": 2 exclude each other");
    if (route->needs_tls && route->preserves_auth)
        return route_fail(place, "\"auth\" and \"preserve_auth\" exclude each other");
    if (route->auth == BT_AUTH_NONE && route->injects_transparently)
        return route_fail(place, "\"transparent\": \"credentials\" without \"auth\" has nothing to inject");
    return 0;
}

static int parse_members(const json_t *item, const struct place *place, struct bt_policy_route *route)
{
    int result = parse_host(item, place, route);
    if (result == 0)
        result = parse_flag(item, "private", place, &route->may_be_private);
    if (result == 0)
        result = parse_flag(item, "preserve_auth", place, &route->preserves_auth);
    if (result == 0)
        result = parse_methods(item, place, route);
    if (result == 0)
        result = parse_paths(item, place, route);
    if (result == 0)
        result = parse_headers(item, place, route);
    if (result == 0)
        result = parse_auth(item, place, route);
    if (result == 0)
        result = parse_dlp(item, place, route);
    if (result == 0)
        result = parse_rest(item, place, route);
    return result == 0 ? check_together(item, place, route) : result;
}

int bt_policy_route_parse(const json_t *item, size_t index, struct bt_policy_route *route,
                          struct bt_error *error)
{
    static const char *const known[] = {"host",        "tls",     "private", "methods",
                                        "paths",       "headers", "auth",    "preserve_auth",
                                        "transparent", "dlp",     "log",     "granted_by"};
    struct place place = {index, error};
    char where[32];
    snprintf(where, sizeof(where), "route %zu", index);
    if (!json_is_object(item))
        return route_fail(&place, "is not an object");
    int result = bt_policy_check_keys(item, known, BT_ARRAY_LENGTH(known), where, error);
    if (result == 0)
        result = parse_members(item, &place, route);
    if (result < 0)
        bt_policy_route_free(route);
    return result;
}

void bt_policy_route_free(struct bt_policy_route *route)
{
    bt_list_free(&route->methods);
    bt_list_free(&route->paths);
    bt_list_free(&route->header_names);
    bt_list_free(&route->header_values);
}
