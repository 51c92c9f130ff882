/* The helper's entrance on macOS, see entrance.h. NOT COMPILED on the machines that berth is developed on.
 *
 * Called by main as root. It must not take a peer's word for anything, its pid neither.
 */
#include "helper/macos/entrance.h"

#include <bsm/libbsm.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <launch.h>
#include <sandbox.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/ucred.h>
#include <sys/un.h>
#include <unistd.h>

static int check_socket(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof(address), size = sizeof(int);
    int type = 0, is_listening = 0;
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) < 0)
        return -errno;
    if (address.ss_family != AF_UNIX || type != SOCK_STREAM || !is_listening)
        return -EINVAL;
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0
               ? -errno
               : 0;
}

int bt_entrance_take_socket(const char *key, int *ret_listen_fd)
{
    int *fds = NULL;
    size_t count = 0;
    int error = -launch_activate_socket(key, &fds, &count);
    if (error == 0 && count != 1)
        error = -EINVAL;
    if (error == 0)
        error = check_socket(fds[0]);
    if (error == 0)
        *ret_listen_fd = fds[0];
    else
        for (size_t i = 0; i < count; i++)
            bt_fd_close(&fds[i]);
    free(fds); /* the interface's: it allocates the list */
    return error;
}

int bt_entrance_read_peer(int fd, uint32_t *ret_uid)
{
    struct xucred credentials = {0};
    audit_token_t token = {0};
    socklen_t length = sizeof(credentials);
    if (getsockopt(fd, SOL_LOCAL, LOCAL_PEERCRED, &credentials, &length) < 0)
        return -errno;
    if (length != sizeof(credentials) || credentials.cr_version != XUCRED_VERSION)
        return -EACCES;
    length = sizeof(token);
    if (getsockopt(fd, SOL_LOCAL, LOCAL_PEERTOKEN, &token, &length) < 0)
        return -errno;
    if (length != sizeof(token) || audit_token_to_euid(token) != credentials.cr_uid ||
        credentials.cr_uid == UINT32_MAX)
        return -EACCES;
    *ret_uid = credentials.cr_uid;
    return 0;
}

/* There are no capabilities, and no call that sets all three ids: setuid(2) of root does. */
static int become(uid_t uid, gid_t gid)
{
    gid_t group = gid, groups[2] = {0};
    if (uid == 0 || gid == 0)
        return -EINVAL;
    if (setgroups(1, &group) < 0 || setgid(gid) < 0 || setuid(uid) < 0)
        return -errno;
    if (getuid() != uid || geteuid() != uid || getgid() != gid || getegid() != gid ||
        getgroups(2, groups) != 1 || groups[0] != gid)
        return -EPERM;
    return setuid(0) == 0 || seteuid(0) == 0 || setgid(0) == 0 ? -EPERM : 0;
}

int bt_entrance_drop(uid_t uid, gid_t gid)
{
    char *reason = NULL;
    int error = become(uid, gid);
    if (error < 0)
        return error;
    if (sandbox_init(kSBXProfilePureComputation, SANDBOX_NAMED, &reason) != 0) {
        sandbox_free_error(reason);
        return -EPERM;
    }
    return 0;
}
