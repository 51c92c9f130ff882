/* Policy documents, and decisions taken from the same bytes: behind a first NUL the host, behind further ones
 * method, path, and a header field's name and value. What holds for every document and request is required.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/rules/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool is_kept)
{
    if (!is_kept)
        abort();
}

/* The bytes up to the next NUL. */
static struct bt_http_slice take(const char **at, const char *end)
{
    const char *stop = *at < end ? memchr(*at, '\0', (size_t)(end - *at)) : NULL;
    struct bt_http_slice slice = {*at, (size_t)((stop != NULL ? stop : end) - *at)};
    *at = stop != NULL ? stop + 1 : end;
    return slice;
}

static void check(const struct bt_policy *policy, const struct bt_policy_request *request)
{
    struct bt_verdict verdict, connection, name;
    uint32_t address;
    bt_policy_decide(policy, request, &verdict);
    bt_policy_decide_connection(policy, request->host, request->port, &connection);
    bt_policy_decide_name(policy, request->host, &name);
    require(verdict.rule[0] != '\0' && connection.rule[0] != '\0' && name.rule[0] != '\0');
    require(!verdict.is_allowed || bt_ipv4_parse(request->host, &address) < 0);
    /* A request is allowed only on a connection that is, to a name that is answered. */
    require(!verdict.is_allowed || (connection.is_allowed && name.is_allowed));
    require(verdict.auth == BT_AUTH_NONE ||
            (verdict.is_allowed && request->is_tls && verdict.is_intercepted));
    require(verdict.auth == BT_AUTH_NONE ||
            (verdict.strips_credentials && verdict.credential[0] != '\0' && verdict.auth_header[0] != '\0'));
}

/* A normal form is its own normal form, and holds nothing to climb by. */
static void check_path(struct bt_http_slice path)
{
    char normal[BT_POLICY_PATH_SIZE], again[BT_POLICY_PATH_SIZE];
    if (bt_policy_path_normalise(path, normal, sizeof(normal)) < 0)
        return;
    struct bt_http_slice slice = {normal, strlen(normal)};
    require(bt_policy_path_normalise(slice, again, sizeof(again)) == 0 && strcmp(normal, again) == 0);
    require(normal[0] == '/' && strstr(normal, "/../") == NULL && strstr(normal, "//") == NULL &&
            strpbrk(normal, ";\\?#") == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *end = at + size;
    struct bt_http_slice text = take(&at, end), host_slice = take(&at, end);
    char host[512] = "a.example";
    struct bt_policy *policy;
    struct bt_error error;
    if (host_slice.length > 0 && host_slice.length < sizeof(host)) {
        memcpy(host, host_slice.data, host_slice.length);
        host[host_slice.length] = '\0';
    }
    struct bt_policy_request request = {
        .host = host, .port = 443, .method = take(&at, end), .path = take(&at, end)};
    struct bt_http_field field = {.name = take(&at, end), .value = take(&at, end)};
    request.fields = &field;
    request.field_count = field.name.length > 0 ? 1 : 0;
    check_path(request.path);
    json_t *document = json_loadb(text.data, text.length, JSON_ALLOW_NUL, NULL);
    if (document == NULL)
        return 0;
    if (bt_policy_parse(document, &policy, &error) == 0) {
        for (unsigned i = 0; i < 4; i++) {
            request.is_tls = (i & 1U) != 0;
            request.is_transparent = (i & 2U) != 0;
            check(policy, &request);
        }
        json_decref(bt_policy_credentials(policy));
        bt_policy_free(policy);
    }
    json_decref(document);
    return 0;
}
