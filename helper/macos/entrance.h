/* What of the helper's entrance is different on macOS: launchd's sockets, who a peer is, what is given up.
 *
 * entrance_macos.c is compiled there alone; elsewhere only its syntax is checked, against headers of our own
 * (tests/lint/macos.sh). It has not been run.
 */
#ifndef BERTH_HELPER_MACOS_ENTRANCE_H
#define BERTH_HELPER_MACOS_ENTRANCE_H

#include <sys/types.h>

#include "ipc/base/base.h"

/* The one socket that launchd made for this key of the property list, launch_activate_socket(3): a listening
 * SOCK_STREAM of AF_UNIX, non-blocking, close-on-exec, owned by the caller. -ESRCH: not started by launchd.
 * -EINVAL: none, several, or another kind. */
int bt_entrance_take_socket(const char *key, int *ret_listen_fd) BT_MUST_CHECK;

/* The peer's uid at connect(2): LOCAL_PEERCRED and the audit token have to agree. -EACCES: they do not, or
 * there is none; nobody is served then, root neither. */
int bt_entrance_read_peer(int fd, uint32_t *ret_uid) BT_MUST_CHECK;

/* Stages 3 and 4: becomes the account, without groups, and reads it back (-EPERM); then Apple's sandbox: no
 * file, no process, no network but the descriptors that are open. */
int bt_entrance_drop(uid_t uid, gid_t gid) BT_MUST_CHECK;

#endif
