/* "berth-init relay": one command of the host in a container, its standard input in frames. See
 * vm/container_protocol.h.
 *
 * Runs as the user of the command, which may therefore end it: that ends the command's own stream and nothing
 * else. Nothing blocks but poll(2); memory is three fixed buffers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vm/container_protocol.h"
#include "vm/init/init.h"

#define BUFFER_SIZE 65536U
#define EXIT_CANNOT_RELAY 126
#define EXIT_HOST_GONE 129

/* Bytes on their way from one descriptor to another. */
struct stream {
    int from_fd, to_fd; /* -1 = over */
    size_t start, end;
    char data[BUFFER_SIZE];
};

struct relay {
    pid_t command;
    int child_signal_fd;
    int input_fd;    /* the command's standard input, or the terminal's master; -1 = ended */
    int terminal_fd; /* -1 = none */
    bool is_terminal;
    bool has_ended;
    int status;
    struct timespec
        restored_at; /* when the engine's return was last said, as this relay started; 0 = never */
    /* Of the host's frames: the header that is being read, and what of its content is still to come. */
    uint8_t header[BT_RELAY_HEADER_LENGTH];
    size_t header_length;
    size_t content_left;
    struct stream host;      /* from_fd: standard input; its bytes are frames */
    struct stream output[2]; /* standard output, standard error */
};

static struct relay relay;

static bool is_empty(const struct stream *stream)
{
    return stream->start == stream->end;
}

/* Reads what is there. Returns false at the end. */
static bool fill(struct stream *stream)
{
    ssize_t count = read(stream->from_fd, stream->data, sizeof(stream->data));
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    stream->start = 0;
    stream->end = count > 0 ? (size_t)count : 0;
    return count > 0;
}

/* Writes what can be written; what nobody takes any more is dropped. */
static void flush(struct stream *stream, int to_fd, size_t most)
{
    ssize_t count = to_fd < 0 ? (ssize_t)most : write(to_fd, stream->data + stream->start, most);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    stream->start += count < 0 ? most : (size_t)count;
}

static void end_input(void)
{
    /* A terminal has no end of input but the key for it, which is the person's to type. */
    if (!relay.is_terminal)
        bt_fd_close(&relay.input_fd);
}

static void set_size(const char *content)
{
    const uint8_t *bytes = (const uint8_t *)content;
    const struct winsize size = {.ws_col = bt_load_u16(bytes), .ws_row = bt_load_u16(bytes + 2)};
    if (relay.terminal_fd >= 0)
        (void)ioctl(relay.terminal_fd, TIOCSWINSZ, &size);
}

/* Acts on what came from the host as far as possible. Returns false for a frame that makes no sense. */
static bool take_frames(void)
{
    struct stream *host = &relay.host;
    static char size[4];
    static size_t size_length;
    while (!is_empty(host)) {
        if (relay.header_length < BT_RELAY_HEADER_LENGTH) {
            relay.header[relay.header_length++] = (uint8_t)host->data[host->start++];
            if (relay.header_length == BT_RELAY_HEADER_LENGTH)
                relay.content_left = bt_load_u32(relay.header + 1);
        } else if (relay.header[0] == BT_RELAY_SIZE && relay.content_left <= sizeof(size)) {
            size[size_length++] = host->data[host->start++];
            relay.content_left--;
        } else if (relay.header[0] == BT_RELAY_DATA && relay.content_left <= BT_RELAY_FRAME_MAX) {
            size_t before = host->start;
            size_t there = host->end - host->start;
            flush(host, relay.input_fd, relay.content_left < there ? relay.content_left : there);
            relay.content_left -= host->start - before;
            if (host->start == before)
                return true; /* the command does not read */
        } else {
            return false;
        }
        if (relay.header_length < BT_RELAY_HEADER_LENGTH || relay.content_left > 0)
            continue;
        if (relay.header[0] == BT_RELAY_END)
            end_input();
        if (relay.header[0] == BT_RELAY_SIZE && size_length == sizeof(size))
            set_size(size);
        size_length = 0;
        relay.header_length = 0;
    }
    return true;
}

static _Noreturn void leave_command(int status)
{
    (void)kill(-relay.command, SIGHUP);
    (void)kill(relay.command, SIGHUP);
    _exit(status);
}

static struct timespec restored_at(void)
{
    struct stat status = {0};
    (void)!stat(BT_CONTAINER_RESTORED, &status);
    return status.st_mtim;
}

/* Nobody reads or writes the streams of an engine that is gone, and they have no end. */
static void leave_with_engine(void)
{
    struct timespec at = restored_at();
    if (at.tv_sec != relay.restored_at.tv_sec || at.tv_nsec != relay.restored_at.tv_nsec)
        leave_command(EXIT_HOST_GONE);
}

