/* vm/machine_qemu.c and vm/init: real guests on qemu, in a network namespace of this test. The guest is an
 * orchestrator, which needs no disk: kernel, initrd and its configuration are all of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "images/images.h"
#include "lib/file.h"
#include "tests/lib/network.h"
#include "vm/guest_config.h"
#include "vm/machine.h"

#define HOST_ADDRESS 0x0af30000U
#define GUEST_ADDRESS 0x0af30001U
#define GUEST_PORT 7400
#define BOOT_LIMIT_MS 60000
#define SECRET "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2"

static const uint8_t guest_mac[6] = {0x02, 0xbe, 0x27, 0, 0, 1};
static struct bt_image kernel;
static char folder[] = "/tmp/berth-machine-XXXXXX";
static int tap_fd = -1;
static int console[2] = {-1, -1};

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int set_up(void **state)
{
    (void)state;
    struct bt_paths paths;
    struct bt_error error = {0};
    if (bt_paths_load(&paths, &error) < 0 ||
        bt_image_get(&paths, "kernel", true, NULL, &kernel, &error) < 0) {
        print_error("# %s\n", error.message);
        return -1;
    }
    if (mkdtemp(folder) == NULL)
        return -1;
    network_enter();
    int result = network_make_tap(HOST_ADDRESS, GUEST_ADDRESS, guest_mac, &tap_fd);
    if (result < 0)
        print_error("# no TAP device: %s\n", strerror(-result));
    return result;
}

static int tear_down(void **state)
{
    (void)state;
    bt_fd_close(&tap_fd);
    return bt_tree_remove(folder, NULL);
}

/* ---- machines ---- */

static int make_console(void **state)
{
    (void)state;
    return pipe2(console, O_CLOEXEC);
}

static int close_console(void **state)
{
    (void)state;
    bt_fd_close(&console[0]);
    bt_fd_close(&console[1]);
    return 0;
}

static struct bt_machine_config machine_config(const struct bt_buffer *archive)
{
    struct bt_machine_config config = {.kernel_path = kernel.path,
                                       .initrd_path = kernel.initrd_path,
                                       .initrd_extra = archive->data,
                                       .initrd_extra_length = archive->length,
                                       .tap_fd = tap_fd,
                                       .memory_bytes = 256ULL << 20,
                                       .cpus = 1,
                                       .console_fd = console[1]};
    memcpy(config.mac, guest_mac, sizeof(guest_mac));
    return config;
}

static void configure_orchestrator(struct bt_buffer *archive)
{
    static const char config[] =
        "{\"listen\": \"0.0.0.0:7400\", \"registry\": \"/var/lib/berth/registry.db\", "
        "\"host_key_sha256\": \"" SECRET "\", \"gateway_secret_sha256\": \"" SECRET "\"}";
    char path[512];
    struct bt_error error = {0};
    bt_auto_buffer program = {0};
    assert_int_equal(bt_program_path("berth-orchestrator", path, &error), 0);
    assert_int_equal(bt_file_read(path, 32U << 20, &program, &error), 0);
    const struct bt_guest_file files[] = {
        {"bin/berth-orchestrator", program.data, program.length, 0755},
        {"config/orchestrator.json", config, sizeof(config) - 1, 0400},
    };
    struct bt_guest_config guest = {.role = BT_GUEST_ORCHESTRATOR,
                                    .host_name = "orchestrator",
                                    .address = GUEST_ADDRESS,
                                    .host_address = HOST_ADDRESS,
                                    .prefix_length = 31,
                                    .time_seconds = (uint64_t)time(NULL),
                                    .files = files,
                                    .file_count = BT_ARRAY_LENGTH(files)};
    assert_int_equal(bt_guest_config_write(&guest, archive, &error), 0);
}

static void start(const struct bt_machine_config *config, struct bt_machine *ret_machine)
{
    struct bt_error error = {0};
    if (bt_machine_start(config, ret_machine, &error) < 0)
        fail_msg("%s", error.message);
    bt_fd_close(&console[1]);
}

/* One question over TCP; 0 when an answer came. A guest that is not up yet does not answer: short tries. */
static int ask(char *ret_answer, size_t size)
{
    static const char question[] = "GET /v1/health HTTP/1.1\r\nHost: o\r\nConnection: close\r\n\r\n";
    struct sockaddr address;
    struct timeval try_time = {.tv_usec = 100000};
    struct timeval answer_time = {.tv_sec = 10};
    network_address(&address, GUEST_ADDRESS, GUEST_PORT);
    bt_auto_fd socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(socket_fd, SOL_SOCKET, SO_SNDTIMEO, &try_time, sizeof(try_time));
    if (connect(socket_fd, &address, sizeof(address)) < 0)
        return -errno;
    (void)setsockopt(socket_fd, SOL_SOCKET, SO_RCVTIMEO, &answer_time, sizeof(answer_time));
    if (send(socket_fd, question, sizeof(question) - 1, MSG_NOSIGNAL) < 0)
        return -errno;
    ssize_t length = recv(socket_fd, ret_answer, size - 1, MSG_WAITALL);
    if (length <= 0)
        return -EIO;
    ret_answer[length] = '\0';
    return 0;
}

