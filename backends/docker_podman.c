/* What podman does otherwise than Docker, and nothing else of it. See docker_internal.h and README.md.
 *
 * It makes no network whose addresses an interface of the host has already, as a leased bridge has. So its
 * networks have no addresses at all, and berth-init sets those of a container. What Docker's API cannot say
 * to it goes by its own one.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "vm/container_protocol.h"

#define REGISTRY "docker.io/" /* in front of names that have none, with Docker's API */
#define DESCRIPTORS_DEFAULT 1048576
#define ADDRESS_MS 30000
#define CPU_PERIOD_US 100000

/* ---- networks ---- */

json_t *bt_podman_network(const char *name, const char *bridge, bool is_internal, json_t *labels)
{
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:b, s:{s:s}, s:o}", "name", name, "driver", "bridge",
                     "network_interface", bridge, "internal", is_internal, "dns_enabled", false,
                     "ipv6_enabled", false, "ipam_options", "driver", "none", "labels", labels);
}

/* Reads what the exec says, until it has ended. */
static int read_to_end(int fd, char *ret_text, size_t size, struct bt_error *error)
{
    struct bt_docker_demux demux = {0};
    char chunk[1024];
    size_t length = 0;
    ssize_t count = 0;
    for (;;) {
        struct pollfd readable = {fd, POLLIN, 0};
        int ready = poll(&readable, 1, ADDRESS_MS);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ETIMEDOUT, NULL,
                           "no address was set within %d seconds", ADDRESS_MS / 1000);
        count = read(fd, chunk, sizeof(chunk));
        if (count <= 0)
            break;
        for (ssize_t at = 0; at < count;) {
            const char *data;
            size_t part;
            int stream;
            ssize_t used = bt_docker_demux(&demux, chunk + at, (size_t)(count - at), &stream, &data, &part);
            if (used < 0)
                return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBADMSG, NULL, "its answer is not framed");
            at += used;
            part = part < size - 1 - length ? part : size - 1 - length;
            memcpy(ret_text + length, data, part);
            length += part;
        }
    }
    ret_text[length] = '\0';
    return 0;
}

static int run_address(const struct bt_docker *docker, const char *container, const char *router,
                       struct bt_error *error)
{
    char said[512] = "";
    bt_auto_fd fd = -1;
    json_t *body = json_pack("{s:b, s:b, s:b, s:b, s:s, s:[s, s, s?]}", "AttachStdout", true, "AttachStderr",
                             true, "Tty", false, "Privileged", true, "User", "0:0", "Cmd", BT_CONTAINER_INIT,
                             "address", router);
    if (router == NULL)
        (void)json_array_remove(json_object_get(body, "Cmd"), 2);
    char exec[BT_DOCKER_EXEC_SIZE];
    int result = bt_docker_exec_create(docker, container, body, exec, error);
    if (result == 0)
        result = bt_docker_exec_start(docker, exec, &fd, error);
    if (result == 0)
        result = read_to_end(fd, said, sizeof(said), error);
    if (result < 0)
        return result;
    int status = bt_docker_exec_status(docker, exec);
    return status == 0
               ? 0
               : bt_fail(error, BT_EXIT_INFRASTRUCTURE, EIO, NULL, "berth-init there ended with %d: %s",
                         status, said[0] == '\0' ? "it said nothing" : said);
}

