/* Stage 1 of the helper's start: whatever the starter left behind is made harmless. */
#ifndef BERTH_HELPER_SANITISE_H
#define BERTH_HELPER_SANITISE_H

#include "ipc/base/base.h"

/* After it: empty environment; descriptors 0..2 open and 0 and 1 /dev/null; none above but kept_fd (-1:
 * none); signals at their defaults but SIGPIPE ignored, none blocked; no core dumps; enough descriptors;
 * umask 077; cwd "/". */
int bt_sanitise(int kept_fd) BT_MUST_CHECK;

/* The socket that a service manager hands over, sd_listen_fds(3): *ret_fd is 3, or -1 when there is none.
 * environment is main's, so this comes before bt_sanitise. -EINVAL: the variables make no sense; -E2BIG: more
 * than one socket. */
int bt_sanitise_find_passed_socket(char *const *environment, int *ret_fd) BT_MUST_CHECK;

#endif
