/* "berth-init run": executes one request that the host sends over SSH. See vm/run_protocol.h.
 *
 * Started by dropbear as root in a running guest (not PID 1). Must not put a byte of the request on a command
 * line, into a log or into its error lines.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include "vm/init/init.h"
#include "vm/init/run_request.h"
#include "vm/run_protocol.h"

#define EXIT_CANNOT_EXECUTE 126
#define OOM_SCORE "/proc/self/oom_score_adj"
#define OOM_SCORE_OF_COMMANDS "600" /* above what backends/docker_container.c gives to a container */
#define EXIT_NOT_FOUND 127

static char body[BT_RUN_LENGTH_MAX];
static struct bt_run_request run_request;

static int complain(int status, const char *what, int code)
{
    (void)dprintf(STDERR_FILENO, "berth: %s%s%s\n", what, code != 0 ? ": " : "",
                  code != 0 ? strerror(code) : "");
    return status;
}

/* Exactly length bytes: what comes after them belongs to the command. */
static int read_exactly(void *to, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t count = read(STDIN_FILENO, (char *)to + done, length - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -errno;
        if (count == 0)
            return -ECONNRESET;
        done += (size_t)count;
    }
    return 0;
}

static int receive_request(void)
{
    uint8_t header[BT_RUN_HEADER_LENGTH];
    const uint8_t ready = BT_RUN_READY;
    size_t length;
    if (write(STDOUT_FILENO, &ready, 1) != 1)
        return -EIO;
    int result = read_exactly(header, sizeof(header));
    if (result == 0)
        result = bt_run_parse_header(header, &run_request, &length);
    if (result == 0)
        result = read_exactly(body, length);
    return result == 0 ? bt_run_parse_body(body, length, &run_request) : result;
}

/* On a terminal the request must neither be echoed nor be changed by the line discipline. */
static int receive_on_terminal(void)
{
    struct termios before;
    if (tcgetattr(STDIN_FILENO, &before) < 0)
        return receive_request();
    struct termios raw = before;
    cfmakeraw(&raw);
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) < 0)
        return -errno;
    int result = receive_request();
    if (tcsetattr(STDIN_FILENO, TCSANOW, &before) < 0 && result == 0)
        result = -errno;
    return result;
}

/* The command's own session; on a terminal, with it as controlling terminal and owner, so that it can be
 * reopened. */
static int take_terminal(void)
{
    bool is_terminal = isatty(STDIN_FILENO) == 1;
    if (setsid() >= 0 && is_terminal)
        (void)ioctl(STDIN_FILENO, TIOCSCTTY, 0);
    return is_terminal && fchown(STDIN_FILENO, run_request.uid, (gid_t)-1) < 0 ? -errno : 0;
}

/* execvp with the PATH of the request, not of this process; a file is never handed to a shell. */
static int execute(void)
{
    char **arguments = bt_run_arguments(&run_request);
    char **environment = bt_run_environment(&run_request);
    if (strchr(arguments[0], '/') != NULL) {
        (void)execve(arguments[0], arguments, environment);
        return -errno;
    }
    const char *path = bt_run_variable(&run_request, "PATH");
    if (path == NULL)
        path = "/usr/local/bin:/usr/bin:/bin";
    int reason = -ENOENT;
    while (*path != '\0') {
        size_t length = strcspn(path, ":");
        char candidate[PATH_MAX];
        int written = snprintf(candidate, sizeof(candidate), "%.*s/%s", (int)length, path, arguments[0]);
        if (length > 0 && written > 0 && (size_t)written < sizeof(candidate)) {
            (void)execve(candidate, arguments, environment);
            if (errno != ENOENT && errno != ENOTDIR)
                reason = -errno;
        }
        path += length + (path[length] == ':' ? 1 : 0);
    }
    return reason;
}

