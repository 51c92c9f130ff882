/* Workers. See workers.h. */
#include "policy/gateway/workers.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void watched_signals(sigset_t *ret_signals)
{
    (void)sigemptyset(ret_signals);
    (void)sigaddset(ret_signals, SIGTERM);
    (void)sigaddset(ret_signals, SIGCHLD);
}

static void end_workers(const struct bt_workers *workers, int signal_number)
{
    for (unsigned i = 0; i < workers->count; i++) {
        if (workers->pids[i] > 0)
            (void)kill(workers->pids[i], signal_number);
    }
}

/* In the worker: its watcher's end is its end, and signals are its own again. */
static int become_worker(pid_t watcher, const sigset_t *previous)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || sigprocmask(SIG_SETMASK, previous, NULL) < 0)
        return -errno;
    return getppid() == watcher ? 0 : -ESRCH;
}

int bt_workers_start(struct bt_workers *workers, unsigned count, struct bt_error *error)
{
    sigset_t taken, previous;
    pid_t watcher = getpid();
    *workers = (struct bt_workers){.count = count};
    watched_signals(&taken);
    if (sigprocmask(SIG_BLOCK, &taken, &previous) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot block signals: %s", strerror(errno));
    for (unsigned i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int result = become_worker(watcher, &previous);
            return result < 0 ? bt_fail(error, BT_EXIT_ERROR, -result, NULL,
                                        "a worker cannot be tied to its watcher: %s", strerror(-result))
                              : (int)i;
        }
        if (pid < 0) {
            int code = errno;
            end_workers(workers, SIGKILL);
            return bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot start a worker: %s", strerror(code));
        }
        workers->pids[i] = pid;
    }
    return (int)count;
}

/* Takes the ends of workers. Returns how many live. */
static unsigned reap(struct bt_workers *workers, int *failed_status)
{
    unsigned alive = 0;
    int status;
    for (unsigned i = 0; i < workers->count; i++) {
        if (workers->pids[i] <= 0)
            continue;
        if (waitpid(workers->pids[i], &status, WNOHANG) != workers->pids[i]) {
            alive++;
            continue;
        }
        workers->pids[i] = 0;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            *failed_status = status;
    }
    return alive;
}

int bt_workers_watch(struct bt_workers *workers, struct bt_error *error)
{
    bool is_ending = false;
    int failed_status = 0;
    sigset_t taken;
    watched_signals(&taken);
    while (reap(workers, &failed_status) > 0) {
        bool is_one_gone = false;
        for (unsigned i = 0; i < workers->count; i++)
            is_one_gone = is_one_gone || workers->pids[i] == 0;
        if (is_one_gone && !is_ending) {
            is_ending = true;
            end_workers(workers, SIGTERM);
        }
        siginfo_t information;
        if (sigwaitinfo(&taken, &information) == SIGTERM) {
            is_ending = true;
            end_workers(workers, SIGTERM);
        }
    }
    if (failed_status == 0)
        return 0;
    if (WIFSIGNALED(failed_status))
        return bt_fail(error, BT_EXIT_ERROR, ECHILD, NULL, "a worker was ended by the signal %d",
                       WTERMSIG(failed_status));
    return bt_fail(error, BT_EXIT_ERROR, ECHILD, NULL, "a worker ended with the status %d",
                   WEXITSTATUS(failed_status));
}
