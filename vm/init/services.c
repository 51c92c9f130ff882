/* The program that a guest exists for: started, restarted with a growing pause when it ends, and ended in
 * order when the host asks for the machine to be switched off. Also collects every process that lost its
 * parent.
 *
 * Called last by the boot; never returns. The host asks by the line "poweroff" on the second serial port,
 * whose other end only the host has; root in the guest by "berth-init poweroff" (SIGPWR). What a container is
 * told instead: vm/container_protocol.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "vm/container_protocol.h"
#include "vm/init/init.h"

#define CONTROL_PORT "/dev/console"
#define BACKOFF_FIRST_MS 100U
#define BACKOFF_LAST_MS 10000U
#define STABLE_MS 30000U
#define END_GRACE_MS 1500U
#define WATCH_MS 1000
#define DESCRIPTORS_MAX 16384U

struct serving {
    const struct bt_init_service *service;
    pid_t pid; /* 0 = not running */
    uint64_t started_ms;
    uint64_t start_at_ms;
    uint64_t backoff_ms;
    int signal_fd;
    int control_fd;
    bool is_ending;
    char line[16]; /* of what the host says; longer ones are no command */
    size_t line_length;
    uint64_t looked_ms, silent_ms; /* of a container's lifeline */
};

/* The gateway wants three for each of 4096 connections (policy/gateway/main.c), and takes what it gets. */
static void allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_max >= DESCRIPTORS_MAX)
        return;
    limit.rlim_max = DESCRIPTORS_MAX;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void start_service(struct serving *serving)
{
    serving->started_ms = bt_init_now_ms();
    serving->pid = fork();
    if (serving->pid < 0) {
        serving->pid = 0;
        serving->start_at_ms = serving->started_ms + BACKOFF_LAST_MS;
        return;
    }
    if (serving->pid > 0)
        return;
    char *const environment[] = {
        (char[]){"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, (char[]){"HOME=/root"},
        NULL};
    char **arguments;
    memcpy(&arguments, &serving->service->arguments, sizeof(arguments)); /* execve's type lacks const */
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setsid();
    if (serving->service->is_container) { /* its lifeline is not the service's to read */
        int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0)
            _exit(127);
    }
    /* When memory runs out, the way in and the gateway are the last to go; commands are reset to normal. */
    (void)bt_init_set_kernel("/proc/self/oom_score_adj", "-900");
    if (serving->service->id != 0)
        allow_descriptors();
    int result =
        serving->service->id != 0 ? bt_init_become_user(serving->service->id, serving->service->id) : 0;
    if (result == 0) {
        (void)execve(arguments[0], arguments, environment);
        result = -errno;
    }
    bt_init_say("cannot start %s: %s", serving->service->arguments[0], strerror(-result));
    _exit(127);
}

/* A program that ran for a while is started again at once; one that keeps failing, with a growing pause. */
static void note_end(struct serving *serving, int status)
{
    uint64_t now_ms = bt_init_now_ms();
    serving->pid = 0;
    if (now_ms - serving->started_ms >= STABLE_MS)
        serving->backoff_ms = BACKOFF_FIRST_MS;
    serving->start_at_ms = now_ms + serving->backoff_ms;
    serving->backoff_ms =
        serving->backoff_ms * 2 > BACKOFF_LAST_MS ? BACKOFF_LAST_MS : serving->backoff_ms * 2;
    if (!serving->is_ending)
        bt_init_say("%s ended (%s %d); it is started again", serving->service->arguments[0],
                    WIFSIGNALED(status) ? "signal" : "status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Returns false when there is no child left at all. */
static bool reap(struct serving *serving)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return pid == 0;
        if (pid == serving->pid)
            note_end(serving, status);
    }
}

static void end_machine(struct serving *serving)
{
    serving->is_ending = true;
    bt_init_say("switching off");
    /* Root without capabilities cannot even ask the agent's processes: then nobody is waited for. */
    uint64_t grace_ms = kill(-1, SIGTERM) == 0 ? END_GRACE_MS : 0;
    uint64_t deadline_ms = bt_init_now_ms() + grace_ms;
    while (reap(serving) && bt_init_now_ms() < deadline_ms)
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    (void)kill(-1, SIGKILL);
    (void)reap(serving);
    if (serving->service->is_container)
        _exit(0); /* and the kernel ends what is left */
    bt_init_unmount_disks();
    bt_init_power_off();
}

