/* config.yaml: read, checked, defaulted.
 *
 * Called by main before a command that needs it. Must not write anything.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/config.h"
#include "frontend/state.h"
#include "ipc/client/helper_client.h"
#include "lib/yaml.h"

#define BT_CONFIG_BYTES_MAX (1024U * 1024U)
#define BT_RESOLVERS_MAX 8U
#define BT_TRUST_MAX 32U
#define BT_APPROVAL_SECONDS_MAX 300U
#define BT_IDLE_STOP_DEFAULT "15m"

int bt_duration_parse(const char *text, uint64_t *ret_seconds)
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    size_t digits = strspn(text, "0123456789");
    uint64_t number;

    if (bt_number_parse(text, digits, 0, 1000000, &number) < 0)
        return -EINVAL;
    if (number == 0 && text[digits] == '\0') {
        *ret_seconds = 0;
        return 0;
    }
    if (text[digits] == '\0' || text[digits + 1] != '\0')
        return -EINVAL;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(units); i++) {
        if (units[i].unit == text[digits]) {
            *ret_seconds = number * units[i].seconds;
            return 0;
        }
    }
    return -EINVAL;
}

/* A sequence of text values, or nothing when the key is missing. */
static int bt_config_sequence(const struct bt_yaml *mapping, const char *key, size_t maximum,
                              const struct bt_yaml **ret_sequence, struct bt_error *error)
{
    const struct bt_yaml *sequence = bt_yaml_get(mapping, key);

    *ret_sequence = sequence;
    if (!sequence)
        return 0;
    if (sequence->kind != BT_YAML_SEQUENCE)
        return bt_yaml_fail(sequence, error, "write it as [a, b]", "'%s' must be a list", key);
    if (sequence->count > maximum)
        return bt_yaml_fail(sequence, error, NULL, "'%s' has more than %zu entries", key, maximum);
    for (size_t i = 0; i < sequence->count; i++) {
        if (sequence->values[i]->kind != BT_YAML_SCALAR || !*sequence->values[i]->text)
            return bt_yaml_fail(sequence->values[i], error, NULL, "each entry of '%s' must be text", key);
    }
    return 0;
}

static bool bt_config_is_resolver(const char *text)
{
    char address[BT_IPV4_TEXT_SIZE];
    size_t length = strcspn(text, ":");
    uint32_t parsed;
    uint64_t port;

    if (length >= sizeof(address))
        return false;
    memcpy(address, text, length);
    address[length] = '\0';
    if (bt_ipv4_parse(address, &parsed) < 0)
        return false;
    return text[length] == '\0' ||
           bt_number_parse(text + length + 1, strlen(text + length + 1), 1, 65535, &port) == 0;
}

static int bt_config_resolvers(const struct bt_yaml *gateway, struct bt_config *config,
                               struct bt_error *error)
{
    const struct bt_yaml *sequence;
    int r = bt_config_sequence(gateway, "resolvers", BT_RESOLVERS_MAX, &sequence, error);

    for (size_t i = 0; r == 0 && sequence && i < sequence->count; i++) {
        const struct bt_yaml *entry = sequence->values[i];
        if (!bt_config_is_resolver(entry->text))
            return bt_yaml_fail(entry, error, NULL,
                                "a resolver is an IPv4 address with an optional :port, not '%.60s'",
                                entry->text);
        /* From the gateway, loopback is the gateway itself. */
        if (strncmp(entry->text, "127.", 4) == 0)
            return bt_yaml_fail(entry, error, "name the resolver behind it, one that other machines can ask",
                                "the resolver %s lives on this host only; the gateway cannot reach it",
                                entry->text);
        bt_list_add(&config->resolvers, entry->text);
    }
    return r;
}

static int bt_config_trust(const struct bt_yaml *gateway, const char *folder, struct bt_config *config,
                           struct bt_error *error)
{
    const struct bt_yaml *sequence;
    int r = bt_config_sequence(gateway, "trust", BT_TRUST_MAX, &sequence, error);

    for (size_t i = 0; r == 0 && sequence && i < sequence->count; i++) {
        const struct bt_yaml *entry = sequence->values[i];
        bt_auto_free char *path = entry->text[0] == '/' ? bt_string_copy(entry->text)
                                                        : bt_string_format("%s/%s", folder, entry->text);
        if (access(path, R_OK) < 0)
            return bt_yaml_fail(entry, error, "give the path of a PEM file, absolute or beside config.yaml",
                                "cannot read the trust anchor %s: %s", path, strerror(errno));
        bt_list_add(&config->trust, path);
    }
    return r;
}

