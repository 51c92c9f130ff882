/* What the host may call: agents, counters, decisions. Authorisation was checked by api.c. */
#include <event2/keyvalq_struct.h>
#include <string.h>

#include "policy/orchestrator/api.h"
#include "policy/rules/rules.h"
#include "policy/rules/service.h"

#define SLOT_MAX (BT_SLOTS_MAX - 1)

/* Slot and generation of a path; answers with 400 when they are not numbers in range. */
static bool parse_key(struct evhttp_request *request, char *const parts[2], uint16_t *ret_slot,
                      uint32_t *ret_generation)
{
    uint64_t slot, generation;
    if (bt_number_parse(parts[0], strlen(parts[0]), 0, SLOT_MAX, &slot) < 0 ||
        bt_number_parse(parts[1], strlen(parts[1]), 0, UINT32_MAX, &generation) < 0) {
        bt_api_refuse(request, 400, "slot or generation is not a number in range", "see policy/API.md");
        return false;
    }
    *ret_slot = (uint16_t)slot;
    *ret_generation = (uint32_t)generation;
    return true;
}

/* A string member without NUL inside and with minimum..maximum bytes, or NULL. */
static const char *text_member(const json_t *body, const char *key, size_t minimum, size_t maximum)
{
    const json_t *value = json_object_get(body, key);
    size_t length = json_string_length(value);
    if (!json_is_string(value) || length < minimum || length > maximum ||
        strlen(json_string_value(value)) != length)
        return NULL;
    return json_string_value(value);
}

static const char *parse_agent(const json_t *body, struct bt_registry_agent *agent)
{
    const char *name = text_member(body, "name", 1, sizeof(agent->name) - 1);
    const char *address = text_member(body, "address", 7, 15);
    const char *gateway_address = text_member(body, "gateway_address", 7, 15);
    const char *digest = text_member(body, "token_sha256", BT_DIGEST_TEXT_SIZE - 1, BT_DIGEST_TEXT_SIZE - 1);
    const json_t *version = json_object_get(body, "policy_version");
    if (name == NULL)
        return "\"name\" is missing or not 1 to 64 bytes";
    if (address == NULL || bt_ipv4_parse(address, &agent->address) < 0)
        return "\"address\" is not a dotted quad";
    if (gateway_address == NULL || bt_ipv4_parse(gateway_address, &agent->gateway_address) < 0)
        return "\"gateway_address\" is not a dotted quad";
    if (digest == NULL || strspn(digest, "0123456789abcdef") != BT_DIGEST_TEXT_SIZE - 1)
        return "\"token_sha256\" is not a lower-case hex SHA-256";
    if (version != NULL && (!json_is_integer(version) || json_integer_value(version) < 1))
        return "\"policy_version\" is not a number above 0";
    agent->policy_version = version != NULL ? (uint64_t)json_integer_value(version) : 0;
    memcpy(agent->name, name, strlen(name) + 1);
    memcpy(agent->token_sha256, digest, BT_DIGEST_TEXT_SIZE);
    return NULL;
}

