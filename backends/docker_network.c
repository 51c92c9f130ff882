/* Networks: the engine is pointed at the bridge that berth-helper made, and takes it away again. See
 * docker_internal.h.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"

/* Detaches whatever is still attached; a network that is in use cannot be removed. */
static void disconnect_all(const struct bt_docker *docker, const char *network)
{
    bt_auto_free char *inspect = bt_string_format("/networks/%s", network);
    bt_auto_free char *disconnect = bt_string_format("/networks/%s/disconnect", network);
    json_t *document = NULL;
    const char *container;
    json_t *endpoint;
    if (bt_docker_call(docker, "GET", inspect, NULL, &document, NULL) < 0)
        return;
    json_object_foreach(json_object_get(document, "Containers"), container, endpoint)
    {
        json_t *body = json_pack("{s:s, s:b}", "Container", container, "Force", true);
        if (bt_docker_call(docker, "POST", disconnect, body, NULL, NULL) < 0 && docker->is_podman)
            bt_podman_remove_broken(docker, container);
    }
    json_decref(document);
}

static int remove_network(const struct bt_docker *docker, const char *network, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/networks/%s", network);
    struct bt_error refused = {0};
    int result = bt_docker_call(docker, "DELETE", path, NULL, NULL, &refused);
    if (result == 0 || result == -ENOENT)
        return 0;
    disconnect_all(docker, network);
    result = bt_docker_call(docker, "DELETE", path, NULL, NULL, error);
    return result == -ENOENT ? 0 : result;
}

/* Networks of guests that are gone, on this bridge: the slot has a new lease, so nobody owns them. */
static void remove_of_bridge(const struct bt_docker *docker, const char *bridge)
{
    bt_auto_free char *path = bt_string_format(
        "/networks?filters=%%7B%%22label%%22%%3A%%5B%%22" BT_DOCKER_LABEL_BRIDGE "%%3D%s%%22%%5D%%7D",
        bridge);
    json_t *networks = NULL;
    size_t index;
    const json_t *network;
    if (bt_docker_call(docker, "GET", path, NULL, &networks, NULL) < 0)
        return;
    json_array_foreach(networks, index, network)
    {
        const char *id = json_string_value(json_object_get(network, "Id"));
        if (id != NULL)
            (void)remove_network(docker, id, NULL);
    }
    json_decref(networks);
}

static json_t *docker_document(const struct bt_guest_plan *plan, const char *name, json_t *labels)
{
    const struct bt_helper_lease *lease = plan->lease;
    char router[BT_IPV4_TEXT_SIZE];
    char base[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(lease->host_address, router);
    bt_ipv4_format(lease->host_address & ~7U, base);
    bt_auto_free char *subnet = bt_string_format("%s/29", base);
    return json_pack("{s:s, s:s, s:b, s:b, s:b, s:b, s:{s:s, s:[{s:s, s:s}]}, s:{s:s, s:s, s:s}, s:o}",
                     "Name", name, "Driver", "bridge", "CheckDuplicate", true, "Internal",
                     plan->role != BT_GUEST_GATEWAY, "Attachable", false, "EnableIPv6", false, "IPAM",
                     "Driver", "default", "Config", "Subnet", subnet, "Gateway", router, "Options",
                     "com.docker.network.bridge.name", lease->interface_name,
                     "com.docker.network.bridge.enable_ip_masquerade", "false",
                     "com.docker.network.bridge.enable_icc", "true", "Labels", labels);
}

/* Only the gateway's egress network is more than internal; there our table masquerades, not the engine. */
static int make(const struct bt_docker *docker, const struct bt_guest_plan *plan, const char *name,
                struct bt_error *error)
{
    const char *bridge = plan->lease->interface_name;
    json_t *labels = bt_docker_labels(&plan->identity);
    (void)json_object_set_new(labels, BT_DOCKER_LABEL_BRIDGE, json_string(bridge));
    if (docker->is_podman)
        return bt_docker_call(docker, "POST", "/libpod/networks/create",
                              bt_podman_network(name, bridge, plan->role != BT_GUEST_GATEWAY, labels), NULL,
                              error);
    return bt_docker_call(docker, "POST", "/networks/create", docker_document(plan, name, labels), NULL,
                          error);
}

/* podman deletes a bridge with its last port, also one that it did not make. */
static bool has_interface(const char *name)
{
    bt_auto_free char *path = bt_string_format("/sys/class/net/%s", name);
    return access(path, F_OK) == 0;
}

int bt_docker_network_make(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                           struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    struct bt_error first = {0};
    bt_docker_name(&plan->identity, name);
    int result = make(docker, plan, name, &first);
    if (result < 0) { /* most likely what an earlier guest left; so look only then */
        remove_of_bridge(docker, plan->lease->interface_name);
        (void)remove_network(docker, name, NULL);
        if (!has_interface(plan->lease->interface_name))
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENODEV, "try again: another bridge is used then",
                           "the bridge %s went with the network of an agent that was killed",
                           plan->lease->interface_name);
        result = make(docker, plan, name, error);
    }
    return result < 0 ? bt_error_prefix(error, "cannot make the network on %s", plan->lease->interface_name)
                      : 0;
}