static int wait_for_answer(const struct bt_machine *machine, char *ret_answer, size_t size)
{
    int64_t deadline_ms = now_ms() + BOOT_LIMIT_MS;
    while (ask(ret_answer, size) < 0) {
        struct pollfd ended = {.fd = machine->pid_fd, .events = POLLIN};
        if (poll(&ended, 1, 10) > 0)
            return -ECANCELED;
        if (now_ms() > deadline_ms)
            return -ETIMEDOUT;
    }
    return 0;
}

static void read_console(char *ret_text, size_t size)
{
    size_t length = 0;
    while (length < size - 1) {
        struct pollfd readable = {.fd = console[0], .events = POLLIN};
        ssize_t count = poll(&readable, 1, BOOT_LIMIT_MS) > 0
                            ? read(console[0], ret_text + length, size - 1 - length)
                            : 0;
        if (count <= 0)
            break;
        length += (size_t)count;
    }
    ret_text[length] = '\0';
}

static bool has_in_file(pid_t pid, const char *name, const char *wanted)
{
    char path[64];
    static char text[65536];
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
    bt_auto_fd file_fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(file_fd >= 0);
    ssize_t length = read(file_fd, text, sizeof(text));
    assert_true(length >= 0);
    return length > 0 && memmem(text, (size_t)length, wanted, strlen(wanted)) != NULL;
}

static bool is_gone(int pid_fd, int timeout_ms)
{
    struct pollfd ended = {.fd = pid_fd, .events = POLLIN};
    return poll(&ended, 1, timeout_ms) == 1;
}

static void t_machine_boots_answers_and_powers_off(void **state)
{
    (void)state;
    char answer[2048];
    struct bt_machine machine;
    bt_auto_buffer archive = {0};
    configure_orchestrator(&archive);
    struct bt_machine_config config = machine_config(&archive);
    int64_t start_ms = now_ms();
    start(&config, &machine);
    int64_t started_ms = now_ms();
    assert_int_equal(wait_for_answer(&machine, answer, sizeof(answer)), 0);
    print_message("# monitor %lld ms, first answer %lld ms, %s, %s\n", (long long)(started_ms - start_ms),
                  (long long)(now_ms() - start_ms), machine.uses_kvm ? "KVM" : "TCG", machine.jail);
    assert_non_null(strstr(answer, "200"));
    assert_non_null(strstr(answer, "\"status\""));
    assert_non_null(strstr(machine.jail, "seccomp"));
    assert_false(has_in_file(machine.pid, "cmdline", SECRET));
    assert_false(has_in_file(machine.pid, "environ", SECRET));
    assert_true(has_in_file(machine.pid, "status", "NoNewPrivs:\t1"));
    assert_true(has_in_file(machine.pid, "status", "CapEff:\t0000000000000000"));
    start_ms = now_ms();
    bt_machine_stop(&machine, 20000);
    print_message("# powered off in %lld ms\n", (long long)(now_ms() - start_ms));
    assert_true(now_ms() - start_ms < 20000); /* by itself, not by force */
    assert_int_equal(machine.pid, 0);
    assert_true(ask(answer, sizeof(answer)) < 0);
    read_console(answer, sizeof(answer));
    assert_non_null(strstr(answer, "berth-init: switching off"));
    bt_machine_stop(&machine, 0); /* again: nothing to do */
}

static void t_machine_shows_the_end_of_its_monitor(void **state)
{
    (void)state;
    struct bt_machine machine;
    bt_auto_buffer archive = {0};
    configure_orchestrator(&archive);
    struct bt_machine_config config = machine_config(&archive);
    start(&config, &machine);
    assert_false(is_gone(machine.pid_fd, 0));
    assert_int_equal(kill(machine.pid, SIGKILL), 0);
    assert_true(is_gone(machine.pid_fd, 5000));
    int64_t start_ms = now_ms();
    bt_machine_stop(&machine, 10000);
    assert_true(now_ms() - start_ms < 5000);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* reaped */
}

static void t_machine_ends_with_its_keeper(void **state)
{
    (void)state;
    int told[2];
    pid_t monitor_pid = 0;
    bt_auto_buffer archive = {0};
    configure_orchestrator(&archive);
    struct bt_machine_config config = machine_config(&archive);
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    pid_t keeper_pid = fork();
    assert_true(keeper_pid >= 0);
    if (keeper_pid == 0) {
        struct bt_machine machine;
        if (bt_machine_start(&config, &machine, NULL) == 0)
            (void)!write(told[1], &machine.pid, sizeof(machine.pid));
        for (;;)
            pause();
    }
    (void)close(told[1]);
    assert_int_equal(read(told[0], &monitor_pid, sizeof(monitor_pid)), sizeof(monitor_pid));
    (void)close(told[0]);
    bt_auto_fd pid_fd = (int)syscall(SYS_pidfd_open, monitor_pid, 0);
    assert_true(pid_fd >= 0);
    assert_false(is_gone(pid_fd, 0));
    assert_int_equal(kill(keeper_pid, SIGKILL), 0);
    assert_true(is_gone(pid_fd, 5000));
    assert_int_equal(waitpid(keeper_pid, NULL, 0), keeper_pid);
}

