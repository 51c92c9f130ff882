/* berth-helper-start: starts the engine if none runs. The optional setuid entrance, for hosts without a
 * service manager (`make SETUID=1`, `berth-helper install --setuid`).
 *
 * Run by members of the group berth, set uid to root; static, so that no loader and no library takes part.
 * Three processes: the one that was called goes back to its caller's identity at once, waits for one byte and
 * says what it means; its child is root, owes nothing to the caller any more, and decides; the grandchild is
 * the engine. It must not read its arguments or environment, write to a descriptor of the caller as root,
 * pass anything of the caller on, or take a path from anywhere but installed.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "helper/installed.h"
#include "helper/trusted.h"
#include "ipc/base/base.h"

#define LOCK_FOLDER "/run"
#define LOCK_NAME "berth-helper-start.lock"
#define READY_DEADLINE_MS 60000
#define COMPONENT_SIZE 64

enum outcome {
    OUTCOME_SERVES = 0,
    OUTCOME_USAGE,
    OUTCOME_NOT_ROOT,
    OUTCOME_NO_PROCESS,
    OUTCOME_STATE,
    OUTCOME_PROGRAM,
    OUTCOME_LOCK,
    OUTCOME_BUSY,
    OUTCOME_ENDED,
    OUTCOME_LATE,
    OUTCOME_CUT_OFF,
    OUTCOME_MAX
};

static const struct {
    int status;
    const char *text;
} outcomes[OUTCOME_MAX] = {
    [OUTCOME_SERVES] = {0, ""},
    [OUTCOME_USAGE] = {64, "usage: berth-helper-start (without arguments): starts the helper if none runs\n"},
    [OUTCOME_NOT_ROOT] = {1, "berth-helper-start: it is not run as root, so it cannot start the helper; an "
                             "administrator installs it by `berth-helper install --setuid`\n"},
    [OUTCOME_NO_PROCESS] = {1, "berth-helper-start: no process can be made; see your limits (ulimit -u, "
                               "ulimit -n)\n"},
    [OUTCOME_STATE] = {2, "berth-helper-start: what it was started with cannot be made safe, so nothing was "
                          "started; an administrator can run `berth-helper listen`\n"},
    [OUTCOME_PROGRAM] = {2, "berth-helper-start: " BT_INSTALLED_HELPER
                            " or a folder above it is missing, a link, or not root's alone, so it was not "
                            "started; an administrator finds which by `berth-helper check`\n"},
    [OUTCOME_LOCK] = {2, "berth-helper-start: the lock in " LOCK_FOLDER
                         " cannot be taken, so nothing was started; the folder must be root's alone\n"},
    [OUTCOME_BUSY] = {2, "berth-helper-start: somebody else is starting the helper right now; try again in a "
                         "moment\n"},
    [OUTCOME_ENDED] = {2,
                       "berth-helper-start: the helper ended before it was ready; an administrator sees why "
                       "by running `berth-helper listen`\n"},
    [OUTCOME_LATE] = {2, "berth-helper-start: the helper was not ready within a minute and was ended; an "
                         "administrator sees why by running `berth-helper listen`\n"},
    [OUTCOME_CUT_OFF] = {2, "berth-helper-start: the start was cut off; try again\n"},
};

/* ---- the caller's process ------------------------------------------------------------------------------ */

/* For good, and looked at: what follows writes to descriptors that the caller chose. */
static bool become_caller(void)
{
    uid_t uid = getuid(), real_uid, effective_uid, saved_uid;
    gid_t gid = getgid(), real_gid, effective_gid, saved_gid;
    if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
        return false;
    if (getresuid(&real_uid, &effective_uid, &saved_uid) < 0 ||
        getresgid(&real_gid, &effective_gid, &saved_gid) < 0)
        return false;
    return real_uid == uid && effective_uid == uid && saved_uid == uid && real_gid == gid &&
           effective_gid == gid && saved_gid == gid;
}

static int tell(enum outcome outcome)
{
    const char *text = outcomes[outcome].text;
    size_t length = strlen(text);
    if (length > 0 && write(STDERR_FILENO, text, length) < 0)
        return outcomes[outcome].status; /* there is nowhere left to complain to */
    return outcomes[outcome].status;
}

/* One byte, and then the end: the process that sent it is gone too when the caller learns of it. */
static enum outcome hear(int report_fd)
{
    uint8_t byte = OUTCOME_CUT_OFF, ignored;
    bool has_byte = false;
    for (;;) {
        ssize_t got = read(report_fd, has_byte ? &ignored : &byte, sizeof(byte));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return byte < OUTCOME_MAX ? (enum outcome)byte : OUTCOME_CUT_OFF;
        has_byte = true;
    }
}