int bt_docker_network_join(const struct bt_docker *docker, const struct bt_guest_identity *network,
                           const struct bt_guest_identity *container, uint32_t address,
                           struct bt_error *error)
{
    char network_name[BT_DOCKER_NAME_SIZE];
    char container_name[BT_DOCKER_NAME_SIZE];
    char text[BT_IPV4_TEXT_SIZE];
    bt_docker_name(network, network_name);
    bt_docker_name(container, container_name);
    char mac[BT_DOCKER_MAC_SIZE];
    bt_docker_mac(address, mac);
    bt_ipv4_format(address, text);
    bt_auto_free char *path = bt_string_format("/networks/%s/connect", network_name);
    json_t *body =
        json_pack("{s:s, s:{s:s}}", "Container", container_name, "EndpointConfig", "MacAddress", mac);
    if (!docker->is_podman)
        (void)json_object_set_new(json_object_get(body, "EndpointConfig"), "IPAMConfig",
                                  json_pack("{s:s}", "IPv4Address", text));
    int result = bt_docker_call(docker, "POST", path, body, NULL, error);
    if (result == -ENOENT)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOTCONN, "berth down, then berth up starts it again",
                       "the gateway's container is not there");
    return result < 0 ? bt_error_prefix(error, "cannot connect the gateway to the network %s", network_name)
                      : 0;
}

bool bt_docker_bridge_has_port(const char *bridge)
{
    bt_auto_free char *path = bt_string_format("/sys/class/net/%s/brif", bridge);
    DIR *ports = opendir(path);
    bool is_there = false;
    if (ports == NULL)
        return false;
    for (const struct dirent *entry = readdir(ports); entry != NULL && !is_there; entry = readdir(ports))
        is_there = entry->d_name[0] != '.';
    (void)closedir(ports);
    return is_there;
}

/* What a freeze that was killed left; it holds on to the home. */
static int remove_reader(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                         struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    bt_docker_home_reader_name(identity, name);
    bt_auto_free char *path = bt_string_format("/containers/%s?force=1&v=0", name);
    struct bt_error failure = {0};
    int result = bt_docker_call(docker, "DELETE", path, NULL, NULL, &failure);
    if (result == 0 || result == -ENOENT || result == -EEXIST)
        return 0;
    *error = failure;
    return result;
}

static int remove_volume(const struct bt_docker *docker, const char *name, const char *suffix,
                         struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/volumes/%s.%s", name, suffix);
    int result = bt_docker_call(docker, "DELETE", path, NULL, NULL, error);
    return result == -ENOENT ? 0 : result;
}

int bt_docker_remove(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                     bool has_volumes, struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    bt_docker_name(identity, name);
    bt_auto_free char *path = bt_string_format("/containers/%s?force=1&v=0", name);
    struct bt_error failure = {0};
    int result = bt_docker_call(docker, "DELETE", path, NULL, NULL, &failure);
    if (result < 0 && result != -ENOENT && result != -EEXIST) { /* -EEXIST: somebody removes it now */
        *error = failure;
        return result;
    }
    result = remove_network(docker, name, error);
    if (result < 0 || !has_volumes || identity->role != BT_GUEST_AGENT)
        return result;
    static const char *const agent_volumes[] = {"home", "workspace", "base"};
    result = remove_reader(docker, identity, error);
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(agent_volumes); i++)
        result = remove_volume(docker, name, agent_volumes[i], error);
    return result;
}
