/* Which process, without mistaking it for a later one with the same number: pid, start time and boot.
 *
 * Used by the state database to tell whether a keeper lives. Authority is never derived from it.
 */
#ifndef BERTH_FRONTEND_PROCESS_H
#define BERTH_FRONTEND_PROCESS_H

#include <sys/types.h>

#include "ipc/base/base.h"

#define BT_BOOT_TEXT_SIZE 37

struct bt_process {
    pid_t pid;                    /* 0 = none */
    uint64_t start_ticks;         /* field 22 of /proc/PID/stat (proc(5)), clock ticks since boot */
    char boot[BT_BOOT_TEXT_SIZE]; /* /proc/sys/kernel/random/boot_id (random(4)) */
};

/* Identifies a running process. -ESRCH when there is none. */
int bt_process_identify(pid_t pid, struct bt_process *ret_process) BT_MUST_CHECK;

/* Whether exactly this process still runs (a zombie does not). */
bool bt_process_is_alive(const struct bt_process *process);

/* A descriptor that becomes readable when the process ends (pidfd_open(2)), owned by the caller; -ESRCH when
 * exactly this process does not run any more. */
int bt_process_open(const struct bt_process *process, int *ret_fd) BT_MUST_CHECK;

#endif
