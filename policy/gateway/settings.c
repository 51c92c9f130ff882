/* gateway.json: what the gateway is told at start. Called by main.c, before privileges are given up. */
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/memory.h"
#include "policy/gateway/budget.h"
#include "policy/gateway/gateway.h"
#include "policy/gateway/http.h"
#include "policy/rules/ports.h"
#include "policy/rules/service.h"

#define RESOLVERS_MAX 8

static int load_resolvers(const json_t *list, char **ret_text, struct bt_error *error)
{
    bt_auto_buffer text = {0};
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > RESOLVERS_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "set gateway.resolvers in config.yaml",
                       "configuration: \"resolvers\" is not a list of 1 to %d addresses", RESOLVERS_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *item = json_string_value(json_array_get(list, i));
        char address_text[BT_IPV4_TEXT_SIZE];
        uint32_t address;
        uint16_t port;
        int result = bt_service_endpoint_parse(item != NULL ? item : "", 53, &address, &port, error);
        if (result < 0)
            return result;
        bt_ipv4_format(address, address_text);
        result = bt_buffer_add_format(&text, "%s%s:%u", i > 0 ? "," : "", address_text, port);
        if (result < 0)
            return result;
    }
    *ret_text = bt_string_copy(text.data);
    return 0;
}

/* "http://[user:password@]host:port". Messages never show the text: it may hold the password. */
static int load_parent(const char *text, struct bt_parent_proxy *parent, struct bt_error *error)
{
    static const char scheme[] = "http://";
    static const char *const hint = "write gateway.parent_proxy as http://[user:password@]host:port";
    if (strncmp(text, scheme, sizeof(scheme) - 1) != 0)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, hint,
                       "configuration: \"parent_proxy\" is not an http:// URL");
    const char *rest = text + sizeof(scheme) - 1;
    const char *at = strrchr(rest, '@');
    if (at != NULL) {
        size_t length = (size_t)(at - rest);
        if (length / 3 * 4 + 8 > sizeof(parent->authorization))
            return bt_fail(error, BT_EXIT_ERROR, EINVAL, hint,
                           "configuration: the user and password of \"parent_proxy\" are too long");
        (void)EVP_EncodeBlock((unsigned char *)parent->authorization, (const unsigned char *)rest,
                              (int)length);
        rest = at + 1;
    }
    size_t length = strcspn(rest, "/");
    if (rest[length] != '\0' && rest[length + 1] != '\0')
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, hint, "configuration: \"parent_proxy\" has a path");
    size_t host_length = strcspn(rest, ":/");
    struct bt_http_slice authority = {rest, length};
    uint64_t port;
    uint32_t address;
    if (host_length < sizeof(parent->host) && rest[host_length] == ':' &&
        bt_number_parse(rest + host_length + 1, length - host_length - 1, 1, UINT16_MAX, &port) == 0) {
        memcpy(parent->host, rest, host_length);
        parent->host[host_length] = '\0';
        parent->port = (uint16_t)port;
        parent->is_set = bt_ipv4_parse(parent->host, &address) == 0;
    }
    if (!parent->is_set)
        parent->is_set = bt_http_authority_parse(authority, 0, parent->host, &parent->port) == 0;
    if (!parent->is_set)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, hint,
                       "configuration: \"parent_proxy\" has no host and port");
    return 0;
}

static int load_block(const json_t *pool, const char *key, uint32_t fallback, unsigned fallback_prefix,
                      struct bt_address_block *block, struct bt_error *error)
{
    const char *text = json_string_value(json_object_get(pool, key));
    char address_text[BT_IPV4_TEXT_SIZE];
    uint32_t base = fallback;
    uint64_t prefix = fallback_prefix;
    if (text != NULL) {
        size_t length = strcspn(text, "/");
        bool is_valid = length < sizeof(address_text) && text[length] == '/';
        if (is_valid) {
            memcpy(address_text, text, length);
            address_text[length] = '\0';
            is_valid = bt_ipv4_parse(address_text, &base) == 0 &&
                       bt_number_parse(text + length + 1, strlen(text + length + 1), 1, 32, &prefix) == 0;
        }
        if (!is_valid)
            return bt_fail(error, BT_EXIT_ERROR, EINVAL, "write it as 10.243.0.0/23",
                           "configuration: pool.%s is not a block of addresses", key);
    }
    block->mask = ~(uint32_t)0 << (32 - prefix);
    block->base = base & block->mask;
    return 0;
}

static int load_workers(struct bt_gateway_settings *settings, struct bt_error *error)
{
    const json_t *workers = json_object_get(settings->document, "workers");
    json_int_t count = workers == NULL ? 1 : json_integer_value(workers);
    if (count < 1 || count > BT_SERVICE_WORKERS_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL,
                       "configuration: \"workers\" is not a number from 1 to %d", BT_SERVICE_WORKERS_MAX);
    settings->workers = (unsigned)count;
    return 0;
}

