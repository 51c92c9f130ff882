/* The environment of commands in a guest. See guest_environment.h. */
#include "frontend/guest_environment.h"

#include <string.h>
#include <strings.h>

#include "ipc/wire/pool.h"
#include "vm/guest_config.h"
#include "vm/trust_stores.h"

#define TRUST BT_GUEST_FOLDER "/" BT_GUEST_TRUST_PEM
#define JAVA_TRUST BT_GUEST_FOLDER "/" BT_GUEST_TRUST_JKS
/* Loopback in every spelling that a client compares with; each client knows some of these forms. */
#define LOOPBACK "localhost,.localhost,127.0.0.1,127.0.0.0/8,::1,[::1]"

static const struct variable {
    const char *name;
    const char *value; /* NULL: the proxy's URL */
} variables[] = {
    {"PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"},
    {"HOME", "/home/agent"},
    {"USER", "agent"},
    {"LOGNAME", "agent"},
    {"SHELL", "/bin/bash"},
    {"LANG", "C.UTF-8"},
    /* Not all_proxy: one client takes it for the only one and fails, none needs it beside the others. */
    {"http_proxy", NULL},
    {"https_proxy", NULL},
    {"HTTP_PROXY", NULL},
    {"HTTPS_PROXY", NULL},
    {"no_proxy", LOOPBACK},
    {"NO_PROXY", LOOPBACK},
    {"NODE_USE_ENV_PROXY", "1"}, /* fetch and WebSocket of Node from 24 (22.21) on */
    {"SSL_CERT_FILE", TRUST},    /* OpenSSL, Go, rustls, Ruby, Codex, uv */
    {"SSL_CERT_DIR", "/etc/ssl/certs"},
    {"NODE_EXTRA_CA_CERTS", TRUST}, /* Node, Bun, Claude Code, pi */
    {"CURL_CA_BUNDLE", TRUST},
    {"GIT_SSL_CAINFO", TRUST},
    {"REQUESTS_CA_BUNDLE", TRUST},
    {"PIP_CERT", TRUST},
    {"CARGO_HTTP_CAINFO", TRUST},
    {"AWS_CA_BUNDLE", TRUST},
    {"DENO_CERT", TRUST},
    {"CODEX_CA_CERTIFICATE", TRUST},
    {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", TRUST},
    {"JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStore=" JAVA_TRUST
                          " -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword=changeit"},
};

/* What a program that collects secrets takes along: nothing uses it, so whoever sends it was looking. */
#define CANARY "BACKUP_ACCESS_TOKEN"

/* Variables whose change would only break the agent: the firewall does not look at them. Those of trust may
 * be set: a test may need its own. */
static const char *const reserved[] = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
                                       "HOME",       "USER",        "PATH",      CANARY};

void bt_guest_environment(uint32_t gateway_address, const char *token, const char *canary,
                          const char *const *own, const char *terminal, struct bt_list *ret_environment)
{
    char address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(gateway_address, address);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(variables); i++) {
        if (variables[i].value != NULL)
            bt_list_add_format(ret_environment, "%s=%s", variables[i].name, variables[i].value);
        else
            bt_list_add_format(ret_environment, "%s=http://agent:%s@%s:%u", variables[i].name, token, address,
                               BT_GATEWAY_PORT_PROXY);
    }
    if (terminal != NULL)
        bt_list_add_format(ret_environment, "TERM=%s", terminal);
    if (canary != NULL)
        bt_list_add_format(ret_environment, CANARY "=%s", canary);
    for (size_t i = 0; own != NULL && own[i] != NULL; i++)
        bt_list_add(ret_environment, own[i]);
}

bool bt_guest_environment_is_reserved(const char *name)
{
    if (strncmp(name, "BERTH_", 6) == 0)
        return true;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(reserved); i++)
        if (strcasecmp(name, reserved[i]) == 0)
            return true;
    return false;
}
