/* vm/init in the role of an agent: the shell image on qemu, asked over SSH what it is like inside. Two boots
 * with the same disks: what an agent wrote is still there after the machine was switched off.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "images/images.h"
#include "lib/file.h"
#include "tests/lib/network.h"
#include "vm/guest_config.h"
#include "vm/guest_link.h"
#include "vm/machine.h"

#define HOST_ADDRESS 0x0af30002U
#define GUEST_ADDRESS 0x0af30003U
#define BOOT_LIMIT_MS 90000
#define COMMAND_LIMIT_MS 60000
#define AGENT 1000
#define HOST_DISK_SIZE "96m"

static const uint8_t guest_mac[6] = {0x02, 0xbe, 0x27, 0, 0, 2};
static struct bt_image kernel, root;
static struct bt_guest_keys keys;
static struct bt_machine machine;
static struct bt_guest_link *guest;
static char folder[] = "/tmp/berth-guest-XXXXXX";
static char disks[3][64];
static int tap_fd = -1;
static int console_fd = -1;

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int complain(const struct bt_error *error)
{
    print_error("# %s\n", error->message);
    return -1;
}

static int configure(struct bt_buffer *archive, struct bt_error *error)
{
    const struct bt_guest_file files[] = {
        {"authorized_keys", keys.public_key, strlen(keys.public_key), 0400},
        {"dropbear_ed25519_host_key", keys.host_key.data, keys.host_key.length, 0400},
        {"config/trust.pem", "trust\n", 6, 0444},
    };
    struct bt_guest_config config = {.role = BT_GUEST_AGENT,
                                     .host_name = "agent-7",
                                     .address = GUEST_ADDRESS,
                                     .host_address = HOST_ADDRESS,
                                     .prefix_length = 31,
                                     .time_seconds = (uint64_t)time(NULL),
                                     .has_root_image = true,
                                     .has_scratch_disk = true,
                                     .has_home_disk = true,
                                     .has_workspace_disk = true,
                                     .files = files,
                                     .file_count = BT_ARRAY_LENGTH(files)};
    return bt_guest_config_write(&config, archive, error);
}

static int boot(void)
{
    struct bt_error error = {0};
    bt_auto_buffer archive = {0};
    if (configure(&archive, &error) < 0)
        return complain(&error);
    struct bt_machine_config config = {
        .kernel_path = kernel.path,
        .initrd_path = kernel.initrd_path,
        .initrd_extra = archive.data,
        .initrd_extra_length = archive.length,
        .disks = {{root.path, true}, {disks[0], false}, {disks[1], false}, {disks[2], false}},
        .disk_count = 4,
        .tap_fd = tap_fd,
        .memory_bytes = 512ULL << 20,
        .cpus = 1,
        .console_fd = console_fd};
    struct bt_guest_address address = {GUEST_ADDRESS, 22, keys.private_key, keys.host_public_key};
    memcpy(config.mac, guest_mac, sizeof(guest_mac));
    int64_t start_ms = now_ms();
    if (bt_machine_start(&config, &machine, &error) < 0 ||
        bt_guest_connect(&address, BOOT_LIMIT_MS, machine.pid_fd, &guest, &error) < 0)
        return complain(&error);
    print_message("# %lld ms from the start to an SSH session\n", (long long)(now_ms() - start_ms));
    return 0;
}

static void power_off(void)
{
    guest = bt_guest_close(guest);
    int64_t start_ms = now_ms();
    bt_machine_stop(&machine, 30000);
    assert_true(now_ms() - start_ms < 30000);
}

static int make_disks(struct bt_error *error)
{
    static const char *const names[] = {"scratch", "home", "workspace"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        (void)snprintf(disks[i], sizeof(disks[i]), "%s/%s.ext4", folder, names[i]);
        if (bt_ext4_make_empty(disks[i], 1ULL << 30, names[i], error) < 0)
            return complain(error);
    }
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    struct bt_paths paths;
    struct bt_error error = {0};
    if (bt_paths_load(&paths, &error) < 0 ||
        bt_image_get(&paths, "kernel", true, NULL, &kernel, &error) < 0 ||
        bt_image_get(&paths, "shell", true, NULL, &root, &error) < 0 || bt_guest_keys_make(&keys, &error) < 0)
        return complain(&error);
    if (mkdtemp(folder) == NULL)
        return -1;
    network_enter();
    /* The host's disk of this test: small, so that it can be filled. */
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=" HOST_DISK_SIZE) < 0) {
        print_error("# cannot mount: %s\n", strerror(errno));
        return -1;
    }
    if (make_disks(&error) < 0)
        return -1;
    console_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int result = network_make_tap(HOST_ADDRESS, GUEST_ADDRESS, guest_mac, &tap_fd);
    if (result < 0)
        print_error("# no TAP device: %s\n", strerror(-result));
    return result < 0 ? result : boot();
}