/* "http://host:port" and nothing more: a name and password would end up in a guest. */
static int bt_config_parent_proxy(const struct bt_yaml *gateway, struct bt_config *config,
                                  struct bt_error *error)
{
    static const char scheme[] = "http://";
    const char *text = NULL, *colon;
    uint64_t port;
    int r = bt_yaml_string(gateway, "parent_proxy", NULL, &text, error);

    if (r < 0 || !text)
        return r;
    const struct bt_yaml *at = bt_yaml_get(gateway, "parent_proxy");
    if (strchr(text, '@'))
        return bt_yaml_fail(at, error, "remove the name and password",
                            "'parent_proxy' cannot hold credentials");
    colon = strrchr(text, ':');
    if (strncmp(text, scheme, strlen(scheme)) != 0 || colon < text + strlen(scheme) + 1 ||
        strcspn(text + strlen(scheme), "/?# \t") != strlen(text + strlen(scheme)) ||
        bt_number_parse(colon + 1, strlen(colon + 1), 1, 65535, &port) < 0)
        return bt_yaml_fail(at, error, NULL, "'parent_proxy' must be http://host:port, not '%.100s'", text);
    config->parent_proxy = bt_string_copy(text);
    return 0;
}

static int bt_config_approval_wait(const struct bt_yaml *gateway, struct bt_config *config,
                                   struct bt_error *error)
{
    const char *text = NULL;
    int r = bt_yaml_string(gateway, "approval_wait", NULL, &text, error);

    if (r < 0 || !text)
        return r;
    if (bt_duration_parse(text, &config->approval_seconds) < 0 || config->approval_seconds < 1 ||
        config->approval_seconds > BT_APPROVAL_SECONDS_MAX)
        return bt_yaml_fail(bt_yaml_get(gateway, "approval_wait"), error, NULL,
                            "'approval_wait' must be a duration from 1s to 5m, not '%.40s'", text);
    return 0;
}

static int bt_config_gateway(const struct bt_yaml *root, const char *folder, struct bt_config *config,
                             struct bt_error *error)
{
    static const char *const known[] = {"resolvers", "trust", "parent_proxy", "approval_wait"};
    const struct bt_yaml *gateway = bt_yaml_get(root, "gateway");
    int r;

    config->approval_seconds = BT_APPROVAL_SECONDS_MAX;
    if (!gateway)
        return 0;
    r = bt_yaml_check_keys(gateway, known, BT_ARRAY_LENGTH(known), error);
    if (r == 0)
        r = bt_config_resolvers(gateway, config, error);
    if (r == 0)
        r = bt_config_trust(gateway, folder, config, error);
    if (r == 0)
        r = bt_config_approval_wait(gateway, config, error);
    return r < 0 ? r : bt_config_parent_proxy(gateway, config, error);
}

static int bt_config_infra(const struct bt_yaml *root, struct bt_config *config, struct bt_error *error)
{
    static const char *const known[] = {"idle_stop"};
    const struct bt_yaml *infra = bt_yaml_get(root, "infra");
    const char *text = BT_IDLE_STOP_DEFAULT;
    int r = 0;

    if (infra) {
        r = bt_yaml_check_keys(infra, known, BT_ARRAY_LENGTH(known), error);
        if (r == 0)
            r = bt_yaml_string(infra, "idle_stop", BT_IDLE_STOP_DEFAULT, &text, error);
    }
    if (r == 0 && bt_duration_parse(text, &config->idle_stop_seconds) < 0)
        r = bt_yaml_fail(bt_yaml_get(infra, "idle_stop"), error, NULL,
                         "'idle_stop' must be a duration such as 90s, 15m, 2h, or 0 for never, not '%.40s'",
                         text);
    return r;
}

static int bt_config_probe(const struct bt_yaml *root, struct bt_config *config, struct bt_error *error)
{
    static const char *const known[] = {"public_address", "repeat"};
    static const char *const repeats[] = {"once", "always", "off"};
    const struct bt_yaml *probe = bt_yaml_get(root, "probe");
    const char *address = NULL, *repeat = "once";
    uint32_t parsed;
    int r;

    if (!probe)
        return 0;
    r = bt_yaml_check_keys(probe, known, BT_ARRAY_LENGTH(known), error);
    if (r == 0)
        r = bt_yaml_string(probe, "public_address", NULL, &address, error);
    if (r == 0)
        r = bt_yaml_string(probe, "repeat", "once", &repeat, error);
    if (r < 0)
        return r;
    if (address && bt_ipv4_parse(address, &parsed) < 0)
        return bt_yaml_fail(bt_yaml_get(probe, "public_address"), error, NULL,
                            "'public_address' must be an IPv4 address, not '%.60s'", address);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(repeats); i++) {
        if (strcmp(repeat, repeats[i]) != 0)
            continue;
        config->probe_repeat = (enum bt_probe_repeat)i;
        config->probe_public_address = address ? bt_string_copy(address) : NULL;
        return 0;
    }
    return bt_yaml_fail(bt_yaml_get(probe, "repeat"), error, NULL,
                        "'repeat' must be once, always or off, not '%.40s'", repeat);
}