static void reap(void)
{
    struct signalfd_siginfo information;
    int status;
    while (read(relay.child_signal_fd, &information, sizeof(information)) > 0)
        continue;
    if (waitpid(relay.command, &status, WNOHANG) != relay.command)
        return;
    relay.has_ended = true;
    relay.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Moves output. Once the command has ended, what is there is the rest: a process that it left behind does not
 * keep the stream open. */
static void move_output(struct stream *stream, bool is_readable)
{
    if (is_empty(stream) && stream->from_fd >= 0 && (is_readable || relay.has_ended)) {
        errno = 0;
        bool is_open = fill(stream);
        if (!is_open || (relay.has_ended && is_empty(stream)))
            stream->from_fd = -1;
    }
    if (!is_empty(stream))
        flush(stream, stream->to_fd, stream->end - stream->start);
}

static short output_events(const struct stream *stream)
{
    return is_empty(stream) ? 0 : POLLOUT;
}

static void wait_and_move(void)
{
    struct stream *host = &relay.host;
    struct stream *output = relay.output;
    struct pollfd polled[7] = {
        {.fd = relay.child_signal_fd, .events = POLLIN},
        {.fd = STDIN_FILENO, .events = is_empty(host) ? POLLIN : 0}, /* without events: for its end only */
        {.fd = is_empty(host) ? -1 : relay.input_fd, .events = POLLOUT},
        {.fd = is_empty(&output[0]) ? output[0].from_fd : -1, .events = POLLIN},
        {.fd = is_empty(&output[1]) ? output[1].from_fd : -1, .events = POLLIN},
        {.fd = is_empty(&output[0]) ? -1 : output[0].to_fd, .events = output_events(&output[0])},
        {.fd = is_empty(&output[1]) ? -1 : output[1].to_fd, .events = output_events(&output[1])},
    };
    int count = poll(polled, BT_ARRAY_LENGTH(polled), BT_CONTAINER_BEAT_MS);
    if (count == 0)
        leave_with_engine();
    if (count <= 0)
        return;
    if (polled[0].revents != 0)
        reap();
    if ((polled[1].revents & POLLIN) != 0 && is_empty(host)) {
        if (!fill(host))
            leave_command(EXIT_HOST_GONE);
    } else if ((polled[1].revents & (POLLHUP | POLLERR)) != 0) {
        leave_command(EXIT_HOST_GONE);
    }
    if (!take_frames())
        leave_command(EXIT_CANNOT_RELAY);
    move_output(&output[0], polled[3].revents != 0);
    move_output(&output[1], polled[4].revents != 0);
}

/* In the child: the command's three descriptors, nothing else of the relay. */
static _Noreturn void become_command(const int fds[3])
{
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            _exit(EXIT_CANNOT_RELAY);
    _exit(bt_init_run_command());
}

static int open_terminal(int fds[3])
{
    char name[64];
    relay.terminal_fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (relay.terminal_fd < 0 || unlockpt(relay.terminal_fd) < 0 ||
        ptsname_r(relay.terminal_fd, name, sizeof(name)) != 0)
        return -errno;
    int slave_fd = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave_fd < 0)
        return -errno;
    for (int i = 0; i < 3; i++)
        fds[i] = slave_fd;
    relay.input_fd = relay.terminal_fd;
    relay.output[0].from_fd = relay.terminal_fd;
    relay.output[1].from_fd = -1;
    return 0;
}

static int open_pipes(int fds[3])
{
    int pipes[3][2];
    for (int i = 0; i < 3; i++)
        if (pipe2(pipes[i], O_CLOEXEC) < 0)
            return -errno;
    relay.terminal_fd = -1;
    relay.input_fd = pipes[0][1];
    relay.output[0].from_fd = pipes[1][0];
    relay.output[1].from_fd = pipes[2][0];
    fds[0] = pipes[0][0];
    fds[1] = pipes[1][1];
    fds[2] = pipes[2][1];
    return 0;
}

static int start(void)
{
    int fds[3] = {-1, -1, -1};
    sigset_t child;
    int result = relay.is_terminal ? open_terminal(fds) : open_pipes(fds);
    if (result < 0)
        return result;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &child, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    relay.child_signal_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    relay.command = fork();
    if (relay.child_signal_fd < 0 || relay.command < 0)
        return -errno;
    if (relay.command == 0)
        become_command(fds);
    (void)close(fds[0]);
    if (!relay.is_terminal) {
        (void)close(fds[1]);
        (void)close(fds[2]);
    }
    relay.host.from_fd = STDIN_FILENO;
    relay.output[0].to_fd = STDOUT_FILENO;
    relay.output[1].to_fd = STDERR_FILENO;
    const int moved[] = {STDIN_FILENO,   STDOUT_FILENO,           STDERR_FILENO,
                         relay.input_fd, relay.output[0].from_fd, relay.output[1].from_fd};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(moved); i++)
        if (moved[i] >= 0 && fcntl(moved[i], F_SETFL, O_NONBLOCK) < 0)
            return -errno;
    return 0;
}

int bt_init_relay(bool is_terminal)
{
    relay.is_terminal = is_terminal;
    relay.restored_at = restored_at();
    int result = start();
    if (result < 0) {
        (void)dprintf(STDERR_FILENO, "berth: cannot start a command: %s\n", strerror(-result));
        return EXIT_CANNOT_RELAY;
    }
    while (!relay.has_ended || relay.output[0].from_fd >= 0 || relay.output[1].from_fd >= 0 ||
           !is_empty(&relay.output[0]) || !is_empty(&relay.output[1])) {
        if (relay.has_ended && is_empty(&relay.output[0]) && is_empty(&relay.output[1])) {
            move_output(&relay.output[0], true);
            move_output(&relay.output[1], true);
        } else {
            wait_and_move();
        }
    }
    return relay.status;
}
