/* The jail of a virtual machine monitor. See jail.h. Runs in the child of a driver; must not print. */
#include "vm/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vm/jail_landlock.h"

/* Later than the headers that this is built with; the same number on every architecture. */
#define CALL_FCHMODAT2 452     /* Linux 6.6 */
#define CALL_SETXATTRAT 463    /* Linux 6.13 */
#define CALL_REMOVEXATTRAT 466 /* Linux 6.13 */

/* System calls that a monitor has no use for, each a way to other processes of the same user, to new kernel
 * surface, or out of the namespaces. */
static const int refused_calls[] = {
    SCMP_SYS(socket),
    SCMP_SYS(socketpair), /* a datagram socket of a pair may still send to any path */
    SCMP_SYS(connect),
    SCMP_SYS(bind),
    SCMP_SYS(listen),
    SCMP_SYS(accept),
    SCMP_SYS(accept4),
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(kill),
    SCMP_SYS(tkill),
    SCMP_SYS(rt_sigqueueinfo),
    SCMP_SYS(rt_tgsigqueueinfo),
    SCMP_SYS(pidfd_open),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(pidfd_send_signal),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(keyctl),
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(chroot),
    SCMP_SYS(unshare),
    SCMP_SYS(setns),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(fsopen),
    SCMP_SYS(open_tree),
    SCMP_SYS(move_mount),
    SCMP_SYS(fanotify_init),
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(kexec_load),
    SCMP_SYS(quotactl),
    SCMP_SYS(acct),
    SCMP_SYS(shmget),
    SCMP_SYS(shmat),
    SCMP_SYS(shmctl),
    SCMP_SYS(msgget),
    SCMP_SYS(msgsnd),
    SCMP_SYS(msgrcv),
    SCMP_SYS(msgctl),
    SCMP_SYS(semget),
    SCMP_SYS(semop),
    SCMP_SYS(semtimedop),
    SCMP_SYS(semctl),
    SCMP_SYS(mq_open),
    /* Changes to files that are named and not opened: Landlock does not look at these, and at truncate(2)
     * only since ABI 3. */
    SCMP_SYS(truncate),
    SCMP_SYS(chmod),
    SCMP_SYS(fchmodat),
    CALL_FCHMODAT2,
    SCMP_SYS(chown),
    SCMP_SYS(lchown),
    SCMP_SYS(fchownat),
    SCMP_SYS(utime),
    SCMP_SYS(utimes),
    SCMP_SYS(futimesat),
    SCMP_SYS(utimensat),
    SCMP_SYS(setxattr),
    SCMP_SYS(lsetxattr),
    SCMP_SYS(removexattr),
    SCMP_SYS(lremovexattr),
    CALL_SETXATTRAT,
    CALL_REMOVEXATTRAT,
    /* Other processes of the same user. */
    SCMP_SYS(setpriority),
    SCMP_SYS(ioprio_set),
    SCMP_SYS(migrate_pages),
    SCMP_SYS(move_pages),
    SCMP_SYS(process_madvise),
    SCMP_SYS(process_mrelease),
    SCMP_SYS(kcmp),
};

/* System calls that are refused for some values of one argument only. */
static const struct {
    int call;
    unsigned argument;
    enum scmp_compare compare;
    scmp_datum_t one, other;
} refused_uses[] = {
    /* On the process itself (0) these are harmless; its threads set themselves. */
    {SCMP_SYS(prlimit64), 0, SCMP_CMP_NE, 0, 0},
    {SCMP_SYS(sched_setaffinity), 0, SCMP_CMP_NE, 0, 0},
    {SCMP_SYS(sched_setscheduler), 0, SCMP_CMP_NE, 0, 0},
    {SCMP_SYS(sched_setparam), 0, SCMP_CMP_NE, 0, 0},
    {SCMP_SYS(sched_setattr), 0, SCMP_CMP_NE, 0, 0},
    /* Whoever owns a file that became ready gets a signal, and which one is free to choose (fcntl(2)). */
    {SCMP_SYS(fcntl), 1, SCMP_CMP_EQ, F_SETOWN, 0},
    {SCMP_SYS(fcntl), 1, SCMP_CMP_EQ, F_SETOWN_EX, 0},
    {SCMP_SYS(fcntl), 1, SCMP_CMP_EQ, F_SETSIG, 0},
    {SCMP_SYS(ioctl), 1, SCMP_CMP_MASKED_EQ, UINT32_MAX, FIOSETOWN},
    {SCMP_SYS(ioctl), 1, SCMP_CMP_MASKED_EQ, UINT32_MAX, SIOCSPGRP},
    /* A user namespace of its own would give it every capability within. */
    {SCMP_SYS(clone), 0, SCMP_CMP_MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER},
};

static int write_text(const char *path, const char *text, size_t length)
{
    bt_auto_fd file_fd = open(path, O_WRONLY | O_CLOEXEC);
    if (file_fd < 0)
        return -errno;
    return write(file_fd, text, length) == (ssize_t)length ? 0 : -EIO;
}

