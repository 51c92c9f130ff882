/* Names and labels of what berth makes in an engine. See docker_internal.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"

void bt_docker_owner(const char *state, char ret_owner[13])
{
    char digest[BT_DIGEST_TEXT_SIZE];
    bt_auto_free char *text = bt_string_format("%u %s", (unsigned)getuid(), state);
    bt_digest_bytes(text, strlen(text), digest);
    (void)snprintf(ret_owner, 13, "%.12s", digest);
}

void bt_docker_mac(uint32_t address, char ret_mac[BT_DOCKER_MAC_SIZE])
{
    (void)snprintf(ret_mac, BT_DOCKER_MAC_SIZE, "02:42:%02x:%02x:%02x:%02x", address >> 24,
                   address >> 16 & 255U, address >> 8 & 255U, address & 255U);
}

static const char *short_name(const struct bt_guest_identity *identity)
{
    if (identity->role == BT_GUEST_AGENT)
        return identity->name;
    return bt_guest_role_name(identity->role);
}

/* A dot, which no name of an agent or environment has, parts what is of an agent from what is of a pair. */
void bt_docker_name(const struct bt_guest_identity *identity, char ret_name[BT_DOCKER_NAME_SIZE])
{
    char owner[13];
    bt_docker_owner(identity->state, owner);
    (void)snprintf(ret_name, BT_DOCKER_NAME_SIZE, "berth-%s.%.60s.%s%.64s", owner, identity->environment,
                   identity->role == BT_GUEST_AGENT ? "" : "infra.", short_name(identity));
}

json_t *bt_docker_labels(const struct bt_guest_identity *identity)
{
    char owner[13];
    bt_docker_owner(identity->state, owner);
    return json_pack("{s:s, s:s, s:s, s:s}", BT_DOCKER_LABEL_OWNER, owner, BT_DOCKER_LABEL_ENVIRONMENT,
                     identity->environment, BT_DOCKER_LABEL_ROLE, bt_guest_role_name(identity->role),
                     BT_DOCKER_LABEL_NAME, short_name(identity));
}