static void t_machine_says_why_it_did_not_boot(void **state)
{
    (void)state;
    char text[4096];
    struct bt_machine machine;
    bt_auto_buffer archive = {0};
    assert_int_equal(bt_cpio_add(&archive, "berth", S_IFDIR | 0755, NULL, 0), 0);
    assert_int_equal(bt_cpio_add(&archive, "berth/guest.conf", 0400, "role king\n", 10), 0);
    assert_int_equal(bt_cpio_finish(&archive), 0);
    struct bt_machine_config config = machine_config(&archive);
    start(&config, &machine);
    assert_true(is_gone(machine.pid_fd, BOOT_LIMIT_MS)); /* by itself */
    read_console(text, sizeof(text));
    assert_non_null(strstr(text, "berth-init: fatal: guest.conf is not valid (line 1)"));
    bt_machine_stop(&machine, 0);
}

/* ---- what cannot start ---- */

static void make_disk(char ret_path[128], const char *name, mode_t mode)
{
    (void)snprintf(ret_path, 128, "%s/%s", folder, name);
    int disk_fd = open(ret_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(disk_fd >= 0);
    assert_int_equal(ftruncate(disk_fd, 1 << 20), 0);
    assert_int_equal(fchmod(disk_fd, mode), 0);
    (void)close(disk_fd);
}

static void expect_refusal(const struct bt_machine_config *config, const char *wanted)
{
    struct bt_error error = {0};
    struct bt_machine machine = {.pid = 77};
    assert_true(bt_machine_start(config, &machine, &error) < 0);
    if (strstr(error.message, wanted) == NULL)
        fail_msg("'%s' does not say '%s'", error.message, wanted);
    assert_int_equal(machine.pid, 77);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing left */
}

static void t_machine_refuses_what_is_not_there(void **state)
{
    (void)state;
    char path[128];
    bt_auto_buffer archive = {0};
    const struct bt_machine_config good = machine_config(&archive);
    struct bt_machine_config config = good;
    config.kernel_path = "/no/such/kernel";
    expect_refusal(&config, "/no/such/kernel");
    config = good;
    config.initrd_path = "/no/such/initrd";
    expect_refusal(&config, "/no/such/initrd");
    config = good;
    config.memory_bytes = 1 << 20;
    expect_refusal(&config, "memory");
    config = good;
    config.cpus = 0;
    expect_refusal(&config, "processors");
    config = good;
    config.disk_count = 1;
    config.disks[0].path = "/no/such/disk";
    expect_refusal(&config, "/no/such/disk");
    make_disk(path, "not,a kernel", 0600);
    config = good;
    config.kernel_path = path;
    expect_refusal(&config, "qemu did not start");
}

static void t_machine_shares_disks_only_read_only(void **state)
{
    (void)state;
    char shared[128], own[128];
    struct bt_machine first, second;
    bt_auto_buffer archive = {0};
    make_disk(shared, "shared,1", 0400);
    make_disk(own, "own", 0600);
    struct bt_machine_config config = machine_config(&archive);
    config.tap_fd = -1;
    config.disks[0] = (struct bt_machine_disk){shared, true};
    config.disk_count = 1;
    struct bt_error error = {0};
    assert_int_equal(bt_machine_start(&config, &first, &error), 0);
    config.disks[1] = (struct bt_machine_disk){own, false};
    config.disk_count = 2;
    assert_int_equal(bt_machine_start(&config, &second, &error), 0);
    bt_machine_stop(&first, 0);
    struct bt_machine third = {0};
    assert_true(bt_machine_start(&config, &third, &error) < 0); /* the second one writes to its own disk */
    assert_non_null(strstr(error.message, "lock"));
    bt_machine_stop(&second, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(t_machine_boots_answers_and_powers_off, make_console, close_console),
        cmocka_unit_test_setup_teardown(t_machine_shows_the_end_of_its_monitor, make_console, close_console),
        cmocka_unit_test_setup_teardown(t_machine_ends_with_its_keeper, make_console, close_console),
        cmocka_unit_test_setup_teardown(t_machine_says_why_it_did_not_boot, make_console, close_console),
        cmocka_unit_test_setup_teardown(t_machine_refuses_what_is_not_there, make_console, close_console),
        cmocka_unit_test_setup_teardown(t_machine_shares_disks_only_read_only, make_console, close_console),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
