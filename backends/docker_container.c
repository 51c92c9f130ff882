/* The container itself: everything that confines it, in one document. See docker_internal.h and README.md.
 *
 * Nothing secret is in it: what an engine stores, everybody who may use the engine can read.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "vm/container_protocol.h"

#define AGENT_PROCESSES_MAX 4096
#define INFRA_PROCESSES_MAX 256
#define DESCRIPTORS_MAX 16384 /* an engine cannot give more than it may have itself */
#define PROFILE_MAX (256UL * 1024)
#define OOM_AGENT 500 /* an agent goes before anything of the host does */

static unsigned user_of(enum bt_guest_role role)
{
    static const unsigned users[] = {0, BT_DOCKER_GATEWAY_ID, BT_DOCKER_ORCHESTRATOR_ID};
    return users[role];
}

/* Where things are written, in memory and bounded. The size counts as memory of the container. */
static json_t *temporary_folders(const struct bt_guest_plan *plan)
{
    unsigned user = user_of(plan->role);
    unsigned long long half = plan->memory_bytes / 2;
    bt_auto_free char *run =
        bt_string_format("rw,exec,nosuid,nodev,size=64m,mode=0755,uid=%u,gid=%u", user, user);
    bt_auto_free char *temporary = bt_string_format("rw,exec,nosuid,nodev,size=%llu,mode=1777", half);
    return json_pack("{s:s, s:s, s:s}", "/run", run, "/tmp", temporary, "/var/tmp", temporary);
}

static json_t *volume(const struct bt_guest_plan *plan, const char *name, const char *suffix,
                      const char *target)
{
    bt_auto_free char *source = bt_string_format("%s.%s", name, suffix);
    return json_pack("{s:s, s:s, s:s, s:{s:o}}", "Type", "volume", "Source", source, "Target", target,
                     "VolumeOptions", "Labels", bt_docker_labels(&plan->identity));
}

static json_t *volumes(const struct bt_guest_plan *plan, const char *name)
{
    json_t *list = json_array();
    if (plan->role == BT_GUEST_AGENT) {
        (void)json_array_append_new(list, volume(plan, name, "home", "/home/agent"));
        (void)json_array_append_new(list, volume(plan, name, "workspace", "/workspace"));
        (void)json_array_append_new(list, volume(plan, name, "base", "/var/lib/berth"));
    } else if (plan->role == BT_GUEST_ORCHESTRATOR) {
        (void)json_array_append_new(list, volume(plan, name, "registry", "/var/lib/berth"));
    }
    return list;
}

/* Nothing is forwarded, and there is no IPv6 to go round the rules with. */
static json_t *kernel_settings(const struct bt_guest_plan *plan)
{
    json_t *settings = json_pack("{s:s}", "net.ipv4.ip_forward", "0");
    if (access("/proc/sys/net/ipv6", F_OK) == 0) {
        (void)json_object_set_new(settings, "net.ipv6.conf.all.disable_ipv6", json_string("1"));
        (void)json_object_set_new(settings, "net.ipv6.conf.default.disable_ipv6", json_string("1"));
    }
    if (plan->role == BT_GUEST_GATEWAY) /* it listens on 53, 80 and 443 without any capability */
        (void)json_object_set_new(settings, "net.ipv4.ip_unprivileged_port_start", json_string("0"));
    return settings;
}

static json_t *limit(const char *name, long long value)
{
    return json_pack("{s:s, s:I, s:I}", "Name", name, "Soft", (json_int_t)value, "Hard", (json_int_t)value);
}

static void add_limits(json_t *host, const struct bt_guest_plan *plan, const struct bt_docker_engine *engine)
{
    bool is_agent = plan->role == BT_GUEST_AGENT;
    if (engine->has_memory)
        (void)json_object_set_new(host, "Memory", json_integer((json_int_t)plan->memory_bytes));
    if (engine->has_memory && engine->has_swap)
        (void)json_object_set_new(host, "MemorySwap", json_integer((json_int_t)plan->memory_bytes));
    if (engine->has_cpu)
        (void)json_object_set_new(host, "NanoCpus", json_integer((json_int_t)plan->cpus * 1000000000));
    if (engine->has_pids)
        (void)json_object_set_new(host, "PidsLimit",
                                  json_integer(is_agent ? AGENT_PROCESSES_MAX : INFRA_PROCESSES_MAX));
    (void)json_object_set_new(host, "OomScoreAdj", json_integer(is_agent ? OOM_AGENT : 0));
    (void)json_object_set_new(host, "Ulimits",
                              json_pack("[o, o]", limit("core", 0), limit("nofile", DESCRIPTORS_MAX)));
}

/* The system calls of docker_seccomp.json and no other; Docker takes the profile's text, podman its name. */
static int read_profile(char ret_path[512], char **ret_option, struct bt_error *error)
{
    bt_auto_buffer text = {0};
    char *path = ret_path;
    int result = bt_data_path("backends/docker_seccomp.json", "share/berth/docker_seccomp.json", path, error);
    if (result == 0)
        result = bt_file_read(path, PROFILE_MAX, &text, error);
    if (result == 0)
        *ret_option = bt_string_format("seccomp=%s", text.data == NULL ? "" : text.data);
    return result;
}

