/* Requests that ask a host to act upon another method or path than the one that is held against the policy.
 *
 * Called by decide.c for the route that decides. Frameworks that know these fields believe them before the
 * request line. Pure: must not allocate or print.
 */
#include <string.h>

#include "policy/rules/policy.h"

static bool is_any(struct bt_http_slice name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bt_http_name_is_like(name, names[i]))
            return true;
    return false;
}

/* The byte at data as a reader of forms sees it; *ret_length: of how many bytes it is made. */
static char decoded_byte(const char *data, size_t length, size_t *ret_length)
{
    int high = length > 2 && data[0] == '%' ? bt_hex_value(data[1]) : -1;
    int low = high >= 0 ? bt_hex_value(data[2]) : -1;
    *ret_length = low >= 0 ? 3 : 1;
    if (low < 0)
        return data[0];
    return (char)(high * 16 + low);
}

/* PHP takes a dot in a parameter's name for an underscore. */
static bool is_method_parameter(struct bt_http_slice name)
{
    static const char wanted[] = "_method";
    size_t count = 0, taken;
    for (size_t at = 0; at < name.length; at += taken) {
        char byte = decoded_byte(name.data + at, name.length - at, &taken);
        if (count == sizeof(wanted) - 1 || (byte == '.' ? '_' : byte) != wanted[count])
            return false;
        count++;
    }
    return count == sizeof(wanted) - 1;
}

/* Takes the next parameter off the front of a query. */
static struct bt_http_slice next_parameter(struct bt_http_slice *query)
{
    struct bt_http_slice parameter = *query;
    for (size_t i = 0; i < query->length; i++) {
        if (query->data[i] != '&' && query->data[i] != ';')
            continue;
        parameter.length = i;
        break;
    }
    size_t taken = parameter.length + (parameter.length < query->length ? 1 : 0);
    query->data += taken;
    query->length -= taken;
    return parameter;
}

static bool is_query_overriding(const struct bt_policy_route *route, struct bt_http_slice path)
{
    const char *mark = path.length != 0 ? memchr(path.data, '?', path.length) : NULL;
    if (mark == NULL)
        return false;
    struct bt_http_slice query = {mark + 1, path.length - (size_t)(mark + 1 - path.data)};
    while (query.length != 0) {
        struct bt_http_slice name = next_parameter(&query);
        const char *equals = name.length != 0 ? memchr(name.data, '=', name.length) : NULL;
        struct bt_http_slice value = {"", 0};
        if (equals != NULL) {
            value.data = equals + 1;
            value.length = name.length - (size_t)(value.data - name.data);
            name.length = (size_t)(equals - name.data);
        }
        if (is_method_parameter(name) && !bt_policy_route_has_method(route, value))
            return true;
    }
    return false;
}

bool bt_policy_method_is_overridden(const struct bt_policy_route *route,
                                    const struct bt_policy_request *request)
{
    static const char *const names[] = {"x-http-method-override", "x-method-override", "x-http-method"};
    if (route->methods.count == 0)
        return false;
    for (size_t i = 0; i < request->field_count; i++)
        if (is_any(request->fields[i].name, names, BT_ARRAY_LENGTH(names)) &&
            !bt_policy_route_has_method(route, request->fields[i].value))
            return true;
    return is_query_overriding(route, request->path);
}

bool bt_policy_path_is_overridden(const struct bt_policy_route *route,
                                  const struct bt_policy_request *request)
{
    static const char *const names[] = {"x-original-url", "x-rewrite-url"};
    if (route->paths.count == 0)
        return false;
    for (size_t i = 0; i < request->field_count; i++)
        if (is_any(request->fields[i].name, names, BT_ARRAY_LENGTH(names)))
            return true;
    return false;
}
