/* Which engine this is, and whether it can run berth's guests. See docker_internal.h. */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "backends/docker_internal.h"
#include "lib/http.h"

#define API_OLDEST_MINOR 41       /* Docker 20.10 */
#define VERSION_TIMEOUT_MS 30000L /* podman was seen to take ten seconds on a busy machine */

static int unreachable(int code, const char *path, struct bt_error *error)
{
    const char *hint = "see berth doctor";
    if (code == ENOENT || code == ECONNREFUSED)
        hint =
            "install and start it (apt install docker.io; systemctl start docker), set DOCKER_HOST, or use "
            "--backend qemu";
    else if (code == EACCES || code == EPERM)
        hint = "ask an administrator for the group docker, which equals root on this machine, or use "
               "--backend qemu";
    else if (code == ETIMEDOUT)
        hint = "it is stuck or overloaded: systemctl status docker";
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, code, hint,
                   "the container engine at %s does not answer: %s", path,
                   code == ENOENT ? "there is no such socket" : strerror(code));
}

static unsigned minor_of(const json_t *document, const char *key)
{
    const char *text = json_string_value(json_object_get(document, key));
    uint64_t minor = 0;
    if (text == NULL || strncmp(text, "1.", 2) != 0 ||
        bt_number_parse(text + 2, strlen(text + 2), 0, 10000, &minor) < 0)
        return 0;
    return (unsigned)minor;
}

static bool is_podman(const json_t *document)
{
    size_t index;
    const json_t *component;
    json_array_foreach(json_object_get(document, "Components"), index, component)
    {
        const char *name = json_string_value(json_object_get(component, "Name"));
        if (name != NULL && strcmp(name, "Podman Engine") == 0)
            return true;
    }
    return false;
}

static int choose_version(struct bt_docker *docker, const json_t *document, struct bt_error *error)
{
    unsigned newest = minor_of(document, "ApiVersion");
    unsigned oldest = minor_of(document, "MinAPIVersion");
    const char *version = json_string_value(json_object_get(document, "Version"));
    if (newest == 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EPROTO,
                       "set DOCKER_HOST to a container engine's socket",
                       "what answers at %s is no container engine", docker->socket_path);
    docker->is_podman = is_podman(document);
    if (newest < API_OLDEST_MINOR)
        return bt_fail(
            error, BT_EXIT_INFRASTRUCTURE, EPROTO, "upgrade to Docker 20.10 or later",
            "the container engine at %s (version %.30s) is too old: its API is 1.%u, 1.%u is needed",
            docker->socket_path, version == NULL ? "unknown" : version, newest, API_OLDEST_MINOR);
    (void)snprintf(docker->version, sizeof(docker->version), "1.%u",
                   oldest > API_OLDEST_MINOR ? oldest : API_OLDEST_MINOR);
    return 0;
}

int bt_docker_connect(struct bt_docker *ret_docker, struct bt_error *error)
{
    struct bt_docker docker = {0};
    bt_auto_buffer answer = {0};
    long status = 0;
    int result = bt_docker_endpoint(docker.socket_path, error);
    if (result < 0)
        return result;
    const struct bt_http_request request = {.socket_path = docker.socket_path,
                                            .method = "GET",
                                            .path = "/version",
                                            .answer_max = 1024UL * 1024,
                                            .timeout_ms = VERSION_TIMEOUT_MS};
    result = bt_http_call(&request, &status, &answer, NULL);
    if (result < 0)
        return unreachable(-result, docker.socket_path, error);
    json_t *document = json_loadb(answer.data == NULL ? "" : answer.data, answer.length, 0, NULL);
    result = choose_version(&docker, document, error);
    json_decref(document);
    if (result == 0)
        *ret_docker = docker;
    return result;
}

static bool list_has(const json_t *list, const char *prefix)
{
    size_t index;
    const json_t *item;
    json_array_foreach(list, index, item)
    {
        const char *text = json_string_value(item);
        if (text != NULL && strncmp(text, prefix, strlen(prefix)) == 0)
            return true;
    }
    return false;
}

/* gVisor that was told to leave control groups alone: no limit of a container holds, and nothing else says
 * so. */
static bool ignores_limits(const json_t *runtime)
{
    const json_t *arguments = json_object_get(runtime, "runtimeArgs");
    return (list_has(arguments, "--ignore-cgroups") && !list_has(arguments, "--ignore-cgroups=false")) ||
           (list_has(arguments, "-ignore-cgroups") && !list_has(arguments, "-ignore-cgroups=false"));
}

static bool flag(const json_t *info, const char *key)
{
    return json_is_true(json_object_get(info, key));
}

int bt_docker_engine(const struct bt_docker *docker, struct bt_docker_engine *ret_engine,
                     struct bt_error *error)
{
    json_t *info = NULL;
    int result = bt_docker_call(docker, "GET", "/info", NULL, &info, error);
    if (result < 0)
        return result;
    const json_t *runsc = json_object_get(json_object_get(info, "Runtimes"), BT_DOCKER_GVISOR);
    struct bt_docker_engine engine = {
        .is_podman = docker->is_podman,
        .is_rootless = list_has(json_object_get(info, "SecurityOptions"), "name=rootless"),
        .has_runsc = runsc != NULL,
        .is_runsc_unlimited = ignores_limits(runsc),
        .is_live_restoring = flag(info, "LiveRestoreEnabled"),
        .has_memory = flag(info, "MemoryLimit"),
        .has_swap = flag(info, "SwapLimit"),
        .has_pids = flag(info, "PidsLimit"),
        .has_cpu = flag(info, "CpuCfsQuota"),
    };
    const char *system = json_string_value(json_object_get(info, "OperatingSystem"));
    engine.is_desktop = system != NULL && strstr(system, "Docker Desktop") != NULL;
    json_decref(info);
    result = docker->is_podman ? bt_podman_engine(docker, &engine, error) : 0;
    *ret_engine = engine;
    return result;
}

int bt_docker_accounts_check(struct bt_error *error)
{
    static const unsigned ids[] = {BT_DOCKER_AGENT_ID, BT_DOCKER_GATEWAY_ID, BT_DOCKER_ORCHESTRATOR_ID};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(ids); i++) {
        const struct passwd *account = getpwuid(ids[i]);
        if (account != NULL)
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EEXIST,
                           "give that account another uid, or use --backend qemu",
                           "the account %.64s of this machine has the uid %u, which processes in containers "
                           "have: it could reach into them, and they into what is its own",
                           account->pw_name, ids[i]);
    }
    return 0;
}

int bt_docker_engine_check(const struct bt_docker_engine *engine, struct bt_error *error)
{
    static const char hint[] =
        "use the machine's own engine (unset DOCKER_HOST, docker context use default), or "
        "--backend qemu";
    if (engine->is_rootless)
        return bt_fail(
            error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP, hint,
            "this container engine is rootless: its networks are in a namespace of their own, where "
            "berth-helper's rules do not hold");
    if (engine->is_desktop)
        return bt_fail(
            error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP, hint,
            "this container engine is Docker Desktop: its networks are in a virtual machine, where "
            "berth-helper's rules do not hold");
    if (engine->is_cni)
        return bt_fail(
            error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP,
            "install netavark, have an administrator set network_backend = \"netavark\" in "
            "/etc/containers/containers.conf and run podman system reset, which removes all that podman has; "
            "or use "
            "--backend qemu",
            "this container engine is podman with CNI's networks, which cannot use a bridge that is there "
            "already, as berth-helper's are");
    return 0;
}
