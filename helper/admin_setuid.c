/* `berth-helper install --setuid`, and what uninstall takes back: the setuid starter's owner and mode.
 *
 * Run by root. Nobody but the members of the group berth may execute the starter, which may use the helper's
 * socket anyway. It must not give the bit to a file that somebody else can change.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "helper/accounts.h"
#include "helper/admin.h"

#define MODE_SETUID 04750
#define MODE_PLAIN 0755

static int open_starter(struct stat *ret_status)
{
    bt_auto_fd fd = open(BT_INSTALLED_STARTER, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, ret_status) < 0)
        return -errno;
    return S_ISREG(ret_status->st_mode) ? bt_fd_take(&fd) : -EINVAL;
}

static int complain(int error)
{
    bt_admin_complain(BT_INSTALLED_STARTER ": %s; %s", strerror(-error),
                      error == -ENOENT ? "it is built and installed by `make SETUID=1 install`"
                                       : "install it again by `make SETUID=1 install`");
    return 1;
}

/* The mode comes last: a change of owner takes the bit away. */
static int set_owner_and_mode(int fd, gid_t gid, mode_t mode)
{
    return fchown(fd, 0, gid) < 0 || fchmod(fd, mode) < 0 ? -errno : 0;
}

int bt_admin_give_setuid(const struct bt_admin *admin)
{
    struct stat status = {0};
    struct statvfs mount;
    uint32_t gid = 0;
    bt_auto_fd fd = open_starter(&status);
    if (fd < 0)
        return complain(fd);
    if (bt_admin_walk(BT_INSTALLED_STARTER) > 0)
        return 1;
    if (fstatvfs(fd, &mount) == 0 && (mount.f_flag & ST_NOSUID) != 0) {
        bt_admin_complain(BT_INSTALLED_STARTER " is on a file system that is mounted nosuid, where the bit "
                                               "means nothing; use the units, or `berth-helper listen`");
        return 1;
    }
    int error = bt_accounts_read("/etc/group", "berth", &gid, NULL);
    if (error < 0 && !admin->is_dry_run) /* a dry run has not made the group */
        return complain(error);
    if (status.st_uid == 0 && status.st_gid == gid && (status.st_mode & 07777) == MODE_SETUID) {
        bt_admin_tell("found: %s is setuid, for the group berth", BT_INSTALLED_STARTER);
        return 0;
    }
    error = admin->is_dry_run ? 0 : set_owner_and_mode(fd, gid, MODE_SETUID);
    if (error < 0)
        return complain(error);
    bt_admin_tell("%s: %s setuid, for the group berth", admin->is_dry_run ? "would make" : "made",
                  BT_INSTALLED_STARTER);
    return 0;
}

int bt_admin_take_setuid(const struct bt_admin *admin)
{
    struct stat status = {0};
    bt_auto_fd fd = open_starter(&status);
    if (fd == -ENOENT || (fd >= 0 && (status.st_mode & S_ISUID) == 0))
        return 0;
    if (fd < 0)
        return complain(fd);
    int error = admin->is_dry_run ? 0 : set_owner_and_mode(fd, 0, MODE_PLAIN);
    if (error < 0)
        return complain(error);
    bt_admin_tell("%s: setuid of %s", admin->is_dry_run ? "would take away" : "took away",
                  BT_INSTALLED_STARTER);
    return 0;
}