static bool has_known_keys(const json_t *body)
{
    static const char *const known[] = {"name",           "address",       "gateway_address", "token_sha256",
                                        "policy_version", "policy",        "credentials",     "canary",
                                        "identity_token", "credential_key"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, key, value)
    {
        bool is_known = false;
        for (size_t i = 0; i < BT_ARRAY_LENGTH(known); i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        if (!is_known)
            return false;
    }
    return true;
}

/* A header field's value: visible ASCII and blanks inside (RFC 9110, 5.5). */
static bool is_credential(const json_t *value)
{
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    if (text == NULL || length == 0 || length > BT_CREDENTIAL_VALUE_MAX || text[0] == ' ' ||
        text[length - 1] == ' ')
        return false;
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    return true;
}

/* Every credential that a route names must be there: found out now, not at the first request. */
static int check_credentials(const struct bt_policy *policy, const json_t *credentials,
                             struct bt_error *error)
{
    json_t *names = bt_policy_credentials(policy);
    const char *name = NULL;
    size_t index, bytes = 0;
    json_t *wanted, *value;
    int result = 0;
    json_array_foreach(names, index, wanted)
    {
        if (result == 0 && json_object_get(credentials, json_string_value(wanted)) == NULL)
            result = bt_fail(error, BT_EXIT_ERROR, EINVAL, "send it in \"credentials\"",
                             "the policy names the credential \"%s\", which is not there",
                             json_string_value(wanted));
    }
    json_object_foreach((json_t *)(uintptr_t)credentials, name, value)
    {
        bytes += json_string_length(value);
        /* A gateway that cannot keep the name could not take the agent at all. */
        if (result == 0 && !bt_policy_credential_name_is_valid(name))
            result = bt_fail(error, BT_EXIT_ERROR, EINVAL, "1 to 31 of a-z, 0-9 and -",
                             "\"%.40s\" is not the name of a credential", name);
        if (result == 0 && !is_credential(value))
            result = bt_fail(error, BT_EXIT_ERROR, EINVAL, "up to 4000 bytes of printable ASCII",
                             "the credential \"%.40s\" cannot stand in a header field", name);
    }
    json_decref(names);
    if (result == 0 && bytes > BT_CREDENTIALS_BYTES_MAX)
        result = bt_fail(error, BT_EXIT_ERROR, EINVAL, "use fewer or shorter credentials for one agent",
                         "the credentials have more than %d bytes together", BT_CREDENTIALS_BYTES_MAX);
    return result;
}

static bool are_secrets_new(struct bt_api *api, const struct bt_registry_agent *agent, const json_t *secrets)
{
    struct bt_registry_agent held = {0};
    json_t *opened = NULL;
    bool is_same = false;
    if (bt_registry_find_slot(api->registry, agent->slot, &held, NULL) < 0)
        return true;
    if (held.generation == agent->generation && held.sealed.length == 0)
        is_same = secrets == NULL;
    else if (held.generation == agent->generation && secrets != NULL &&
             bt_vault_open(api->vault, held.slot, held.generation, &held.sealed, &opened) == 0)
        is_same = json_equal(opened, secrets);
    json_decref(opened);
    bt_registry_agent_clear(&held);
    return !is_same;
}

/* The token whose digest says who the agent is, for gateways to look for. */
static bool is_token_of(const json_t *token, const struct bt_registry_agent *agent)
{
    char digest[BT_DIGEST_TEXT_SIZE];
    if (!is_credential(token) || json_string_length(token) > BT_IDENTITY_TOKEN_MAX)
        return false;
    bt_service_secret_digest(json_string_value(token), json_string_length(token), digest);
    return bt_service_digest_equal(digest, agent->token_sha256);
}

/* Seals what the body has of credentials, canary and token under the key that came with them. */
static int take_secrets(struct bt_api *api, const json_t *body, struct bt_registry_agent *agent,
                        struct bt_error *error)
{
    json_t *credentials = json_object_get(body, "credentials");
    json_t *canary = json_object_get(body, "canary"), *token = json_object_get(body, "identity_token");
    const char *key = text_member(body, "credential_key", 2UL * BT_VAULT_KEY_SIZE, 2UL * BT_VAULT_KEY_SIZE);
    if ((credentials != NULL && !json_is_object(credentials)) ||
        json_object_size(credentials) > BT_CREDENTIALS_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/API.md",
                       "\"credentials\" is not an object of at most %d names and values", BT_CREDENTIALS_MAX);
    if (canary != NULL && (!is_credential(canary) || json_string_length(canary) > BT_CANARY_MAX))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/API.md", "\"canary\" is not a plain text");
    if (token != NULL && !is_token_of(token, agent))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/API.md",
                       "\"identity_token\" is not the text that \"token_sha256\" is the digest of");
    json_t *secrets = credentials != NULL || canary != NULL || token != NULL
                          ? json_pack("{s:O?, s:O?, s:O?}", "credentials", credentials, "canary", canary,
                                      "identity_token", token)
                          : NULL;
    /* Compared before the new key takes the place of the one that opens the old data. */
    agent->has_new_secrets = are_secrets_new(api, agent, secrets);
    uint64_t version;
    int result = bt_registry_next_version(api->registry, agent, &version, error);
    if (result < 0) {
        json_decref(secrets);
        return result;
    }
    if (secrets != NULL &&
        (key == NULL || bt_vault_take_key(api->vault, agent->slot, agent->generation, key) < 0))
        result = bt_fail(error, BT_EXIT_ERROR, EINVAL, "see policy/API.md",
                         "\"credential_key\" is missing or not 64 lower-case hex digits");
    else if (secrets != NULL &&
             bt_vault_seal(api->vault, agent->slot, agent->generation, secrets, &agent->sealed) < 0)
        result = bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "the credentials cannot be sealed");
    json_decref(secrets);
    return result;
}

static int put_agent(struct bt_api *api, const json_t *body, struct bt_registry_agent *agent,
                     uint64_t *ret_version, struct bt_error *error)
{
    struct bt_policy *policy = NULL;
    int result = bt_policy_parse(agent->policy, &policy, error);
    if (result == 0)
        result = check_credentials(policy, json_object_get(body, "credentials"), error);
    if (result == 0)
        result = take_secrets(api, body, agent, error);
    if (result == 0)
        result = bt_registry_put(api->registry, agent, ret_version, error);
    bt_policy_free(policy);
    return result;
}

static void put_body(struct bt_api *api, struct evhttp_request *request, const json_t *body,
                     struct bt_registry_agent *agent)
{
    struct bt_error error;
    const char *wrong = !json_is_object(body)   ? "the body is not an object"
                        : !has_known_keys(body) ? "the body has an unknown key"
                                                : parse_agent(body, agent);
    if (wrong != NULL) {
        bt_api_refuse(request, 400, wrong, "see policy/API.md");
        return;
    }
    agent->policy = json_incref(json_object_get(body, "policy"));
    uint64_t version;
    if (put_agent(api, body, agent, &version, &error) < 0) {
        bt_api_refuse_error(request, &error);
        return;
    }
    bt_queue_forget(api->queue, agent->slot, agent->generation, true);
    bt_api_reply(request, json_pack("{s:I}", "policy_version", (json_int_t)version));
}

