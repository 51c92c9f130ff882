/* The socket that clients connect to: made here, or handed over by a service manager and checked here. */
#ifndef BERTH_HELPER_LISTENER_H
#define BERTH_HELPER_LISTENER_H

#include <sys/types.h>

#include "ipc/base/base.h"

/* Makes socket_path, 0660 root:group, in a directory that only root can write; a missing last directory is
 * made, 0750 root:group. With is_for_all (the status socket): 0666 and 0755. *ret_lock_fd is held as long as
 * the engine lives. -EALREADY: another engine holds the lock. What is wrong is said. Both descriptors are
 * owned by the caller. */
int bt_listener_open(const char *socket_path, gid_t group, bool is_for_all, int *ret_listen_fd,
                     int *ret_lock_fd) BT_MUST_CHECK;

/* -EINVAL unless fd is a listening AF_UNIX SOCK_SEQPACKET socket. Makes it non-blocking. */
int bt_listener_check_passed(int fd) BT_MUST_CHECK;

#endif
