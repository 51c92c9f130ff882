/* Runs a program and decides over each of its system calls that reach the kernel for it: lets it happen,
 * makes it fail, or sends a signal first. With this every wrapper of a system call is a fault point, in the
 * program as it is installed.
 *
 *   attack_faults REPORT PROGRAM [ARGUMENT...]
 *
 * Prints "pid N" to the file REPORT, then obeys lines on standard input and answers each with one line there;
 * lines that are there before the start hold from the program's first call on:
 *
 *   fail CALL SKIP ERRNO    the next CALL after SKIP others of that name fails with that number
 *   signal SKIP NUMBER      before the call after SKIP others of any name the program gets that signal
 *   count                   "count N NAME FIRED": calls since the last order, the call that the last fault
 *                           was at, whether it happened
 *   let                     no more faults
 *
 * CALL: a name of the table below; with sendto, recvmsg and recvfrom also NAME.netfilter or NAME.route, the
 * family of the netlink socket. The end of standard input ends the program.
 *
 * By the user notification of seccomp(2); needs root of the namespaces it runs in. For tests only.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/base.h"
#include "tests/lib/tools/orders.h"

static const struct {
    const char *name;
    int number;
} calls[] = {
    {"openat", SYS_openat},     {"ioctl", SYS_ioctl},         {"sendto", SYS_sendto},
    {"recvmsg", SYS_recvmsg},   {"recvfrom", SYS_recvfrom},   {"sendmsg", SYS_sendmsg},
    {"accept4", SYS_accept4},   {"close", SYS_close},         {"write", SYS_write},
    {"pwrite64", SYS_pwrite64}, {"epoll_ctl", SYS_epoll_ctl}, {"getsockopt", SYS_getsockopt},
};

#define TAKEN (-3)
#define CALL_COUNT BT_ARRAY_LENGTH(calls)

struct faults {
    int listener_fd, pid_fd;
    pid_t pid;
    FILE *report;
    char wanted[32]; /* a call's name, "" for any call, only with is_armed */
    unsigned long skip;
    int error_number, signal_number; /* one of them */
    bool is_armed, has_fired;
    unsigned long count;
    char last[32];
};

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

/* ---- the program ------------------------------------------------------------------------------------- */

/* All of the table ask the supervisor, the rest passes. */
static int install_filter(void)
{
    struct sock_filter code[CALL_COUNT + 3];
    unsigned at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < CALL_COUNT; i++)
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i].number,
                                                  (uint8_t)(CALL_COUNT - i), 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_fprog program = {.len = (unsigned short)at, .filter = code};
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* The number of the listener travels through memory shared with the parent: every other way is filtered. */
static _Noreturn void be_program(volatile int *shared_fd, char **arguments)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        _exit(126);
    int fd = install_filter();
    *shared_fd = fd < 0 ? -2 : fd;
    if (fd < 0)
        _exit(126);
    /* The listener is closed by the execution: the parent takes its own copy first. */
    while (*shared_fd != TAKEN)
        (void)usleep(1000);
    execv(arguments[0], arguments);
    _exit(127);
}

/* ---- deciding ------------------------------------------------------------------------------------------ */

static const char *family_suffix(const struct faults *faults, int fd)
{
    int domain = 0, protocol = 0;
    socklen_t length = sizeof(domain);
    bt_auto_fd copy_fd = (int)syscall(SYS_pidfd_getfd, faults->pid_fd, fd, 0);
    if (copy_fd < 0 || getsockopt(copy_fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) < 0 ||
        domain != AF_NETLINK || getsockopt(copy_fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) < 0)
        return "";
    return protocol == NETLINK_NETFILTER ? ".netfilter" : ".route";
}

static void name_call(const struct faults *faults, const struct seccomp_notif *asked, char ret_name[32])
{
    const char *name = "?";
    const char *suffix = "";
    for (size_t i = 0; i < CALL_COUNT; i++)
        if (calls[i].number == asked->data.nr)
            name = calls[i].name;
    if (asked->data.nr == SYS_sendto || asked->data.nr == SYS_recvmsg || asked->data.nr == SYS_recvfrom)
        suffix = family_suffix(faults, (int)asked->data.args[0]);
    (void)snprintf(ret_name, 32, "%s%s", name, suffix);
}