/* ---- nothing of the caller is left ----------------------------------------------------------------------
 */

/* First of all signals: from here on nobody but root and the kernel can stop or end this process, not even by
 * the terminal, so nobody can hold its lock. */
static bool become_root(void)
{
    sigset_t all;
    if (sigfillset(&all) < 0 || sigprocmask(SIG_SETMASK, &all, NULL) < 0)
        return false;
    if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return false;
    if (setsid() < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) < 0)
        return false;
    umask(077);
    return chdir("/") == 0;
}

/* A file of the kernel's, when it is there. */
static void tell_kernel(const char *path, const char *text)
{
    bt_auto_fd fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        return; /* see reset_resources */
}

/* What the caller could use to starve, slow down or freeze an engine that serves everybody. Real root may do
 * all of this. Root of a user namespace may not, and its engine serves that namespace alone: what it could
 * not do without, it refuses by itself (helper/sanitise.c). */
static void reset_resources(void)
{
    const struct rlimit none = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    const struct rlimit no_core = {0, 0}, fds = {.rlim_cur = 4096, .rlim_max = 4096};
    const struct sched_param normal = {.sched_priority = 0};
    cpu_set_t processors;
    for (int resource = 0; resource < (int)RLIM_NLIMITS; resource++)
        (void)prlimit(0, (__rlimit_resource_t)resource,
                      resource == RLIMIT_CORE     ? &no_core
                      : resource == RLIMIT_NOFILE ? &fds
                                                  : &none,
                      NULL);
    memset(&processors, 0xff, sizeof(processors));
    (void)sched_setscheduler(0, SCHED_OTHER, &normal);
    (void)setpriority(PRIO_PROCESS, 0, 0);
    (void)sched_setaffinity(0, sizeof(processors), &processors);
    (void)syscall(SYS_ioprio_set, 1, 0, 0);
    (void)syscall(SYS_set_mempolicy, 0, NULL, 0);
    (void)personality(PER_LINUX);
    (void)prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0);
    (void)prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    tell_kernel("/proc/self/oom_score_adj", "-900");
    tell_kernel("/sys/fs/cgroup/cgroup.procs", "0"); /* out of a group that the caller may freeze */
}

/* The report's descriptor alone is kept; 0 to 2 are /dev/null. */
static bool replace_fds(int *report_fd)
{
    int kept = fcntl(*report_fd, F_DUPFD_CLOEXEC, 3);
    if (kept < 0 || close_range(0, (unsigned)kept - 1, 0) < 0 || close_range((unsigned)kept + 1, ~0U, 0) < 0)
        return false;
    *report_fd = kept;
    for (int fd = 0; fd <= 2; fd++)
        if (open("/dev/null", O_RDWR | O_NOCTTY) != fd)
            return false;
    return true;
}

/* ---- paths ------------------------------------------------------------------------------------------------
 */

static bool is_roots_alone(int fd, mode_t type)
{
    struct stat status;
    return fstat(fd, &status) == 0 && bt_trusted_is_roots(&status, type);
}

/* Walks a path from "/", following no link: each folder, and what is named (a file of that type), has to be
 * root's and not writable by others. The descriptor is what was looked at. */
static int open_trusted(const char *path, mode_t type)
{
    bt_auto_fd fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (const char *rest = path; *rest == '/';) {
        char name[COMPONENT_SIZE];
        const char *end = strchr(++rest, '/');
        size_t length = end ? (size_t)(end - rest) : strlen(rest);
        if (fd < 0 || !is_roots_alone(fd, S_IFDIR) || length == 0 || length >= sizeof(name))
            return -1;
        memcpy(name, rest, length);
        name[length] = '\0';
        bt_auto_fd next_fd = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        bt_fd_close(&fd);
        fd = bt_fd_take(&next_fd);
        rest += length;
    }
    return fd >= 0 && is_roots_alone(fd, type) ? bt_fd_take(&fd) : -1;
}

/* Only who is root can open the file: a lock on anything else anybody could hold. It is never waited for, so
 * that calls of this program cannot pile up as root's processes. */
