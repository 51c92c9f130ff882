/* Stage 1: environment, descriptors, signals, limits, umask, directory.
 *
 * Called by main before anything else is opened. Should: leave nothing that the starter chose. Must not: read
 * a file, or trust a variable other than the three of socket activation.
 */
#include "helper/sanitise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper/admission.h"

#define PASSED_FD 3 /* SD_LISTEN_FDS_START */
#define STATUS_NAME "status"
#define FDS_NEEDED (BT_CONNECTIONS_MAX + BT_SPARE_TOTAL + 64U)
#define FDS_AT_LEAST 128U

static const char *find_variable(char *const *environment, const char *name)
{
    size_t length = strlen(name);
    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return *environment + length + 1;
    return NULL;
}

static int parse_variable(char *const *environment, const char *name, uint64_t *ret_number)
{
    const char *text = find_variable(environment, name);
    return text ? bt_number_parse(text, strnlen(text, 16), 0, INT32_MAX, ret_number) : -ENOENT;
}

/* Which of two names, separated by a colon, is the status socket's: 0 or 1. */
static int find_status_name(const char *names)
{
    const char *colon = names ? strchr(names, ':') : NULL;
    if (!colon)
        return -EINVAL;
    bool is_first = (size_t)(colon - names) == strlen(STATUS_NAME) &&
                    strncmp(names, STATUS_NAME, strlen(STATUS_NAME)) == 0;
    bool is_second = strcmp(colon + 1, STATUS_NAME) == 0;
    if (is_first == is_second)
        return -EINVAL;
    return is_first ? 0 : 1;
}

int bt_sanitise_find_passed_sockets(char *const *environment, struct bt_passed_sockets *ret)
{
    struct bt_passed_sockets passed = {.count = 0, .main_fd = -1, .status_fd = -1};
    uint64_t pid = 0, count = 0;
    const char *names = find_variable(environment, "LISTEN_FDNAMES");
    int error = parse_variable(environment, "LISTEN_PID", &pid);
    if (error == -ENOENT || (error == 0 && pid != (uint64_t)getpid())) {
        *ret = passed; /* nothing, or meant for an ancestor */
        return 0;
    }
    if (error == 0)
        error = parse_variable(environment, "LISTEN_FDS", &count);
    if (error < 0)
        return -EINVAL;
    if (count > 2)
        return -E2BIG;
    int status_place = count == 2 ? find_status_name(names) : 1;
    if (status_place < 0 || (count == 1 && names && strcmp(names, STATUS_NAME) == 0))
        return -EINVAL;
    passed.count = (unsigned)count;
    if (count > 0)
        passed.main_fd = PASSED_FD + 1 - status_place;
    if (count == 2)
        passed.status_fd = PASSED_FD + status_place;
    *ret = passed;
    return 0;
}

/* 0 and 1 carry nothing here; 2 is kept for messages when it is open. */
static int fix_standard_fds(void)
{
    int null_fd = open("/dev/null", O_RDWR | O_NOCTTY);
    if (null_fd < 0)
        return -errno;
    for (int fd = 0; fd <= 2; fd++) {
        bool is_kept = fd == 2 && null_fd != 2 && fcntl(2, F_GETFD) >= 0;
        if (!is_kept && fd != null_fd && dup2(null_fd, fd) < 0)
            return -errno;
    }
    if (null_fd > 2)
        bt_fd_close(&null_fd);
    return 0;
}

static int close_other_fds(unsigned kept_count)
{
    if (close_range(PASSED_FD + kept_count, ~0U, 0) < 0)
        return -errno;
    for (unsigned i = 0; i < kept_count; i++)
        if (fcntl((int)(PASSED_FD + i), F_SETFD, FD_CLOEXEC) < 0)
            return -errno;
    return 0;
}

/* A peer that is gone, a file that may not grow, and timers of the starter, which outlive execve(2). */
static bool is_ignored(int number)
{
    return number == SIGPIPE || number == SIGXFSZ || number == SIGALRM || number == SIGVTALRM ||
           number == SIGPROF;
}

static int reset_signals(void)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN}, standard = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        if (number != SIGKILL && number != SIGSTOP)
            (void)sigaction(number, is_ignored(number) ? &ignore : &standard, NULL); /* some are libc's own */
    if (sigemptyset(&none) < 0 || sigprocmask(SIG_SETMASK, &none, NULL) < 0)
        return -errno;
    return 0;
}

/* A limit on time would end the engine in the middle of its work, one on files keeps it from writing. Who may
 * not lift them (root of a user namespace) is told at the start. */
static int lift_limits(void)
{
    const struct rlimit none = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    return setrlimit(RLIMIT_CPU, &none) < 0 || setrlimit(RLIMIT_FSIZE, &none) < 0 ? -errno : 0;
}

static int set_limits(void)
{
    struct rlimit limit = {.rlim_cur = 0, .rlim_max = 0};
    int error = lift_limits();
    if (error < 0)
        return error;
    if (setrlimit(RLIMIT_CORE, &limit) < 0 || getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    if (limit.rlim_max < FDS_NEEDED) {
        struct rlimit raised = {.rlim_cur = FDS_NEEDED, .rlim_max = FDS_NEEDED};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
            return 0;
    }
    limit.rlim_cur = limit.rlim_max < FDS_NEEDED ? limit.rlim_max : FDS_NEEDED;
    if (limit.rlim_cur < FDS_AT_LEAST)
        return -EMFILE;
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}

/* The strings too: whatever was in a variable of root's is not for the engine's memory. */
static int clear_environment(char *const *environment)
{
    for (size_t i = 0; environment[i]; i++)
        explicit_bzero(environment[i], strlen(environment[i]));
    return clearenv() != 0 ? -ENOMEM : 0;
}

int bt_sanitise(unsigned kept_count, char *const *environment)
{
    int error = clear_environment(environment);
    if (error < 0)
        return error;
    umask(077);
    error = close_other_fds(kept_count);
    if (error == 0)
        error = fix_standard_fds();
    if (error == 0)
        error = reset_signals();
    if (error == 0)
        error = set_limits();
    if (error == 0 && chdir("/") < 0)
        error = -errno;
    return error;
}
