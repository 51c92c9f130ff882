/* The docker backend: a guest is a container on a bridge that berth-helper made. See backend.h and README.md.
 *
 * A keeper holds the container by the stream to its first process (docker_lifeline.c): its end, however the
 * keeper dies, is the container's end.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/docker_internal.h"

struct bt_guest {
    struct bt_docker docker;
    struct bt_guest_identity identity;
    char *texts[3]; /* the identity's own */
    uint32_t address;
    pid_t pid;
    struct bt_docker_lifeline *lifeline; /* NULL until the container is there */
    bool is_gvisor;
};

static int check(struct bt_error *error)
{
    struct bt_docker docker;
    struct bt_docker_engine engine;
    int result = bt_docker_connect(&docker, error);
    if (result == 0)
        result = bt_docker_engine(&docker, &engine, error);
    if (result == 0)
        result = bt_docker_engine_check(&engine, error);
    return result < 0 ? result : bt_docker_accounts_check(error);
}

static int vet(const struct bt_guest_limits *limits, struct bt_list *notes, struct bt_error *error)
{
    struct bt_docker docker;
    struct bt_docker_engine engine;
    int result = bt_docker_connect(&docker, error);
    if (result == 0)
        result = bt_docker_engine(&docker, &engine, error);
    if (result == 0)
        result = bt_docker_engine_check(&engine, error);
    return result < 0 ? result : bt_docker_vet(&docker, &engine, limits, notes, error);
}

static int provide(const struct bt_paths *paths, const char *recipe, const struct bt_progress *progress,
                   struct bt_error *error)
{
    struct bt_docker docker;
    struct bt_image image;
    int result = bt_docker_connect(&docker, error);
    if (result == 0)
        result = bt_image_get(paths, recipe, true, progress, &image, error);
    return result < 0 ? result : bt_docker_image_provide(&docker, paths, &image, progress, error);
}

/* An agent begins with nothing of an earlier one of its name: an engine hands out a volume that is there as
 * if it were new. One that is resumed has its own volumes again. Other volumes than an agent's are made with
 * the container. */
static int prepare(const struct bt_guest_plan *plan, struct bt_error *error)
{
    struct bt_docker docker;
    if (plan->role != BT_GUEST_AGENT)
        return 0;
    int result = bt_docker_connect(&docker, error);
    if (result == 0)
        result = bt_docker_remove(&docker, &plan->identity, !plan->is_resumed, error);
    if (result < 0)
        return bt_error_prefix(error, "cannot remove what an earlier agent of this name left");
    return plan->is_resumed ? bt_docker_volumes_check(&docker, &plan->identity, error)
                            : bt_docker_volumes_make(&docker, plan, error);
}

static uint32_t gateway_address(const struct bt_helper_lease *lease)
{
    return lease->gateway_address;
}

/* ---- launch ---- */

static void copy_identity(struct bt_guest *guest, const struct bt_guest_identity *identity)
{
    guest->texts[0] = bt_string_copy(identity->state);
    guest->texts[1] = bt_string_copy(identity->environment);
    guest->texts[2] = bt_string_copy(identity->name);
    guest->identity =
        (struct bt_guest_identity){guest->texts[0], guest->texts[1], identity->role, guest->texts[2]};
}

static struct bt_guest_identity of_pair(const struct bt_guest_identity *identity, enum bt_guest_role role)
{
    return (struct bt_guest_identity){identity->state, identity->environment, role, bt_guest_role_name(role)};
}

/* An engine that gives no addresses leaves that to berth-init. Only a gateway has a way out. */
static int set_addresses(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                         uint32_t router, struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    if (!docker->is_podman)
        return 0;
    bt_docker_name(identity, name);
    return bt_podman_set_addresses(docker, name, identity->role == BT_GUEST_GATEWAY ? router : 0, error);
}

/* The gateway into an agent's network; for a gateway, itself into the network of its orchestrator. */
static int join_gateway(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                        uint32_t address, struct bt_error *error)
{
    struct bt_guest_identity gateway = of_pair(identity, BT_GUEST_GATEWAY);
    struct bt_guest_identity orchestrator = of_pair(identity, BT_GUEST_ORCHESTRATOR);
    const struct bt_guest_identity *network = identity->role == BT_GUEST_GATEWAY ? &orchestrator : identity;
    int result = bt_docker_network_join(docker, network, &gateway, (address & ~7U) + 2, error);
    if (result < 0 || identity->role == BT_GUEST_GATEWAY) /* which does not run yet */
        return result;
    return set_addresses(docker, &gateway, 0, error);
}

