/* The qemu driver: starts one monitor in its jail, and ends it. See machine.h.
 *
 * Called by keepers through backends/microvm. Must not leave a process, a descriptor or a file behind when it
 * fails, and must not write the initrd to a disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/file.h"
#include "vm/initrd.h"
#include "vm/jail.h"
#include "vm/kvm_probe.h"
#include "vm/machine.h"
#include "vm/qemu_arguments.h"
#include "vm/qmp.h"
#include "vm/time_stamp.h"

#define MEMORY_MINIMUM (96ULL << 20)
#define CPUS_MAXIMUM 64U
#define MONITOR_OVERHEAD                                                                                     \
    (4ULL << 30) /* address space beyond the guest's memory: code, translations, stacks */
#define START_TIMEOUT_MS 20000
#define ASK_AGAIN_MS 1000
#define COMPLAINTS_LENGTH 4096
#define FD_ABOVE 64 /* the child's descriptors are moved above this before they get their final numbers */

/* What the child tells before it becomes qemu; nothing more comes after a successful exec. */
struct child_message {
    struct bt_jail_report jail;
    int code; /* negative errno of what failed, 0 when the jail stands */
    char step[64];
};

struct launch {
    const struct bt_machine_config *config;
    char program[512];
    bool uses_kvm;
    struct bt_list arguments;
    int child_fds[BT_QEMU_FD_COUNT];
    int control_fd; /* ours */
    int power_fd;   /* ours */
    int message_fds[2];
};

static int find_program(char ret_path[512])
{
    const char *path = getenv("PATH");
    if (path == NULL || *path == '\0')
        path = "/usr/local/bin:/usr/bin:/bin";
    while (*path != '\0') {
        size_t length = strcspn(path, ":");
        int written = snprintf(ret_path, 512, "%.*s/" BT_QEMU_PROGRAM, (int)length, path);
        if (length > 0 && path[0] == '/' && written > 0 && written < 512 && access(ret_path, X_OK) == 0)
            return 0;
        path += length + (path[length] == ':' ? 1 : 0);
    }
    return -ENOENT;
}

int bt_machine_check(bool *ret_uses_kvm, struct bt_error *error)
{
    char program[512];
    char reason[128];
    if (find_program(program) < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOENT, "install the package qemu-system-x86",
                       "the program " BT_QEMU_PROGRAM " is not installed");
    if (ret_uses_kvm != NULL)
        *ret_uses_kvm = bt_kvm_works(reason, sizeof(reason));
    return 0;
}

static int check_config(const struct bt_machine_config *config, struct bt_error *error)
{
    if (config->memory_bytes < MEMORY_MINIMUM || config->memory_bytes > 1ULL << 42)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "give it at least 96M",
                       "the memory of the machine is not possible");
    if (config->cpus == 0 || config->cpus > CPUS_MAXIMUM)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, "use 1 to 64",
                       "the number of processors is not possible");
    if (config->disk_count > BT_MACHINE_DISKS_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "too many disks for one machine");
    if (access(config->kernel_path, R_OK) < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, errno, "run: berth image build kernel",
                       "cannot read the kernel %s: %s", config->kernel_path, strerror(errno));
    for (size_t i = 0; i < config->disk_count; i++) {
        const struct bt_machine_disk *disk = &config->disks[i];
        if (disk->path[0] != '/' || access(disk->path, disk->is_read_only ? R_OK : R_OK | W_OK) < 0)
            return bt_fail(error, BT_EXIT_INFRASTRUCTURE, disk->path[0] != '/' ? EINVAL : errno, NULL,
                           "cannot use the disk %s: %s", disk->path,
                           disk->path[0] != '/' ? "not an absolute path" : strerror(errno));
    }
    return 0;
}

static void launch_init(struct launch *launch, const struct bt_machine_config *config)
{
    *launch = (struct launch){.config = config, .control_fd = -1, .power_fd = -1, .message_fds = {-1, -1}};
    for (int i = 0; i < BT_QEMU_FD_COUNT; i++)
        launch->child_fds[i] = -1;
}