static int bt_config_helper(const struct bt_yaml *root, struct bt_config *config, struct bt_error *error)
{
    static const char *const known[] = {"socket"};
    const struct bt_yaml *helper = bt_yaml_get(root, "helper");
    const char *path = BT_HELPER_SOCKET_DEFAULT;
    int r = 0;

    if (helper) {
        r = bt_yaml_check_keys(helper, known, BT_ARRAY_LENGTH(known), error);
        if (r == 0)
            r = bt_yaml_string(helper, "socket", BT_HELPER_SOCKET_DEFAULT, &path, error);
        /* 107: what fits in sun_path (unix(7)). */
        if (r == 0 && (path[0] != '/' || strlen(path) > 107))
            r = bt_yaml_fail(bt_yaml_get(helper, "socket"), error, NULL,
                             "'socket' must be an absolute path of at most 107 bytes");
    }
    if (r == 0)
        config->helper_socket = bt_string_copy(path);
    return r;
}

static int bt_config_choices(const struct bt_yaml *root, struct bt_config *config, struct bt_error *error)
{
    const char *backend = NULL, *environment = BT_ENVIRONMENT_LIVE;
    int r = bt_yaml_string(root, "backend", NULL, &backend, error);

    if (r == 0)
        r = bt_yaml_string(root, "environment", BT_ENVIRONMENT_LIVE, &environment, error);
    if (r < 0)
        return r;
    if (backend && !bt_name_is_valid(backend))
        return bt_yaml_fail(bt_yaml_get(root, "backend"), error, NULL, "'%.60s' is not a backend", backend);
    if (!bt_name_is_valid(environment))
        return bt_yaml_fail(bt_yaml_get(root, "environment"), error,
                            "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                            "'%.60s' cannot be the name of an environment", environment);
    config->backend = backend ? bt_string_copy(backend) : NULL;
    config->environment = bt_string_copy(environment);
    return 0;
}

static int bt_config_from_yaml(const struct bt_yaml *root, const char *folder, struct bt_config *config,
                               struct bt_error *error)
{
    static const char *const known[] = {"gateway", "infra", "probe", "backend", "helper", "environment"};
    int r = bt_yaml_check_keys(root, known, BT_ARRAY_LENGTH(known), error);

    if (r == 0)
        r = bt_config_gateway(root, folder, config, error);
    if (r == 0)
        r = bt_config_infra(root, config, error);
    if (r == 0)
        r = bt_config_probe(root, config, error);
    if (r == 0)
        r = bt_config_helper(root, config, error);
    return r < 0 ? r : bt_config_choices(root, config, error);
}

static int bt_config_from_text(const struct bt_paths *paths, const char *path, const char *text,
                               size_t length, struct bt_config *ret_config, struct bt_error *error)
{
    struct bt_config config = {0};
    struct bt_yaml *root = NULL;
    int r = bt_yaml_parse(path, text, length, 1, &root, error);

    if (r == 0)
        r = bt_config_from_yaml(root, paths->config, &config, error);
    bt_yaml_free(root);
    if (r < 0) {
        bt_config_free(&config);
        return r;
    }
    *ret_config = config;
    return 0;
}

int bt_config_load(const struct bt_paths *paths, struct bt_config *ret_config, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/config.yaml", paths->config);
    bt_auto_buffer text = {0};
    int r = bt_file_read(path, BT_CONFIG_BYTES_MAX, &text, error);

    if (r < 0 && r != -ENOENT)
        return r;
    return bt_config_from_text(paths, path, text.data ? text.data : "", text.length, ret_config, error);
}

int bt_config_defaults(const struct bt_paths *paths, struct bt_config *ret_config, struct bt_error *error)
{
    return bt_config_from_text(paths, "(defaults)", "", 0, ret_config, error);
}

void bt_config_free(struct bt_config *config)
{
    bt_list_free(&config->resolvers);
    bt_list_free(&config->trust);
    free(config->parent_proxy);
    free(config->probe_public_address);
    free(config->backend);
    free(config->helper_socket);
    free(config->environment);
    *config = (struct bt_config){0};
}
