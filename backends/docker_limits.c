/* Which limits an engine's host can hold. See bt_backend.vet. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/docker_internal.h"

/* Tries it: only the engine knows whether the file system of its volumes has project quotas. The volume has
 * the name of nobody, and is gone at once. podman takes a size and says nothing when it does not hold. */
static bool has_volume_sizes(const struct bt_docker *docker, uint64_t bytes)
{
    char random[17];
    if (docker->is_podman)
        return false;
    bt_random_hex(random, 8);
    bt_auto_free char *name = bt_string_format("berth-try-%s", random);
    bt_auto_free char *size = bt_string_format("%llu", (unsigned long long)bytes);
    bt_auto_free char *path = bt_string_format("/volumes/%s", name);
    json_t *body =
        json_pack("{s:s, s:s, s:{s:s}}", "Name", name, "Driver", "local", "DriverOpts", "size", size);
    bool is_good = bt_docker_call(docker, "POST", "/volumes/create", body, NULL, NULL) == 0;
    (void)bt_docker_call(docker, "DELETE", path, NULL, NULL, NULL);
    return is_good;
}

static int make_volume(const struct bt_docker *docker, const struct bt_guest_plan *plan, const char *suffix,
                       struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    bt_docker_name(&plan->identity, name);
    bt_auto_free char *full = bt_string_format("%s.%s", name, suffix);
    bt_auto_free char *size = bt_string_format("%llu", (unsigned long long)plan->disk_bytes);
    json_t *sized = json_pack("{s:s, s:s, s:o, s:{s:s}}", "Name", full, "Driver", "local", "Labels",
                              bt_docker_labels(&plan->identity), "DriverOpts", "size", size);
    json_t *plain = json_pack("{s:s, s:s, s:o}", "Name", full, "Driver", "local", "Labels",
                              bt_docker_labels(&plan->identity));
    int result = -EINVAL;
    if (docker->is_podman)
        json_decref(sized);
    else
        result = bt_docker_call(docker, "POST", "/volumes/create", sized, NULL, error);
    if (result == -EINVAL) /* no quotas; vet has said so */
        return bt_docker_call(docker, "POST", "/volumes/create", plain, NULL, error);
    json_decref(plain);
    return result;
}

int bt_docker_volumes_make(const struct bt_docker *docker, const struct bt_guest_plan *plan,
                           struct bt_error *error)
{
    int result = make_volume(docker, plan, "home", error);
    if (result == 0)
        result = make_volume(docker, plan, "workspace", error);
    return result < 0 ? bt_error_prefix(error, "cannot make a volume") : 0;
}

int bt_docker_volumes_check(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                            struct bt_error *error)
{
    static const char *const suffixes[] = {"home", "workspace", "base"};
    char name[BT_DOCKER_NAME_SIZE];
    int result = 0;
    bt_docker_name(identity, name);
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(suffixes); i++) {
        bt_auto_free char *path = bt_string_format("/volumes/%s.%s", name, suffixes[i]);
        json_t *document = NULL;
        result = bt_docker_call(docker, "GET", path, NULL, &document, error);
        json_decref(document);
        if (result == -ENOENT)
            result = bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, "remove it with berth rm, and spawn it anew",
                             "its volume %s.%s is gone", name, suffixes[i]);
    }
    return result;
}

static int judge(bool is_held, bool is_asked, const char *what, const char *why, struct bt_list *notes,
                 struct bt_error *error)
{
    if (is_held)
        return 0;
    if (is_asked)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP,
                       "take the limit out of the bottle's resources, or use --backend qemu",
                       "the container engine cannot hold the limit %s of the bottle: %s", what, why);
    bt_list_add_format(notes, "the container engine does not limit %s: %s", what, why);
    return 0;
}

int bt_docker_vet(const struct bt_docker *docker, const struct bt_docker_engine *engine,
                  const struct bt_guest_limits *limits, struct bt_list *notes, struct bt_error *error)
{
    if (limits->is_gvisor_asked && engine->is_podman)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP,
                       "start Docker beside it and name its socket in DOCKER_HOST, or use --backend qemu",
                       "the bottle says isolation: gvisor, and the container engine is podman, where berth "
                       "has no gVisor");
    if (limits->is_gvisor_asked && !engine->has_runsc)
        return bt_fail(
            error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP,
            "install it (apt install runsc), then as root: runsc install; systemctl reload docker",
            "the bottle says isolation: gvisor, and the container engine has no runtime " BT_DOCKER_GVISOR);
    if (limits->is_gvisor_asked && engine->is_runsc_unlimited)
        bt_list_add_format(notes, "the container engine limits neither memory nor cpus nor the number of "
                                  "processes in gVisor: its runtime " BT_DOCKER_GVISOR
                                  " is registered with --ignore-cgroups");
    static const char kernel[] = "its host's control groups do not";
    int result = judge(engine->has_memory && engine->has_swap, limits->is_memory_asked, "memory",
                       engine->has_memory ? "its host does not count swap" : kernel, notes, error);
    if (result == 0)
        result = judge(engine->has_cpu, limits->is_cpus_asked, "cpus", kernel, notes, error);
    if (result == 0)
        result = judge(engine->has_pids, false, "the number of processes", kernel, notes, error);
    if (result == 0)
        result = judge(has_volume_sizes(docker, limits->disk_bytes), limits->is_disk_asked, "disk",
                       engine->is_podman ? "podman does not say whether it holds"
                                         : "its volumes are on a file system without project quotas",
                       notes, error);
    return result;
}
