/* vm/jail.c: what a process can still do once it is in the jail of a virtual machine monitor. Each attempt is
 * made for real, by a child that entered the jail; the child says which one succeeded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "vm/jail.h"

#define OTHER_USER 54321
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452 /* Linux 6.6 */
#endif

static char folder[] = "/tmp/berth-jail-XXXXXX";
static char allowed_path[64], writable_path[64], secret_path[64], new_path[64];
static char outside_network[64];

static void write_file(char path[64], const char *name)
{
    (void)snprintf(path, 64, "%s/%s", folder, name);
    int file_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    assert_true(file_fd >= 0);
    assert_int_equal(write(file_fd, "text\n", 5), 5);
    assert_int_equal(fchmod(file_fd, 0666), 0);
    (void)close(file_fd);
}

static int make_files(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)chmod(folder, 0777);
    write_file(allowed_path, "allowed");
    write_file(writable_path, "writable");
    write_file(secret_path, "secret");
    (void)snprintf(new_path, sizeof(new_path), "%s/new", folder);
    ssize_t length = readlink("/proc/self/ns/net", outside_network, sizeof(outside_network) - 1);
    return length > 0 ? 0 : -1;
}

static int remove_files(void **state)
{
    (void)state;
    (void)unlink(allowed_path);
    (void)unlink(writable_path);
    (void)unlink(secret_path);
    (void)unlink(new_path);
    return rmdir(folder);
}

/* In the jail: returns NULL, or what was possible that must not be. */
typedef const char *attempt(const struct bt_jail_report *report);

static void enter_and_attempt(attempt *function, uid_t uid, pid_t parent_pid) __attribute__((noreturn));
static void enter_and_attempt(attempt *function, uid_t uid, pid_t parent_pid)
{
    struct bt_jail_path paths[] = {{.path = allowed_path},
                                   {.path = writable_path, .may_write = true},
                                   {.path = "/usr", .may_execute = true},
                                   {.path = "/lib", .may_execute = true},
                                   {.path = "/lib64", .may_execute = true},
                                   {.path = "/no/such/path", .may_write = true}};
    struct bt_jail jail = {.paths = paths, .path_count = BT_ARRAY_LENGTH(paths)};
    struct bt_jail_report report;
    if (uid != 0 && (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0))
        _exit(2);
    int result = bt_jail_enter(&jail, parent_pid, &report);
    const char *possible = result < 0 ? report.step : function(&report);
    if (possible != NULL)
        (void)dprintf(STDERR_FILENO, "# in the jail: %s\n", possible);
    _exit(possible == NULL ? 0 : 1);
}

static void expect_nothing_possible_as(attempt *function, uid_t uid)
{
    pid_t parent_pid = getpid();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        enter_and_attempt(function, uid, parent_pid);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* As whoever runs the tests and, where that is root, as an ordinary user as well. */
static void expect_nothing_possible(attempt *function)
{
    expect_nothing_possible_as(function, 0);
    if (geteuid() == 0)
        expect_nothing_possible_as(function, OTHER_USER);
}

static const char *attempt_sockets(const struct bt_jail_report *report)
{
    static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_VSOCK, AF_BLUETOOTH};
    (void)report;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(families); i++)
        for (int type = SOCK_STREAM; type <= SOCK_SEQPACKET; type++)
            if (socket(families[i], type, 0) >= 0 || errno != EPERM)
                return "a socket can be made";
    int pair[2];
    /* A datagram socket of a pair may send to any path that the user may write to. */
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 || errno != EPERM)
        return "a pair of sockets can be made";
    if (syscall(SYS_io_uring_setup, 4, NULL) >= 0 || errno != ENOSYS)
        return "io_uring is there";
    return NULL;
}

static const char *attempt_network(const struct bt_jail_report *report)
{
    char inside[64] = "";
    if ((report->parts & BT_JAIL_NETWORK) == 0)
        return NULL;
    if (readlink("/proc/self/ns/net", inside, sizeof(inside) - 1) < 0 && errno != EACCES)
        return "its namespace cannot be read";
    return strcmp(inside, outside_network) == 0 ? "the network namespace is the outer one" : NULL;
}

