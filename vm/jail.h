/* What holds a virtual machine monitor: if a guest breaks out of its monitor, it is in here.
 *
 * Called in a child process between fork and exec, by the drivers. The caller has closed every descriptor
 * that the program is not meant to have.
 */
#ifndef BERTH_VM_JAIL_H
#define BERTH_VM_JAIL_H

#include "lib/error.h"

/* What may be opened, files and everything below folders. A path that does not exist is left out. */
struct bt_jail_path {
    const char *path;
    bool may_write;   /* else read only */
    bool may_execute; /* programs and shared libraries */
    bool is_device;   /* may_write, and ioctl */
};

struct bt_jail {
    const struct bt_jail_path *paths;
    size_t path_count;
    uint64_t address_space_bytes; /* RLIMIT_AS; 0 = as it is */
};

enum bt_jail_part {
    BT_JAIL_NETWORK = 1, /* user, network and IPC namespaces of its own, all empty */
    BT_JAIL_FILES = 2,   /* Landlock */
    BT_JAIL_CALLS =
        4, /* seccomp: no new socket of any family, no ptrace, no signal to and no limit on
              another process, no   change to a file that was not opened, no user namespace, ... */
};

struct bt_jail_report {
    unsigned parts;   /* of enum bt_jail_part */
    int landlock_abi; /* 0 = the kernel has none */
    const char *step; /* on failure: what could not be done (static text) */
};

/* Enters the jail, irreversibly. Namespaces and Landlock are used where the kernel permits them, and
 * reported; everything else must succeed. Also: no new privileges, no capability, no core dump, limits, and
 * the process is killed when its parent ends (parent_pid: getpid() of the caller before fork). Returns 0 or
 * -errno with step set. Sources: landlock(7), seccomp(2), user_namespaces(7), prctl(2). */
int bt_jail_enter(const struct bt_jail *jail, int parent_pid, struct bt_jail_report *ret_report);

/* "empty network namespace, Landlock ABI 3, seccomp"; what is missing is said as well. */
void bt_jail_describe(const struct bt_jail_report *report, char *ret_text, size_t size);

#endif
