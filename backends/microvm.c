/* The microVM backend on qemu: disks, guest configuration, VMM. See backend.h.
 *
 * Called by keepers. It never talks to the helper or the orchestrator, and never runs anything in the guest.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/backend.h"
#include "vm/machine.h"

#define REGISTRY_BYTES (256ULL << 20)
#define SSH_PORT 22
#define HOME_FILE "home.ext4"

struct bt_guest {
    struct bt_machine machine;
};

static int check(struct bt_error *error)
{
    return bt_machine_check(NULL, error);
}

static int make_disk(const char *folder, const char *name, uint64_t bytes, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/%s.ext4", folder, name);
    if (access(path, F_OK) == 0)
        return 0; /* kept from an earlier run */
    return bt_ext4_make_empty(path, bytes, name, error);
}

static int vet(const struct bt_guest_limits *limits, struct bt_list *notes, struct bt_error *error)
{
    (void)notes;
    return limits->is_gvisor_asked
               ? bt_fail(error, BT_EXIT_INFRASTRUCTURE, EOPNOTSUPP, "use --backend docker, or leave it out",
                         "the bottle says isolation: gvisor, which is for containers; the backend qemu has "
                         "virtual "
                         "machines instead")
               : 0;
}

static int provide(const struct bt_paths *paths, const char *recipe, const struct bt_progress *progress,
                   struct bt_error *error)
{
    struct bt_image image;
    int result = bt_image_get(paths, "kernel", true, progress, &image, error);
    return result < 0 ? result : bt_image_get(paths, recipe, true, progress, &image, error);
}

static uint32_t gateway_address(const struct bt_helper_lease *lease)
{
    return lease->host_address;
}

/* An empty disk in the place of one that is gone would look like work that is gone. */
static int check_disk(const char *folder, const char *name, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/%s.ext4", folder, name);
    return access(path, F_OK) == 0
               ? 0
               : bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, "remove it with berth rm, and spawn it anew",
                         "its disk %s is gone", path);
}

/* The home that a frozen one begins with: the same disk, never looked into on the host. */
static int copy_home(const struct bt_guest_plan *plan, struct bt_error *error)
{
    bt_auto_free char *from = bt_string_format("%s/" HOME_FILE, plan->home_folder);
    bt_auto_free char *to = bt_string_format("%s/" HOME_FILE, plan->folder);
    struct stat status;
    if (stat(from, &status) == 0 && (uint64_t)status.st_size > plan->disk_bytes)
        return bt_fail(error, BT_EXIT_ERROR, EFBIG,
                       "grant as much (resources: {disk: ...}), or use another image",
                       "the home of the image is a disk of %llu MiB, and the agent may have %llu",
                       (unsigned long long)status.st_size >> 20, (unsigned long long)plan->disk_bytes >> 20);
    return bt_ext4_copy(from, to, UINT64_MAX, error);
}

static int freeze(const struct bt_freeze *request, struct bt_error *error)
{
    bt_auto_free char *from = bt_string_format("%s/" HOME_FILE, request->agent_folder);
    bt_auto_free char *to = bt_string_format("%s/" HOME_FILE, request->folder);
    if (request->is_live)
        return bt_fail(error, BT_EXIT_ERROR, EBUSY, "stop it first: berth stop, then berth freeze",
                       "its home is a disk that its machine writes to");
    int result = check_disk(request->agent_folder, "home", error);
    return result < 0 ? result : bt_ext4_copy(from, to, request->bytes_max, error);
}

static int prepare(const struct bt_guest_plan *plan, struct bt_error *error)
{
    static const char *const agent_disks[] = {"scratch", "home", "workspace"};
    int result = 0;
    if (plan->role == BT_GUEST_AGENT && plan->home_folder != NULL && !plan->is_resumed)
        result = copy_home(plan, error);
    if (result < 0)
        return result;
    if (plan->role == BT_GUEST_ORCHESTRATOR)
        return make_disk(plan->folder, "registry", REGISTRY_BYTES, error);
    for (size_t i = 0; plan->role == BT_GUEST_AGENT && result == 0 && i < BT_ARRAY_LENGTH(agent_disks); i++)
        result = plan->is_resumed ? check_disk(plan->folder, agent_disks[i], error)
                                  : make_disk(plan->folder, agent_disks[i], plan->disk_bytes, error);
    return result;
}

static void configure_guest(const struct bt_guest_plan *plan, struct bt_guest_config *config)
{
    bool is_agent = plan->role == BT_GUEST_AGENT;
    *config = (struct bt_guest_config){
        .role = plan->role,
        .host_name = plan->host_name,
        .address = plan->lease->guest_address,
        .host_address = plan->lease->host_address,
        .prefix_length = plan->lease->prefix_length,
        .time_seconds = (uint64_t)time(NULL),
        .has_root_image = is_agent,
        .has_scratch_disk = is_agent,
        .has_home_disk = is_agent,
        .has_workspace_disk = is_agent,
        .has_registry_disk = plan->role == BT_GUEST_ORCHESTRATOR,
        .files = plan->files,
        .file_count = plan->file_count,
    };
}

