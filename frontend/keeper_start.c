/* Starting a keeper from a command, and following what it reports. See keeper.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontend/keeper.h"
#include "frontend/launch.h"

#define EVENT_LINE_MAX (1024U * 1024U)

/* In the grandchild: nothing of the command's terminal, descriptors or session stays. */
static _Noreturn void become_keeper(int request_fd, int progress_fd, int lock_fd, int log_fd)
{
    char *const arguments[] = {(char[]){"berth"}, (char[]){BT_KEEPER_ARGUMENT}, NULL};
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    int request = fcntl(request_fd, F_DUPFD_CLOEXEC, 16);
    int progress = fcntl(progress_fd, F_DUPFD_CLOEXEC, 16);
    int lock = lock_fd < 0 ? -1 : fcntl(lock_fd, F_DUPFD_CLOEXEC, 16);
    int log = fcntl(log_fd, F_DUPFD_CLOEXEC, 16);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 ||
        dup2(request, BT_KEEPER_REQUEST_FD) < 0 || dup2(progress, BT_KEEPER_PROGRESS_FD) < 0 ||
        (lock_fd >= 0 && dup2(lock, BT_KEEPER_LOCK_FD) < 0) || chdir("/") < 0)
        _exit(127);
    if (close_range(lock_fd >= 0 ? BT_KEEPER_LOCK_FD + 1 : BT_KEEPER_LOCK_FD, ~0U, 0) < 0)
        _exit(127);
    (void)execv("/proc/self/exe", arguments);
    _exit(127);
}

/* Forks twice, so that the keeper belongs to init and to no terminal. */
static int fork_keeper(int request_fd, int progress_fd, int lock_fd, int log_fd)
{
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (child == 0) {
        if (setsid() < 0)
            _exit(126);
        pid_t keeper = fork();
        if (keeper == 0)
            become_keeper(request_fd, progress_fd, lock_fd, log_fd);
        _exit(keeper < 0 ? 126 : 0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EAGAIN;
}

int bt_keeper_start(const json_t *request, int lock_fd, struct bt_keeper_handle *ret_handle,
                    struct bt_error *error)
{
    const char *folder = json_string_value(json_object_get(request, "folder"));
    bt_auto_free char *log_path = bt_string_format("%s/keeper.log", folder);
    bt_auto_free char *text = json_dumps(request, JSON_COMPACT);
    int request_ends[2] = {-1, -1};
    int progress_ends[2] = {-1, -1};
    bt_auto_fd log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    int result = 0;
    if (text == NULL || log_fd < 0 || pipe2(request_ends, O_CLOEXEC) < 0 ||
        pipe2(progress_ends, O_CLOEXEC) < 0)
        result = -errno;
    bt_auto_fd request_read = request_ends[0];
    bt_auto_fd request_write = request_ends[1];
    bt_auto_fd progress_read = progress_ends[0];
    bt_auto_fd progress_write = progress_ends[1];
    if (result == 0)
        result = fork_keeper(request_read, progress_write, lock_fd, log_fd);
    bt_fd_close(&request_read);
    bt_fd_close(&progress_write);
    if (result == 0)
        result = bt_write_all(request_write, text, text == NULL ? 0 : strlen(text));
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot start the keeper: %s", strerror(-result));
    ret_handle->request_fd = -1;
    ret_handle->progress_fd = bt_fd_take(&progress_read);
    return 0;
}

/* Handles one event. Returns 1 when it was the last one (ready), 0 to go on, or a negative errno. */
static int take_event(const char *line, size_t length, const struct bt_progress *progress, json_t *steps,
                      json_t **ret_facts, struct bt_error *error)
{
    json_t *event = json_loadb(line, length, 0, NULL);
    const char *kind = json_string_value(json_object_get(event, "event"));
    int result = 0;
    if (kind == NULL)
        result = bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL, "the keeper reported something without sense");
    else if (strcmp(kind, "failed") == 0)
        result = bt_control_unpack_error(event, error);
    else if (strcmp(kind, "ready") == 0)
        result = 1;
    else if (strcmp(kind, "step") == 0 && steps != NULL)
        (void)json_array_append(steps, event);
    else if (strcmp(kind, "note") == 0 && progress != NULL && progress->report != NULL)
        progress->report(progress->context, json_string_value(json_object_get(event, "text")),
                         (uint64_t)json_integer_value(json_object_get(event, "done")),
                         (uint64_t)json_integer_value(json_object_get(event, "total")));
    if (result == 1)
        *ret_facts = event;
    else
        json_decref(event);
    return result;
}

/* Takes the whole lines out of pending. */
static int take_lines(struct bt_buffer *pending, const struct bt_progress *progress, json_t *steps,
                      json_t **ret_facts, struct bt_error *error)
{
    int result = 0;
    size_t at = 0;
    while (result == 0) {
        const char *end = memchr(pending->data + at, '\n', pending->length - at);
        if (end == NULL)
            break;
        size_t length = (size_t)(end - (pending->data + at));
        result = take_event(pending->data + at, length, progress, steps, ret_facts, error);
        at += length + 1;
    }
    memmove(pending->data, pending->data + at, pending->length - at);
    pending->length -= at;
    return result;
}

int bt_keeper_follow(struct bt_keeper_handle *handle, const struct bt_progress *progress, json_t *steps,
                     json_t **ret_facts, struct bt_error *error)
{
    bt_auto_buffer pending = {.limit = EVENT_LINE_MAX};
    bt_auto_fd fd = bt_fd_take(&handle->progress_fd);
    for (;;) {
        char chunk[4096];
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return bt_fail(error, BT_EXIT_ERROR, EPIPE, "see keeper.log in the agent's folder",
                           "the keeper ended without a word");
        if (bt_buffer_add(&pending, chunk, (size_t)got) < 0)
            return bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "the keeper reported too much");
        int result = take_lines(&pending, progress, steps, ret_facts, error);
        if (result != 0)
            return result > 0 ? 0 : result;
    }
}
