/* The host's side of API v1. See orchestrator_client.h.
 *
 * Must not put the host key anywhere but into the header.
 */
#include "policy/client/orchestrator_client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "lib/file.h"
#include "lib/http.h"
#include "lib/memory.h"

#define CALL_TIMEOUT_MS 10000L
#define CONNECT_TIMEOUT_MS 3000L

struct call {
    const struct bt_orchestrator *orchestrator;
    const char *method;
    const char *path;
    const char *body; /* or NULL */
    long timeout_ms;
};

static int perform(const struct call *call, struct bt_buffer *ret_answer, long *ret_status,
                   struct bt_error *error)
{
    char address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(call->orchestrator->address, address);
    bt_auto_free char *origin = bt_string_format("http://%s:%u", address, call->orchestrator->port);
    bt_auto_free char *authorization = bt_string_format("Bearer %s", call->orchestrator->host_key);
    const struct bt_http_request request = {.origin = origin,
                                            .method = call->method,
                                            .path = call->path,
                                            .authorization = authorization,
                                            .body = call->body,
                                            .body_length = call->body == NULL ? 0 : strlen(call->body),
                                            .timeout_ms = call->timeout_ms,
                                            .connect_timeout_ms = CONNECT_TIMEOUT_MS};
    struct bt_error own = {0};
    int result = bt_http_call(&request, ret_status, ret_answer, &own);
    explicit_bzero(authorization, strlen(authorization));
    return result < 0 ? bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, "run `berth status` and `berth up`",
                                "the orchestrator does not answer: %s", own.message)
                      : 0;
}

static int status_error(long status, const json_t *document, struct bt_error *error)
{
    const char *message = json_string_value(json_object_get(document, "error"));
    const char *hint = json_string_value(json_object_get(document, "hint"));
    int code = status == 404 ? ENOENT : status == 401 ? EACCES : status == 400 ? EINVAL : EIO;
    return bt_fail(
        error, BT_EXIT_INFRASTRUCTURE, code,
        status == 401 ? "this orchestrator belongs to another state folder; run `berth down`, `berth up`"
                      : hint,
        "the orchestrator refused (%ld): %.600s", status, message != NULL ? message : "no reason given");
}

static int call_api(const struct call *call, json_t **ret_document, struct bt_error *error)
{
    bt_auto_buffer answer = {0};
    long status = 0;
    int result = perform(call, &answer, &status, error);
    if (result < 0)
        return result;
    json_t *document =
        answer.length > 0 ? json_loadb(answer.data, answer.length, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (status != 200)
        result = status_error(status, document, error);
    else if (document == NULL)
        result =
            bt_fail(error, BT_EXIT_INFRASTRUCTURE, EPROTO, NULL, "the orchestrator's answer is not JSON");
    if (result < 0 || ret_document == NULL)
        json_decref(document);
    else
        *ret_document = document;
    return result;
}

int bt_orchestrator_get(const struct bt_orchestrator *orchestrator, const char *path, json_t **ret_document,
                        struct bt_error *error)
{
    struct call call = {orchestrator, "GET", path, NULL, CALL_TIMEOUT_MS};
    return call_api(&call, ret_document, error);
}

int bt_orchestrator_get_within(const struct bt_orchestrator *orchestrator, const char *path, long timeout_ms,
                               json_t **ret_document, struct bt_error *error)
{
    struct call call = {orchestrator, "GET", path, NULL, timeout_ms};
    return call_api(&call, ret_document, error);
}

int bt_orchestrator_put(const struct bt_orchestrator *orchestrator, const char *path, const json_t *document,
                        struct bt_error *error)
{
    bt_auto_free char *text = json_dumps(document, JSON_COMPACT);
    if (text == NULL)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "cannot write a call to the orchestrator");
    struct call call = {orchestrator, "PUT", path, text, CALL_TIMEOUT_MS};
    return call_api(&call, NULL, error);
}

/* What an agent has that must not leave it, most first: an orchestrator of an older berth refuses members
 * that it does not know. */
enum known_secrets { KNOWN_NONE, KNOWN_CANARY, KNOWN_ALL };

static char *registration_text(const struct bt_registration *registration, enum known_secrets known)
{
    bool has_canary = known >= KNOWN_CANARY && registration->canary != NULL;
    bool has_token = known >= KNOWN_ALL && registration->credential_key != NULL;
    char address[BT_IPV4_TEXT_SIZE], gateway_address[BT_IPV4_TEXT_SIZE], digest[BT_DIGEST_TEXT_SIZE];
    bt_ipv4_format(registration->address, address);
    bt_ipv4_format(registration->gateway_address, gateway_address);
    bt_digest_bytes(registration->token, strlen(registration->token), digest);
    json_t *body = json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", registration->name, "address", address,
                             "gateway_address", gateway_address, "token_sha256", digest, "policy",
                             json_deep_copy(registration->policy));
    if (json_object_size(registration->credentials) > 0)
        (void)json_object_set_new(body, "credentials", json_deep_copy(registration->credentials));
    if (has_canary)
        (void)json_object_set_new(body, "canary", json_string(registration->canary));
    if (has_token)
        (void)json_object_set_new(body, "identity_token", json_string(registration->token));
    if (has_canary || has_token || json_object_size(registration->credentials) > 0)
        (void)json_object_set_new(body, "credential_key", json_string(registration->credential_key));
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

