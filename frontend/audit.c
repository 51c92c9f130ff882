/* The user's audit trail.
 *
 * Called by commands and keepers. Must never hold a prompt, a command line, an environment or a secret.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "frontend/audit.h"
#include "lib/memory.h"

#define BT_AUDIT_LINE_MAX 4096U
#define BT_AUDIT_BYTES_MAX (64U * 1024U * 1024U)
#define BT_AUDIT_READ_MAX (8U * 1024U * 1024U)

static void bt_audit_path(const struct bt_paths *paths, char ret_path[600])
{
    snprintf(ret_path, 600, "%s/audit.jsonl", paths->state);
}

static void bt_audit_time(char ret_text[32])
{
    struct timespec now;
    struct tm parts;
    char seconds[24];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(seconds, sizeof(seconds), "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(ret_text, 32, "%s.%03uZ", seconds, (unsigned)(now.tv_nsec / 1000000) % 1000);
}

/* One old file is kept, so that the trail has an end; the lines that go are the oldest. Several processes may
 * come here at once: the lock is on the file that is full, and whoever finds that the name leads to another
 * one by now has nothing to do. Returns 1 when the file must be opened again. */
static int bt_audit_rotate(int fd, const char *path, struct bt_error *error)
{
    char previous[608];
    struct stat own, named;

    if (fstat(fd, &own) < 0 || own.st_size < (off_t)BT_AUDIT_BYTES_MAX)
        return 0;
    if (flock(fd, LOCK_EX) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot lock %s: %s", path, strerror(errno));
    if (stat(path, &named) < 0 || named.st_ino != own.st_ino || named.st_dev != own.st_dev)
        return 1;
    snprintf(previous, sizeof(previous), "%s.1", path);
    if (rename(path, previous) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot rename %s: %s", path, strerror(errno));
    return 1;
}

static int bt_audit_open(const struct bt_paths *paths, int *ret_fd, struct bt_error *error)
{
    char path[600];
    int r = bt_folder_make(paths->state, 0700, error);

    bt_audit_path(paths, path);
    for (int tries = 0; r == 0 && tries < 4; tries++) {
        bt_auto_fd fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return bt_fail(error, BT_EXIT_ERROR, errno, "check owner, mode and free space of that folder",
                           "cannot write the audit trail %s: %s", path, strerror(errno));
        r = bt_audit_rotate(fd, path, error);
        if (r == 0) {
            *ret_fd = bt_fd_take(&fd);
            return 0;
        }
        r = r > 0 ? 0 : r;
    }
    return r < 0 ? r : bt_fail(error, BT_EXIT_ERROR, EAGAIN, NULL, "cannot begin a new audit trail %s", path);
}

int bt_audit_write(const struct bt_paths *paths, const char *act, const char *environment, const char *agent,
                   json_t *more, struct bt_error *error)
{
    bt_auto_fd fd = -1;
    bt_auto_free char *text = NULL;
    bt_auto_free char *line = NULL;
    char time_text[32];
    json_t *entry;
    ssize_t written;
    int r = bt_audit_open(paths, &fd, error);

    if (r < 0) {
        json_decref(more);
        return r;
    }
    bt_audit_time(time_text);
    entry = json_pack("{s:s, s:s, s:s}", "time", time_text, "act", act, "environment", environment);
    if (agent)
        json_object_set_new(entry, "agent", json_string(agent));
    if (more)
        json_object_update_missing(entry, more);
    json_decref(more);
    text = json_dumps(entry, JSON_COMPACT);
    json_decref(entry);
    if (!text || strlen(text) >= BT_AUDIT_LINE_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EMSGSIZE, NULL, "an audit line for '%s' is too long", act);
    line = bt_string_format("%s\n", text);
    /* One write in append mode, on purpose: two would let lines of other processes in between. */
    written = write(fd, line, strlen(line));
    if (written != (ssize_t)strlen(line))
        return bt_fail(error, BT_EXIT_ERROR, written < 0 ? errno : ENOSPC,
                       "free some space in the state folder", "cannot write the audit trail in %s: %s",
                       paths->state, strerror(written < 0 ? errno : ENOSPC));
    return 0;
}

/* The end of the file, from the beginning of a line, at most BT_AUDIT_READ_MAX bytes. */
static int bt_audit_tail(const char *path, struct bt_buffer *ret_text, struct bt_error *error)
{
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat status;
    char part[65536];
    off_t start = 0;
    ssize_t length;

    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 || fstat(fd, &status) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", path, strerror(errno));
    if (status.st_size > (off_t)BT_AUDIT_READ_MAX)
        start = status.st_size - (off_t)BT_AUDIT_READ_MAX;
    while ((length = pread(fd, part, sizeof(part), start)) > 0) {
        if (bt_buffer_add(ret_text, part, (size_t)length) < 0)
            break;
        start += length;
    }
    return length < 0
               ? bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", path, strerror(errno))
               : 0;
}

int bt_audit_read(const struct bt_paths *paths, size_t lines, json_t **ret_lines, size_t *ret_damaged,
                  struct bt_error *error)
{
    bt_auto_buffer text = {.limit = 2 * BT_AUDIT_READ_MAX};
    json_t *found = json_array();
    size_t damaged = 0, end;
    char path[600];
    int r;

    bt_audit_path(paths, path);
    r = bt_audit_tail(path, &text, error);
    if (r < 0) {
        json_decref(found);
        return r;
    }
    /* Backwards, line by line, until there are enough. */
    end = text.length;
    while (end > 0 && json_array_size(found) < lines) {
        const char *newline;
        size_t start;
        json_t *entry;
        if (text.data[end - 1] == '\n')
            end--;
        newline = memrchr(text.data, '\n', end);
        start = newline ? (size_t)(newline - text.data) + 1 : 0;
        entry = json_loadb(text.data + start, end - start, 0, NULL);
        if (json_is_object(entry))
            json_array_insert(found, 0, entry);
        else
            damaged += end > start;
        json_decref(entry);
        end = start;
    }
    *ret_lines = found;
    *ret_damaged = damaged;
    return 0;
}
