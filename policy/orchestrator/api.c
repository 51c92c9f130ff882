/* Routing, authorisation and replies of API v1. See api.h. What each call does is in api_host.c,
 * api_gateway.c and api_approvals.c. */
#include "policy/orchestrator/api.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/keyvalq_struct.h>
#include <string.h>
#include <time.h>

#include "lib/memory.h"
#include "policy/rules/service.h"

enum who { WHO_ANYBODY, WHO_HOST, WHO_GATEWAY };

static bt_api_handler get_health;

static const struct call {
    enum evhttp_cmd_type method;
    const char *resource;
    size_t parts; /* path parts after the resource */
    enum who who;
    bt_api_handler *handle;
} calls[] = {
    {EVHTTP_REQ_GET, "health", 0, WHO_ANYBODY, get_health},
    {EVHTTP_REQ_POST, "token", 0, WHO_ANYBODY, bt_api_post_token},
    {EVHTTP_REQ_PUT, "agents", 2, WHO_HOST, bt_api_put_agent},
    {EVHTTP_REQ_DELETE, "agents", 2, WHO_HOST, bt_api_delete_agent},
    {EVHTTP_REQ_GET, "agents", 0, WHO_HOST, bt_api_get_agents},
    {EVHTTP_REQ_GET, "counters", 1, WHO_HOST, bt_api_get_counters},
    {EVHTTP_REQ_GET, "decisions", 0, WHO_HOST, bt_api_get_decisions},
    {EVHTTP_REQ_GET, "metrics", 0, WHO_HOST, bt_api_get_metrics},
    {EVHTTP_REQ_GET, "approvals", 0, WHO_HOST, bt_api_get_approvals},
    {EVHTTP_REQ_PUT, "approvals", 1, WHO_HOST, bt_api_put_approval},
    {EVHTTP_REQ_POST, "resolve", 0, WHO_GATEWAY, bt_api_post_resolve},
    {EVHTTP_REQ_POST, "decisions", 0, WHO_GATEWAY, bt_api_post_decisions},
    {EVHTTP_REQ_POST, "counters", 0, WHO_GATEWAY, bt_api_post_counters},
    {EVHTTP_REQ_POST, "approvals", 0, WHO_GATEWAY, bt_api_post_approvals},
    {EVHTTP_REQ_POST, "held", 0, WHO_GATEWAY, bt_api_post_held},
};

int64_t bt_api_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void send_document(struct evhttp_request *request, int status, json_t *document)
{
    bt_auto_free char *text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    evhttp_add_header(headers, "Content-Type", "application/json");
    evhttp_add_header(headers, "Cache-Control", "no-store");
    if (status == 401)
        evhttp_add_header(headers, "WWW-Authenticate", "Bearer");
    struct evbuffer *body = evbuffer_new();
    if (text == NULL || body == NULL || evbuffer_add(body, text, strlen(text)) < 0)
        status = 500;
    evhttp_send_reply(request, status, NULL, body);
    if (body != NULL)
        evbuffer_free(body);
}

void bt_api_reply(struct evhttp_request *request, json_t *document)
{
    send_document(request, 200, document);
}

void bt_api_refuse(struct evhttp_request *request, int status, const char *message, const char *hint)
{
    send_document(request, status,
                  json_pack("{s:s, s:s}", "error", message, "hint", hint != NULL ? hint : ""));
}

void bt_api_refuse_error(struct evhttp_request *request, const struct bt_error *error)
{
    int status = error->code == ENOENT   ? 404
                 : error->code == EINVAL ? 400
                 : error->code == ENOSPC ? 507
                                         : 500;
    bt_api_refuse(request, status, error->message, error->hint);
}

json_t *bt_api_body(struct evhttp_request *request)
{
    struct evbuffer *input = evhttp_request_get_input_buffer(request);
    size_t length = evbuffer_get_length(input);
    const unsigned char *data = length > 0 ? evbuffer_pullup(input, -1) : NULL;
    json_error_t parse_error;
    json_t *body =
        data != NULL ? json_loadb((const char *)data, length, JSON_REJECT_DUPLICATES, &parse_error) : NULL;
    if (body == NULL)
        bt_api_refuse(request, 400, "the body is not JSON", "see policy/API.md");
    return body;
}

static void get_health(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    json_t *seen = api->gateway_seen_ms < 0
                       ? json_null()
                       : json_integer((json_int_t)((bt_api_now_ms() - api->gateway_seen_ms) / 1000));
    bt_api_reply(request, json_pack("{s:s, s:o, s:s}", "status", "ok", "gateway_seen", seen, "version",
                                    BT_API_VERSION));
}

static bool is_authorised(struct bt_api *api, struct evhttp_request *request, enum who who)
{
    static const char scheme[] = "Bearer ";
    const char *header = evhttp_find_header(evhttp_request_get_input_headers(request), "Authorization");
    if (who == WHO_ANYBODY)
        return true;
    if (header == NULL || strncmp(header, scheme, sizeof(scheme) - 1) != 0)
        return false;
    const char *bearer = header + sizeof(scheme) - 1;
    if (who == WHO_HOST) {
        char digest[BT_DIGEST_TEXT_SIZE];
        bt_service_secret_digest(bearer, strlen(bearer), digest);
        return bt_service_digest_equal(digest, api->host_key_sha256);
    }
    if (bt_jwt_check(api->jwt_key, (int64_t)time(NULL), bearer) < 0)
        return false;
    api->gateway_seen_ms = bt_api_now_ms();
    return true;
}

/* Splits "/v1/resource/a/b" in place. Returns the number of parts after the resource, or -ENOENT. */
static int split_path(char *path, const char **ret_resource, char *parts[2])
{
    static const char prefix[] = "/v1/";
    if (strncmp(path, prefix, sizeof(prefix) - 1) != 0)
        return -ENOENT;
    char *rest = path + sizeof(prefix) - 1;
    *ret_resource = strsep(&rest, "/");
    int count = 0;
    while (rest != NULL) {
        if (count == 2)
            return -ENOENT;
        parts[count++] = strsep(&rest, "/");
    }
    return count;
}

static void handle_request(struct evhttp_request *request, void *context)
{
    struct bt_api *api = context;
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(request));
    bt_auto_free char *copy = bt_string_copy(path != NULL ? path : "");
    const char *resource = "";
    char *parts[2] = {NULL, NULL};
    bool is_known = false;
    int count = split_path(copy, &resource, parts);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(calls) && count >= 0; i++) {
        const struct call *call = &calls[i];
        if (strcmp(call->resource, resource) != 0 || call->parts != (size_t)count)
            continue;
        is_known = true;
        if (call->method != evhttp_request_get_command(request))
            continue;
        if (!is_authorised(api, request, call->who))
            bt_api_refuse(request, 401, "the authorisation is missing, wrong or expired",
                          "see policy/API.md");
        else
            call->handle(api, request, parts);
        return;
    }
    bt_api_refuse(request, is_known ? 405 : 404,
                  is_known ? "this method does nothing here" : "there is nothing at this path",
                  "see policy/API.md");
}

void bt_api_attach(struct bt_api *api, struct evhttp *server)
{
    evhttp_set_allowed_methods(server, EVHTTP_REQ_GET | EVHTTP_REQ_PUT | EVHTTP_REQ_POST | EVHTTP_REQ_DELETE);
    evhttp_set_max_headers_size(server, 16 * 1024);
    evhttp_set_max_body_size(server, BT_API_BODY_MAX);
    evhttp_set_timeout(server, 60);
    evhttp_set_gencb(server, handle_request, api);
}
