/* An agent's credentials. See credential.h. Must put no value into a message or record. */
#include "policy/gateway/credential.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"

struct bt_credentials {
    size_t count;
    char names[BT_CREDENTIALS_MAX][BT_CREDENTIAL_NAME_SIZE];
    char *values[BT_CREDENTIALS_MAX];
    struct bt_secrets *secrets;
};

/* A value, the password in "user:password", the canary, and the agent's own token. */
#define SECRETS_MAX (2 * BT_CREDENTIALS_MAX + 2)
_Static_assert(SECRETS_MAX <= BT_SECRETS_MAX &&
                   2 * BT_CREDENTIALS_BYTES_MAX + BT_CANARY_MAX + BT_IDENTITY_TOKEN_MAX <=
                       BT_SECRETS_BYTES_MAX,
               "what a registration may hold must fit what the filters can look for");

static bool is_field_value(const json_t *value)
{
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    if (text == NULL || length == 0 || length > BT_CREDENTIAL_VALUE_MAX)
        return false;
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    return true;
}

static int take_values(const json_t *values, struct bt_credentials *credentials)
{
    const char *name;
    json_t *value;
    if (json_object_size(values) > BT_CREDENTIALS_MAX)
        return -EPROTO;
    json_object_foreach((json_t *)(uintptr_t)values, name, value)
    {
        if (strlen(name) >= BT_CREDENTIAL_NAME_SIZE || !is_field_value(value))
            return -EPROTO;
        memcpy(credentials->names[credentials->count], name, strlen(name) + 1);
        credentials->values[credentials->count++] = bt_string_copy(json_string_value(value));
    }
    return 0;
}

/* Of "user:password" the password counts by itself, too. */
static int make_secrets(struct bt_credentials *credentials, const char *canary, const char *token)
{
    struct bt_secret secrets[SECRETS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < credentials->count; i++) {
        const char *value = credentials->values[i], *colon = strchr(value, ':');
        secrets[count++] = (struct bt_secret){BT_SECRET_CREDENTIAL, value, strlen(value)};
        if (colon != NULL)
            secrets[count++] = (struct bt_secret){BT_SECRET_CREDENTIAL, colon + 1, strlen(colon + 1)};
    }
    if (canary != NULL)
        secrets[count++] = (struct bt_secret){BT_SECRET_CANARY, canary, strlen(canary)};
    if (token != NULL)
        secrets[count++] = (struct bt_secret){BT_SECRET_IDENTITY, token, strlen(token)};
    return bt_secrets_new(secrets, count, &credentials->secrets, NULL) < 0 ? -EPROTO : 0;
}

/* A member that may be missing or null, and else must be a text. Returns whether it is what it should be. */
static bool take_text(const json_t *answer, const char *key, const char **ret_text)
{
    const json_t *value = json_object_get(answer, key);
    *ret_text = json_string_value(value);
    return value == NULL || json_is_null(value) || is_field_value(value);
}

int bt_credentials_take(const json_t *answer, struct bt_credentials **ret_credentials)
{
    const json_t *values = json_object_get(answer, "credentials");
    const char *canary, *token;
    if ((values != NULL && !json_is_null(values) && !json_is_object(values)) ||
        !take_text(answer, "canary", &canary) || !take_text(answer, "identity_token", &token))
        return -EPROTO;
    if (json_object_size(values) == 0 && canary == NULL && token == NULL) {
        *ret_credentials = NULL;
        return 0;
    }
    struct bt_credentials *credentials = bt_new(1, sizeof(*credentials));
    int result = take_values(values, credentials);
    if (result == 0)
        result = make_secrets(credentials, canary, token);
    if (result < 0) {
        bt_credentials_free(credentials);
        return result;
    }
    *ret_credentials = credentials;
    return 0;
}

struct bt_credentials *bt_credentials_free(struct bt_credentials *credentials)
{
    if (credentials == NULL)
        return NULL;
    for (size_t i = 0; i < credentials->count; i++) {
        explicit_bzero(credentials->values[i], strlen(credentials->values[i]));
        free(credentials->values[i]);
    }
    bt_secrets_free(credentials->secrets);
    free(credentials);
    return NULL;
}

static const char *find(const struct bt_credentials *credentials, const char *name)
{
    for (size_t i = 0; credentials != NULL && i < credentials->count; i++)
        if (strcmp(credentials->names[i], name) == 0)
            return credentials->values[i];
    return NULL;
}

bool bt_credentials_have(const struct bt_credentials *credentials, const struct bt_verdict *verdict)
{
    return verdict->auth == BT_AUTH_NONE || find(credentials, verdict->credential) != NULL;
}

void bt_credentials_strip(const struct bt_verdict *verdict, struct bt_message *head)
{
    size_t kept = 0;
    for (size_t i = 0; i < head->field_count; i++) {
        bool is_replaced = verdict->auth_header[0] != '\0' &&
                           bt_http_name_is_like(head->fields[i].name, verdict->auth_header);
        bool is_stripped = verdict->strips_credentials && bt_policy_is_credential_field(head->fields[i].name);
        if (!is_replaced && !is_stripped)
            head->fields[kept++] = head->fields[i];
    }
    head->field_count = kept;
}

static size_t write_value(enum bt_auth_scheme scheme, const char *value, char *text)
{
    static const char bearer[] = "Bearer ", basic[] = "Basic ";
    size_t length = strlen(value);
    if (scheme == BT_AUTH_BASIC) {
        memcpy(text, basic, sizeof(basic) - 1);
        return sizeof(basic) - 1 +
               (size_t)EVP_EncodeBlock((unsigned char *)text + sizeof(basic) - 1,
                                       (const unsigned char *)value, (int)length);
    }
    size_t prefix = scheme == BT_AUTH_BEARER ? sizeof(bearer) - 1 : 0;
    memcpy(text, bearer, prefix);
    memcpy(text + prefix, value, length + 1);
    return prefix + length;
}

int bt_credentials_apply(const struct bt_credentials *credentials, const struct bt_verdict *verdict,
                         struct bt_message *head, char field_text[BT_CREDENTIAL_FIELD_SIZE])
{
    const char *value = verdict->auth != BT_AUTH_NONE ? find(credentials, verdict->credential) : NULL;
    if (verdict->auth != BT_AUTH_NONE && value == NULL)
        return -ENOKEY;
    bt_credentials_strip(verdict, head);
    if (verdict->auth == BT_AUTH_NONE)
        return 0;
    if (head->field_count >= BT_HTTP_FIELDS_MAX)
        return -E2BIG;
    size_t length = write_value(verdict->auth, value, field_text);
    head->fields[head->field_count++] =
        (struct bt_http_field){{verdict->auth_header, strlen(verdict->auth_header)}, {field_text, length}};
    return 0;
}

struct bt_secrets *bt_credentials_secrets(const struct bt_credentials *credentials)
{
    return credentials != NULL ? credentials->secrets : NULL;
}
