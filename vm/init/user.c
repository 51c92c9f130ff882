/* The way from root down to a user, for services and for commands of the agent. Every step is checked and the
 * result is read back: a command that would keep a privilege is not started.
 */
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vm/init/init.h"

static int drop_bounding_set(void)
{
    for (unsigned long capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        if (prctl(PR_CAPBSET_READ, capability, 0, 0, 0) > 0 &&
            prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0)
            return -errno;
    return 0;
}

/* In a container the engine starts a process as its user already, and nobody there may change one. */
static bool is_user_already(uid_t uid, gid_t gid)
{
    gid_t groups[2];
    int count = getgroups(BT_ARRAY_LENGTH(groups), groups);
    return getuid() == uid && getgid() == gid && (count == 0 || (count == 1 && groups[0] == gid));
}

static int check_nothing_left(uid_t uid, gid_t gid)
{
    uid_t uids[3];
    gid_t gids[3];
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    if (getresuid(&uids[0], &uids[1], &uids[2]) < 0 || getresgid(&gids[0], &gids[1], &gids[2]) < 0 ||
        syscall(SYS_capget, &header, sets) < 0)
        return -errno;
    for (int i = 0; i < 3; i++)
        if (uids[i] != uid || gids[i] != gid)
            return -EPERM;
    for (int i = 0; i < 2; i++)
        if ((sets[i].effective | sets[i].permitted | sets[i].inheritable) != 0)
            return -EPERM;
    return is_user_already(uid, gid) ? 0 : -EPERM;
}

int bt_init_become_user(uid_t uid, gid_t gid)
{
    if (setgroups(0, NULL) < 0 && !(errno == EPERM && is_user_already(uid, gid)))
        return -errno;
    if (uid == 0)
        return setresgid(gid, gid, gid) < 0 ? -errno : 0;
    int result = drop_bounding_set();
    if (result < 0)
        return result;
    /* gVisor has no ambient capabilities. Where there are some, they are among those that are read back. */
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
        return -errno;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0 ||
        syscall(SYS_capset, &header, none) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return check_nothing_left(uid, gid);
}
