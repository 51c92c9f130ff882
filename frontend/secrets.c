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

#define TRUST BT_GUEST_FOLDER "/config/trust.pem"

void bt_agent_environment(uint32_t gateway_address, const char *token, const char *const *own,
                          const char *terminal, struct bt_list *ret_environment)
{
    static const char *const proxies[] = {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"};
    static const char *const trusts[] = {"SSL_CERT_FILE",       "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
                                         "REQUESTS_CA_BUNDLE",  "PIP_CERT",       "NODE_EXTRA_CA_CERTS",
                                         "CARGO_HTTP_CAINFO",   "AWS_CA_BUNDLE",  "DENO_CERT",
                                         "CODEX_CA_CERTIFICATE"};
    char address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(gateway_address, address);
    bt_list_add(ret_environment, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin");
    bt_list_add(ret_environment, "HOME=/home/agent");
    bt_list_add(ret_environment, "USER=agent");
    bt_list_add(ret_environment, "LOGNAME=agent");
    bt_list_add(ret_environment, "SHELL=/bin/bash");
    bt_list_add(ret_environment, "LANG=C.UTF-8");
    if (terminal != NULL)
        bt_list_add_format(ret_environment, "TERM=%s", terminal);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(proxies); i++)
        bt_list_add_format(ret_environment, "%s=http://agent:%s@%s:%u", proxies[i], token, address,
                           BT_GATEWAY_PORT_PROXY);
    bt_list_add(ret_environment, "no_proxy=localhost,127.0.0.1,::1,[::1]");
    bt_list_add(ret_environment, "NO_PROXY=localhost,127.0.0.1,::1,[::1]");
    bt_list_add(ret_environment, "NODE_USE_ENV_PROXY=1");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(trusts); i++)
        bt_list_add_format(ret_environment, "%s=" TRUST, trusts[i]);
    for (size_t i = 0; own != NULL && own[i] != NULL; i++)
        bt_list_add(ret_environment, own[i]);
}