void bt_api_put_agent(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    struct bt_registry_agent agent = {0};
    if (!parse_key(request, parts, &agent.slot, &agent.generation))
        return;
    json_t *body = bt_api_body(request);
    if (body == NULL)
        return;
    put_body(api, request, body, &agent);
    bt_registry_agent_clear(&agent);
    json_decref(body);
}

void bt_api_delete_agent(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    uint16_t slot;
    uint32_t generation;
    struct bt_error error;
    if (!parse_key(request, parts, &slot, &generation))
        return;
    if (bt_registry_delete(api->registry, slot, generation, &error) < 0)
        bt_api_refuse_error(request, &error);
    else {
        bt_vault_forget(api->vault, slot, generation);
        bt_queue_forget(api->queue, slot, generation, false);
        bt_api_reply(request, json_object());
    }
}

struct listing {
    struct bt_api *api;
    json_t *agents;
};

/* "none": it has no credentials; "open": the gateway gets them; "sealed": their key has not come back since
 * the orchestrator started. */
static const char *secrets_state(const struct bt_api *api, const struct bt_registry_agent *agent)
{
    json_t *secrets = NULL;
    if (agent->sealed.length == 0)
        return "none";
    if (bt_vault_open(api->vault, agent->slot, agent->generation, &agent->sealed, &secrets) < 0)
        return "sealed";
    json_decref(secrets);
    return "open";
}

static void list_agent(void *context, const struct bt_registry_agent *agent)
{
    struct listing *listing = context;
    char address[BT_IPV4_TEXT_SIZE], gateway_address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(agent->address, address);
    bt_ipv4_format(agent->gateway_address, gateway_address);
    json_array_append_new(listing->agents,
                          json_pack("{s:i, s:I, s:s, s:s, s:s, s:I, s:O, s:s}", "slot", (int)agent->slot,
                                    "generation", (json_int_t)agent->generation, "name", agent->name,
                                    "address", address, "gateway_address", gateway_address, "policy_version",
                                    (json_int_t)agent->policy_version, "policy", agent->policy, "credentials",
                                    secrets_state(listing->api, agent)));
}

void bt_api_get_agents(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    struct bt_error error;
    struct listing listing = {api, json_array()};
    if (bt_registry_visit(api->registry, list_agent, &listing, &error) < 0) {
        json_decref(listing.agents);
        bt_api_refuse_error(request, &error);
        return;
    }
    bt_api_reply(request, json_pack("{s:o}", "agents", listing.agents));
}

void bt_api_get_counters(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    uint64_t slot;
    struct bt_error error;
    struct bt_registry_agent agent = {0};
    if (bt_number_parse(parts[0], strlen(parts[0]), 0, SLOT_MAX, &slot) < 0) {
        bt_api_refuse(request, 400, "the slot is not a number in range", "see policy/API.md");
        return;
    }
    if (bt_registry_find_slot(api->registry, (uint16_t)slot, &agent, &error) < 0) {
        bt_api_refuse_error(request, &error);
        return;
    }
    bt_api_reply(request, bt_counters_get(api->counters, agent.slot, agent.generation, bt_api_now_ms()));
    bt_registry_agent_clear(&agent);
}

/* A query parameter as a number; absent: *value stays. Returns false when it is something else. */
static bool query_number(struct evkeyvalq *parameters, const char *name, uint64_t minimum, uint64_t maximum,
                         int64_t *value)
{
    const char *text = evhttp_find_header(parameters, name);
    uint64_t number;
    if (text == NULL)
        return true;
    if (bt_number_parse(text, strlen(text), minimum, maximum, &number) < 0)
        return false;
    *value = (int64_t)number;
    return true;
}

void bt_api_get_decisions(struct bt_api *api, struct evhttp_request *request, char *const parts[2])
{
    (void)parts;
    struct bt_decision_query query = {.slot = -1, .generation = -1, .after = 0, .limit = 100};
    struct evkeyvalq parameters = {0};
    const char *text = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    bool is_valid = evhttp_parse_query_str(text != NULL ? text : "", &parameters) == 0 &&
                    query_number(&parameters, "slot", 0, SLOT_MAX, &query.slot) &&
                    query_number(&parameters, "generation", 0, UINT32_MAX, &query.generation) &&
                    query_number(&parameters, "after", 0, INT64_MAX, &query.after) &&
                    query_number(&parameters, "limit", 1, 1000, &query.limit);
    evhttp_clear_headers(&parameters);
    struct bt_error error;
    json_t *records;
    int64_t last;
    if (!is_valid)
        bt_api_refuse(request, 400, "a parameter is not a number in range", "see policy/API.md");
    else if (bt_registry_decisions(api->registry, &query, &records, &last, &error) < 0)
        bt_api_refuse_error(request, &error);
    else
        bt_api_reply(request, json_pack("{s:o, s:I}", "decisions", records, "last", (json_int_t)last));
}
