/* Opens a QMP session. Called by the qemu driver; must not hang on a monitor that says nothing, or too much.
 */
#include "vm/qmp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define REPLY_LENGTH_MAX 4096U

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads one line (QMP ends each message with a newline) that holds wanted; other lines are events and
 * skipped. */
static int expect(int control_fd, int pid_fd, const char *wanted, int64_t deadline_ms)
{
    char line[REPLY_LENGTH_MAX];
    size_t length = 0;
    for (;;) {
        struct pollfd polled[2] = {{.fd = control_fd, .events = POLLIN}, {.fd = pid_fd, .events = POLLIN}};
        int64_t left_ms = deadline_ms - now_ms();
        if (left_ms <= 0)
            return -ETIMEDOUT;
        if (poll(polled, 2, (int)left_ms) < 0 && errno != EINTR)
            return -errno;
        ssize_t count = recv(control_fd, line + length, 1, MSG_DONTWAIT);
        if (count == 0 || (count < 0 && (polled[1].revents & POLLIN) != 0))
            return -ECANCELED;
        if (count < 0 && errno != EAGAIN && errno != EINTR)
            return errno == ECONNRESET ? -ECANCELED : -errno;
        if (count <= 0)
            continue;
        if (line[length] == '\n') {
            line[length] = '\0';
            if (strstr(line, wanted) != NULL)
                return 0;
            length = 0;
        } else if (++length == sizeof(line)) {
            return -EPROTO;
        }
    }
}

int bt_qmp_open(int control_fd, int pid_fd, int timeout_ms)
{
    static const char command[] = "{\"execute\":\"qmp_capabilities\"}\n";
    int64_t deadline_ms = now_ms() + timeout_ms;
    int result = expect(control_fd, pid_fd, "\"QMP\"", deadline_ms);
    if (result < 0)
        return result;
    if (send(control_fd, command, sizeof(command) - 1, MSG_NOSIGNAL) != (ssize_t)sizeof(command) - 1)
        return errno == EPIPE ? -ECANCELED : -EIO;
    return expect(control_fd, pid_fd, "\"return\"", deadline_ms);
}
