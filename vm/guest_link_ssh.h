/* What the two files of the SSH transport share (guest_link_ssh.c: connecting; guest_link_ssh_session.c:
 * commands). */
#ifndef BERTH_VM_GUEST_LINK_SSH_H
#define BERTH_VM_GUEST_LINK_SSH_H

#include <libssh2.h>

#include "vm/guest_link_internal.h"

struct bt_ssh_link {
    struct bt_guest_link link;
    int fd;
    LIBSSH2_SESSION *ssh;
};

/* Waits for what libssh2 waits for. Returns 0, -ETIMEDOUT, or -ECANCELED when wait_fd (or -1) became
 * readable. */
int bt_ssh_wait(struct bt_ssh_link *link, int64_t deadline_ms, int wait_fd);
/* Turns the last error of libssh2 into ours, and the link unusable. Returns a negative errno. */
int bt_ssh_fail(struct bt_ssh_link *link, struct bt_error *error, const char *what);

/* Members of the transport. */
int bt_ssh_start(struct bt_guest_session *session, const struct bt_guest_command *command,
                 const char *terminal, struct bt_error *error);
int bt_ssh_step(struct bt_guest_session *session, struct bt_error *error);
struct pollfd bt_ssh_watch(const struct bt_guest_session *session);
int bt_ssh_status(struct bt_guest_session *session, struct bt_error *error);
void bt_ssh_end(struct bt_guest_session *session);

#endif
