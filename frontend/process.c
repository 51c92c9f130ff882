/* Telling one process from a later one with the same pid.
 *
 * Used by the state database and by commands that signal a keeper. Must not signal anything itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frontend/process.h"

static int bt_proc_read(const char *path, char *text, size_t size)
{
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length;

    if (fd < 0)
        return -errno;
    length = read(fd, text, size - 1);
    if (length < 0)
        return -errno;
    text[length] = '\0';
    return 0;
}

/* Field 22 of /proc/PID/stat. The name in field 2 may hold blanks and brackets: counting begins after the
 * last one. */
static int bt_process_start(pid_t pid, uint64_t *ret_ticks)
{
    char path[64], text[1024];
    char *at, *blank;
    int r;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    r = bt_proc_read(path, text, sizeof(text));
    if (r < 0)
        return -ESRCH;
    at = strrchr(text, ')');
    for (unsigned field = 2; at && field < 22; field++) {
        at = strchr(at, ' ');
        if (at)
            at++;
    }
    if (!at)
        return -ESRCH;
    blank = strchr(at, ' ');
    if (!blank)
        return -ESRCH;
    return bt_number_parse(at, (size_t)(blank - at), 0, UINT64_MAX, ret_ticks) < 0 ? -ESRCH : 0;
}

/* Read once: a process does not outlive its boot, and `berth list` asks for each agent. */
static int bt_boot_read(char ret_boot[BT_BOOT_TEXT_SIZE])
{
    static char boot[BT_BOOT_TEXT_SIZE];
    char text[BT_BOOT_TEXT_SIZE + 8] = "";
    int r = *boot ? 0 : bt_proc_read("/proc/sys/kernel/random/boot_id", text, sizeof(text));

    if (r < 0)
        return r;
    if (!*boot)
        memcpy(boot, text, BT_BOOT_TEXT_SIZE - 1);
    memcpy(ret_boot, boot, BT_BOOT_TEXT_SIZE);
    return 0;
}

int bt_process_identify(pid_t pid, struct bt_process *ret_process)
{
    struct bt_process process = {.pid = pid};
    int r = bt_process_start(pid, &process.start_ticks);

    if (r == 0)
        r = bt_boot_read(process.boot);
    if (r == 0)
        *ret_process = process;
    return r;
}

int bt_process_open(const struct bt_process *process, int *ret_fd)
{
    bt_auto_fd fd = -1;
    struct bt_process now = {0};
    struct pollfd ended;

    if (process->pid <= 0)
        return -ESRCH;
    /* The descriptor first: what /proc says afterwards is about that process, unless it has ended, which poll
     * tells. */
    fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (fd < 0)
        return errno == ESRCH ? -ESRCH : -errno;
    if (bt_process_identify(process->pid, &now) < 0 || now.start_ticks != process->start_ticks ||
        strcmp(now.boot, process->boot) != 0)
        return -ESRCH;
    ended = (struct pollfd){.fd = fd, .events = POLLIN};
    if (poll(&ended, 1, 0) != 0)
        return -ESRCH;
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

bool bt_process_is_alive(const struct bt_process *process)
{
    bt_auto_fd fd = -1;

    return bt_process_open(process, &fd) == 0;
}
