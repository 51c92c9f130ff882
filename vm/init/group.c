/* The control group of everything that the agent's commands start (kernel:
 * Documentation/admin-guide/cgroup-v2.rst).
 *
 * An agent that forks without end or takes all memory must not lock the host out of its own guest: root's
 * processes, dropbear above all, are outside the group, get their share of the processor whatever is in it,
 * and find some memory left. Made by the boot, entered by "berth-init run". A kernel without the controllers
 * is said, and lived with.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "vm/init/init.h"

#define GROUPS "/sys/fs/cgroup"
#define GROUP GROUPS "/berth-agent"
#define MEMORY_KEPT_BYTES (48ULL << 20)

static int limit_memory(void)
{
    struct sysinfo machine;
    char text[32];
    if (sysinfo(&machine) < 0)
        return -errno;
    uint64_t total = (uint64_t)machine.totalram * machine.mem_unit;
    if (total < 4 * MEMORY_KEPT_BYTES)
        return 0;
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)(total - MEMORY_KEPT_BYTES));
    return bt_init_set_kernel(GROUP "/memory.max", text);
}

void bt_init_make_group(void)
{
    int result = 0;
    if (mount("cgroup2", GROUPS, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        result = -errno;
    if (result == 0)
        result = bt_init_set_kernel(GROUPS "/cgroup.subtree_control", "+cpu +memory");
    if (result == 0 && mkdir(GROUP, 0755) < 0)
        result = -errno;
    if (result == 0)
        result = limit_memory();
    if (result < 0)
        bt_init_say("the agent's processes are in no group of their own: %s", strerror(-result));
}

int bt_init_enter_group(void)
{
    int result = bt_init_set_kernel(GROUP "/cgroup.procs", "0");
    return result == -ENOENT ? 0 : result;
}
