/* The baseline of the launch figure: a bare boot of the same kernel and image, with the same machine, to the
 * same SSH command, without berth: no helper, no registration, no jail, no probe.
 *
 *   bench_boot KERNEL INITRD ROOT-IMAGE FOLDER ROUNDS
 *
 * Run as root of a network namespace: makes the TAP bench0 there (10.9.0.0/31). Prints one time in ms a line.
 */
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "images/images.h"
#include "lib/spawn.h"
#include "vm/guest_config.h"
#include "vm/guest_link.h"
#include "vm/initrd.h"
#include "vm/qemu_arguments.h"
#include "vm/time_stamp.h"

#define HOST_ADDRESS 0x0a090000U
#define GUEST_ADDRESS 0x0a090001U

static _Noreturn void fail(const struct bt_error *error)
{
    (void)fprintf(stderr, "bench_boot: %s\n", error->message);
    exit(1);
}

static double now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1000.0 + (double)now.tv_nsec / 1e6;
}

static int open_tap(void)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    const char *const address[] = {"ip", "addr", "add", "10.9.0.0/31", "dev", "bench0", NULL};
    const char *const up[] = {"ip", "link", "set", "bench0", "up", NULL};
    /* As a careful person would: without it the first packet to a booting guest waits for ARP's retry, up to
     * a second. */
    const char *const neighbour[] = {"ip",  "neigh",     "replace", "10.9.0.1",
                                     "dev", "bench0",    "lladdr",  "02:be:00:00:00:01",
                                     "nud", "permanent", NULL};
    struct bt_error error;
    struct bt_spawn_result result;
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    memcpy(request.ifr_name, "bench0", 7);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0) {
        perror("bench_boot: TAP");
        exit(1);
    }
    if (bt_spawn_check(&(struct bt_spawn){.arguments = address}, &result, &error) < 0)
        fail(&error);
    bt_spawn_result_free(&result);
    if (bt_spawn_check(&(struct bt_spawn){.arguments = up}, &result, &error) < 0)
        fail(&error);
    bt_spawn_result_free(&result);
    if (bt_spawn_check(&(struct bt_spawn){.arguments = neighbour}, &result, &error) < 0)
        fail(&error);
    bt_spawn_result_free(&result);
    return fd;
}

static void make_disks(const char *folder, struct bt_machine_config *config, char paths[3][600])
{
    static const char *const names[] = {"scratch", "home", "workspace"};
    struct bt_error error;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        (void)snprintf(paths[i], 600, "%s/%s.ext4", folder, names[i]);
        if (bt_tree_remove(paths[i], &error) < 0 ||
            bt_ext4_make_empty(paths[i], 4ULL << 30, names[i], &error) < 0)
            fail(&error);
        config->disks[1 + i] = (struct bt_machine_disk){paths[i], false};
    }
    config->disk_count = 4;
}

static int make_initrd(const struct bt_machine_config *config, const struct bt_guest_keys *keys)
{
    struct bt_error error;
    bt_auto_buffer extra = {0};
    struct bt_guest_file files[] = {
        {"authorized_keys", keys->public_key, strlen(keys->public_key), 0400},
        {"dropbear_ed25519_host_key", keys->host_key.data, keys->host_key.length, 0400},
    };
    struct bt_guest_config guest = {
        .role = BT_GUEST_AGENT,
        .host_name = "bench",
        .address = GUEST_ADDRESS,
        .host_address = HOST_ADDRESS,
        .prefix_length = 31,
        .time_seconds = (uint64_t)time(NULL),
        .has_root_image = true,
        .has_scratch_disk = true,
        .has_home_disk = true,
        .has_workspace_disk = true,
        .files = files,
        .file_count = BT_ARRAY_LENGTH(files),
    };
    int fd = -1;
    if (bt_guest_config_write(&guest, &extra, &error) < 0 ||
        bt_initrd_make(config->initrd_path, extra.data, extra.length, &fd, &error) < 0)
        fail(&error);
    return fd;
}

static pid_t start_qemu(const struct bt_machine_config *config, int initrd_fd, uint64_t tsc_khz)
{
    bt_auto_list arguments = {0};
    int control[2];
    bt_qemu_arguments(config, BT_QEMU_PROGRAM, false, tsc_khz, &arguments);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) < 0)
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        int null_fd = open("/dev/null", O_RDWR);
        int copies[BT_QEMU_FD_COUNT] = {null_fd, null_fd, 2, control[1], initrd_fd, config->tap_fd};
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < BT_QEMU_FD_COUNT; i++)
            copies[i] = fcntl(copies[i], F_DUPFD_CLOEXEC, 32);
        for (int i = 0; i < BT_QEMU_FD_COUNT; i++)
            if (dup2(copies[i], i) < 0)
                _exit(127);
        (void)execvp(arguments.items[0], arguments.items);
        _exit(127);
    }
    (void)close(control[1]);
    return child;
}

static void run_true(const struct bt_guest_keys *keys)
{
    static const char *const arguments[] = {"true", NULL};
    static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    struct bt_error error;
    struct bt_guest_link *link;
    struct bt_guest_address address = {GUEST_ADDRESS, 22, keys->private_key, keys->host_public_key};
    struct bt_guest_command command = {.arguments = arguments,
                                       .environment = environment,
                                       .folder = "/",
                                       .uid = 1000,
                                       .gid = 1000,
                                       .input_fd = -1};
    bt_auto_buffer output = {0};
    bt_auto_buffer errors = {0};
    int status;
    if (bt_guest_connect(&address, 120000, -1, &link, &error) < 0 ||
        bt_guest_run_collect(link, &command, 4096, &output, &errors, &status, &error) < 0)
        fail(&error);
    bt_guest_close(link);
}

static double one_round(const char *const *arguments, int tap_fd, uint64_t tsc_khz)
{
    struct bt_error error;
    struct bt_guest_keys keys;
    char paths[3][600];
    struct bt_machine_config config = {
        .kernel_path = arguments[1],
        .initrd_path = arguments[2],
        .disks = {{arguments[3], true}},
        .tap_fd = tap_fd,
        .mac = {0x02, 0xbe, 0, 0, 0, 1},
        .memory_bytes = 512ULL << 20,
        .cpus = 1,
        .folder = arguments[4],
    };
    if (bt_guest_keys_make(&keys, &error) < 0)
        fail(&error);
    make_disks(arguments[4], &config, paths);
    int initrd_fd = make_initrd(&config, &keys);
    double started = now_ms();
    pid_t qemu = start_qemu(&config, initrd_fd, tsc_khz);
    run_true(&keys);
    double took = now_ms() - started;
    (void)kill(qemu, SIGKILL);
    (void)waitpid(qemu, NULL, 0);
    (void)close(initrd_fd);
    bt_guest_keys_free(&keys);
    return took;
}

int main(int count, char **arguments)
{
    struct bt_time_stamp stamp;
    uint64_t rounds;
    if (count != 6 || bt_number_parse(arguments[5], strlen(arguments[5]), 1, 100, &rounds) < 0) {
        (void)fputs("usage: bench_boot KERNEL INITRD ROOT-IMAGE FOLDER ROUNDS\n", stderr);
        return 64;
    }
    bt_time_stamp_start(&stamp);
    int tap_fd = open_tap();
    uint64_t tsc_khz = bt_time_stamp_khz(&stamp);
    for (uint64_t i = 0; i < rounds; i++) {
        (void)printf("%.0f\n", one_round((const char *const *)arguments, tap_fd, tsc_khz));
        (void)fflush(stdout);
    }
    return 0;
}
