/* Runs pfctl for the engine on macOS, see apply.h.
 *
 * It must not take text from an order, run anything but pfctl, pass a descriptor or variable on, or wait
 * without end.
 */
#include "helper/macos/apply.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "helper/macos/order.h"

#define PAUSE_MS 5

/* One run of pfctl: what it reads, and what it printed. */
struct run {
    const char *input;
    size_t input_length;
    char *output;
    size_t output_size, output_length;
    bool is_cut_off; /* there was more than output_size */
    int64_t deadline_ms;
};

/* Of constant size, never freed. */
static struct bt_anchor_text text;
static char printed[BT_ANCHOR_TEXT_SIZE];
static struct bt_order order;

static int64_t now_ms(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) < 0)
        return 0;
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int set_flags(int fd, bool is_blocking)
{
    return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || (!is_blocking && fcntl(fd, F_SETFL, O_NONBLOCK) < 0) ? -errno
                                                                                                      : 0;
}

/* ends[0] for us, ends[1] for pfctl. */
static int make_channel(int ret_ends[2])
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
        return -errno;
    int error = set_flags(ends[0], false);
    if (error == 0)
        error = set_flags(ends[1], true);
    if (error < 0) {
        bt_fd_close(&ends[0]);
        bt_fd_close(&ends[1]);
        return error;
    }
    ret_ends[0] = ends[0];
    ret_ends[1] = ends[1];
    return 0;
}

/* Of this process's descriptors pfctl gets none but its own three, whatever else is open here; and signals as
 * they are by default. */
static int set_attributes(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attributes)
{
    sigset_t signals;
    short flags = POSIX_SPAWN_SETSIGDEF;
    if (sigemptyset(&signals) < 0 || sigaddset(&signals, SIGPIPE) < 0)
        return errno;
#ifdef POSIX_SPAWN_CLOEXEC_DEFAULT
    flags |= POSIX_SPAWN_CLOEXEC_DEFAULT;
    int error = 0;
    (void)actions;
#else
    int error = posix_spawn_file_actions_addclosefrom_np(actions, STDERR_FILENO + 1);
#endif
    if (error == 0)
        error = posix_spawnattr_setsigdefault(attributes, &signals);
    return error == 0 ? posix_spawnattr_setflags(attributes, flags) : error;
}

static int start(const char *const *arguments, int channel_fd, pid_t *ret_child)
{
    char *environment[] = {NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return -error;
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, channel_fd, STDIN_FILENO);
        if (error == 0)
            error = posix_spawn_file_actions_adddup2(&actions, channel_fd, STDOUT_FILENO);
        if (error == 0)
            error = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        if (error == 0)
            error = set_attributes(&actions, &attributes);
        if (error == 0) /* posix_spawn does not write to the vector, though its type says it may */
            error = posix_spawn(ret_child, BT_APPLY_PFCTL, &actions, &attributes,
                                (char *const *)(uintptr_t)arguments, environment);
        (void)posix_spawnattr_destroy(&attributes);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    return -error;
}

static int send_some(int fd, struct run *run)
{
    ssize_t sent = send(fd, run->input, run->input_length, 0);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        run->input_length = 0; /* it does not read: its exit status tells why */
        return 0;
    }
    if (sent > 0) {
        run->input += sent;
        run->input_length -= (size_t)sent;
    }
    return run->input_length == 0 ? shutdown(fd, SHUT_WR) : 0;
}

/* 1: more may come. 0: it has closed its output. */
static int receive_some(int fd, struct run *run)
{
    char discarded[512];
    size_t room = run->output_size - run->output_length;
    char *into = room > 0 ? run->output + run->output_length : discarded;
    ssize_t got = recv(fd, into, room > 0 ? room : sizeof(discarded), 0);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 1 : 0;
    if (room > 0)
        run->output_length += (size_t)got;
    else if (got > 0)
        run->is_cut_off = true;
    return got > 0;
}

static int converse(int fd, struct run *run)
{
    if (run->input_length == 0 && shutdown(fd, SHUT_WR) < 0)
        return -errno;
    for (;;) {
        int64_t left = run->deadline_ms - now_ms();
        struct pollfd item = {.fd = fd, .events = (short)(POLLIN | (run->input_length > 0 ? POLLOUT : 0))};
        if (left <= 0)
            return -ETIMEDOUT;
        if (poll(&item, 1, (int)left) <= 0)
            continue;
        if ((item.revents & POLLOUT) != 0 && run->input_length > 0)
            (void)send_some(fd, run);
        if ((item.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && receive_some(fd, run) == 0)
            return 0;
    }
}

/* Its end, which is brought about when the time is over. */
static int await_end(pid_t child, const struct run *run, int error)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    int status = 0;
    for (;;) {
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child)
            break;
        if (ended < 0 && errno != EINTR)
            return -errno;
        if (error < 0 || now_ms() > run->deadline_ms) {
            error = error < 0 ? error : -ETIMEDOUT;
            (void)kill(child, SIGKILL);
        }
        (void)nanosleep(&pause, NULL);
    }
    if (error < 0)
        return error;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECHILD;
}