static void launch_free(struct launch *launch)
{
    for (int i = 0; i < BT_QEMU_FD_COUNT; i++)
        bt_fd_close(&launch->child_fds[i]);
    bt_fd_close(&launch->control_fd);
    bt_fd_close(&launch->power_fd);
    bt_fd_close(&launch->message_fds[0]);
    bt_fd_close(&launch->message_fds[1]);
    bt_list_free(&launch->arguments);
}
#define auto_launch BT_CLEANUP(launch_free) struct launch

/* Complaints go to memory of a fixed size: a guest that makes its monitor talk can fill that and nothing
 * else. */
static int open_complaints(void)
{
    bt_auto_fd complaints_fd = memfd_create("complaints", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (complaints_fd < 0 || ftruncate(complaints_fd, COMPLAINTS_LENGTH) < 0 ||
        fcntl(complaints_fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return -errno;
    return bt_fd_take(&complaints_fd);
}

static int open_channels(struct launch *launch)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    launch->control_fd = pair[0];
    launch->child_fds[BT_QEMU_FD_CONTROL] = pair[1];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    launch->power_fd = pair[0];
    launch->child_fds[BT_QEMU_FD_INPUT] = pair[1];
    if (pipe2(launch->message_fds, O_CLOEXEC) < 0)
        return -errno;
    launch->child_fds[BT_QEMU_FD_ERRORS] = open_complaints();
    if (launch->child_fds[BT_QEMU_FD_ERRORS] < 0)
        return launch->child_fds[BT_QEMU_FD_ERRORS];
    launch->child_fds[BT_QEMU_FD_OUTPUT] = fcntl(launch->config->console_fd, F_DUPFD_CLOEXEC, 3);
    if (launch->child_fds[BT_QEMU_FD_OUTPUT] < 0)
        return -errno;
    if (launch->config->tap_fd < 0)
        return 0;
    launch->child_fds[BT_QEMU_FD_TAP] = fcntl(launch->config->tap_fd, F_DUPFD_CLOEXEC, 3);
    return launch->child_fds[BT_QEMU_FD_TAP] < 0 ? -errno : 0;
}

/* In the child: the message pipe becomes the descriptor after the last, everything above is closed. */
static int place_descriptors(struct launch *launch)
{
    int message_fd = fcntl(launch->message_fds[1], F_DUPFD_CLOEXEC, FD_ABOVE);
    if (message_fd < 0)
        return -errno;
    for (int i = 0; i < BT_QEMU_FD_COUNT; i++) {
        if (launch->child_fds[i] < 0)
            continue;
        launch->child_fds[i] = fcntl(launch->child_fds[i], F_DUPFD_CLOEXEC, FD_ABOVE);
        if (launch->child_fds[i] < 0)
            return -errno;
    }
    for (int i = 0; i < BT_QEMU_FD_COUNT; i++)
        if (launch->child_fds[i] >= 0 && dup2(launch->child_fds[i], i) < 0)
            return -errno;
    if (dup3(message_fd, BT_QEMU_FD_COUNT, O_CLOEXEC) < 0 ||
        syscall(SYS_close_range, BT_QEMU_FD_COUNT + 1, ~0U, 0) < 0)
        return -errno;
    launch->message_fds[1] = BT_QEMU_FD_COUNT;
    if (launch->child_fds[BT_QEMU_FD_TAP] < 0)
        (void)close(BT_QEMU_FD_TAP);
    return 0;
}

static int enter_jail(const struct launch *launch, pid_t parent_pid, struct bt_jail_report *ret_report)
{
    const struct bt_machine_config *config = launch->config;
    struct bt_jail_path paths[8 + BT_MACHINE_DISKS_MAX] = {
        {.path = "/usr", .may_execute = true},
        {.path = "/lib", .may_execute = true},
        {.path = "/lib64", .may_execute = true},
        {.path = "/etc/ld.so.cache"},
        {.path = "/dev/null", .may_write = true},
        {.path = launch->program, .may_execute = true},
        {.path = config->kernel_path},
        {.path = "/dev/kvm", .is_device = true},
    };
    size_t count = launch->uses_kvm ? 8 : 7;
    for (size_t i = 0; i < config->disk_count; i++)
        paths[count++] =
            (struct bt_jail_path){.path = config->disks[i].path, .may_write = !config->disks[i].is_read_only};
    struct bt_jail jail = {
        .paths = paths, .path_count = count, .address_space_bytes = config->memory_bytes + MONITOR_OVERHEAD};
    return bt_jail_enter(&jail, parent_pid, ret_report);
}

static void run_child(struct launch *launch, pid_t parent_pid) __attribute__((noreturn));
static void run_child(struct launch *launch, pid_t parent_pid)
{
    struct child_message message = {.step = "receive its descriptors"};
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (int signal_number = 1; signal_number < NSIG; signal_number++)
        (void)signal(signal_number, SIG_DFL);
    /* A terminal's ctrl-c is for the user's command, not for the machine. */
    (void)setsid();
    message.code = place_descriptors(launch);
    if (message.code == 0) {
        message.code = enter_jail(launch, parent_pid, &message.jail);
        (void)snprintf(message.step, sizeof(message.step), "%s",
                       message.jail.step != NULL ? message.jail.step : "");
    }
    if (bt_write_all(launch->message_fds[1], &message, sizeof(message)) < 0 || message.code < 0)
        _exit(126);
    char *const environment[] = {NULL};
    (void)execve(launch->program, launch->arguments.items, environment);
    message.code = -errno;
    (void)snprintf(message.step, sizeof(message.step), "execute it");
    _exit(bt_write_all(launch->message_fds[1], &message, sizeof(message)) < 0 ? 125 : 126);
}

/* Reads the child's messages until it became qemu or ended; the last one counts. */
static int read_messages(int message_fd, struct child_message *ret_message)
{
    struct child_message message;
    int count = 0;
    for (;;) {
        ssize_t length = read(message_fd, &message, sizeof(message));
        if (length < 0 && errno == EINTR)
            continue;
        if (length != (ssize_t)sizeof(message))
            return count > 0 ? 0 : -ECHILD;
        *ret_message = message;
        count++;
    }
}

static int fail_with_complaints(const struct launch *launch, int code, struct bt_error *error)
{
    char text[512] = "";
    ssize_t length = pread(launch->child_fds[BT_QEMU_FD_ERRORS], text, sizeof(text) - 1, 0);
    for (ssize_t i = 0; i < length; i++)
        if (text[i] == '\n')
            text[i] = text[i + 1] == '\0' ? '\0' : ' ';
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -code, NULL, "qemu did not start: %s",
                   text[0] != '\0' ? text : strerror(-code));
}

/* Waits for the jail and for qemu's greeting. On failure the caller ends the process. */
static int wait_for_monitor(struct launch *launch, struct bt_machine *machine, struct bt_error *error)
{
    struct child_message message;
    int result = read_messages(launch->message_fds[0], &message);
    if (result < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, NULL, "the monitor ended before it began");
    if (message.code < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -message.code, NULL, "the monitor could not %s: %s",
                       message.step, strerror(-message.code));
    bt_jail_describe(&message.jail, machine->jail, sizeof(machine->jail));
    result = bt_qmp_open(launch->control_fd, machine->pid_fd, START_TIMEOUT_MS);
    return result < 0 ? fail_with_complaints(launch, result, error) : 0;
}

static int start_process(struct launch *launch, struct bt_machine *ret_machine, struct bt_error *error)
{
    struct bt_machine machine = {
        .pid_fd = -1, .control_fd = -1, .power_fd = -1, .uses_kvm = launch->uses_kvm};
    pid_t parent_pid = getpid();
    machine.pid = fork();
    if (machine.pid == 0)
        run_child(launch, parent_pid);
    if (machine.pid < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, errno, NULL, "cannot make a process: %s",
                       strerror(errno));
    bt_fd_close(&launch->message_fds[1]);
    machine.pid_fd = (int)syscall(SYS_pidfd_open, machine.pid, 0);
    int result = machine.pid_fd < 0 ? bt_fail(error, BT_EXIT_INFRASTRUCTURE, errno, NULL,
                                              "cannot watch the monitor: %s", strerror(errno))
                                    : wait_for_monitor(launch, &machine, error);
    if (result < 0) {
        bt_machine_stop(&machine, 0);
        return result;
    }
    machine.control_fd = bt_fd_take(&launch->control_fd);
    machine.power_fd = bt_fd_take(&launch->power_fd);
    *ret_machine = machine;
    return 0;
}

static int launch_once(const struct bt_machine_config *config, bool uses_kvm, int initrd_fd,
                       const struct bt_time_stamp *stamp, struct bt_machine *ret_machine,
                       struct bt_error *error)
{
    auto_launch launch;
    launch_init(&launch, config);
    launch.uses_kvm = uses_kvm;
    if (find_program(launch.program) < 0)
        return bt_machine_check(NULL, error);
    int result = open_channels(&launch);
    if (result == 0) {
        launch.child_fds[BT_QEMU_FD_INITRD] = fcntl(initrd_fd, F_DUPFD_CLOEXEC, 3);
        result = launch.child_fds[BT_QEMU_FD_INITRD] < 0 ? -errno : 0;
    }
    if (result < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, NULL,
                       "cannot open the channels of the machine: %s", strerror(-result));
    bt_qemu_arguments(config, launch.program, uses_kvm, uses_kvm ? 0 : bt_time_stamp_khz(stamp),
                      &launch.arguments);
    return start_process(&launch, ret_machine, error);
}

int bt_machine_start(const struct bt_machine_config *config, struct bt_machine *ret_machine,
                     struct bt_error *error)
{
    struct bt_time_stamp stamp;
    char reason[128];
    bt_time_stamp_start(&stamp);
    int result = check_config(config, error);
    if (result < 0)
        return result;
    bt_auto_fd initrd_fd = -1;
    result = bt_initrd_make(config->initrd_path, config->initrd_extra, config->initrd_extra_length,
                            &initrd_fd, error);
    if (result < 0)
        return result;
    if (bt_kvm_works(reason, sizeof(reason)) &&
        launch_once(config, true, initrd_fd, &stamp, ret_machine, error) == 0)
        return 0;
    /* No KVM, or one that this qemu cannot use. */
    return launch_once(config, false, initrd_fd, &stamp, ret_machine, error);
}

static bool wait_for_end(const struct bt_machine *machine, int timeout_ms)
{
    struct pollfd ended = {.fd = machine->pid_fd, .events = POLLIN};
    return machine->pid_fd >= 0 && poll(&ended, 1, timeout_ms) > 0;
}

/* Asks again every second: a guest that is still booting may have missed it. Returns whether it ended. */
static bool ask_to_end(const struct bt_machine *machine, int grace_ms)
{
    static const char command[] = "\npoweroff\n";
    bool is_ended = wait_for_end(machine, 0);
    while (!is_ended && grace_ms > 0 && machine->power_fd >= 0) {
        int step_ms = grace_ms < ASK_AGAIN_MS ? grace_ms : ASK_AGAIN_MS;
        (void)send(machine->power_fd, command, sizeof(command) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        is_ended = wait_for_end(machine, step_ms);
        grace_ms -= step_ms;
    }
    return is_ended;
}

void bt_machine_stop(struct bt_machine *machine, int grace_ms)
{
    if (machine->pid > 0) {
        if (!ask_to_end(machine, grace_ms))
            (void)kill(machine->pid, SIGKILL);
        while (waitpid(machine->pid, NULL, 0) < 0 && errno == EINTR) {
        }
        bt_fd_close(&machine->pid_fd);
        bt_fd_close(&machine->control_fd);
        bt_fd_close(&machine->power_fd);
    }
    *machine = (struct bt_machine){.pid_fd = -1, .control_fd = -1, .power_fd = -1};
}