/* What of the kernel's folders nobody in a container reads: the engine's own list, and what tells of the
 * host's memory page by page. Paths that are not there do no harm. */
static json_t *masked_paths(void)
{
    static const char *const paths[] = {
        "/proc/acpi",        "/proc/asound",     "/proc/interrupts",
        "/proc/kcore",       "/proc/keys",       "/proc/kpagecgroup",
        "/proc/kpagecount",  "/proc/kpageflags", "/proc/latency_stats",
        "/proc/sched_debug", "/proc/scsi",       "/proc/timer_list",
        "/proc/timer_stats", "/sys/firmware",    "/sys/devices/virtual/powercap",
    };
    json_t *list = json_array();
    for (size_t i = 0; i < BT_ARRAY_LENGTH(paths); i++)
        (void)json_array_append_new(list, json_string(paths[i]));
    return list;
}

/* The engine's own resolver asks nobody but the gateway: not what the host asks. */
static json_t *resolvers_of(const struct bt_guest_plan *plan)
{
    char gateway[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(plan->lease->gateway_address, gateway);
    return json_pack("[s]", gateway);
}

static json_t *host_document(const struct bt_guest_plan *plan, const struct bt_docker_engine *engine,
                             const char *name, const char *profile)
{
    json_t *security = json_pack("[s, s]", "no-new-privileges", profile);
    json_t *host =
        json_pack("{s:s, s:b, s:[s], s:o, s:o, s:o, s:o, s:{s:s}, s:{s:s}, s:s, s:s, s:o}", "NetworkMode",
                  name, "ReadonlyRootfs", true, "CapDrop", "ALL", "SecurityOpt", security, "Tmpfs",
                  temporary_folders(plan), "Mounts", volumes(plan, name), "Sysctls", kernel_settings(plan),
                  "LogConfig", "Type", "none", "RestartPolicy", "Name", "no", "IpcMode", "private",
                  "CgroupnsMode", "private", "Dns", resolvers_of(plan));
    if (plan->is_gvisor)
        (void)json_object_set_new(host, "Runtime", json_string(BT_DOCKER_GVISOR));
    (void)json_object_set_new(host, "MaskedPaths", masked_paths());
    add_limits(host, plan, engine);
    return host;
}

static json_t *container_document(const struct bt_guest_plan *plan, const struct bt_docker_engine *engine,
                                  const char *name, const char *image, const char *profile)
{
    char address[BT_IPV4_TEXT_SIZE];
    unsigned user = user_of(plan->role);
    bt_auto_free char *user_text = bt_string_format("%u:%u", user, user);
    char mac[BT_DOCKER_MAC_SIZE];
    bt_docker_mac(plan->lease->guest_address, mac);
    bt_ipv4_format(plan->lease->guest_address, address);
    return json_pack("{s:s, s:s, s:s, s:[s], s:[s, s], s:[], s:b, s:b, s:b, s:b, s:b, s:b, s:o, s:o, "
                     "s:s, s:{s:{s:{s:{s:s}, s:s}}}}",
                     "Image", image, "Hostname", plan->host_name, "User", user_text, "Entrypoint",
                     BT_CONTAINER_INIT, "Cmd", "container", bt_guest_role_name(plan->role), "Env",
                     "OpenStdin", true, "StdinOnce", true, "AttachStdin", true, "AttachStdout", true,
                     "AttachStderr", true, "Tty", false, "Labels", bt_docker_labels(&plan->identity),
                     "HostConfig", host_document(plan, engine, name, profile), "MacAddress", mac,
                     "NetworkingConfig", "EndpointsConfig", name, "IPAMConfig", "IPv4Address", address,
                     "MacAddress", mac);
}

static int create(const struct bt_docker *docker, const char *name, const struct bt_guest_plan *plan,
                  json_t *document, const char *profile_path, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("/containers/create?name=%s", name);
    if (!docker->is_podman)
        return bt_docker_call(docker, "POST", path, json_incref(document), NULL, error);
    int result = bt_podman_volumes_make(docker, document, error);
    return result < 0 ? result
                      : bt_docker_call(docker, "POST", "/libpod/containers/create",
                                       bt_podman_container(plan, name, profile_path, document), NULL, error);
}

int bt_docker_container_create(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                               const struct bt_docker_engine *engine, struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    char image[BT_DOCKER_NAME_SIZE];
    bt_docker_name(&plan->identity, name);
    char profile_path[512];
    bt_auto_free char *profile = NULL;
    int result = bt_docker_image_name(plan->identity.state, plan->root, image, error);
    if (result == 0)
        result = read_profile(profile_path, &profile, error);
    if (result < 0)
        return result;
    bt_auto_free char *stale = bt_string_format("/containers/%s?force=1&v=0", name);
    json_t *document = container_document(plan, engine, name, image, profile);
    struct bt_error first = {0};
    result = create(docker, name, plan, document, profile_path, &first);
    if (result < 0 &&
        (result == -EEXIST || docker->is_podman)) { /* what an earlier guest of this name left */
        (void)bt_docker_call(docker, "DELETE", stale, NULL, NULL, NULL);
        result = create(docker, name, plan, document, profile_path, &first);
    }
    json_decref(document);
    if (result < 0) {
        *error = first;
        return bt_error_prefix(error, "cannot make the container");
    }
    return 0;
}
