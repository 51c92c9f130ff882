/* What opens an agent's guest and names it to the gateway: <folder>/secrets.json. See keeper.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/keeper.h"

#define SECRETS_MAX 65536U

int bt_agent_secrets_save(const char *folder, const struct bt_agent_secrets *secrets, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/secrets.json", folder);
    json_t *document = json_pack("{s:s, s:s, s:s, s:s?, s:s?}", "private_key", secrets->private_key,
                                 "host_public_key", secrets->host_public_key, "token", secrets->token,
                                 "credential_key", secrets->credential_key, "canary", secrets->canary);
    bt_auto_free char *text = document == NULL ? NULL : json_dumps(document, JSON_INDENT(1));
    json_decref(document);
    if (text == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot write the agent's keys");
    int result = bt_file_write(path, text, strlen(text), 0600, error);
    explicit_bzero(text, strlen(text));
    return result;
}

static char *copy_member(const json_t *document, const char *key)
{
    const char *text = json_string_value(json_object_get(document, key));
    return text == NULL ? NULL : bt_string_copy(text);
}

int bt_agent_secrets_load(const char *folder, struct bt_agent_secrets *ret_secrets, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/secrets.json", folder);
    struct bt_buffer text = {0};
    int result = bt_file_read(path, SECRETS_MAX, &text, error);
    if (result < 0)
        return result;
    json_t *document = json_loadb(text.data, text.length, 0, NULL);
    bt_buffer_wipe(&text);
    struct bt_agent_secrets secrets = {
        copy_member(document, "private_key"), copy_member(document, "host_public_key"),
        copy_member(document, "token"), copy_member(document, "credential_key"),
        copy_member(document, "canary")};
    json_decref(document);
    if (secrets.private_key == NULL || secrets.host_public_key == NULL || secrets.token == NULL) {
        bt_agent_secrets_free(&secrets);
        return bt_fail(error, BT_EXIT_ERROR, EBADMSG, "remove the agent with berth rm", "%s is damaged",
                       path);
    }
    *ret_secrets = secrets;
    return 0;
}

static void wipe_text(char **text)
{
    if (*text != NULL)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

void bt_agent_secrets_free(struct bt_agent_secrets *secrets)
{
    wipe_text(&secrets->private_key);
    wipe_text(&secrets->host_public_key);
    wipe_text(&secrets->token);
    wipe_text(&secrets->credential_key);
    wipe_text(&secrets->canary);
}
