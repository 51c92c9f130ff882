/* The docker backend: a guest is a container on a bridge that berth-helper made. See backend.h and README.md.
 *
 * A keeper holds the container by the stream to its first process: what it must know goes in by it, its
 * console comes out of it, and its end, however the keeper dies, is the container's end.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "vm/container_protocol.h"

#define READY_MS 60000
#define STACK_SIZE (128UL * 1024)
#define LINE_SIZE 256U

struct bt_guest {
    struct bt_docker docker;
    struct bt_guest_identity identity;
    char *texts[3]; /* the identity's own */
    uint32_t address;
    pid_t pid;
    int stream_fd; /* to and from the first process; blocking */
    int console_fd;
    int end_read_fd, end_write_fd; /* a pipe that is readable once the container has ended */
    bool has_thread;
    pthread_t thread;
    struct bt_docker_demux demux;
    char line[LINE_SIZE];
    size_t line_length;
    bool is_ready;
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

/* ---- the stream ---- */

/* What the console says: on to the log, and looked at until the line that says that all is in place. */
static void take_console(struct bt_guest *guest, const char *data, size_t length)
{
    if (guest->console_fd >= 0 && bt_write_all(guest->console_fd, data, length) < 0)
        bt_fd_close(&guest->console_fd);
    for (size_t i = 0; i < length && !guest->is_ready; i++) {
        if (data[i] != '\n' && guest->line_length + 1 < sizeof(guest->line)) {
            guest->line[guest->line_length++] = data[i];
            continue;
        }
        guest->line[guest->line_length] = '\0';
        guest->is_ready = strcmp(guest->line, BT_CONTAINER_READY) == 0;
        guest->line_length = 0;
    }
}

/* Reads once. Returns false at the end. */
static bool pump(struct bt_guest *guest)
{
    char chunk[8192];
    ssize_t count = read(guest->stream_fd, chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR)
        return true;
    if (count <= 0)
        return false;
    for (ssize_t at = 0; at < count;) {
        const char *data;
        size_t length;
        int stream;
        ssize_t used =
            bt_docker_demux(&guest->demux, chunk + at, (size_t)(count - at), &stream, &data, &length);
        if (used < 0)
            return false;
        at += used;
        take_console(guest, data, length);
    }
    return true;
}

static void *pump_all(void *argument)
{
    struct bt_guest *guest = argument;
    while (pump(guest))
        continue;
    bt_fd_close(&guest->end_write_fd);
    bt_fd_close(&guest->console_fd);
    return NULL;
}

static int start_thread(struct bt_guest *guest, struct bt_error *error)
{
    pthread_attr_t attributes;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a pipe: %s", strerror(errno));
    guest->end_read_fd = ends[0];
    guest->end_write_fd = ends[1];
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    int code = pthread_create(&guest->thread, &attributes, pump_all, guest);
    (void)pthread_attr_destroy(&attributes);
    guest->has_thread = code == 0;
    return code == 0 ? 0
                     : bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot start a thread: %s", strerror(code));
}

static int add_number(struct bt_buffer *buffer, size_t value)
{
    uint8_t bytes[4];
    bt_store_u32(bytes, (uint32_t)value);
    return bt_buffer_add(buffer, bytes, sizeof(bytes));
}

static int add_file(struct bt_buffer *files, const struct bt_guest_file *file)
{
    int result = add_number(files, file->mode);
    result = result < 0 ? result : add_number(files, strlen(file->name));
    result = result < 0 ? result : add_number(files, file->length);
    result = result < 0 ? result : bt_buffer_add(files, file->name, strlen(file->name));
    return result < 0 || file->length == 0 ? result : bt_buffer_add(files, file->data, file->length);
}

static int send_configuration(struct bt_guest *guest, const struct bt_guest_plan *plan,
                              struct bt_error *error)
{
    struct bt_buffer files = {.limit = BT_CONTAINER_LENGTH_MAX};
    struct bt_buffer header = {0};
    int result = 0;
    for (size_t i = 0; result == 0 && i < plan->file_count; i++)
        result = add_file(&files, &plan->files[i]);
    if (result == 0)
        result = add_number(&header, BT_CONTAINER_MAGIC);
    if (result == 0)
        result = add_number(&header, files.length);
    if (result == 0)
        result = bt_write_all(guest->stream_fd, header.data, header.length);
    if (result == 0)
        result = bt_write_all(guest->stream_fd, files.data, files.length);
    bt_buffer_wipe(&files);
    bt_buffer_free(&header);
    return result < 0 ? bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, NULL,
                                "cannot send the container its configuration: %s", strerror(-result))
                      : 0;
}

