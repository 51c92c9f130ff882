/* Running other programs. See spawn.h. */
#include "lib/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/file.h"

#define OUTPUT_LIMIT_DEFAULT (1024UL * 1024)

enum { PIPE_INPUT, PIPE_OUTPUT, PIPE_ERRORS, PIPE_EXEC, PIPE_COUNT };
struct pipes {
    int parent[PIPE_COUNT], child[PIPE_COUNT];
};

static void pipes_close(struct pipes *pipes)
{
    for (int i = 0; i < PIPE_COUNT; i++) {
        bt_fd_close(&pipes->parent[i]);
        bt_fd_close(&pipes->child[i]);
    }
}

static int pipes_open(struct pipes *pipes, bool has_input)
{
    for (int i = 0; i < PIPE_COUNT; i++)
        pipes->parent[i] = pipes->child[i] = -1;
    for (int i = 0; i < PIPE_COUNT; i++) {
        int ends[2];
        if (i == PIPE_INPUT && !has_input) {
            pipes->child[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
            if (pipes->child[i] < 0)
                return -errno;
            continue;
        }
        if (pipe2(ends, O_CLOEXEC) < 0)
            return -errno;
        pipes->parent[i] = ends[i == PIPE_INPUT ? 1 : 0];
        pipes->child[i] = ends[i == PIPE_INPUT ? 0 : 1];
        if (fcntl(pipes->parent[i], F_SETFL, O_NONBLOCK) < 0)
            return -errno;
    }
    return 0;
}

static _Noreturn void child_run(const struct bt_spawn *spawn, struct pipes *pipes, char **environment,
                                pid_t parent)
{
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (int number = 1; number < 32; number++)
        (void)signal(number, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = 0;
    if (getppid() != parent)
        _exit(127);
    for (int i = 0; i < 3; i++) {
        if (pipes->child[i] == i ? fcntl(i, F_SETFD, 0) < 0 : dup2(pipes->child[i], i) < 0)
            code = errno;
    }
    if (code == 0 && spawn->folder != NULL && chdir(spawn->folder) < 0)
        code = errno;
    if (code == 0) {
        char **arguments;
        memcpy(&arguments, &spawn->arguments, sizeof arguments); /* execvpe's type lacks const */
        (void)execvpe(arguments[0], arguments, environment);
        code = errno;
    }
    _exit(bt_write_all(pipes->child[PIPE_EXEC], &code, sizeof code) < 0 ? 126 : 127);
}

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads what is there. Returns 1 at end of file, 0 to go on, or a negative errno. */
static int drain(int fd, const struct bt_spawn *spawn, bool is_output, struct bt_buffer *buffer)
{
    char chunk[65536];
    ssize_t got = read(fd, chunk, sizeof chunk);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (got == 0)
        return 1;
    if (is_output && spawn->on_output != NULL) {
        spawn->on_output(spawn->context, chunk, (size_t)got);
        return 0;
    }
    return bt_buffer_add(buffer, chunk, (size_t)got) < 0 ? -EFBIG : 0;
}

/* Moves bytes until both outputs are at their end. */
static int exchange(const struct bt_spawn *spawn, struct pipes *pipes, struct bt_spawn_result *result)
{
    size_t sent = 0;
    int64_t deadline = spawn->timeout_ms > 0 ? now_ms() + spawn->timeout_ms : INT64_MAX;
    while (pipes->parent[PIPE_OUTPUT] >= 0 || pipes->parent[PIPE_ERRORS] >= 0) {
        struct pollfd polls[3] = {{pipes->parent[PIPE_INPUT], POLLOUT, 0},
                                  {pipes->parent[PIPE_OUTPUT], POLLIN, 0},
                                  {pipes->parent[PIPE_ERRORS], POLLIN, 0}};
        int64_t left = deadline == INT64_MAX ? -1 : deadline - now_ms();
        if (deadline != INT64_MAX && left <= 0)
            return -ETIMEDOUT;
        if (poll(polls, 3, (int)left) < 0 && errno != EINTR)
            return -errno;
        if (polls[0].revents != 0) {
            ssize_t written =
                write(polls[0].fd, (const char *)spawn->input + sent, spawn->input_length - sent);
            if (written > 0)
                sent += (size_t)written;
            if (sent == spawn->input_length || (written < 0 && errno != EAGAIN && errno != EINTR))
                bt_fd_close(&pipes->parent[PIPE_INPUT]);
        }
        for (int i = PIPE_OUTPUT; i <= PIPE_ERRORS; i++) {
            if (polls[i].revents == 0)
                continue;
            int end = drain(pipes->parent[i], spawn, i == PIPE_OUTPUT,
                            i == PIPE_OUTPUT ? &result->output : &result->errors);
            if (end < 0)
                return end;
            if (end > 0)
                bt_fd_close(&pipes->parent[i]);
        }
    }
    return 0;
}

static void minimal_environment(struct bt_list *environment)
{
    static const char *const kept[] = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(kept); i++) {
        const char *value = getenv(kept[i]);
        if (value != NULL)
            bt_list_add_format(environment, "%s=%s", kept[i], value);
    }
}

static int wait_exit(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return 127;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The errno that execve failed with, or 0. Blocks only until the child has executed, which closed its end. */
static int exec_error(struct pipes *pipes)
{
    int code = 0;
    bt_fd_close(&pipes->child[PIPE_EXEC]);
    (void)fcntl(pipes->parent[PIPE_EXEC], F_SETFL, 0);
    ssize_t got;
    do {
        got = read(pipes->parent[PIPE_EXEC], &code, sizeof code);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof code ? code : 0;
}

int bt_spawn_run(const struct bt_spawn *spawn, struct bt_spawn_result *ret_result, struct bt_error *error)
{
    struct pipes pipes;
    bt_auto_list environment = {0};
    const char *program = spawn->arguments[0];
    int result = pipes_open(&pipes, spawn->input != NULL);
    if (result < 0) {
        pipes_close(&pipes);
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot start %s: %s", program,
                       strerror(-result));
    }
    minimal_environment(&environment);
    char **child_environment = environment.items;
    if (spawn->environment != NULL)
        memcpy(&child_environment, &spawn->environment, sizeof child_environment);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, previous;
    (void)sigaction(SIGPIPE, &ignore, &previous); /* a child that ends early must not end us */
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        child_run(spawn, &pipes, child_environment, parent);
    int code = pid < 0 ? errno : exec_error(&pipes);
    struct bt_spawn_result run = {0};
    size_t limit = spawn->output_limit == 0 ? OUTPUT_LIMIT_DEFAULT : spawn->output_limit;
    run.output.limit = run.errors.limit = limit;
    for (int i = 0; i < 3; i++)
        bt_fd_close(&pipes.child[i]);
    result = code != 0 ? -code : exchange(spawn, &pipes, &run);
    if (pid > 0) {
        if (result < 0)
            (void)kill(pid, SIGKILL);
        pipes_close(&pipes);
        run.exit_status = wait_exit(pid);
    }
    pipes_close(&pipes);
    (void)sigaction(SIGPIPE, &previous, NULL);
    if (result < 0) {
        bt_spawn_result_free(&run);
        return bt_fail(error, BT_EXIT_ERROR, -result,
                       result == -ENOENT ? "install it, or put it into PATH" : NULL, "cannot run %s: %s",
                       program, strerror(-result));
    }
    *ret_result = run;
    return 0;
}

void bt_spawn_result_free(struct bt_spawn_result *result)
{
    bt_buffer_free(&result->output);
    bt_buffer_free(&result->errors);
}

int bt_spawn_check(const struct bt_spawn *spawn, struct bt_spawn_result *ret_result, struct bt_error *error)
{
    struct bt_spawn_result run;
    int result = bt_spawn_run(spawn, &run, error);
    if (result < 0)
        return result;
    if (run.exit_status == 0) {
        *ret_result = run;
        return 0;
    }
    const char *tail = run.errors.data == NULL ? "" : run.errors.data;
    size_t length = run.errors.length;
    while (length > 0 && (tail[length - 1] == '\n' || tail[length - 1] == ' '))
        length--;
    size_t skip = length > 600 ? length - 600 : 0;
    result = bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "%s ended with status %d: %.*s", spawn->arguments[0],
                     run.exit_status, (int)(length - skip), tail + skip);
    bt_spawn_result_free(&run);
    return result;
}