static const char *attempt_files(const struct bt_jail_report *report)
{
    char text[8];
    int file_fd = open(allowed_path, O_RDONLY | O_CLOEXEC);
    if (file_fd < 0 || read(file_fd, text, sizeof(text)) != 5)
        return "an allowed file cannot be read";
    file_fd = open(writable_path, O_RDWR | O_CLOEXEC);
    if (file_fd < 0 || write(file_fd, "x", 1) != 1)
        return "a disk cannot be written";
    if (report->landlock_abi == 0)
        return NULL;
    if (open(secret_path, O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES)
        return "a file outside can be read";
    if (open(allowed_path, O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES)
        return "a read-only file can be written";
    if (open(new_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) >= 0 || errno != EACCES)
        return "a file can be made";
    if (unlink(writable_path) == 0)
        return "a file can be removed";
    if (rename(writable_path, new_path) == 0)
        return "a file can be renamed";
    if (open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0)
        return "/etc/passwd can be read";
    if (open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0)
        return "the root folder can be listed";
    return NULL;
}

/* What Landlock does not look at (before ABI 3, also truncate): changes to files that are named, not opened.
 */
static const char *attempt_attributes(const struct bt_jail_report *report)
{
    static const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct stat before, after;
    (void)report;
    if (stat(secret_path, &before) < 0)
        return NULL;
    (void)truncate(secret_path, 0);
    (void)chmod(secret_path, 0600);
    (void)fchmodat(AT_FDCWD, secret_path, 0600, 0);
    (void)syscall(SYS_fchmodat2, AT_FDCWD, secret_path, 0600, 0);
    (void)utimensat(AT_FDCWD, secret_path, times, 0);
    (void)setxattr(secret_path, "user.berth", "x", 1, 0);
    if (chown(secret_path, (uid_t)-1, getgid()) == 0 || lchown(secret_path, (uid_t)-1, getgid()) == 0 ||
        fchownat(AT_FDCWD, secret_path, (uid_t)-1, getgid(), 0) == 0)
        return "the owner of a file outside can be changed";
    if (stat(secret_path, &after) < 0 || after.st_size != before.st_size)
        return "a file outside can be cut short";
    if (after.st_mode != before.st_mode || after.st_mtim.tv_sec != before.st_mtim.tv_sec)
        return "the mode or time of a file outside can be changed";
    return getxattr(secret_path, "user.berth", NULL, 0) >= 0 ? "a file outside can be labelled" : NULL;
}

/* Ways to end, starve or signal another process of the same user that are not kill(2). */
static const char *attempt_limits(const struct bt_jail_report *report)
{
    static const struct rlimit none = {0, 0};
    cpu_set_t processors;
    int ends[2];
    (void)report;
    CPU_ZERO(&processors);
    CPU_SET(0, &processors);
    if (prlimit(getppid(), RLIMIT_NPROC, NULL, NULL) == 0 &&
        syscall(SYS_prlimit64, getppid(), RLIMIT_CORE, &none, NULL) == 0)
        return "the parent's limits can be set";
    if (setpriority(PRIO_PROCESS, (id_t)getppid(), 19) == 0)
        return "the parent can be slowed down";
    if (sched_setaffinity(getppid(), sizeof(processors), &processors) == 0)
        return "the parent can be moved to one processor";
    if (pipe2(ends, O_CLOEXEC) < 0)
        return "no pipe can be made";
    if (fcntl(ends[0], F_SETSIG, SIGKILL) == 0 || fcntl(ends[0], F_SETOWN, getppid()) == 0 ||
        ioctl(ends[0], FIOSETOWN, &(int){getppid()}) == 0)
        return "the kernel can be made to signal the parent";
    if (shmat(0, NULL, 0) != (void *)-1 || errno != EPERM || msgctl(0, IPC_RMID, NULL) == 0 || errno != EPERM)
        return "memory that others share can be reached";
    return NULL;
}

/* A user namespace would give it every capability within. */
static const char *attempt_user_namespace(const struct bt_jail_report *report)
{
    (void)report;
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        _exit(0);
    if (pid > 0)
        return "a user namespace can be made";
    if (syscall(SYS_clone3, NULL, 0) >= 0 || errno != ENOSYS)
        return "clone3, whose flags cannot be looked at, is there";
    pid = fork();
    if (pid == 0)
        _exit(0);
    return pid > 0 ? NULL : "it cannot make threads and processes";
}

static const char *attempt_processes(const struct bt_jail_report *report)
{
    (void)report;
    if (kill(getppid(), 0) == 0 || errno != EPERM)
        return "the parent can be signalled";
    if (syscall(SYS_tgkill, getppid(), getppid(), 0) == 0 || errno != EPERM)
        return "the parent's thread can be signalled";
    if (syscall(SYS_tgkill, getpid(), getpid(), 0) != 0)
        return "its own threads cannot be signalled";
    if (ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) == 0 || errno != EPERM)
        return "the parent can be traced";
    if (syscall(SYS_pidfd_open, getppid(), 0) >= 0)
        return "the parent can be held";
    if (syscall(SYS_unshare, 0x10000000) == 0 || syscall(SYS_setns, -1, 0) == 0)
        return "another namespace can be made";
    return NULL;
}

static const char *attempt_privileges(const struct bt_jail_report *report)
{
    (void)report;
    struct rlimit limit;
    char text[4096] = "";
    if (getrlimit(RLIMIT_CORE, &limit) < 0 || limit.rlim_max != 0)
        return "it can leave a core dump";
    if (setresuid(0, 0, 0) == 0 && getuid() != 0)
        return "it can become root";
    if (report->landlock_abi != 0)
        return open("/proc/self/status", O_RDONLY | O_CLOEXEC) >= 0 ? "/proc can be read" : NULL;
    int status_fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (status_fd < 0 || read(status_fd, text, sizeof(text) - 1) <= 0)
        return "its status cannot be read";
    if (strstr(text, "NoNewPrivs:\t1") == NULL || strstr(text, "CapPrm:\t0000000000000000") == NULL)
        return "it has privileges";
    return NULL;
}

static const char *attempt_without_namespaces(const struct bt_jail_report *report)
{
    if ((report->parts & BT_JAIL_NETWORK) != 0)
        return "a namespace was made all the same";
    const char *possible = attempt_sockets(report);
    if (possible == NULL)
        possible = attempt_files(report);
    if (possible == NULL)
        possible = attempt_attributes(report);
    if (possible == NULL)
        possible = attempt_limits(report);
    return possible != NULL ? possible : attempt_processes(report);
}

/* A program started in the jail is as bound as the process that starts it: cat can read one file, not the
 * other. */
static const char *attempt_program(const struct bt_jail_report *report)
{
    char *const arguments[] = {(char[]){"cat"}, allowed_path, secret_path, NULL};
    char *const environment[] = {NULL};
    if (report->landlock_abi == 0)
        return "no Landlock";
    (void)close(STDERR_FILENO);
    (void)execve("/usr/bin/cat", arguments, environment);
    return "cat cannot be executed";
}

static void t_jail_has_no_sockets(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_sockets);
}