int bt_podman_set_addresses(const struct bt_docker *docker, const char *container, uint32_t router,
                            struct bt_error *error)
{
    char text[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(router, text);
    int result = run_address(docker, container, router == 0 ? NULL : text, error);
    return result < 0 ? bt_error_prefix(error, "cannot set the addresses of %s", container) : 0;
}

/* Where the bridge went first, as with a killed keeper's lease, a disconnection fails half done: then podman
 * answers for this container, and to whoever lists all, with an error for ever. It is a gateway; its keeper
 * starts another one, and the agents that are left are connected to that. */
void bt_podman_remove_broken(const struct bt_docker *docker, const char *container)
{
    bt_auto_free char *inspect = bt_string_format("/containers/%s/json", container);
    bt_auto_free char *remove = bt_string_format("/containers/%s?force=1&v=0", container);
    if (bt_docker_call(docker, "GET", inspect, NULL, NULL, NULL) == -EIO)
        (void)bt_docker_call(docker, "DELETE", remove, NULL, NULL, NULL);
}

/* ---- containers ---- */

/* Its tmpfs knows no owner: where that is not root, everybody in the container is that user. */
static json_t *temporary_folders(const struct bt_guest_plan *plan)
{
    bt_auto_free char *size = bt_string_format("size=%llu", (unsigned long long)plan->memory_bytes / 2);
    const char *run_mode = plan->role == BT_GUEST_AGENT ? "mode=0755" : "mode=1777";
    static const char format[] = "{s:s, s:s, s:s, s:[s, s, s, s, s, s, s]}";
    json_t *list = json_array();
    (void)json_array_append_new(list, json_pack(format, "destination", "/run", "type", "tmpfs", "source",
                                                "tmpfs", "options", "rw", "exec", "nosuid", "nodev",
                                                "notmpcopyup", "size=64m", run_mode));
    for (int i = 0; i < 2; i++)
        (void)json_array_append_new(list,
                                    json_pack(format, "destination", i == 0 ? "/tmp" : "/var/tmp", "type",
                                              "tmpfs", "source", "tmpfs", "options", "rw", "exec", "nosuid",
                                              "nodev", "notmpcopyup", size, "mode=1777"));
    return list;
}

static json_t *volumes(const json_t *mounts)
{
    size_t index;
    const json_t *mount;
    json_t *list = json_array();
    json_array_foreach(mounts, index, mount)
    {
        (void)json_array_append_new(list, json_pack("{s:O, s:O}", "Name", json_object_get(mount, "Source"),
                                                    "Dest", json_object_get(mount, "Target")));
    }
    return list;
}

/* Volumes that Docker makes with the container, with their labels. */
int bt_podman_volumes_make(const struct bt_docker *docker, const json_t *container, struct bt_error *error)
{
    const json_t *mounts = json_object_get(json_object_get(container, "HostConfig"), "Mounts");
    size_t index;
    const json_t *mount;
    json_array_foreach(mounts, index, mount)
    {
        const json_t *labels = json_object_get(json_object_get(mount, "VolumeOptions"), "Labels");
        json_t *body = json_pack("{s:O, s:O}", "Name", json_object_get(mount, "Source"), "Labels", labels);
        int result = bt_docker_call(docker, "POST", "/volumes/create", body, NULL, error);
        if (result < 0 && result != -EEXIST)
            return bt_error_prefix(error, "cannot make a volume");
    }
    return 0;
}

/* It would raise the number of processes to a million where nothing is said, which an engine that has less
 * may not. What holds an agent is the limit of its control group. */
static json_t *user_limits(const json_t *host)
{
    struct rlimit own;
    json_t *list = json_array();
    size_t index;
    const json_t *limit;
    json_array_foreach(json_object_get(host, "Ulimits"), index, limit)
    {
        (void)json_array_append_new(list, json_pack("{s:O, s:O, s:O}", "type", json_object_get(limit, "Name"),
                                                    "soft", json_object_get(limit, "Soft"), "hard",
                                                    json_object_get(limit, "Hard")));
    }
    if (getrlimit(RLIMIT_NPROC, &own) == 0 && own.rlim_max < DESCRIPTORS_DEFAULT)
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:I, s:I}", "type", "nproc", "soft",
                                              (json_int_t)own.rlim_max, "hard", (json_int_t)own.rlim_max));
    return list;
}

static json_t *resources(const json_t *host)
{
    json_t *limits = json_object();
    json_t *memory = json_object_get(host, "Memory");
    json_t *swap = json_object_get(host, "MemorySwap");
    json_t *processes = json_object_get(host, "PidsLimit");
    json_int_t cpus = json_integer_value(json_object_get(host, "NanoCpus"));
    if (memory != NULL)
        (void)json_object_set_new(limits, "memory",
                                  swap == NULL ? json_pack("{s:O}", "limit", memory)
                                               : json_pack("{s:O, s:O}", "limit", memory, "swap", swap));
    if (cpus > 0)
        (void)json_object_set_new(
            limits, "cpu",
            json_pack("{s:I, s:i}", "quota", cpus * CPU_PERIOD_US / 1000000000, "period", CPU_PERIOD_US));
    if (processes != NULL)
        (void)json_object_set_new(limits, "pids", json_pack("{s:O}", "limit", processes));
    return limits;
}