static int tear_down(void **state)
{
    (void)state;
    guest = bt_guest_close(guest);
    bt_machine_stop(&machine, 0);
    bt_guest_keys_free(&keys);
    bt_fd_close(&tap_fd);
    bt_fd_close(&console_fd);
    (void)umount(folder);
    return rmdir(folder);
}

/* ---- questions ---- */

static const char *const environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                                          "SECRET=of the agent", NULL};

/* Runs arguments as uid; what it said, both streams, stays in output until the next call. */
static char output[16384];

static int run(uint32_t uid, const char *const *arguments)
{
    struct bt_error error = {0};
    bt_auto_buffer said = {0};
    bt_auto_buffer complained = {0};
    int status = -1;
    struct bt_guest_command command = {.arguments = arguments,
                                       .environment = environment,
                                       .folder = uid == 0 ? "/" : "/home/agent",
                                       .uid = uid,
                                       .gid = uid,
                                       .input_fd = -1,
                                       .timeout_ms = COMMAND_LIMIT_MS};
    if (bt_guest_run_collect(guest, &command, 8000, &said, &complained, &status, &error) < 0)
        fail_msg("%s", error.message);
    (void)snprintf(output, sizeof(output), "%s%s", said.data != NULL ? said.data : "",
                   complained.data != NULL ? complained.data : "");
    return status;
}

static int shell(uint32_t uid, const char *script)
{
    const char *const arguments[] = {"sh", "-c", script, NULL};
    return run(uid, arguments);
}

static void expect_output(uint32_t uid, const char *script, const char *wanted)
{
    (void)shell(uid, script);
    if (strcmp(output, wanted) != 0)
        fail_msg("%s: '%s' instead of '%s'", script, output, wanted);
}

static void t_guest_runs_commands_as_the_agent(void **state)
{
    (void)state;
    expect_output(AGENT, "id -u; id -g; id -G; pwd; hostname", "1000\n1000\n1000\n/home/agent\nagent-7\n");
    expect_output(AGENT, "tr '\\0' '\\n' </proc/$$/environ",
                  "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\nSECRET=of the agent\n");
}

static void t_guest_agent_has_no_privilege(void **state)
{
    (void)state;
    expect_output(AGENT, "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs):' /proc/self/status",
                  "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
                  "CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n");
    assert_int_not_equal(shell(AGENT, "su -c true </dev/null"), 0);
    assert_int_not_equal(shell(AGENT, "/run/berth/bin/berth-init run </dev/null"), 0);
    assert_int_not_equal(shell(AGENT, "/run/berth/bin/berth-init poweroff"), 0);
    expect_output(AGENT, "cat /proc/self/oom_score_adj", "0\n");
}

static void t_guest_passes_exit_statuses(void **state)
{
    (void)state;
    const char *const missing[] = {"no-such-program", NULL};
    const char *const not_executable[] = {"/etc/passwd", NULL};
    const char *const folder_as_program[] = {"/etc", NULL};
    assert_int_equal(shell(AGENT, "exit 0"), 0);
    assert_int_equal(shell(AGENT, "exit 201"), 201);
    assert_int_equal(shell(AGENT, "kill -9 $$"), 128 + 9);
    assert_int_equal(run(AGENT, missing), 127);
    assert_non_null(strstr(output, "no such program in the guest: no-such-program\n"));
    assert_int_equal(run(AGENT, not_executable), 126);
    assert_int_equal(run(AGENT, folder_as_program), 126);
}

