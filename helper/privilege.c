/* Stage 3: become the helper's account with CAP_NET_ADMIN alone, and prove it.
 *
 * Called by main once the sockets are open. Should: end with exactly the rights that the table below names.
 * Must not: believe a call that returned 0; the kernel is asked again.
 */
#include "helper/privilege.h"

#include <cap-ng.h>
#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* KEEP_CAPS stays unlocked since the change of uid needs it; without CAP_SETUID it is worth nothing
 * afterwards. */
#define SECUREBITS                                                                                           \
    (SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED |         \
     SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED)

/* The securebits come first: they need CAP_SETPCAP, which goes with the uid. */
static int change_account(uid_t uid, gid_t gid)
{
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return -errno;
    if (prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0) < 0)
        return -errno;
    capng_clear(CAPNG_SELECT_BOTH);
    if (capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED, CAP_NET_ADMIN) != 0)
        return -EINVAL;
    if (capng_change_id((int)uid, (int)gid, CAPNG_DROP_SUPP_GRP | CAPNG_CLEAR_BOUNDING) != 0)
        return -EPERM;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return -errno;
    return 0;
}

static bool is_account(uid_t uid, gid_t gid)
{
    uid_t real_uid, effective_uid, saved_uid;
    gid_t real_gid, effective_gid, saved_gid;
    if (getresuid(&real_uid, &effective_uid, &saved_uid) < 0 ||
        getresgid(&real_gid, &effective_gid, &saved_gid) < 0)
        return false;
    return real_uid == uid && effective_uid == uid && saved_uid == uid && real_gid == gid &&
           effective_gid == gid && saved_gid == gid && getgroups(0, NULL) == 0;
}

/* By the raw call, so that the library that set them does not vouch for itself. */
static bool has_only_net_admin(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (syscall(SYS_capget, &header, sets) < 0)
        return false;
    if (sets[0].effective != CAP_TO_MASK(CAP_NET_ADMIN) || sets[0].permitted != CAP_TO_MASK(CAP_NET_ADMIN) ||
        sets[0].inheritable != 0)
        return false;
    return sets[1].effective == 0 && sets[1].permitted == 0 && sets[1].inheritable == 0;
}

static bool are_other_sets_empty(void)
{
    int capability = 0;
    for (;; capability++) {
        int bounding = prctl(PR_CAPBSET_READ, capability, 0, 0, 0);
        if (bounding < 0)
            break; /* EINVAL: past the last one that this kernel has */
        if (bounding != 0 || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, capability, 0, 0) != 0)
            return false;
    }
    return capability > CAP_NET_ADMIN;
}

int bt_privilege_drop(uid_t uid, gid_t gid)
{
    if (uid == 0 || gid == 0)
        return -EINVAL;
    int error = change_account(uid, gid);
    if (error < 0)
        return error;
    if (!is_account(uid, gid) || !has_only_net_admin() || !are_other_sets_empty())
        return -EPERM;
    if (prctl(PR_GET_SECUREBITS, 0, 0, 0, 0) != SECUREBITS || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 ||
        prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0)
        return -EPERM;
    /* The way back must be shut: a saved id or a capability that was missed would open it here. */
    if (setuid(0) == 0 || setgid(0) == 0)
        return -EPERM;
    return 0;
}