/* Is it the armed fault's turn? */
static bool is_turn(struct faults *faults, const char *name)
{
    size_t length = strlen(faults->wanted);
    faults->count++;
    if (!faults->is_armed || strncmp(name, faults->wanted, length) != 0 ||
        (name[length] != '\0' && name[length] != '.' && length > 0))
        return false;
    if (faults->skip > 0) {
        faults->skip--;
        return false;
    }
    faults->is_armed = false;
    faults->has_fired = true;
    (void)snprintf(faults->last, sizeof(faults->last), "%s", name);
    return true;
}

static void decide(struct faults *faults)
{
    struct seccomp_notif asked = {0};
    struct seccomp_notif_resp answer = {0};
    char name[32];
    if (ioctl(faults->listener_fd, SECCOMP_IOCTL_NOTIF_RECV, &asked) < 0)
        return; /* it was killed meanwhile */
    answer.id = asked.id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    name_call(faults, &asked, name);
    if (is_turn(faults, name)) {
        if (faults->signal_number != 0) {
            (void)kill(faults->pid, faults->signal_number);
        } else {
            answer.flags = 0;
            answer.error = -faults->error_number;
        }
    }
    (void)ioctl(faults->listener_fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

/* ---- orders -------------------------------------------------------------------------------------------- */

static void arm(struct faults *faults, const char *wanted, unsigned long skip, int error_number,
                int signal_number)
{
    (void)snprintf(faults->wanted, sizeof(faults->wanted), "%s", wanted);
    faults->skip = skip;
    faults->error_number = error_number;
    faults->signal_number = signal_number;
    faults->is_armed = true;
    faults->has_fired = false;
    faults->count = 0;
    faults->last[0] = '\0';
}

static bool obey(void *context, char *line)
{
    struct faults *faults = context;
    char name[32];
    unsigned long skip;
    int number;
    if (sscanf(line, "fail %31s %lu %d", name, &skip, &number) == 3) {
        arm(faults, name, skip, number, 0);
    } else if (sscanf(line, "signal %lu %d", &skip, &number) == 2) {
        arm(faults, "", skip, 0, number);
    } else if (strncmp(line, "count", 5) == 0) {
        fprintf(faults->report, "count %lu %s %d\n", faults->count, faults->last[0] ? faults->last : "-",
                faults->has_fired);
        faults->count = 0;
        return true;
    } else {
        faults->is_armed = false;
    }
    fprintf(faults->report, "ok\n");
    return true;
}

static int supervise(struct faults *faults)
{
    int status = 0;
    for (;;) {
        struct pollfd items[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                 {.fd = faults->listener_fd, .events = POLLIN},
                                 {.fd = faults->pid_fd, .events = POLLIN}};
        if (poll(items, BT_ARRAY_LENGTH(items), -1) < 0)
            die("poll");
        if ((items[1].revents & POLLIN) != 0)
            decide(faults);
        if (items[2].revents != 0)
            break;
        if (items[0].revents != 0 && !orders_read(obey, faults))
            (void)kill(faults->pid, SIGKILL);
    }
    if (waitpid(faults->pid, &status, 0) < 0)
        die("waitpid");
    fprintf(faults->report, "ended %d\n", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    struct faults faults = {.listener_fd = -1};
    if (argc < 3)
        return 64;
    faults.report = fopen(argv[1], "we");
    if (!faults.report)
        die(argv[1]);
    setvbuf(faults.report, NULL, _IOLBF, 0);
    volatile int *shared_fd =
        mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared_fd == MAP_FAILED)
        die("mmap");
    *shared_fd = -1;
    faults.pid = fork();
    if (faults.pid < 0)
        die("fork");
    if (faults.pid == 0)
        be_program(shared_fd, argv + 2);
    faults.pid_fd = (int)syscall(SYS_pidfd_open, faults.pid, 0);
    for (int i = 0; i < 5000 && *shared_fd == -1; i++)
        (void)usleep(1000);
    if (faults.pid_fd < 0 || *shared_fd < 0)
        die("the filter");
    faults.listener_fd = (int)syscall(SYS_pidfd_getfd, faults.pid_fd, *shared_fd, 0);
    if (faults.listener_fd < 0)
        die("the listener");
    fprintf(faults.report, "pid %d\n", (int)faults.pid);
    struct pollfd orders = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&orders, 1, 0) == 1) /* what was ordered before the start holds from the first call on */
        (void)orders_read(obey, &faults);
    *shared_fd = TAKEN;
    return supervise(&faults);
}