/* The host's key opens one command; there is no shell behind it. */
static void t_guest_gives_no_shell_to_logins(void **state)
{
    (void)state;
    expect_output(0, "grep ^root: /etc/passwd | cut -d: -f7", "/run/berth/bin/berth-init\n");
    expect_output(0, "/run/berth/bin/berth-init -c 'id' 2>/dev/null; echo $?", "64\n");
    expect_output(AGENT, "grep ^agent: /etc/passwd | cut -d: -f6,7", "/home/agent:/bin/bash\n");
}

static void t_guest_keeps_secrets_from_the_agent(void **state)
{
    (void)state;
    static const char *const files[] = {"guest.conf", "authorized_keys", "dropbear_ed25519_host_key"};
    char script[128];
    for (size_t i = 0; i < BT_ARRAY_LENGTH(files); i++) {
        (void)snprintf(script, sizeof(script), "cat /run/berth/%s", files[i]);
        assert_int_equal(shell(0, script), 0);
        assert_int_not_equal(shell(AGENT, script), 0);
    }
    assert_int_not_equal(shell(AGENT, "ls /run/berth"), 0);
    assert_int_not_equal(shell(AGENT, "ls /root"), 0);
    assert_int_not_equal(shell(AGENT, "head -c 1 /dev/vda || head -c 1 /dev/console"), 0);
    expect_output(AGENT, "cat /run/berth/config/trust.pem", "trust\n");
    assert_int_not_equal(shell(AGENT, "echo x >/run/berth/config/trust.pem"), 0);
}

/* What root is asked to do in the agent's folders it does in no other: a link there leads it nowhere. */
static void t_guest_root_follows_no_link_of_the_agent(void **state)
{
    static const char *const list[] = {"ls", NULL};
    static const char *const folders[] = {"/workspace/elsewhere", "/workspace/elsewhere/etc", "/workspace"};
    static const int statuses[] = {126, 126, 0};
    (void)state;
    assert_int_equal(shell(AGENT, "ln -s / /workspace/elsewhere"), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(folders); i++) {
        struct bt_error error = {0};
        bt_auto_buffer said = {0};
        bt_auto_buffer complained = {0};
        int status = -1;
        const struct bt_guest_command command = {.arguments = list,
                                                 .environment = environment,
                                                 .folder = folders[i],
                                                 .input_fd = -1,
                                                 .timeout_ms = COMMAND_LIMIT_MS};
        assert_int_equal(bt_guest_run_collect(guest, &command, 8000, &said, &complained, &status, &error), 0);
        assert_int_equal(status, statuses[i]);
    }
    assert_int_equal(shell(AGENT, "rm /workspace/elsewhere"), 0);
}

static void t_guest_is_on_its_network(void **state)
{
    (void)state;
    expect_output(0, "grep nameserver /etc/resolv.conf", "nameserver 10.243.0.2\n");
    expect_output(0, "awk '$2 == \"00000000\" {print $1, $3}' /proc/net/route", "eth0 0200F30A\n");
    expect_output(0, "grep -c . /proc/net/if_inet6; grep -v ' lo$' /proc/net/if_inet6", "1\n");
    expect_output(0, "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0\n1\n");
}

static void t_guest_disks_are_mounted_for_the_agent(void **state)
{
    (void)state;
    expect_output(AGENT, "stat -c '%U %a' /home/agent /workspace /tmp", "agent 755\nagent 755\nroot 1777\n");
    expect_output(
        0, "grep -E ' (/|/home/agent|/workspace|/run/berth|/dev/shm) ' /proc/mounts | grep -vc nosuid,nodev",
        "0\n");
    assert_int_not_equal(shell(0, "touch /lower/x 2>&1"), 0);
    expect_output(0, "cat /proc/sys/kernel/modules_disabled", "1\n");
    assert_int_equal(shell(0, "cp /bin/true /tmp/t && chmod 4755 /tmp/t && mknod /tmp/n c 1 3"), 0);
    assert_int_not_equal(shell(AGENT, "cat /tmp/n"), 0);
}

static void t_guest_clock_is_right(void **state)
{
    (void)state;
    assert_int_equal(
        shell(0, "date +%s; cat /sys/devices/system/clocksource/clocksource0/current_clocksource"), 0);
    long long difference = strtoll(output, NULL, 10) - (long long)time(NULL);
    assert_true(difference >= -3 && difference <= 3);
    assert_null(strstr(output, "jiffies"));
}