static int open_control_port(const struct bt_init_service *service)
{
    if (service->is_container)
        return fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK) < 0 ? -1 : STDIN_FILENO;
    bt_auto_fd port_fd = open(CONTROL_PORT, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    struct termios mode;
    if (port_fd < 0 || tcgetattr(port_fd, &mode) < 0)
        return -1;
    cfmakeraw(&mode);
    mode.c_cflag |= CLOCAL;
    if (tcsetattr(port_fd, TCSANOW, &mode) < 0)
        return -1;
    return bt_fd_take(&port_fd);
}

/* Commands of the host have lost their streams with the engine: berth-init relay sees this. */
static void tell_relays(void)
{
    bt_auto_fd fd = open(BT_CONTAINER_RESTORED, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0 || futimens(fd, NULL) < 0)
        bt_init_say("cannot write %s: %s", BT_CONTAINER_RESTORED, strerror(errno));
}

static bool is_line(const struct serving *serving, const char *text)
{
    return serving->line_length == strlen(text) && memcmp(serving->line, text, serving->line_length) == 0;
}

/* Takes what the host has said. Returns whether it asks for the end. */
static bool is_power_off_asked(struct serving *serving)
{
    char byte;
    ssize_t count;
    while ((count = read(serving->control_fd, &byte, 1)) == 1) {
        serving->silent_ms = 0;
        if (byte == '\n') {
            if (is_line(serving, BT_CONTAINER_POWER_OFF))
                return true;
            if (serving->service->is_container && is_line(serving, BT_CONTAINER_RESTORE))
                tell_relays();
            serving->line_length = 0;
        } else if (serving->line_length < sizeof(serving->line)) {
            serving->line[serving->line_length++] = byte;
        }
    }
    return count == 0 && serving->service->is_container; /* the host has gone */
}

/* Counts in steps: a process that was frozen, or a clock that jumped, is one step late and no more. */
static bool is_host_silent(struct serving *serving)
{
    uint64_t now_ms = bt_init_now_ms();
    uint64_t step_ms = now_ms - serving->looked_ms;
    serving->looked_ms = now_ms;
    serving->silent_ms += step_ms < BT_CONTAINER_BEAT_MS ? step_ms : BT_CONTAINER_BEAT_MS;
    return serving->silent_ms > BT_CONTAINER_SILENCE_MS;
}

static int wait_ms(const struct serving *serving)
{
    if (serving->pid != 0 || serving->service->arguments == NULL)
        return serving->service->watches_memory ? WATCH_MS
               : serving->service->is_container ? BT_CONTAINER_BEAT_MS
                                                : -1;
    uint64_t now_ms = bt_init_now_ms();
    return now_ms >= serving->start_at_ms ? 0 : (int)(serving->start_at_ms - now_ms);
}

static void handle_events(struct serving *serving)
{
    struct pollfd polled[2] = {{.fd = serving->signal_fd, .events = POLLIN},
                               {.fd = serving->control_fd, .events = POLLIN}};
    if (poll(polled, 2, wait_ms(serving)) < 0)
        return;
    struct signalfd_siginfo information;
    while (read(serving->signal_fd, &information, sizeof(information)) == (ssize_t)sizeof(information))
        if (information.ssi_signo != SIGCHLD)
            end_machine(serving);
    if (serving->service->is_container && is_host_silent(serving)) {
        bt_init_say("the host has said nothing for %u seconds", BT_CONTAINER_SILENCE_MS / 1000);
        end_machine(serving);
    }
    if (serving->control_fd >= 0 && is_power_off_asked(serving))
        end_machine(serving);
    if (!serving->service->is_container && (polled[1].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
        bt_fd_close(&serving->control_fd);
    (void)reap(serving);
}

void bt_init_serve(const struct bt_init_service *service)
{
    sigset_t handled;
    (void)sigemptyset(&handled);
    (void)sigaddset(&handled, SIGCHLD);
    (void)sigaddset(&handled, SIGTERM);
    (void)sigaddset(&handled, SIGINT);
    (void)sigaddset(&handled, SIGPWR);
    (void)sigprocmask(SIG_BLOCK, &handled, NULL);
    if (!service->is_container)
        (void)reboot(RB_DISABLE_CAD);
    struct serving serving = {.service = service,
                              .backoff_ms = BACKOFF_FIRST_MS,
                              .looked_ms = bt_init_now_ms(),
                              .signal_fd = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK)};
    if (serving.signal_fd < 0)
        bt_init_fatal("cannot receive signals: %s", strerror(errno));
    serving.control_fd = open_control_port(service);
    for (;;) {
        if (service->arguments != NULL && serving.pid == 0 && bt_init_now_ms() >= serving.start_at_ms)
            start_service(&serving);
        if (service->watches_memory)
            bt_init_watch_memory();
        handle_events(&serving);
    }
}