/* "memory": bytes of the guest or container; without it, of the machine. */
static int load_memory(struct bt_gateway_settings *settings, struct bt_error *error)
{
    const json_t *memory = json_object_get(settings->document, "memory");
    long pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page_size > 0 ? (uint64_t)pages * (uint64_t)page_size : 0;
    if (memory != NULL)
        bytes = json_integer_value(memory) > 0 ? (uint64_t)json_integer_value(memory) : 0;
    settings->budget = bt_budget_of(bytes, settings->workers);
    return settings->budget > 0
               ? 0
               : bt_fail(error, BT_EXIT_ERROR, EINVAL, "give it more, or fewer workers",
                         "configuration: \"memory\" is too little for %u workers", settings->workers);
}

#define PEM_MAX (8UL * 1024 * 1024)

static int add_anchors(struct bt_buffer *anchors, const char *path, struct bt_error *error)
{
    bt_auto_buffer own = {0};
    int result = bt_file_read(path, PEM_MAX, &own, error);
    if (result == 0 && (bt_buffer_add_text(anchors, "\n") < 0 ||
                        bt_buffer_add(anchors, own.data != NULL ? own.data : "", own.length) < 0))
        result = bt_fail(error, BT_EXIT_ERROR, EFBIG, "shorten gateway.trust in config.yaml",
                         "the trusted certificates are more than %lu bytes", PEM_MAX);
    return result;
}

/* The authority, certificate and key in one file, and the files of what upstreams are verified against. */
static int load_trust(struct bt_gateway_settings *settings, struct bt_error *error)
{
    const json_t *trust = json_object_get(settings->document, "trust");
    const char *path = NULL;
    int result = bt_service_config_text(settings->document, "authority", false, &path, error);
    if (result == 0)
        result = bt_file_read(path, PEM_MAX, &settings->authority, error);
    settings->anchors.limit = PEM_MAX;
    for (size_t i = 0; i < json_array_size(trust) && result == 0; i++) {
        path = json_string_value(json_array_get(trust, i));
        result = add_anchors(&settings->anchors, path != NULL ? path : "", error);
    }
    return result;
}

static int load_all(struct bt_gateway_settings *settings, struct bt_error *error)
{
    const char *orchestrator = NULL, *listen_on = NULL, *parent = NULL;
    const json_t *document = settings->document;
    const json_t *pool = json_object_get(document, "pool");
    int result = bt_service_config_text(document, "orchestrator", false, &orchestrator, error);
    if (result == 0)
        result =
            bt_service_endpoint_parse(orchestrator, BT_PORT_ORCHESTRATOR, &settings->orchestrator_address,
                                      &settings->orchestrator_port, error);
    if (result == 0)
        result = bt_service_config_text(document, "secret", false, &settings->secret, error);
    if (result == 0)
        result = load_resolvers(json_object_get(document, "resolvers"), &settings->resolvers, error);
    if (result == 0)
        result = bt_service_config_text(document, "parent_proxy", true, &parent, error);
    if (result == 0 && parent != NULL)
        result = load_parent(parent, &settings->parent, error);
    if (result == 0)
        result = bt_service_config_text(document, "listen", true, &listen_on, error);
    if (result == 0 && listen_on != NULL && bt_ipv4_parse(listen_on, &settings->listen_address) < 0)
        result =
            bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "configuration: \"listen\" is not an IPv4 address");
    if (result == 0)
        result = load_workers(settings, error);
    if (result == 0)
        result = load_memory(settings, error);
    if (result == 0)
        result = load_block(pool, "tap", BT_BLOCK_TAP, 21, &settings->pool[0], error);
    if (result == 0)
        result = load_block(pool, "bridge", BT_BLOCK_BRIDGE, 19, &settings->pool[1], error);
    if (result == 0)
        result = load_trust(settings, error);
    return result;
}

int bt_gateway_settings_load(const char *path, struct bt_gateway_settings *ret_settings,
                             struct bt_error *error)
{
    struct bt_gateway_settings settings = {0};
    int result = bt_service_config_load(path, &settings.document, error);
    if (result == 0)
        result = load_all(&settings, error);
    if (result < 0)
        bt_gateway_settings_clear(&settings);
    else
        *ret_settings = settings;
    return result;
}

void bt_gateway_settings_clear(struct bt_gateway_settings *settings)
{
    free(settings->resolvers);
    bt_buffer_wipe(&settings->authority);
    bt_buffer_free(&settings->anchors);
    json_decref(settings->document);
    explicit_bzero(settings, sizeof(*settings));
}

const char *bt_gateway_check_address(const struct bt_gateway *gateway, uint32_t address, bool may_be_private)
{
    const struct bt_address_block *pool = gateway->settings.pool;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(gateway->settings.pool); i++)
        if ((address & pool[i].mask) == pool[i].base)
            return "an address of berth's own pool";
    switch (bt_address_classify(address)) {
    case BT_ADDRESS_PUBLIC:
        return NULL;
    case BT_ADDRESS_PRIVATE:
        return may_be_private ? NULL : "a private address, which this route does not permit";
    case BT_ADDRESS_FORBIDDEN:
        break;
    }
    return "a loopback, link-local, multicast or reserved address";
}
