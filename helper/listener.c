/* Makes or checks the listening socket.
 *
 * Called by main as root, before the privilege drop. It must not work in a directory that anybody else can
 * change, nor take the socket of an engine that is alive.
 */
#include "helper/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "helper/installed.h"
#include "helper/say.h"
#include "helper/trusted.h"

#define BACKLOG 128
#define LOCK_NAME "helper.lock"

/* Enters the directory, made if it is missing, and checks it there: what was checked is what is worked in. */
static int enter_directory(const char *path, gid_t group, bool is_for_all)
{
    struct stat status;
    bool is_ours = mkdir(path, 0700) == 0;
    if ((!is_ours && errno != EEXIST) || chdir(path) < 0)
        return -errno;
    bt_auto_fd fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    if (!bt_trusted_is_roots(&status, S_IFDIR))
        return -EPERM;
    if (is_ours)
        return fchown(fd, 0, group) < 0 || fchmod(fd, is_for_all ? 0755 : 0750) < 0 ? -errno : 0;
    bool may_group_enter = status.st_gid == group && (status.st_mode & S_IXGRP) != 0;
    return may_group_enter || (status.st_mode & S_IXOTH) != 0 ? 0 : -EACCES;
}

/* The kernel drops the lock with the process, however that ends. */
static int take_lock(int *ret_lock_fd)
{
    bt_auto_fd fd = open(LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EALREADY : -errno;
    *ret_lock_fd = bt_fd_take(&fd);
    return 0;
}

/* In the working directory: a name is enough, and no path is looked up twice. */
static int bind_socket(const char *name, gid_t group, bool is_for_all, int *ret_listen_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length == 0 || length >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, name, length);
    bt_auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (unlink(name) < 0 && errno != ENOENT) /* a dead engine's: we hold the lock */
        return -errno;
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    /* Listening comes last: nobody connects before owner and mode are right. */
    if (fchownat(AT_FDCWD, name, 0, group, AT_SYMLINK_NOFOLLOW) < 0 ||
        chmod(name, is_for_all ? 0666 : 0660) < 0)
        return -errno;
    if (listen(fd, BACKLOG) < 0)
        return -errno;
    *ret_listen_fd = bt_fd_take(&fd);
    return 0;
}

static int open_in_directory(const char *directory, const char *name, gid_t group, bool is_for_all,
                             int *ret_listen_fd, int *ret_lock_fd)
{
    bt_auto_fd lock_fd = -1, listen_fd = -1;
    int error = enter_directory(directory, group, is_for_all);
    if (error == 0)
        error = take_lock(&lock_fd);
    if (error == 0)
        error = bind_socket(name, group, is_for_all, &listen_fd);
    if (chdir("/") < 0 && error == 0)
        error = -errno;
    if (error < 0)
        return error;
    *ret_lock_fd = bt_fd_take(&lock_fd);
    *ret_listen_fd = bt_fd_take(&listen_fd);
    return 0;
}

static const char *advise(int error)
{
    switch (error) {
    case -EALREADY:
        return "stop the berth-helper that serves this socket first";
    case -EPERM:
        return "its folder must belong to root and be writable by root alone: chown root, chmod 750";
    case -EACCES:
        return "its folder must be open to the socket's group: chown root:berth, chmod 750";
    case -ENOENT:
        return "make the folders above it first";
    case -EINVAL:
        return "give an absolute path with a folder: " BT_INSTALLED_SOCKET;
    default:
        return "the socket for clients cannot be made there; nothing was started";
    }
}

int bt_listener_open(const char *socket_path, gid_t group, bool is_for_all, int *ret_listen_fd,
                     int *ret_lock_fd)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(socket_path, '/');
    size_t length = slash ? (size_t)(slash - socket_path) : 0;
    int error = -EINVAL;
    if (socket_path[0] == '/' && length > 0 && length < sizeof(directory)) {
        memcpy(directory, socket_path, length);
        directory[length] = '\0';
        error = open_in_directory(directory, slash + 1, group, is_for_all, ret_listen_fd, ret_lock_fd);
    }
    if (error < 0)
        bt_say_error(socket_path, error, advise(error));
    return error;
}

int bt_listener_check_passed(int fd)
{
    static const struct {
        int name, wanted;
    } options[] = {{SO_DOMAIN, AF_UNIX}, {SO_TYPE, SOCK_SEQPACKET}, {SO_ACCEPTCONN, 1}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(options); i++) {
        int value = 0;
        socklen_t length = sizeof(value);
        if (getsockopt(fd, SOL_SOCKET, options[i].name, &value, &length) < 0)
            return -errno;
        if (value != options[i].wanted)
            return -EINVAL;
    }
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}
