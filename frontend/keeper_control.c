/* The keeper's control socket: one JSON line in, one out, for the owner only. See keeper.h.
 *
 * Authority is the folder's mode (0700) and, again, the peer's uid. The socket is reached through a
 * descriptor of its folder, since sockaddr_un holds only 108 bytes and the folder's path may be longer.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "frontend/keeper.h"

#define LINE_MAX_BYTES (1024U * 1024U)
#define READ_TIMEOUT_MS 5000

static int socket_address(const struct bt_paths *paths, int64_t agent_id, int *ret_folder_fd,
                          struct sockaddr_un *ret_address)
{
    int folder_fd = open(paths->runtime, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0)
        return -errno;
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    (void)snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "/proc/self/fd/%d/agent-%lld.sock",
                   folder_fd, (long long)agent_id);
    *ret_folder_fd = folder_fd;
    return 0;
}

int bt_control_listen(const struct bt_paths *paths, int64_t agent_id, int *ret_fd, struct bt_error *error)
{
    bt_auto_fd folder_fd = -1;
    struct sockaddr_un address;
    int result = bt_folder_make_own(paths->runtime, error);
    if (result < 0)
        return result;
    bt_control_remove(paths, agent_id);
    bt_auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    result = socket_address(paths, agent_id, &folder_fd, &address);
    if (result == 0 &&
        (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 8) < 0))
        result = -errno;
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot open the control socket in %s: %s",
                       paths->runtime, strerror(-result));
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

void bt_control_remove(const struct bt_paths *paths, int64_t agent_id)
{
    bt_auto_free char *path = bt_string_format("%s/agent-%lld.sock", paths->runtime, (long long)agent_id);
    (void)unlink(path);
}

/* Reads up to a newline. timeout_ms < 0: however long it takes. */
static int read_line(int fd, int timeout_ms, struct bt_buffer *line)
{
    line->limit = LINE_MAX_BYTES;
    for (;;) {
        struct pollfd poll_fd = {fd, POLLIN, 0};
        char chunk[4096];
        int ready = poll(&poll_fd, 1, timeout_ms);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return ready == 0 ? -ETIMEDOUT : -errno;
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return got == 0 ? -ECONNRESET : -errno;
        const char *end = memchr(chunk, '\n', (size_t)got);
        size_t length = end == NULL ? (size_t)got : (size_t)(end - chunk);
        if (bt_buffer_add(line, chunk, length) < 0)
            return -EFBIG;
        if (end != NULL)
            return 0;
    }
}

int bt_control_read(int client_fd, json_t **ret_request)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    bt_auto_buffer line = {0};
    if (getsockopt(client_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != getuid())
        return -EACCES;
    int result = read_line(client_fd, READ_TIMEOUT_MS, &line);
    if (result < 0)
        return result;
    json_t *request =
        json_loadb(line.data == NULL ? "" : line.data, line.length, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(request)) {
        json_decref(request);
        return -EBADMSG;
    }
    *ret_request = request;
    return 0;
}

static int send_line(int fd, json_t *document)
{
    bt_auto_free char *text = json_dumps(document, JSON_COMPACT);
    json_decref(document);
    if (text == NULL)
        return -ENOMEM;
    size_t length = strlen(text);
    text[length] = '\n'; /* the NUL is not sent */
    for (size_t sent = 0; sent < length + 1;) {
        ssize_t part = send(fd, text + sent, length + 1 - sent, MSG_NOSIGNAL);
        if (part < 0 && errno == EINTR)
            continue;
        if (part < 0)
            return -errno;
        sent += (size_t)part;
    }
    return 0;
}

void bt_control_answer(int client_fd, json_t *answer)
{
    struct timeval limit = {.tv_sec = READ_TIMEOUT_MS / 1000};
    (void)setsockopt(client_fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (send_line(client_fd, answer) < 0)
        (void)fprintf(stderr, "a client left before its answer\n");
}

/* Names of files may hold bytes that are no UTF-8, which JSON cannot: those become '?'. */
static json_t *any_text(const char *text)
{
    json_t *string = json_string(text);
    if (string != NULL)
        return string;
    bt_auto_free char *plain = bt_string_copy(text);
    for (char *at = plain; *at != '\0'; at++) {
        if (*at < ' ' || *at > '~')
            *at = '?';
    }
    return json_string(plain);
}

json_t *bt_control_pack_error(const struct bt_error *error)
{
    return json_pack("{s:i, s:i, s:o, s:o}", "status", (int)error->status, "code", error->code, "message",
                     any_text(error->message), "hint", any_text(error->hint));
}

int bt_control_unpack_error(const json_t *described, struct bt_error *error)
{
    const char *message = json_string_value(json_object_get(described, "message"));
    const char *hint = json_string_value(json_object_get(described, "hint"));
    int code = (int)json_integer_value(json_object_get(described, "code"));
    int status = (int)json_integer_value(json_object_get(described, "status"));
    return bt_fail(error, status == 0 ? BT_EXIT_ERROR : (enum bt_exit)status, code <= 0 ? EIO : code, hint,
                   "%s", message == NULL ? "the keeper gave no reason" : message);
}

int bt_control_call(const struct bt_paths *paths, int64_t agent_id, json_t *request, json_t **ret_answer,
                    struct bt_error *error)
{
    bt_auto_fd folder_fd = -1;
    bt_auto_buffer line = {0};
    struct sockaddr_un address;
    bt_auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int result = socket_address(paths, agent_id, &folder_fd, &address);
    if (result == 0 && (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0))
        result = -errno;
    if (result == 0)
        result = send_line(fd, json_incref(request));
    json_decref(request);
    if (result == 0)
        result = read_line(fd, -1, &line);
    if (result < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, "berth list says whether the agent still runs",
                       "the agent's keeper does not answer: %s", strerror(-result));
    json_t *answer = json_loadb(line.data == NULL ? "" : line.data, line.length, 0, NULL);
    const json_t *failure = json_object_get(answer, "error");
    if (failure != NULL)
        result = bt_control_unpack_error(failure, error);
    else if (!json_is_object(answer))
        result = bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBADMSG, NULL,
                         "the agent's keeper gave an answer without sense");
    if (result < 0) {
        json_decref(answer);
        return result;
    }
    *ret_answer = answer;
    return 0;
}