static void t_jail_has_no_network(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_network);
}

static void t_jail_opens_only_its_files(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_files);
}

static void t_jail_reaches_no_process(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_processes);
}

static void t_jail_changes_no_file_by_name(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_attributes);
}

static void t_jail_limits_and_signals_no_process(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_limits);
}

static void t_jail_makes_no_user_namespace(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_user_namespace);
}

static void t_jail_has_no_privilege(void **state)
{
    (void)state;
    expect_nothing_possible(attempt_privileges);
}

static void write_text(const char *path, const char *text)
{
    int file_fd = open(path, O_WRONLY | O_CLOEXEC);
    if (file_fd < 0 || write(file_fd, text, strlen(text)) != (ssize_t)strlen(text))
        _exit(3);
    (void)close(file_fd);
}

/* As on a machine that permits no user namespaces: a namespace whose limit of further ones is 0. */
static void t_jail_holds_without_namespaces(void **state)
{
    (void)state;
    char map[64];
    unsigned uid = geteuid();
    int status;
    (void)snprintf(map, sizeof(map), "0 %u 1\n", uid);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWUSER) < 0)
            _exit(2);
        write_text("/proc/self/uid_map", map);
        write_text("/proc/sys/user/max_user_namespaces", "0");
        pid_t parent_pid = getpid();
        pid = fork();
        if (pid == 0)
            enter_and_attempt(attempt_without_namespaces, 0, parent_pid);
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            _exit(4);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 5);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void t_jail_binds_programs(void **state)
{
    (void)state;
    char text[64];
    int output[2];
    pid_t parent_pid = getpid();
    if (syscall(SYS_landlock_create_ruleset, NULL, 0, 1) <= 0) {
        print_message("# impossible on this kernel: it has no Landlock\n");
        skip();
    }
    assert_int_equal(pipe2(output, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)dup2(output[1], STDOUT_FILENO);
        enter_and_attempt(attempt_program, 0, parent_pid);
    }
    (void)close(output[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(read(output[0], text, sizeof(text)), 5);
    assert_memory_equal(text, "text\n", 5);
    assert_int_equal(read(output[0], text, sizeof(text)), 0);
    (void)close(output[0]);
}

/* The jailed process tells its number, then sleeps; its parent is killed. */
static void t_jail_ends_with_its_parent(void **state)
{
    (void)state;
    int ready[2];
    pid_t jailed_pid = 0;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t parent_pid = fork();
    assert_true(parent_pid >= 0);
    if (parent_pid == 0) {
        pid_t middle_pid = getpid();
        pid_t pid = fork();
        struct bt_jail jail = {0};
        struct bt_jail_report report;
        if (pid == 0 && bt_jail_enter(&jail, middle_pid, &report) == 0) {
            pid = getpid();
            (void)!write(ready[1], &pid, sizeof(pid));
        }
        for (;;)
            pause();
    }
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &jailed_pid, sizeof(jailed_pid)), sizeof(jailed_pid));
    (void)close(ready[0]);
    int pid_fd = (int)syscall(SYS_pidfd_open, jailed_pid, 0);
    assert_true(pid_fd >= 0);
    assert_int_equal(kill(parent_pid, SIGKILL), 0);
    struct pollfd ended = {.fd = pid_fd, .events = POLLIN};
    assert_int_equal(poll(&ended, 1, 5000), 1);
    (void)close(pid_fd);
    assert_int_equal(waitpid(parent_pid, NULL, 0), parent_pid);
}

