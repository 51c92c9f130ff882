/* A connection to a unix socket that is turned into a stream by an HTTP request. See http.h.
 *
 * By hand, since libcurl keeps the bytes after a response to itself. Must not read a byte behind the header.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "lib/file.h"
#include "lib/http.h"

#define HEADER_MAX 16384U
#define ANSWER_MAX (64UL * 1024)

static int open_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    bt_auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    return bt_fd_take(&fd);
}

static int wait_readable(int fd, int timeout_ms)
{
    struct pollfd readable = {fd, POLLIN, 0};
    int count;
    while ((count = poll(&readable, 1, timeout_ms)) < 0 && errno == EINTR)
        continue;
    return count > 0 ? 0 : count == 0 ? -ETIMEDOUT : -errno;
}

/* Reads up to and with the empty line: looks at what is there, then takes no more than the header. */
static int read_header(int fd, int timeout_ms, char header[HEADER_MAX + 1])
{
    size_t length = 0;
    while (length < HEADER_MAX) {
        int result = wait_readable(fd, timeout_ms);
        if (result < 0)
            return result;
        ssize_t there = recv(fd, header + length, HEADER_MAX - length, MSG_PEEK);
        if (there <= 0)
            return there == 0 ? -ECONNRESET : -errno;
        header[length + (size_t)there] = '\0';
        size_t from = length < 3 ? 0 : length - 3;
        const char *end = strstr(header + from, "\r\n\r\n");
        size_t taken = end != NULL ? (size_t)(end + 4 - header) - length : (size_t)there;
        if (recv(fd, header + length, taken, MSG_WAITALL) != (ssize_t)taken)
            return -ECONNRESET;
        length += taken;
        header[length] = '\0';
        if (end != NULL)
            return 0;
        if (strlen(header) != length)
            return -EBADMSG;
    }
    return -EFBIG;
}

/* The body of a refusal. The service closes the connection or has said a length; either way a pause is the
 * end. */
static void read_refusal(int fd, struct bt_buffer *answer)
{
    char chunk[4096];
    ssize_t count;
    answer->limit = ANSWER_MAX;
    while (wait_readable(fd, 200) == 0 && (count = recv(fd, chunk, sizeof(chunk), 0)) > 0)
        if (bt_buffer_add(answer, chunk, (size_t)count) < 0)
            return;
}

static int ask(int fd, const char *path, const char *body, int timeout_ms, long *ret_status)
{
    char header[HEADER_MAX + 1];
    bt_auto_free char *request =
        bt_string_format("POST %s HTTP/1.1\r\nHost: localhost\r\n"
                         "Connection: Upgrade\r\nUpgrade: tcp\r\n"
                         "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                         path, body == NULL ? 0 : strlen(body), body == NULL ? "" : body);
    int result = bt_write_all(fd, request, strlen(request));
    if (result == 0)
        result = read_header(fd, timeout_ms, header);
    if (result < 0)
        return result;
    if (strncmp(header, "HTTP/1.1 ", 9) != 0 && strncmp(header, "HTTP/1.0 ", 9) != 0)
        return -EBADMSG;
    *ret_status = strtol(header + 9, NULL, 10);
    return 0;
}

int bt_http_upgrade(const char *socket_path, const char *path, const char *body, int timeout_ms, int *ret_fd,
                    long *ret_status, struct bt_buffer *ret_answer, struct bt_error *error)
{
    long status = 0;
    bt_auto_fd fd = open_socket(socket_path);
    int result = fd < 0 ? fd : ask(fd, path, body, timeout_ms, &status);
    if (result == 0 && (status == 101 || status == 200) && fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        result = -errno;
    if (result < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, NULL, "%s: %s", socket_path,
                       strerror(-result));
    *ret_fd = -1;
    *ret_status = status;
    *ret_answer = (struct bt_buffer){0};
    if (status == 101 || status == 200)
        *ret_fd = bt_fd_take(&fd);
    else
        read_refusal(fd, ret_answer);
    return 0;
}
