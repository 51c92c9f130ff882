/* Stages 4 and 5: Landlock and seccomp.
 *
 * Called by main after the drop. Should: leave open exactly what the loop uses. Must not: allow execution,
 * processes, new sockets, or a file other than /dev/net/tun.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/landlock.h>
#include <net/if.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "helper/privilege.h"

#define TUN_PATH "/dev/net/tun"

/* Rights newer than Debian 12's header, landlock(7). */
#define ACCESS_FS_TRUNCATE (UINT64_C(1) << 14)  /* ABI 3 */
#define ACCESS_FS_IOCTL_DEV (UINT64_C(1) << 15) /* ABI 5 */
#define ACCESS_NET_ALL UINT64_C(3)              /* ABI 4: bind and connect of TCP */
#define SCOPE_ALL UINT64_C(3)                   /* ABI 6: abstract sockets and signals outside */

struct ruleset {
    uint64_t handled_access_fs, handled_access_net, scoped;
};

static struct ruleset all_rights(long abi)
{
    struct ruleset rights = {.handled_access_fs = (UINT64_C(1) << 13) - 1}; /* ABI 1 */
    if (abi >= 2)
        rights.handled_access_fs |= LANDLOCK_ACCESS_FS_REFER;
    if (abi >= 3)
        rights.handled_access_fs |= ACCESS_FS_TRUNCATE;
    if (abi >= 4)
        rights.handled_access_net = ACCESS_NET_ALL;
    if (abi >= 5)
        rights.handled_access_fs |= ACCESS_FS_IOCTL_DEV;
    if (abi >= 6)
        rights.scoped = SCOPE_ALL;
    return rights;
}

int bt_privilege_confine_files(bool *ret_is_confined)
{
    bt_auto_fd tun_fd = open(TUN_PATH, O_PATH | O_CLOEXEC);
    if (tun_fd < 0)
        return -errno;
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi < 0 && (errno == ENOSYS || errno == EOPNOTSUPP)) {
        *ret_is_confined = false;
        return 0;
    }
    struct ruleset rights = all_rights(abi);
    size_t size = abi < 4 ? 8 : abi < 6 ? 16 : sizeof(rights);
    bt_auto_fd ruleset_fd = (int)syscall(SYS_landlock_create_ruleset, &rights, size, 0);
    if (ruleset_fd < 0)
        return -errno;
    struct landlock_path_beneath_attr rule = {
        .allowed_access =
            (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | ACCESS_FS_IOCTL_DEV) &
            rights.handled_access_fs,
        .parent_fd = tun_fd,
    };
    if (syscall(SYS_landlock_add_rule, ruleset_fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0)
        return -errno;
    if (syscall(SYS_landlock_restrict_self, ruleset_fd, 0) < 0)
        return -errno;
    *ret_is_confined = true;
    return 0;
}

/* Newer processors have the newer of two calls alone, and the C library calls that one there. */
#define EITHER(older, newer) (SCMP_SYS(older) >= 0 ? SCMP_SYS(older) : SCMP_SYS(newer))

/* By number alone. Descriptors reach these only through the calls below, files only through Landlock.
 * tests/attack/calls.py shows each in use. No memory call: the engine's memory is all there before. A failed
 * assertion traps, which takes no call. */
static const int plain_calls[] = {
    /* the loop */
    EITHER(epoll_wait, epoll_pwait), SCMP_SYS(epoll_create1), SCMP_SYS(epoll_ctl),
    /* clients and netlink */
    SCMP_SYS(accept4), SCMP_SYS(close), SCMP_SYS(recvmsg), SCMP_SYS(sendmsg), SCMP_SYS(recvfrom),
    SCMP_SYS(sendto),
    /* /dev/net/tun; the audit log; messages */
    SCMP_SYS(openat), SCMP_SYS(pwrite64), EITHER(poll, ppoll), SCMP_SYS(write),
    /* where the clock cannot be read without a call */
    SCMP_SYS(clock_gettime),
    /* the end */
    SCMP_SYS(exit_group)};

static const unsigned long ioctl_requests[] = {TUNSETIFF, TUNSETOWNER, TUNSETPERSIST, SIOCGIFINDEX};

static int allow_plain(scmp_filter_ctx filter)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(plain_calls); i++) {
        int error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, plain_calls[i], 0);
        if (error < 0)
            return error;
    }
    return 0;
}

static int allow_by_argument(scmp_filter_ctx filter)
{
    int error = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(ioctl_requests) && error == 0; i++)
        error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                                 SCMP_A1_32(SCMP_CMP_EQ, (uint32_t)ioctl_requests[i]));
    if (error == 0)
        error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(getsockopt), 2,
                                 SCMP_A1_32(SCMP_CMP_EQ, SOL_SOCKET), SCMP_A2_32(SCMP_CMP_EQ, SO_PEERCRED));
    return error;
}

int bt_privilege_confine_calls(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (!filter)
        return -ENOMEM;
    int error = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (error == 0)
        error = allow_plain(filter);
    if (error == 0)
        error = allow_by_argument(filter);
    if (error == 0)
        error = seccomp_load(filter);
    /* Once the filter is loaded, giving its memory back could need a call that it refuses. */
    if (error < 0)
        seccomp_release(filter);
    return error;
}