/* Where a namespace, a proxy or a file of the host's would come from elsewhere than this document: from the
 * settings that an administrator made for containers of other kinds. */
static void close_defaults(json_t *document)
{
    static const char *const namespaces[] = {"pidns", "utsns", "ipcns", "cgroupns"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(namespaces); i++)
        (void)json_object_set_new(document, namespaces[i], json_pack("{s:s}", "nsmode", "private"));
    (void)json_object_set_new(document, "userns", json_pack("{s:s}", "nsmode", "host"));
    (void)json_object_set_new(document, "netns", json_pack("{s:s}", "nsmode", "bridge"));
    (void)json_object_set_new(document, "systemd", json_string("false"));
    (void)json_object_set_new(document, "sdnotifyMode", json_string("ignore"));
    (void)json_object_set_new(document, "httpproxy", json_false());
    (void)json_object_set_new(document, "manage_password", json_false());
    (void)json_object_set_new(document, "use_image_hosts", json_true());
    (void)json_object_set_new(document, "dns_search", json_pack("[s]", "."));
    (void)json_object_set_new(document, "image_volume_mode", json_string("ignore"));
}

json_t *bt_podman_container(const struct bt_guest_plan *plan, const char *name, const char *profile_path,
                            const json_t *docker)
{
    const json_t *host = json_object_get(docker, "HostConfig");
    bt_auto_free char *image =
        bt_string_format(REGISTRY "%s", json_string_value(json_object_get(docker, "Image")));
    json_t *document = json_pack(
        "{s:s, s:s, s:O, s:O, s:O, s:O, s:b, s:b, s:O, s:b, s:[s], s:b, s:s, s:o, s:o, s:O, s:{s:s}, s:s, "
        "s:O, s:O, s:O, s:o, s:o, s:{s:{s:O}}}",
        "name", name, "image", image, "hostname", json_object_get(docker, "Hostname"), "user",
        json_object_get(docker, "User"), "entrypoint", json_object_get(docker, "Entrypoint"), "command",
        json_object_get(docker, "Cmd"), "stdin", true, "terminal", false, "labels",
        json_object_get(docker, "Labels"), "read_only_filesystem", true, "cap_drop", "all",
        "no_new_privileges", true, "seccomp_profile_path", profile_path, "mounts", temporary_folders(plan),
        "volumes", volumes(json_object_get(host, "Mounts")), "sysctl", json_object_get(host, "Sysctls"),
        "log_configuration", "driver", "none", "restart_policy", "no", "dns_server",
        json_object_get(host, "Dns"), "oom_score_adj", json_object_get(host, "OomScoreAdj"), "mask",
        json_object_get(host, "MaskedPaths"), "r_limits", user_limits(host), "resource_limits",
        resources(host), "Networks", name, "static_mac", json_object_get(docker, "MacAddress"));
    if (document != NULL)
        close_defaults(document);
    return document;
}

/* ---- images ---- */

/* Not Docker's way: podman 4.3 then forgets the tag, and a copy of the whole image in /var/tmp. */
char *bt_podman_import_path(const char *name, const char *query)
{
    bt_auto_free char *encoded = bt_docker_encode(name);
    return bt_string_format("/libpod/images/import?reference=" REGISTRY "%s&%s", encoded, query);
}

bool bt_podman_is_name(const char *text, const char *name)
{
    return strncmp(text, REGISTRY, sizeof(REGISTRY) - 1) == 0 &&
           strcmp(text + sizeof(REGISTRY) - 1, name) == 0;
}

/* ---- the engine ---- */

int bt_podman_engine(const struct bt_docker *docker, struct bt_docker_engine *engine, struct bt_error *error)
{
    json_t *info = NULL;
    int result = bt_docker_call(docker, "GET", "/libpod/info", NULL, &info, error);
    if (result < 0)
        return result;
    const json_t *host = json_object_get(info, "host");
    const char *network = json_string_value(json_object_get(host, "networkBackend"));
    engine->is_rootless |= json_is_true(json_object_get(json_object_get(host, "security"), "rootless"));
    engine->is_cni = network == NULL || strcmp(network, "netavark") != 0;
    engine->has_runsc = false; /* whose own network has no way to an address that is set later */
    json_decref(info);
    return 0;
}