/* The same part by part, for a kernel without openat2 (gVisor). Returns a descriptor or a negative errno. */
static int open_folder_by_parts(char *path)
{
    bt_auto_fd folder_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (char *part; folder_fd >= 0 && (part = strsep(&path, "/")) != NULL;) {
        if (*part == '\0')
            continue;
        int next_fd = openat(folder_fd, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next_fd < 0)
            return -errno;
        bt_fd_close(&folder_fd);
        folder_fd = next_fd;
    }
    return folder_fd < 0 ? -errno : bt_fd_take(&folder_fd);
}

/* Root is sent into folders that the agent may change (to list and pack its work): a symbolic link on the way
 * would make the whole guest the agent's work. */
static int enter_folder(void)
{
    const struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                                 .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    if (run_request.uid != 0)
        return chdir(run_request.folder) < 0 ? -errno : 0;
    bt_auto_fd folder_fd = (int)syscall(SYS_openat2, AT_FDCWD, run_request.folder, &how, sizeof(how));
    if (folder_fd < 0 && errno == ENOSYS) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof(path), "%s", run_request.folder) >= (int)sizeof(path))
            return -ENAMETOOLONG;
        folder_fd = open_folder_by_parts(path);
        if (folder_fd < 0)
            return folder_fd;
    }
    return folder_fd < 0 || fchdir(folder_fd) < 0 ? -errno : 0;
}

/* Whoever served the connection may ignore some, and ignored ones would be the command's for life: the one
 * that ends it with its connection, too. */
static void default_signals(void)
{
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        (void)signal(number, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The connection's end is the command's end, unless it made itself a background process. server: the process
 * that serves the connection; it may have ended by now, and then sends no signal any more (prctl(2)). */
static int end_with(pid_t server)
{
    if (prctl(PR_SET_PDEATHSIG, SIGHUP, 0, 0, 0) < 0)
        return -errno;
    return getppid() == server ? 0 : -ECONNRESET;
}

/* Who goes first when memory is short. A virtual machine's server is spared, and so would be what it starts.
 * In a container everything begins at the engine's figure, and commands go before the first process, whose
 * end is the container's. */
static void lose_protection(void)
{
    char text[16] = "";
    bt_auto_fd score_fd = open(OOM_SCORE, O_RDONLY | O_CLOEXEC);
    bool is_container =
        score_fd >= 0 && read(score_fd, text, sizeof(text) - 1) > 0 && strtol(text, NULL, 10) > 0;
    (void)bt_init_set_kernel(OOM_SCORE, is_container ? OOM_SCORE_OF_COMMANDS : "0");
}

int bt_init_run_command(void)
{
    pid_t server = getppid();
    int result = receive_on_terminal();
    if (result < 0)
        return complain(EXIT_CANNOT_EXECUTE, "the request to run a command is not valid", 0);
    result = take_terminal();
    if (result < 0)
        return complain(EXIT_CANNOT_EXECUTE, "cannot take the terminal", -result);
    lose_protection();
    result = run_request.uid != 0 ? bt_init_enter_group() : 0;
    if (result < 0)
        return complain(EXIT_CANNOT_EXECUTE, "cannot enter the group of the agent's processes", -result);
    result = bt_init_become_user(run_request.uid, run_request.gid);
    if (result < 0)
        return complain(EXIT_CANNOT_EXECUTE, "cannot become the user of the command", -result);
    result = end_with(server);
    if (result < 0)
        return complain(EXIT_CANNOT_EXECUTE, "the command has no connection any more", -result);
    default_signals();
    result = enter_folder();
    if (result < 0)
        return complain(EXIT_CANNOT_EXECUTE, "cannot enter the working folder", -result);
    result = execute();
    (void)dprintf(STDERR_FILENO, "berth: %s in the guest: %.200s%s%s\n",
                  result == -ENOENT ? "no such program" : "cannot execute a program",
                  bt_run_arguments(&run_request)[0], result == -ENOENT ? "" : ": ",
                  result == -ENOENT ? "" : strerror(-result));
    return result == -ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
}
