/* Giving up what the two programs of policy/ do not need: root, files, system calls. See service.h.
 *
 * Must run before the event loop begins; nothing here can be taken back.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "policy/rules/service.h"

int bt_service_become_user(const char *owned_folder, struct bt_error *error)
{
    if (geteuid() != 0)
        return 0;
    if (owned_folder != NULL && chown(owned_folder, BT_SERVICE_UID, BT_SERVICE_UID) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot give %s to uid %d: %s", owned_folder,
                       BT_SERVICE_UID, strerror(errno));
    /* Leaving uid 0 by all three ids clears the capability sets (capabilities(7)). */
    if (setgroups(0, NULL) < 0 || setresgid(BT_SERVICE_UID, BT_SERVICE_UID, BT_SERVICE_UID) < 0 ||
        setresuid(BT_SERVICE_UID, BT_SERVICE_UID, BT_SERVICE_UID) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno,
                       "start it as an unprivileged user, or where that uid is mapped",
                       "cannot become uid %d: %s", BT_SERVICE_UID, strerror(errno));
    if (setresuid(0, 0, 0) == 0)
        return bt_fail(error, BT_EXIT_ERROR, EPERM, NULL, "root was not given up");
    return 0;
}

#ifndef BERTH_TEST_BUILD
static int landlock(const char *folder, struct bt_error *error)
{
    /* Rights of Landlock ABI 1 (kernel 5.13): every kernel that has Landlock knows them. */
    struct landlock_ruleset_attr rules = {.handled_access_fs = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1};
    bt_auto_fd rules_fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);
    if (rules_fd < 0 && (errno == ENOSYS || errno == EOPNOTSUPP))
        return 0;
    if (rules_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a Landlock ruleset: %s",
                       strerror(errno));
    if (folder != NULL) {
        bt_auto_fd folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct landlock_path_beneath_attr beneath = {
            .parent_fd = folder_fd,
            .allowed_access = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                              LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                              LANDLOCK_ACCESS_FS_REMOVE_FILE,
        };
        if (folder_fd < 0 ||
            syscall(SYS_landlock_add_rule, rules_fd, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) < 0)
            return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot keep %s in Landlock: %s", folder,
                           strerror(errno));
    }
    if (syscall(SYS_landlock_restrict_self, rules_fd, 0) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot enter Landlock: %s", strerror(errno));
    return 0;
}

/* System calls that neither program has a use for once it serves, and that whoever took one over would want
 * first: other programs and processes, namespaces, other processes' memory, kernel code, and interfaces with
 * a history of holes. */
static const int denied_calls[] = {
    SYS_execve,
    SYS_execveat,
    SYS_clone,
    SYS_clone3,
    SYS_ptrace,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_io_uring_setup,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_open_by_handle_at,
    SYS_kcmp,
    SYS_personality,
    SYS_setuid,
    SYS_setresuid,
    SYS_capset,
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
};

#if defined(__x86_64__)
#define FILTER_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define FILTER_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

/* seccomp(2): another architecture's calls (or x32's) end the process, the denied ones fail with EPERM. */
static int filter_calls(struct bt_error *error)
{
    struct sock_filter filter[2 * BT_ARRAY_LENGTH(denied_calls) + 8];
    unsigned short count = 0;
    filter[count++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FILTER_ARCHITECTURE, 1, 0);
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[count++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000U, 0, 1);
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(denied_calls); i++) {
        filter[count++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)denied_calls[i], 0, 1);
        filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = count, .filter = filter};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot enter seccomp: %s", strerror(errno));
    return 0;
}

int bt_service_confine(const char *folder, struct bt_error *error)
{
    static const struct rlimit no_core = {0, 0};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
        setrlimit(RLIMIT_CORE, &no_core) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot give up privileges: %s", strerror(errno));
    int result = landlock(folder, error);
    return result < 0 ? result : filter_calls(error);
}
#else
int bt_service_confine(const char *folder, struct bt_error *error)
{
    /* The leak checker of the sanitised build reads /proc and traces its own process when it ends. */
    (void)folder;
    (void)error;
    return 0;
}
#endif