static int run_pfctl(const char *const *arguments, struct run *run)
{
    int ends[2] = {-1, -1};
    pid_t child = 0;
    int error = make_channel(ends);
    if (error < 0)
        return error;
    bt_auto_fd own_fd = ends[0];
    bt_auto_fd its_fd = ends[1];
    error = start(arguments, its_fd, &child);
    bt_fd_close(&its_fd);
    if (error < 0)
        return error;
    run->deadline_ms = now_ms() + BT_APPLY_DEADLINE_MS;
    error = converse(own_fd, run);
    return await_end(child, run, error);
}

static int read_back(const char *anchor, size_t *ret_length)
{
    const char *const arguments[] = {"pfctl", "-q", "-a", anchor, "-s", "rules", NULL};
    struct run run = {.output = printed, .output_size = sizeof(printed)};
    int error = run_pfctl(arguments, &run);
    if (error < 0 || run.is_cut_off)
        return error < 0 ? error : -EUCLEAN;
    *ret_length = run.output_length;
    return 0;
}

static int load(const char *anchor, const char *rules, size_t length)
{
    const char *const arguments[] = {"pfctl", "-q", "-a", anchor, "-f", "-", NULL};
    struct run run = {.input = rules, .input_length = length};
    return run_pfctl(arguments, &run);
}

/* pf's states are what an established connection passes by: they end with the lease, both ways. */
static int cut(const struct bt_pool *pool, uint16_t slot)
{
    char network[BT_ANCHOR_NETWORK_SIZE];
    const char *const from[] = {"pfctl", "-q", "-k", network, NULL};
    const char *const towards[] = {"pfctl", "-q", "-k", "0.0.0.0/0", "-k", network, NULL};
    struct run run = {.output_size = 0};
    int error = bt_anchor_network(pool, slot, network);
    if (error == 0)
        error = run_pfctl(from, &run);
    if (error == 0)
        error = run_pfctl(towards, &run);
    return error;
}

static int obey(const struct bt_kernel_config *config)
{
    char anchor[BT_ANCHOR_NAME_SIZE];
    size_t length = 0;
    int error = bt_anchor_name(order.environment, anchor);
    if (error == 0)
        error = bt_anchor_encode(config, order.environment, order.leases, order.count, &text);
    if (error < 0)
        return error;
    error = load(anchor, text.bytes, text.length);
    if (error == 0)
        error = read_back(anchor, &length);
    if (error == 0 && !bt_anchor_is_in_force(&text, printed, length))
        error = -EUCLEAN;
    if (error == 0 && order.cut_slot != BT_ORDER_CUT_NOTHING)
        error = cut(&config->pool, order.cut_slot);
    return error;
}

/* 1: all of it. 0: the stream has ended where an order may begin. */
static int receive(int fd, uint8_t *bytes, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t got = recv(fd, bytes + done, length - done, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return done == 0 ? 0 : -EBADMSG;
        done += (size_t)got;
    }
    return 1;
}

static int receive_order(const struct bt_pool *pool, int fd)
{
    static uint8_t bytes[BT_ORDER_SIZE_MAX];
    size_t length = 0;
    int got = receive(fd, bytes, BT_ORDER_HEADER_SIZE);
    if (got <= 0)
        return got;
    if (bt_order_length(bytes, &length) < 0)
        return -EBADMSG;
    if (length > BT_ORDER_HEADER_SIZE &&
        (got = receive(fd, bytes + BT_ORDER_HEADER_SIZE, length - BT_ORDER_HEADER_SIZE)) <= 0)
        return got == 0 ? -EBADMSG : got;
    int error = bt_order_decode(pool, bytes, length, &order);
    return error < 0 ? error : 1;
}

int bt_apply_prepare(void)
{
    static const char reference[] = "anchor \"com.apple/*\"";
    const char *const enable[] = {"pfctl", "-q", "-E", NULL};
    const char *const show[] = {"pfctl", "-q", "-s", "rules", NULL};
    struct run silent = {.output_size = 0}, run = {.output = printed, .output_size = sizeof(printed)};
    int error = run_pfctl(enable, &silent);
    if (error == 0)
        error = run_pfctl(show, &run);
    if (error < 0)
        return error;
    return memmem(printed, run.output_length, reference, sizeof(reference) - 1) ? 0 : -ENOENT;
}

int bt_apply_serve(const struct bt_kernel_config *config, int order_fd)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (sigaction(SIGPIPE, &ignore, NULL) < 0)
        return -errno;
    for (;;) {
        uint8_t reply[BT_APPLY_REPLY_SIZE];
        int got = receive_order(&config->pool, order_fd);
        if (got <= 0)
            return got;
        int error = obey(config);
        bt_store_u32(reply, (uint32_t)-error);
        if (send(order_fd, reply, sizeof(reply), 0) != (ssize_t)sizeof(reply))
            return -EIO;
    }
}