static int put_registration(const struct bt_orchestrator *orchestrator,
                            const struct bt_registration *registration, enum known_secrets known,
                            struct bt_error *error)
{
    bt_auto_free char *text = registration_text(registration, known);
    if (text == NULL)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "cannot write the registration of %s",
                       registration->name);
    bt_auto_free char *path =
        bt_string_format("/v1/agents/%u/%u", registration->slot, registration->generation);
    struct call call = {orchestrator, "PUT", path, text, CALL_TIMEOUT_MS};
    int result = call_api(&call, NULL, error);
    explicit_bzero(text, strlen(text));
    return result;
}

int bt_orchestrator_register(const struct bt_orchestrator *orchestrator,
                             const struct bt_registration *registration, struct bt_error *error)
{
    /* An agent works with an orchestrator of an older berth too: less is looked for. */
    int result = put_registration(orchestrator, registration, KNOWN_ALL, error);
    if (result == -EINVAL && registration->credential_key != NULL)
        result = put_registration(orchestrator, registration, KNOWN_CANARY, error);
    if (result == -EINVAL && registration->canary != NULL && json_object_size(registration->credentials) == 0)
        result = put_registration(orchestrator, registration, KNOWN_NONE, error);
    return result < 0 ? bt_error_prefix(error, "cannot register %s", registration->name) : 0;
}

int bt_orchestrator_unregister(const struct bt_orchestrator *orchestrator, uint16_t slot, uint32_t generation,
                               struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/v1/agents/%u/%u", slot, generation);
    struct call call = {orchestrator, "DELETE", path, NULL, CALL_TIMEOUT_MS};
    int result = call_api(&call, NULL, error);
    if (result == -ENOENT)
        return 0;
    return result < 0 ? bt_error_prefix(error, "cannot unregister slot %u", slot) : 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits up to duration_ms; -ECANCELED when wait_fd became readable. */
static int pause_on(int wait_fd, int duration_ms, struct bt_error *error)
{
    struct pollfd watched = {.fd = wait_fd, .events = POLLIN};
    int ready = poll(&watched, wait_fd >= 0 ? 1 : 0, duration_ms);
    if (ready > 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ECANCELED, NULL, "it ended while it was waited for");
    return 0;
}

/* Asks for the health document until is_wanted likes it. */
static int wait_health(const struct bt_orchestrator *orchestrator, int deadline_ms, int wait_fd,
                       bool (*is_wanted)(const json_t *health), struct bt_error *error)
{
    int64_t end_ms = now_ms() + deadline_ms;
    int interval_ms = 20;
    for (;;) {
        json_t *health = NULL;
        int64_t left_ms = end_ms - now_ms();
        struct call call = {orchestrator, "GET", "/v1/health", NULL, left_ms < 50 ? 50L : (long)left_ms};
        if (call.timeout_ms > 1000)
            call.timeout_ms = 1000;
        int result = call_api(&call, &health, error);
        bool is_good = result == 0 && is_wanted(health);
        json_decref(health);
        if (is_good)
            return 0;
        if (now_ms() >= end_ms) {
            if (result < 0)
                return result;
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ETIMEDOUT, "see its console log with `berth logs`",
                           "the gateway has not reported to the orchestrator within %d ms", deadline_ms);
        }
        result = pause_on(wait_fd, interval_ms, error);
        if (result < 0)
            return result;
        interval_ms = interval_ms < 200 ? interval_ms * 2 : 200;
    }
}

static bool is_ok(const json_t *health)
{
    const char *status = json_string_value(json_object_get(health, "status"));
    return status != NULL && strcmp(status, "ok") == 0;
}

static bool has_gateway(const json_t *health)
{
    const json_t *seen = json_object_get(health, "gateway_seen");
    return is_ok(health) && json_is_integer(seen) && json_integer_value(seen) <= 10;
}

int bt_orchestrator_wait(const struct bt_orchestrator *orchestrator, int deadline_ms, int wait_fd,
                         struct bt_error *error)
{
    return wait_health(orchestrator, deadline_ms, wait_fd, is_ok, error);
}

int bt_orchestrator_wait_gateway(const struct bt_orchestrator *orchestrator, int deadline_ms, int wait_fd,
                                 struct bt_error *error)
{
    return wait_health(orchestrator, deadline_ms, wait_fd, has_gateway, error);
}
