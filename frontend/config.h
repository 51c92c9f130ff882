/* config.yaml in the user's configuration folder: settings that are neither an agent's nor a bottle's.
 *
 * Read by every command that needs it; a missing file gives the defaults, a wrong one is an error with its
 * position.
 */
#ifndef BERTH_FRONTEND_CONFIG_H
#define BERTH_FRONTEND_CONFIG_H

#include "lib/error.h"
#include "lib/file.h"
#include "lib/memory.h"

enum bt_probe_repeat { BT_PROBE_ONCE, BT_PROBE_ALWAYS, BT_PROBE_OFF };

struct bt_config {
    struct bt_list resolvers; /* gateway.resolvers: "IPv4" or "IPv4:port"; empty = the host's upstream ones */
    struct bt_list trust;     /* gateway.trust: absolute paths of PEM files, readable when this was loaded */
    char *parent_proxy;       /* gateway.parent_proxy: "http://host:port", NULL = none */
    uint64_t approval_seconds;  /* gateway.approval_wait: that a request waits for its owner */
    uint64_t idle_stop_seconds; /* infra.idle_stop; 0 = never */
    char *probe_public_address; /* probe.public_address: IPv4, NULL = the default of the probe */
    enum bt_probe_repeat probe_repeat;
    char *backend;       /* backend: NULL = choose */
    char *helper_socket; /* helper.socket, absolute; never NULL */
    char *environment;   /* environment; never NULL */
};

/* Loads <config>/config.yaml. The caller frees with bt_config_free. */
int bt_config_load(const struct bt_paths *paths, struct bt_config *ret_config, struct bt_error *error);
/* What an absent file means. */
int bt_config_defaults(const struct bt_paths *paths, struct bt_config *ret_config, struct bt_error *error);
void bt_config_free(struct bt_config *config);
#define bt_auto_config BT_CLEANUP(bt_config_free) struct bt_config

/* Parses "0", "90s", "15m", "2h", "1d". Returns 0 or -EINVAL. */
int bt_duration_parse(const char *text, uint64_t *ret_seconds) BT_MUST_CHECK;

#endif
