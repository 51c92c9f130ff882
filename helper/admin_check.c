/* `berth-helper check`: is everything that is installed root's, and closed to others, up to "/"?
 *
 * Whoever can write a program that root starts, or a folder above it, is root. It only looks.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper/admin.h"

/* Symbolic links on the way are followed part by part by realpath(3) before; a link's own mode says nothing,
 * who may exchange it is told by its folder. */
static int check_part(const char *path)
{
    struct stat status;
    if (lstat(path, &status) < 0) {
        bt_admin_tell("BAD %s: %s", path, strerror(errno));
        return 1;
    }
    if (status.st_uid != 0) {
        bt_admin_tell("BAD %s belongs to uid %u, not to root: chown root %s", path, status.st_uid, path);
        return 1;
    }
    bool is_link = S_ISLNK(status.st_mode), is_socket = S_ISSOCK(status.st_mode);
    if (!is_link && !is_socket && (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        bt_admin_tell("BAD %s is writable by others than root (mode %04o): chmod go-w %s", path,
                      status.st_mode & 07777U, path);
        return 1;
    }
    return 0;
}

/* Each part of an absolute path, the path itself first. */
static int check_upwards(const char *path)
{
    char part[PATH_MAX];
    int bad = 0;
    size_t length = strlen(path);
    memcpy(part, path, length + 1);
    for (;;) {
        bad += check_part(part);
        char *slash = strrchr(part, '/');
        if (strcmp(part, "/") == 0 || !slash)
            return bad;
        if (slash == part)
            slash++;
        *slash = '\0';
    }
}

int bt_admin_walk(const char *path)
{
    char real[PATH_MAX];
    if (path[0] != '/' || strlen(path) >= sizeof(real) || !realpath(path, real)) {
        bt_admin_tell("BAD %s: %s", path, strerror(errno));
        return 1;
    }
    int bad = check_upwards(path);
    if (strcmp(path, real) != 0)
        bad += check_upwards(real);
    return bad;
}

/* What may be there or not. */
static int walk_if_there(const char *path, unsigned *found)
{
    struct stat status;
    if (lstat(path, &status) < 0 && errno == ENOENT)
        return 0;
    (*found)++;
    return bt_admin_walk(path);
}

static int walk_folder(const char *folder, unsigned *found)
{
    const struct dirent *entry;
    DIR *stream = opendir(folder);
    int bad = 0;
    if (!stream)
        return errno == ENOENT ? 0 : walk_if_there(folder, found);
    while ((entry = readdir(stream))) {
        char path[PATH_MAX];
        int length = snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && length > 0 &&
            (size_t)length < sizeof(path))
            bad += walk_if_there(path, found);
    }
    (void)closedir(stream);
    return bad;
}

/* `make install` puts the rest beside the helper: PREFIX/sbin/berth-helper, PREFIX/bin, PREFIX/libexec. */
static int walk_prefix(const char *helper_path, unsigned *found)
{
    static const char *const beside[] = {"bin/berth", "libexec/berth", "share/berth"};
    static const char *const folders[] = {"libexec/berth", "share/berth/recipes"};
    char prefix[PATH_MAX], path[PATH_MAX + 32];
    int bad = 0;
    (void)snprintf(prefix, sizeof(prefix), "%s", helper_path);
    for (unsigned i = 0; i < 2; i++) {
        char *slash = strrchr(prefix, '/');
        if (!slash)
            return 0;
        *slash = '\0';
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(beside); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", prefix, beside[i]);
        bad += walk_if_there(path, found);
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(folders); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", prefix, folders[i]);
        bad += walk_folder(path, found);
    }
    return bad;
}

/* What a configuration says that listen would refuse, and where its log lies. */
static int check_config(const struct bt_admin *admin, unsigned *found)
{
    struct bt_config config;
    int bad = 0;
    if (bt_admin_read_config(admin, &config) < 0)
        return 1;
    if (bt_config_blocks_overlap(bt_config_tap_block(&config.kernel.pool),
                                 bt_config_bridge_block(&config.kernel.pool))) {
        bt_admin_tell("BAD configuration: the blocks of tap_base and bridge_base overlap; `berth-helper "
                      "install --dry-run` proposes a free one");
        bad++;
    }
    return config.audit_folder[0] != '\0' ? bad + walk_if_there(config.audit_folder, found) : bad;
}

int bt_admin_check(const struct bt_admin *admin)
{
    char own_path[PATH_MAX];
    unsigned found = 1;
    ssize_t length = readlink("/proc/self/exe", own_path, sizeof(own_path) - 1);
    if (length < 0) {
        bt_admin_complain("/proc/self/exe: %s; is /proc mounted?", strerror(errno));
        return 1;
    }
    own_path[length] = '\0';
    int bad = bt_admin_walk(own_path);
    bad += walk_prefix(own_path, &found);
    bad += walk_if_there(admin->config_path ? admin->config_path : BT_CONFIG_PATH_DEFAULT, &found);
    for (size_t i = 0; i < bt_admin_unit_count; i++)
        bad += walk_if_there(bt_admin_units[i].path, &found);
    bad += walk_if_there(BT_INSTALLED_RUN, &found);
    bad += walk_if_there(BT_INSTALLED_STATUS_RUN, &found);
    bad += check_config(admin, &found);
    if (bad == 0)
        bt_admin_tell("ok: %u paths are root's and closed to others, up to /", found);
    return bad == 0 ? 0 : 1;
}