static int cut_now(void *context, bool is_stderr, const char *data, size_t length)
{
    (void)context, (void)is_stderr, (void)data, (void)length;
    return 1;
}

/* Runs a script of the agent over a connection of its own, which is cut at the first word that it says. */
static void run_and_cut(const char *script)
{
    struct bt_error error = {0};
    struct bt_guest_link *second = NULL;
    struct bt_guest_address address = {GUEST_ADDRESS, 22, keys.private_key, keys.host_public_key};
    const char *const arguments[] = {"bash", "-c", script, NULL};
    int status;
    struct bt_guest_command command = {.arguments = arguments,
                                       .environment = environment,
                                       .folder = "/",
                                       .uid = AGENT,
                                       .gid = AGENT,
                                       .input_fd = -1,
                                       .timeout_ms = BOOT_LIMIT_MS,
                                       .on_output = cut_now};
    assert_int_equal(bt_guest_connect(&address, BOOT_LIMIT_MS, -1, &second, &error), 0);
    assert_int_equal(bt_guest_run(second, &command, &status, &error), -ECANCELED);
    second = bt_guest_close(second);
}

/* A command in the foreground goes with its connection; one that made itself a background process stays. */
static void t_guest_ends_commands_with_their_connection(void **state)
{
    (void)state;
    run_and_cut("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo started; exec sleep 2000");
    for (int try = 0; try < 200; try++) {
        (void)shell(0, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep [12]000'");
        if (strcmp(output, "sleep 1000\n") == 0)
            return;
        (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    fail_msg("left: %s", output);
}

/* Whatever the agent starts, the host's own commands get through, and can end it. */
static void t_guest_lets_the_host_in_through_a_fork_bomb(void **state)
{
    (void)state;
    run_and_cut("bomb() { bomb | bomb & }; bomb; echo started; sleep 100");
    int64_t start_ms = now_ms();
    expect_output(0, "echo alive", "alive\n");
    print_message("# the host's command took %lld ms\n", (long long)(now_ms() - start_ms));
    assert_int_equal(shell(0, "echo 1 >/sys/fs/cgroup/berth-agent/cgroup.kill"), 0);
    expect_output(AGENT, "echo alive", "alive\n");
    expect_output(0, "cat /proc/$(cat /run/dropbear.pid)/oom_score_adj", "-900\n");
}

static void t_guest_keeps_what_was_written(void **state)
{
    (void)state;
    assert_int_equal(shell(AGENT, "echo home >/home/agent/kept && echo work >/workspace/kept"), 0);
    assert_int_equal(shell(0, "echo root >/etc/kept"), 0);
    power_off();
    assert_int_equal(boot(), 0);
    expect_output(AGENT, "cat /home/agent/kept /workspace/kept /etc/kept", "home\nwork\nroot\n");
}

/* The host has no space left: the writer is told, the machine lives on. */
static void t_guest_sees_a_full_host(void **state)
{
    (void)state;
    assert_int_not_equal(shell(AGENT, "dd if=/dev/zero of=/workspace/big bs=1M count=200 conv=fsync"), 0);
    expect_output(AGENT, "echo alive", "alive\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_guest_runs_commands_as_the_agent),
        cmocka_unit_test(t_guest_agent_has_no_privilege),
        cmocka_unit_test(t_guest_passes_exit_statuses),
        cmocka_unit_test(t_guest_gives_no_shell_to_logins),
        cmocka_unit_test(t_guest_keeps_secrets_from_the_agent),
        cmocka_unit_test(t_guest_root_follows_no_link_of_the_agent),
        cmocka_unit_test(t_guest_is_on_its_network),
        cmocka_unit_test(t_guest_disks_are_mounted_for_the_agent),
        cmocka_unit_test(t_guest_clock_is_right),
        cmocka_unit_test(t_guest_ends_commands_with_their_connection),
        cmocka_unit_test(t_guest_lets_the_host_in_through_a_fork_bomb),
        cmocka_unit_test(t_guest_keeps_what_was_written),
        cmocka_unit_test(t_guest_sees_a_full_host),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