#define DISK_PATH_SIZE 768

static void add_disk(struct bt_machine_config *config, char paths[][DISK_PATH_SIZE], const char *folder,
                     const char *name)
{
    (void)snprintf(paths[config->disk_count], DISK_PATH_SIZE, "%s/%s.ext4", folder, name);
    config->disks[config->disk_count] = (struct bt_machine_disk){paths[config->disk_count], false};
    config->disk_count++;
}

static void configure_machine(const struct bt_guest_plan *plan, const struct bt_image *kernel,
                              const struct bt_buffer *initrd, char paths[][DISK_PATH_SIZE],
                              struct bt_machine_config *config)
{
    *config = (struct bt_machine_config){
        .kernel_path = kernel->path,
        .initrd_path = kernel->initrd_path,
        .initrd_extra = initrd->data,
        .initrd_extra_length = initrd->length,
        .tap_fd = plan->tap_fd,
        .memory_bytes = plan->memory_bytes,
        .cpus = plan->cpus,
        .console_fd = plan->console_fd,
        .folder = plan->folder,
    };
    memcpy(config->mac, plan->lease->guest_mac, sizeof config->mac);
    if (plan->role == BT_GUEST_AGENT) {
        config->disks[config->disk_count++] = (struct bt_machine_disk){plan->root->path, true};
        add_disk(config, paths, plan->folder, "scratch");
        add_disk(config, paths, plan->folder, "home");
        add_disk(config, paths, plan->folder, "workspace");
    } else if (plan->role == BT_GUEST_ORCHESTRATOR) {
        add_disk(config, paths, plan->folder, "registry");
    }
}

static int launch(const struct bt_guest_plan *plan, struct bt_guest **ret_guest, struct bt_error *error)
{
    struct bt_guest_config guest_config;
    struct bt_machine_config machine_config;
    char paths[BT_MACHINE_DISKS_MAX][DISK_PATH_SIZE];
    struct bt_buffer initrd = {.limit = 256UL << 20};
    struct bt_guest *guest = bt_new(1, sizeof *guest);
    struct bt_image kernel = {0};
    int result = bt_image_get(plan->paths, "kernel", false, NULL, &kernel, error);
    if (result == 0 && plan->role != BT_GUEST_AGENT) { /* the static programs of the infra image */
        struct bt_buffer programs = {0};
        result = bt_file_read(plan->root->path, 128UL << 20, &programs, error);
        if (result == 0 && bt_buffer_add(&initrd, programs.data, programs.length) < 0)
            result = bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "the infra image is too large");
        bt_buffer_free(&programs);
    }
    configure_guest(plan, &guest_config);
    if (result == 0)
        result = bt_guest_config_write(&guest_config, &initrd, error);
    if (result == 0) {
        configure_machine(plan, &kernel, &initrd, paths, &machine_config);
        result = bt_machine_start(&machine_config, &guest->machine, error);
    }
    bt_buffer_wipe(&initrd);
    if (result < 0) {
        free(guest);
        return result;
    }
    *ret_guest = guest;
    return 0;
}

static int end_fd(const struct bt_guest *guest)
{
    return guest->machine.pid_fd;
}

static pid_t process(const struct bt_guest *guest)
{
    return guest->machine.pid;
}

static const char *jail(const struct bt_guest *guest)
{
    return guest->machine.jail;
}

static struct bt_guest *stop(struct bt_guest *guest, int grace_ms)
{
    if (guest != NULL)
        bt_machine_stop(&guest->machine, grace_ms);
    free(guest);
    return NULL;
}

static int connect_guest(const struct bt_guest_access *access, int deadline_ms, int wait_fd,
                         struct bt_guest_link **ret_link, struct bt_error *error)
{
    const struct bt_guest_address address = {access->address, SSH_PORT, access->private_key,
                                             access->host_public_key};
    return bt_guest_connect(&address, deadline_ms, wait_fd, ret_link, error);
}

/* The disks are in the guest's folder. */
static int cleanup(const struct bt_guest_identity *identity, bool has_data, struct bt_error *error)
{
    (void)identity;
    (void)has_data;
    (void)error;
    return 0;
}

const struct bt_backend bt_backend_qemu = {
    .name = "qemu",
    .lease_kind = BT_KIND_TAP_FD,
    .check = check,
    .vet = vet,
    .provide = provide,
    .prepare = prepare,
    .launch = launch,
    .gateway_address = gateway_address,
    .connect = connect_guest,
    .end_fd = end_fd,
    .process = process,
    .jail = jail,
    .stop = stop,
    .freeze = freeze,
    .cleanup = cleanup,
};
