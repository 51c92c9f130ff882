/* Host patterns of routes, inside policy/rules only; the public side is rules.h. */
#ifndef BERTH_POLICY_RULES_HOST_H
#define BERTH_POLICY_RULES_HOST_H

#include "policy/rules/rules.h"

struct bt_host_pattern {
    char host[BT_HOST_NAME_SIZE]; /* canonical, without "*." */
    bool is_wildcard;
    uint16_t port; /* 0: 80 and 443 */
};

/* Returns 0, -ERANGE (bad port) or -EINVAL (bad name). */
int bt_host_pattern_split(const char *pattern, struct bt_host_pattern *ret_pattern) BT_MUST_CHECK;

/* host is canonical. Ports are not looked at. */
bool bt_host_pattern_matches(const struct bt_host_pattern *pattern, const char *host);

#endif