static int prove_engine(const struct bt_guest_plan *plan, struct bt_error *error)
{
    if (bt_docker_bridge_has_port(plan->lease->interface_name))
        return 0;
    return bt_fail(
        error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP,
        "use the machine's own engine (unset DOCKER_HOST, docker context use default), or --backend qemu",
        "the container engine does not work in this network namespace: nothing of it appeared on the "
        "bridge %s, so berth-helper's rules do not hold for it",
        plan->lease->interface_name);
}

static int start_container(struct bt_guest *guest, const struct bt_guest_plan *plan, bool is_restored,
                           struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    json_t *document = NULL;
    bt_docker_name(&plan->identity, name);
    bt_auto_free char *start = bt_string_format("/containers/%s/start", name);
    bt_auto_free char *inspect = bt_string_format("/containers/%s/json", name);
    int result = bt_docker_lifeline_open(&guest->docker, name, plan, is_restored, &guest->lifeline, error);
    if (result == 0)
        result = bt_docker_call(&guest->docker, "POST", start, NULL, NULL, error);
    if (result == 0)
        result = bt_docker_call(&guest->docker, "GET", inspect, NULL, &document, error);
    if (result < 0)
        return bt_error_prefix(error, "cannot start the container");
    guest->pid = (pid_t)json_integer_value(json_object_get(json_object_get(document, "State"), "Pid"));
    json_decref(document);
    return 0;
}

/* In this order nothing of the agent runs before everything that holds it is there and proved. */
static int bring_up(struct bt_guest *guest, const struct bt_guest_plan *plan, struct bt_error *error)
{
    struct bt_docker_engine engine;
    uint32_t joined =
        plan->role == BT_GUEST_GATEWAY ? plan->orchestrator_address : plan->lease->guest_address;
    int result = bt_docker_connect(&guest->docker, error);
    if (result == 0)
        result = bt_docker_engine(&guest->docker, &engine, error);
    if (result == 0)
        result = bt_docker_engine_check(&engine, error);
    if (result == 0)
        result = bt_docker_network_make(&guest->docker, plan, error);
    if (result == 0 && plan->role == BT_GUEST_AGENT)
        result = join_gateway(&guest->docker, &plan->identity, joined, error);
    if (result == 0 && plan->role == BT_GUEST_AGENT)
        result = prove_engine(plan, error);
    if (result == 0)
        result = bt_docker_container_create(&guest->docker, plan, &engine, error);
    if (result == 0 && plan->home_folder != NULL && !plan->is_resumed)
        result = bt_docker_home_fill(&guest->docker, plan, error);
    if (result == 0 && plan->role == BT_GUEST_GATEWAY)
        result = join_gateway(&guest->docker, &plan->identity, joined, error);
    if (result == 0)
        result = start_container(guest, plan, engine.is_live_restoring, error);
    if (result == 0)
        result = prove_engine(plan, error);
    if (result == 0)
        result = set_addresses(&guest->docker, &plan->identity, plan->lease->host_address, error);
    return result < 0 ? result : bt_docker_lifeline_start(guest->lifeline, plan, error);
}

static struct bt_guest *stop(struct bt_guest *guest, int grace_ms);

static int launch(const struct bt_guest_plan *plan, struct bt_guest **ret_guest, struct bt_error *error)
{
    struct bt_guest *guest = bt_new(1, sizeof(*guest));
    guest->address = plan->lease->guest_address;
    guest->is_gvisor = plan->is_gvisor;
    copy_identity(guest, &plan->identity);
    int result = bring_up(guest, plan, error);
    if (result < 0)
        (void)stop(guest, 0);
    else
        *ret_guest = guest;
    return result;
}

static int rejoin(const struct bt_guest *guest, struct bt_error *error)
{
    int result = join_gateway(&guest->docker, &guest->identity, guest->address, error);
    return result == -EACCES || result == -EEXIST ? 0 : result; /* it is there already */
}

static int end_fd(const struct bt_guest *guest)
{
    return bt_docker_lifeline_end_fd(guest->lifeline);
}