static void t_jail_refuses_an_orphan(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct bt_jail jail = {0};
        struct bt_jail_report report;
        _exit(bt_jail_enter(&jail, getpid(), &report) == -ESRCH ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void t_jail_says_what_holds(void **state)
{
    (void)state;
    char text[128];
    struct bt_jail_report report = {.parts = BT_JAIL_NETWORK | BT_JAIL_FILES | BT_JAIL_CALLS,
                                    .landlock_abi = 3};
    bt_jail_describe(&report, text, sizeof(text));
    assert_string_equal(text, "empty network namespace, Landlock ABI 3, seccomp");
    report = (struct bt_jail_report){.parts = BT_JAIL_CALLS};
    bt_jail_describe(&report, text, sizeof(text));
    assert_string_equal(text, "no user namespace permitted, no Landlock in this kernel, seccomp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_jail_has_no_sockets),
        cmocka_unit_test(t_jail_has_no_network),
        cmocka_unit_test(t_jail_opens_only_its_files),
        cmocka_unit_test(t_jail_reaches_no_process),
        cmocka_unit_test(t_jail_changes_no_file_by_name),
        cmocka_unit_test(t_jail_limits_and_signals_no_process),
        cmocka_unit_test(t_jail_makes_no_user_namespace),
        cmocka_unit_test(t_jail_has_no_privilege),
        cmocka_unit_test(t_jail_holds_without_namespaces),
        cmocka_unit_test(t_jail_binds_programs),
        cmocka_unit_test(t_jail_ends_with_its_parent),
        cmocka_unit_test(t_jail_refuses_an_orphan),
        cmocka_unit_test(t_jail_says_what_holds),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
