/* The file part of the jail: Landlock. Called by jail.c in the child. Must not fail open: once the kernel
 * said that it has Landlock, every error is an error. See jail.h and landlock(7).
 */
#include "vm/jail_landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Rights of later kernels than the headers that this is built with. */
#define RIGHT_TRUNCATE (1ULL << 14)  /* ABI 3 */
#define RIGHT_IOCTL_DEV (1ULL << 15) /* ABI 5 */
#define NETWORK_BIND_TCP (1ULL << 0) /* ABI 4 */
#define NETWORK_CONNECT_TCP (1ULL << 1)
#define SCOPE_ABSTRACT_UNIX_SOCKET (1ULL << 0) /* ABI 6 */
#define SCOPE_SIGNAL (1ULL << 1)

#define RIGHTS_ABI_1 ((1ULL << 13) - 1)
#define RIGHT_REFER (1ULL << 13) /* ABI 2 */

/* struct landlock_ruleset_attr as of ABI 6; older kernels are told a shorter size. */
struct ruleset_attributes {
    uint64_t files;
    uint64_t network;
    uint64_t scoped;
};

static uint64_t handled_rights(int abi)
{
    uint64_t rights = RIGHTS_ABI_1;
    if (abi >= 2)
        rights |= RIGHT_REFER;
    if (abi >= 3)
        rights |= RIGHT_TRUNCATE;
    if (abi >= 5)
        rights |= RIGHT_IOCTL_DEV;
    return rights;
}

static int make_ruleset(int abi)
{
    struct ruleset_attributes attributes = {.files = handled_rights(abi)};
    size_t size = sizeof(uint64_t);
    if (abi >= 4) {
        attributes.network = NETWORK_BIND_TCP | NETWORK_CONNECT_TCP;
        size = 2 * sizeof(uint64_t);
    }
    if (abi >= 6) {
        attributes.scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL;
        size = 3 * sizeof(uint64_t);
    }
    return (int)syscall(SYS_landlock_create_ruleset, &attributes, size, 0);
}

static uint64_t rights_of(const struct bt_jail_path *path, bool is_folder, int abi)
{
    uint64_t rights = LANDLOCK_ACCESS_FS_READ_FILE;
    if (is_folder)
        rights |= LANDLOCK_ACCESS_FS_READ_DIR;
    if (path->may_execute)
        rights |= LANDLOCK_ACCESS_FS_EXECUTE;
    if (path->may_write || path->is_device)
        rights |= LANDLOCK_ACCESS_FS_WRITE_FILE;
    if (path->may_write && !is_folder)
        rights |= RIGHT_TRUNCATE;
    if (path->is_device)
        rights |= RIGHT_IOCTL_DEV;
    return rights & handled_rights(abi);
}

static int add_path(int ruleset_fd, const struct bt_jail_path *path, int abi)
{
    struct stat status;
    bt_auto_fd path_fd = open(path->path, O_PATH | O_CLOEXEC);
    if (path_fd < 0)
        return errno == ENOENT || errno == EACCES ? 0 : -errno;
    if (fstat(path_fd, &status) < 0)
        return -errno;
    struct landlock_path_beneath_attr rule = {.allowed_access = rights_of(path, S_ISDIR(status.st_mode), abi),
                                              .parent_fd = path_fd};
    return syscall(SYS_landlock_add_rule, ruleset_fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0 ? -errno : 0;
}

int bt_jail_landlock(const struct bt_jail *jail, int *ret_abi)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi <= 0) {
        *ret_abi = 0;
        return 0;
    }
    bt_auto_fd ruleset_fd = make_ruleset((int)abi);
    if (ruleset_fd < 0)
        return -errno;
    for (size_t i = 0; i < jail->path_count; i++) {
        int result = add_path(ruleset_fd, &jail->paths[i], (int)abi);
        if (result < 0)
            return result;
    }
    if (syscall(SYS_landlock_restrict_self, ruleset_fd, 0) < 0)
        return -errno;
    *ret_abi = (int)abi;
    return 0;
}
