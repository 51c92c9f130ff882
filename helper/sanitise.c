/* Stage 1: environment, descriptors, signals, limits, umask, directory.
 *
 * Called by main before anything else is opened. Should: leave nothing that the starter chose. Must not: read
 * a file, or trust a variable other than the two of socket activation.
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
#define FDS_NEEDED (BT_CONNECTIONS_MAX + 64U)
#define FDS_AT_LEAST 128U

static int parse_variable(char *const *environment, const char *name, uint64_t *ret_number)
{
    size_t length = strlen(name);
    for (; environment && *environment; environment++) {
        const char *text = *environment;
        if (strncmp(text, name, length) == 0 && text[length] == '=')
            return bt_number_parse(text + length + 1, strnlen(text + length + 1, 16), 0, INT32_MAX,
                                   ret_number);
    }
    return -ENOENT;
}

int bt_sanitise_find_passed_socket(char *const *environment, int *ret_fd)
{
    uint64_t pid = 0, count = 0;
    int error = parse_variable(environment, "LISTEN_PID", &pid);
    if (error == -ENOENT || (error == 0 && pid != (uint64_t)getpid())) {
        *ret_fd = -1; /* nothing, or meant for an ancestor */
        return 0;
    }
    if (error == 0)
        error = parse_variable(environment, "LISTEN_FDS", &count);
    if (error < 0)
        return -EINVAL;
    if (count > 1)
        return -E2BIG;
    *ret_fd = count == 1 ? PASSED_FD : -1;
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

static int close_other_fds(int kept_fd)
{
    if (kept_fd < 0)
        return close_range(3, ~0U, 0) < 0 ? -errno : 0;
    if (kept_fd > 3 && close_range(3, (unsigned)kept_fd - 1, 0) < 0)
        return -errno;
    if (close_range((unsigned)kept_fd + 1, ~0U, 0) < 0)
        return -errno;
    return fcntl(kept_fd, F_SETFD, FD_CLOEXEC) < 0 ? -errno : 0;
}

static int reset_signals(void)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN}, standard = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        if (number != SIGKILL && number != SIGSTOP)
            (void)sigaction(number, number == SIGPIPE ? &ignore : &standard, NULL); /* some are libc's own */
    if (sigemptyset(&none) < 0 || sigprocmask(SIG_SETMASK, &none, NULL) < 0)
        return -errno;
    return 0;
}

static int set_limits(void)
{
    struct rlimit limit = {.rlim_cur = 0, .rlim_max = 0};
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

int bt_sanitise(int kept_fd)
{
    if (clearenv() != 0)
        return -ENOMEM;
    umask(077);
    int error = close_other_fds(kept_fd);
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
