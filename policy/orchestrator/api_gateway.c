/* What the gateway may call: its token, who an address is, and its reports. The gateway speaks with agents
 * all day, so what it sends is checked and cut to size like anybody else's.
 */
#include <string.h>
#include <time.h>

#include "policy/orchestrator/api.h"
#include "policy/rules/service.h"

#define RECORDS_MAX 1000
#define RESOLVE_TTL_SECONDS 5

void bt_api_post_token(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    json_t *body = bt_api_body(request);
    if (body == NULL)
        return;
    const json_t *secret = json_object_get(body, "secret");
    char digest[BT_DIGEST_TEXT_SIZE] = "";
    char token[BT_JWT_TEXT_SIZE];
    if (json_is_string(secret))
        bt_service_secret_digest(json_string_value(secret), json_string_length(secret), digest);
    json_decref(body);
    if (!bt_service_digest_equal(digest, api->gateway_secret_sha256))
        bt_api_refuse(request, 403, "this is not the secret of this boot's gateway", NULL);
    else if (bt_jwt_make(api->jwt_key, (int64_t)time(NULL), token) < 0)
        bt_api_refuse(request, 500, "cannot sign a token", NULL);
    else
        bt_api_reply(request, json_pack("{s:s, s:i}", "token", token, "expires_in", BT_JWT_LIFETIME_SECONDS));
}

/* Whatever the gateway needs to know about the agent; the credentials are null while their key is away. */
static json_t *describe(const struct bt_api *api, const struct bt_registry_agent *agent)
{
    char gateway_address[BT_IPV4_TEXT_SIZE];
    json_t *secrets = NULL;
    bt_ipv4_format(agent->gateway_address, gateway_address);
    if (agent->sealed.length == 0)
        secrets = json_pack("{s:{}}", "credentials");
    else if (bt_vault_open(api->vault, agent->slot, agent->generation, &agent->sealed, &secrets) < 0)
        secrets = json_object();
    json_t *document = json_pack(
        "{s:s, s:i, s:I, s:I, s:O, s:s, s:i, s:O?, s:O?, s:O?}", "agent", agent->name, "slot",
        (int)agent->slot, "generation", (json_int_t)agent->generation, "policy_version",
        (json_int_t)agent->policy_version, "policy", agent->policy, "gateway_address", gateway_address, "ttl",
        RESOLVE_TTL_SECONDS, "credentials", json_object_get(secrets, "credentials"), "canary",
        json_object_get(secrets, "canary"), "identity_token", json_object_get(secrets, "identity_token"));
    json_decref(secrets);
    return document;
}

static void resolve(struct bt_api *api, struct evhttp_request *request, const json_t *body)
{
    const char *text = json_string_value(json_object_get(body, "address"));
    const json_t *digest = json_object_get(body, "token_sha256");
    struct bt_registry_agent agent = {0};
    struct bt_error error;
    uint32_t address;
    if (text == NULL || bt_ipv4_parse(text, &address) < 0 || (digest != NULL && !json_is_string(digest))) {
        bt_api_refuse(request, 400, "\"address\" or \"token_sha256\" is not what it should be",
                      "see policy/API.md");
        return;
    }
    if (bt_registry_find_address(api->registry, address, &agent, &error) < 0) {
        bt_api_refuse_error(request, &error);
        return;
    }
    if (digest != NULL && !bt_service_digest_equal(json_string_value(digest), agent.token_sha256))
        bt_api_refuse(request, 403, "the token is not the one of the agent at this address", NULL);
    else
        bt_api_reply(request, describe(api, &agent));
    bt_registry_agent_clear(&agent);
}

void bt_api_post_resolve(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    json_t *body = bt_api_body(request);
    if (body == NULL)
        return;
    resolve(api, request, body);
    json_decref(body);
}

/* Takes over the members of a record that are known, of the right type and of bounded length. */
static json_t *clean_record(const json_t *record)
{
    static const struct {
        const char *key;
        json_type type;
    } members[] = {{"time", JSON_INTEGER},  {"slot", JSON_INTEGER},  {"generation", JSON_INTEGER},
                   {"agent", JSON_STRING},  {"kind", JSON_STRING},   {"host", JSON_STRING},
                   {"port", JSON_INTEGER},  {"method", JSON_STRING}, {"allowed", JSON_TRUE},
                   {"rule", JSON_STRING},   {"reason", JSON_STRING}, {"granted_by", JSON_STRING},
                   {"address", JSON_STRING}};
    json_t *clean = json_object();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(members); i++) {
        json_t *value = json_object_get(record, members[i].key);
        bool is_right = value != NULL && (json_typeof(value) == members[i].type ||
                                          (members[i].type == JSON_TRUE && json_is_false(value)));
        if (!is_right || json_string_length(value) > 300) {
            json_decref(clean);
            return NULL;
        }
        json_object_set(clean, members[i].key, value);
    }
    json_t *path = json_object_get(record, "path"); /* of requests that are recorded with it */
    if (json_is_string(path) && json_string_length(path) <= 300)
        json_object_set(clean, "path", path);
    return clean;
}

void bt_api_post_decisions(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    json_t *body = bt_api_body(request);
    if (body == NULL)
        return;
    struct bt_error error;
    json_t *records = json_array();
    size_t count = json_array_size(body);
    for (size_t i = 0; i < count && i < RECORDS_MAX; i++) {
        json_t *clean = clean_record(json_array_get(body, i));
        if (clean == NULL)
            break;
        json_array_append_new(records, clean);
    }
    if (!json_is_array(body) || json_array_size(records) != count)
        bt_api_refuse(request, 400, "not a list of at most 1000 decision records", "see policy/API.md");
    else if (bt_registry_add_decisions(api->registry, records, &error) < 0)
        bt_api_refuse_error(request, &error);
    else
        bt_api_reply(request, json_pack("{s:i}", "stored", (int)count));
    json_decref(records);
    json_decref(body);
}

void bt_api_post_counters(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    json_t *body = bt_api_body(request);
    if (body == NULL)
        return;
    bool is_valid = json_is_array(body) && json_array_size(body) <= BT_SLOTS_MAX;
    for (size_t i = 0; is_valid && i < json_array_size(body); i++)
        is_valid = bt_counters_report(api->counters, json_array_get(body, i), bt_api_now_ms()) == 0;
    json_decref(body);
    if (is_valid)
        bt_api_reply(request, json_object());
    else
        bt_api_refuse(request, 400, "not a list of counters", "see policy/API.md");
}