/* An engine takes its containers along, as far as their keepers go: the stream is the container's life. */
static const char *end_reason(const struct bt_guest *guest)
{
    struct bt_docker docker;
    struct bt_error error = {0};
    return bt_docker_lifeline_has_lost_engine(guest->lifeline) || bt_docker_connect(&docker, &error) < 0
               ? "the container engine was stopped, or is being started "
                 "again, and its containers ended with it"
               : NULL;
}

static pid_t process(const struct bt_guest *guest)
{
    return guest->pid;
}

static const char *jail(const struct bt_guest *guest)
{
    return guest->is_gvisor ? "container in gVisor: read-only root, no capabilities, limits"
                            : "container: read-only root, no capabilities, seccomp, limits";
}

static struct bt_guest *stop(struct bt_guest *guest, int grace_ms)
{
    struct bt_error error = {0};
    if (guest == NULL)
        return NULL;
    if (guest->lifeline != NULL && grace_ms > 0)
        bt_docker_lifeline_ask_end(guest->lifeline, grace_ms);
    if (guest->docker.version[0] != '\0' &&
        bt_docker_remove(&guest->docker, &guest->identity, false, &error) < 0)
        (void)fprintf(stderr, "the container is left to berth cleanup: %s\n", error.message);
    guest->lifeline = bt_docker_lifeline_close(guest->lifeline);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(guest->texts); i++)
        free(guest->texts[i]);
    free(guest);
    return NULL;
}

static int connect_guest(const struct bt_guest_access *access, int deadline_ms, int wait_fd,
                         struct bt_guest_link **ret_link, struct bt_error *error)
{
    (void)deadline_ms; /* a container that was launched is ready */
    (void)wait_fd;
    return bt_docker_link(access, ret_link, error);
}

static int freeze(const struct bt_freeze *request, struct bt_error *error)
{
    struct bt_docker docker;
    int result = bt_docker_connect(&docker, error);
    return result < 0 ? result : bt_docker_home_save(&docker, request, error);
}

static int build(const struct bt_build *request, struct bt_error *error)
{
    struct bt_docker docker;
    int result = bt_docker_connect(&docker, error);
    if (result == 0 && docker.is_podman)
        return bt_fail(
            error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP,
            "start Docker beside it and name its socket in DOCKER_HOST, or use an image of a recipe",
            "images of a Dockerfile are built by Docker's builder, and the container engine is podman");
    return result < 0 ? result : bt_docker_build(&docker, request, error);
}

static int sweep_builds(const struct bt_paths *paths, const struct bt_progress *progress,
                        struct bt_list *ret_found, struct bt_error *error)
{
    struct bt_docker docker;
    bt_auto_fd lock_fd = -1;
    int result = bt_docker_connect(&docker, error);
    if (result == 0)
        result = bt_docker_build_lock(paths, progress, &lock_fd, error);
    return result < 0 ? result : bt_docker_build_sweep(&docker, paths->state, ret_found, error);
}

static int cleanup(const struct bt_guest_identity *identity, bool has_data, struct bt_error *error)
{
    struct bt_docker docker;
    int result = bt_docker_connect(&docker, error);
    return result < 0 ? result : bt_docker_remove(&docker, identity, has_data, error);
}

static int enumerate(const char *state, const char *environment, bool has_data,
                     void (*on_guest)(void *context, const struct bt_guest_identity *identity), void *context,
                     struct bt_error *error)
{
    struct bt_docker docker;
    int result = bt_docker_connect(&docker, error);
    return result < 0 ? result
                      : bt_docker_enumerate(&docker, state, environment, has_data, on_guest, context, error);
}

const struct bt_backend bt_backend_docker = {
    .name = "docker",
    .warning = "containers share the kernel of the host: the weakest boundary of berth's backends",
    .lease_kind = BT_KIND_BRIDGE,
    .is_pair_in_turn = true,
    .check = check,
    .vet = vet,
    .provide = provide,
    .prepare = prepare,
    .launch = launch,
    .gateway_address = gateway_address,
    .connect = connect_guest,
    .rejoin = rejoin,
    .end_fd = end_fd,
    .end_reason = end_reason,
    .process = process,
    .jail = jail,
    .stop = stop,
    .freeze = freeze,
    .build = build,
    .sweep_builds = sweep_builds,
    .cleanup = cleanup,
    .enumerate = enumerate,
};