/* In the new user namespace the process keeps its number, and has no other one. */
static int map_identity(const char *path, unsigned id)
{
    char line[64];
    int length = snprintf(line, sizeof(line), "%u %u 1\n", id, id);
    return write_text(path, line, (size_t)length);
}

/* Not every machine permits user namespaces: without them the other parts hold. */
static bool enter_namespaces(void)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
        return false;
    /* An id that is not mapped still works; files are opened by the kernel's own ids. */
    (void)map_identity("/proc/self/uid_map", uid);
    if (write_text("/proc/self/setgroups", "deny", 4) == 0)
        (void)map_identity("/proc/self/gid_map", gid);
    return true;
}

static int drop_capabilities(void)
{
    /* Without CAP_SETPCAP (an ordinary user, no namespace) there is nothing in the sets to begin with. */
    for (unsigned long capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 && errno != EPERM)
            return -errno;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
        syscall(SYS_capset, &header, none) < 0)
        return -errno;
    return 0;
}

static int set_limit(__rlimit_resource_t resource, rlim_t wanted)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) < 0)
        return -errno;
    if (limit.rlim_max < wanted)
        wanted = limit.rlim_max;
    limit.rlim_cur = wanted;
    limit.rlim_max = wanted;
    return setrlimit(resource, &limit) < 0 ? -errno : 0;
}

static int set_limits(void)
{
    int result = set_limit(RLIMIT_CORE, 0);
    return result == 0 ? set_limit(RLIMIT_NOFILE, 256) : result;
}

static int add_refused_uses(scmp_filter_ctx filter)
{
    int result = 0;
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(refused_uses); i++)
        result = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused_uses[i].call, 1,
                                  SCMP_CMP(refused_uses[i].argument, refused_uses[i].compare,
                                           refused_uses[i].one, refused_uses[i].other));
    return result;
}

/* Refuses the calls above with EPERM, io_uring and clone3 (whose flags a filter cannot read) with ENOSYS, so
 * that the caller uses poll and clone, and signals to any process but itself. A socket cannot be made,
 * whatever the family: a path leads to every service of the user otherwise. */
static int refuse_calls(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == NULL)
        return -ENOMEM;
    int result = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(io_uring_setup), 0);
    if (result == 0)
        result = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(refused_calls); i++)
        result = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused_calls[i], 0);
    if (result == 0)
        result = add_refused_uses(filter);
    if (result == 0)
        result = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(tgkill), 1,
                                  SCMP_A0(SCMP_CMP_NE, (scmp_datum_t)getpid()));
    if (result == 0)
        result = seccomp_load(filter);
    seccomp_release(filter);
    return result;
}

static int fail_at(struct bt_jail_report *report, const char *step, int result)
{
    report->step = step;
    return result;
}

int bt_jail_enter(const struct bt_jail *jail, int parent_pid, struct bt_jail_report *ret_report)
{
    *ret_report = (struct bt_jail_report){0};
    if (enter_namespaces())
        ret_report->parts |= BT_JAIL_NETWORK;
    int result = drop_capabilities();
    if (result < 0)
        return fail_at(ret_report, "drop its capabilities", result);
    /* After the last change of credentials, which would undo it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return fail_at(ret_report, "tie its life to its parent", -errno);
    if (getppid() != parent_pid)
        return fail_at(ret_report, "find its parent alive", -ESRCH);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return fail_at(ret_report, "give up new privileges", -errno);
    result = set_limits();
    if (result < 0)
        return fail_at(ret_report, "set its limits", result);
    result = bt_jail_landlock(jail, &ret_report->landlock_abi);
    if (result < 0)
        return fail_at(ret_report, "restrict its files", result);
    if (ret_report->landlock_abi > 0)
        ret_report->parts |= BT_JAIL_FILES;
    result = refuse_calls();
    if (result < 0)
        return fail_at(ret_report, "restrict its system calls", result);
    ret_report->parts |= BT_JAIL_CALLS;
    /* Last: the steps above may need memory, and this process may be larger now than it will be. */
    if (jail->address_space_bytes != 0 && set_limit(RLIMIT_AS, (rlim_t)jail->address_space_bytes) < 0)
        return fail_at(ret_report, "limit its memory", -errno);
    return 0;
}

void bt_jail_describe(const struct bt_jail_report *report, char *ret_text, size_t size)
{
    char files[32] = "no Landlock in this kernel";
    if ((report->parts & BT_JAIL_FILES) != 0)
        (void)snprintf(files, sizeof(files), "Landlock ABI %d", report->landlock_abi);
    (void)snprintf(ret_text, size, "%s, %s, seccomp",
                   (report->parts & BT_JAIL_NETWORK) != 0 ? "empty network namespace"
                                                          : "no user namespace permitted",
                   files);
}