static enum outcome take_lock(int *ret_lock_fd)
{
    bt_auto_fd folder_fd = open_trusted(LOCK_FOLDER, S_IFDIR);
    if (folder_fd < 0)
        return OUTCOME_LOCK;
    bt_auto_fd fd =
        openat(folder_fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0 || !is_roots_alone(fd, S_IFREG))
        return OUTCOME_LOCK;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? OUTCOME_BUSY : OUTCOME_LOCK;
    *ret_lock_fd = bt_fd_take(&fd);
    return OUTCOME_SERVES;
}

/* ---- the engine -------------------------------------------------------------------------------------------
 */

/* An engine, or a service manager that will start one. */
static bool is_served(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = BT_INSTALLED_SOCKET};
    bt_auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return fd >= 0 &&
           (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 || errno == EAGAIN);
}

static _Noreturn void be_engine(int program_fd, int messages_fd)
{
    static char name[] = "berth-helper", verb[] = "listen", option[] = "--status-socket",
                path[] = BT_INSTALLED_STATUS_SOCKET;
    char *const arguments[] = {name, verb, option, path, NULL};
    char *const environment[] = {NULL};
    if (dup2(messages_fd, STDERR_FILENO) == STDERR_FILENO)
        (void)execveat(program_fd, "", arguments, environment, AT_EMPTY_PATH);
    _exit(127);
}

static int64_t now_ms(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) < 0)
        return 0;
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads the engine's messages until it says that it serves; they are for an administrator, so nobody else
 * gets them. The mark's first letter is in it once, so a mismatch can only begin anew. */
static enum outcome await_ready(int messages_fd)
{
    static const char mark[] = "berth-helper: ready\n";
    const int64_t deadline = now_ms() + READY_DEADLINE_MS;
    char bytes[512];
    size_t matched = 0;
    for (int64_t left = READY_DEADLINE_MS; left > 0; left = deadline - now_ms()) {
        struct pollfd item = {.fd = messages_fd, .events = POLLIN};
        if (poll(&item, 1, (int)left) <= 0)
            continue;
        ssize_t got = read(messages_fd, bytes, sizeof(bytes));
        if (got <= 0)
            return OUTCOME_ENDED;
        for (ssize_t i = 0; i < got; i++) {
            matched = bytes[i] == mark[matched] ? matched + 1 : bytes[i] == mark[0] ? 1 : 0;
            if (mark[matched] == '\0')
                return OUTCOME_SERVES;
        }
    }
    return OUTCOME_LATE;
}

static enum outcome start_engine(int program_fd)
{
    int messages[2];
    if (pipe2(messages, O_CLOEXEC) < 0)
        return OUTCOME_NO_PROCESS;
    pid_t engine = fork();
    if (engine == 0)
        be_engine(program_fd, messages[1]);
    bt_fd_close(&messages[1]);
    enum outcome outcome = engine < 0 ? OUTCOME_NO_PROCESS : await_ready(messages[0]);
    bt_fd_close(&messages[0]);
    if (engine > 0 && outcome != OUTCOME_SERVES)
        (void)kill(engine, SIGKILL);
    return outcome;
}

static enum outcome decide(int *report_fd)
{
    if (!become_root())
        return OUTCOME_STATE;
    reset_resources();
    if (!replace_fds(report_fd))
        return OUTCOME_STATE;
    if (is_served())
        return OUTCOME_SERVES;
    bt_auto_fd program_fd = open_trusted(BT_INSTALLED_HELPER, S_IFREG);
    if (program_fd < 0)
        return OUTCOME_PROGRAM;
    bt_auto_fd lock_fd = -1;
    enum outcome outcome = take_lock(&lock_fd);
    if (outcome != OUTCOME_SERVES || is_served()) /* now that nobody else starts one */
        return outcome;
    return start_engine(program_fd);
}

int main(int argc, char **argv)
{
    int report[2];
    (void)argv;
    (void)prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0); /* without it reading the clock is a SIGSEGV */
    bool is_root = geteuid() == 0;
    if (!is_root || argc > 1)
        return become_caller() ? tell(is_root ? OUTCOME_USAGE : OUTCOME_NOT_ROOT) : 1;
    if (pipe2(report, O_CLOEXEC) < 0)
        return become_caller() ? tell(OUTCOME_NO_PROCESS) : 1;
    pid_t child = fork();
    if (child == 0) {
        uint8_t byte = (uint8_t)decide(&report[1]);
        return write(report[1], &byte, sizeof(byte)) == 1 ? 0 : 1;
    }
    bt_fd_close(&report[1]);
    if (!become_caller())
        return 1;
    return tell(child < 0 ? OUTCOME_NO_PROCESS : hear(report[0]));
}
