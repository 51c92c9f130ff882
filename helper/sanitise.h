/* Stage 1 of the helper's start: whatever the starter left behind is made harmless. */
#ifndef BERTH_HELPER_SANITISE_H
#define BERTH_HELPER_SANITISE_H

#include "ipc/base/base.h"

/* environment is main's. After it: empty environment, its strings overwritten; descriptors 0..2 open and 0
 * and 1 /dev/null; none above but the kept_count passed ones, from 3 on; signals at their defaults but
 * SIGPIPE and SIGXFSZ ignored, none blocked; no core dumps; enough descriptors; umask 077; cwd "/". */
int bt_sanitise(unsigned kept_count, char *const *environment) BT_MUST_CHECK;

struct bt_passed_sockets {
    unsigned count;         /* 0 to 2, descriptors 3 and up */
    int main_fd, status_fd; /* -1: not passed */
};

/* The sockets that a service manager hands over, sd_listen_fds(3). One is the main socket; of two, the status
 * socket is the one called "status" in LISTEN_FDNAMES. environment is main's, so this comes before
 * bt_sanitise. -EINVAL: the variables make no sense; -E2BIG: more than two sockets. */
int bt_sanitise_find_passed_sockets(char *const *environment, struct bt_passed_sockets *ret) BT_MUST_CHECK;

#endif
