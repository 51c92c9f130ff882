/* Stages 3 to 5 of the helper's start: from root to an account that can do nothing but manage interfaces and
 * rules.
 *
 * Each stage is called once, in this order, after everything that needs root is open. A failure is final: the
 * caller exits.
 */
#ifndef BERTH_HELPER_PRIVILEGE_H
#define BERTH_HELPER_PRIVILEGE_H

#include <sys/types.h>

#include "ipc/base/base.h"

/* Becomes uid and gid (neither 0) without supplementary groups, with CAP_NET_ADMIN permitted and effective
 * and nothing else in any set, securebits locked, no_new_privs, not dumpable. Then reads all of it back from
 * the kernel: -EPERM when anything differs. */
int bt_privilege_drop(uid_t uid, gid_t gid) BT_MUST_CHECK;

/* Landlock: no file system access but reading and writing /dev/net/tun. *ret_is_confined is false on a kernel
 * without Landlock, where the account's own rights are what is left. -ENOENT: there is no /dev/net/tun. */
int bt_privilege_confine_files(bool *ret_is_confined) BT_MUST_CHECK;

/* seccomp: the system calls of the loop, by number and where it matters by argument; anything else kills. */
int bt_privilege_confine_calls(void) BT_MUST_CHECK;

#endif