static int wait_ready(struct bt_guest *guest, struct bt_error *error)
{
    while (!guest->is_ready) {
        struct pollfd readable = {guest->stream_fd, POLLIN, 0};
        int count = poll(&readable, 1, READY_MS);
        if (count < 0 && errno == EINTR)
            continue;
        if (count == 0)
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ETIMEDOUT,
                           "its console is in console.log in its folder",
                           "the container did not start within %d seconds", READY_MS / 1000);
        if (count < 0 || !pump(guest))
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ECANCELED,
                           "its console is in console.log in its folder",
                           "the container ended while starting");
    }
    return 0;
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

/* The gateway into an agent's network; for a gateway, itself into the network of its orchestrator. */
static int join_gateway(const struct bt_docker *docker, const struct bt_guest_identity *identity,
                        uint32_t address, struct bt_error *error)
{
    struct bt_guest_identity gateway = of_pair(identity, BT_GUEST_GATEWAY);
    struct bt_guest_identity orchestrator = of_pair(identity, BT_GUEST_ORCHESTRATOR);
    const struct bt_guest_identity *network = identity->role == BT_GUEST_GATEWAY ? &orchestrator : identity;
    return bt_docker_network_join(docker, network, &gateway, (address & ~7U) + 2, error);
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

static int attach(struct bt_guest *guest, const char *name, struct bt_error *error)
{
    bt_auto_free char *path =
        bt_string_format("/containers/%s/attach?stream=1&stdin=1&stdout=1&stderr=1", name);
    int result = bt_docker_stream(&guest->docker, path, NULL, &guest->stream_fd, error);
    if (result == 0 && fcntl(guest->stream_fd, F_SETFL, 0) < 0)
        result = bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot use the container's stream: %s",
                         strerror(errno));
    return result;
}

static int start_container(struct bt_guest *guest, const struct bt_guest_plan *plan, struct bt_error *error)
{
    char name[BT_DOCKER_NAME_SIZE];
    json_t *document = NULL;
    bt_docker_name(&plan->identity, name);
    bt_auto_free char *start = bt_string_format("/containers/%s/start", name);
    bt_auto_free char *inspect = bt_string_format("/containers/%s/json", name);
    int result = attach(guest, name, error);
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
        result = start_container(guest, plan, error);
    if (result == 0)
        result = prove_engine(plan, error);
    if (result == 0)
        result = send_configuration(guest, plan, error);
    if (result == 0)
        result = wait_ready(guest, error);
    return result < 0 ? result : start_thread(guest, error);
}

static struct bt_guest *stop(struct bt_guest *guest, int grace_ms);

static int launch(const struct bt_guest_plan *plan, struct bt_guest **ret_guest, struct bt_error *error)
{
    struct bt_guest *guest = bt_new(1, sizeof(*guest));
    guest->stream_fd = guest->end_read_fd = guest->end_write_fd = -1;
    guest->address = plan->lease->guest_address;
    guest->console_fd = fcntl(plan->console_fd, F_DUPFD_CLOEXEC, 3);
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
    return guest->end_read_fd;
}

/* An engine takes its containers along, as far as their keepers go: the stream is the container's life. */
static const char *end_reason(const struct bt_guest *guest)
{
    struct bt_docker docker;
    struct bt_error error = {0};
    (void)guest;
    return bt_docker_connect(&docker, &error) < 0 ? "the container engine was stopped, or is being started "
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
    struct pollfd ended = {guest->end_read_fd, POLLIN, 0};
    if (guest->has_thread && grace_ms > 0 && bt_write_all(guest->stream_fd, "poweroff\n", 9) == 0)
        (void)poll(&ended, 1, grace_ms);
    if (guest->docker.version[0] != '\0' &&
        bt_docker_remove(&guest->docker, &guest->identity, false, &error) < 0)
        (void)fprintf(stderr, "the container is left to berth cleanup: %s\n", error.message);
    if (guest->stream_fd >= 0)
        (void)shutdown(guest->stream_fd, SHUT_RDWR);
    if (guest->has_thread)
        (void)pthread_join(guest->thread, NULL);
    bt_fd_close(&guest->stream_fd);
    bt_fd_close(&guest->console_fd);
    bt_fd_close(&guest->end_read_fd);
    bt_fd_close(&guest->end_write_fd);
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
