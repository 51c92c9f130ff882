/* Runs the program that makes an archive. See producer.h.
 *
 * Called by the disk builder. lib/spawn collects output or hands it over in pieces; here the reader pulls
 * instead, and the program must get a chance to clean up (it has mounts and a tree of its own), so it is
 * never killed at once.
 */
#include "images/producer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/progress.h"
#include "lib/file.h"

#define CLEAN_UP_MS 60000
#define POLL_MS 100

static _Noreturn void run_child(const char *const *arguments, const char *const *environment,
                                const int ends[3], int shared_fd, pid_t parent)
{
    sigset_t none;
    char **argv, **envp;
    int code = 0, null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (int number = 1; number < 32; number++)
        (void)signal(number, SIG_DFL);
    (void)setsid(); /* so that the terminal's ctrl-c reaches berth alone, which then ends this in order */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(ends[0], 1) < 0 || dup2(ends[1], 2) < 0 ||
        (shared_fd >= 0 && fcntl(shared_fd, F_SETFD, 0) < 0))
        code = errno;
    if (code == 0) {
        memcpy(&argv, &arguments, sizeof argv); /* execvpe's types lack const */
        memcpy(&envp, &environment, sizeof envp);
        (void)execvpe(argv[0], argv, envp);
        code = errno;
    }
    _exit(bt_write_all(ends[2], &code, sizeof code) < 0 ? 126 : 127);
}

int bt_producer_start(const char *const *arguments, const char *const *environment, int shared_fd,
                      const struct bt_progress *progress, struct bt_producer *ret_producer,
                      struct bt_error *error)
{
    int output[2] = {-1, -1}, errors[2] = {-1, -1}, exec[2] = {-1, -1}, code = 0;
    pid_t parent = getpid(), pid = -1;
    if (pipe2(output, O_CLOEXEC) < 0 || pipe2(errors, O_CLOEXEC) < 0 || pipe2(exec, O_CLOEXEC) < 0 ||
        (pid = fork()) < 0)
        code = errno;
    if (pid == 0) {
        const int ends[3] = {output[1], errors[1], exec[1]};
        run_child(arguments, environment, ends, shared_fd, parent);
    }
    bt_fd_close(&output[1]);
    bt_fd_close(&errors[1]);
    bt_fd_close(&exec[1]);
    if (pid > 0 && read(exec[0], &code, sizeof code) == (ssize_t)sizeof code)
        (void)waitpid(pid, NULL, 0);
    bt_fd_close(&exec[0]);
    if (code != 0) {
        bt_fd_close(&output[0]);
        bt_fd_close(&errors[0]);
        return bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot start %s: %s", arguments[0], strerror(code));
    }
    memset(ret_producer, 0, sizeof *ret_producer);
    ret_producer->pid = pid;
    ret_producer->output_fd = output[0];
    ret_producer->errors_fd = errors[0];
    ret_producer->progress = progress;
    (void)fcntl(errors[0], F_SETFL, O_NONBLOCK);
    return 0;
}

/* Of what it is about to do ("running apt-get update..."), what a user wants to know. */
static void report_step(const struct bt_producer *producer, char *step)
{
    size_t length = strlen(step);
    if (length <= 3 || strcmp(step + length - 3, "...") != 0 || strstr(step, "tempdir") != NULL)
        return;
    step[length - 3] = '\0';
    bt_progress_report(producer->progress, step, 0, 0);
}

static void end_line(struct bt_producer *producer)
{
    producer->line[producer->line_length] = '\0';
    producer->line_length = 0;
    if (strncmp(producer->line, "I: ", 3) == 0) {
        report_step(producer, producer->line + 3);
        return;
    }
    /* What it says beside its steps, for the error message: the last BT_PRODUCER_TAIL bytes. */
    size_t length = strlen(producer->line);
    if (length == 0)
        return;
    if (producer->tail_length + length + 2 > sizeof producer->tail) {
        size_t dropped = producer->tail_length + length + 2 - sizeof producer->tail;
        memmove(producer->tail, producer->tail + dropped, producer->tail_length - dropped);
        producer->tail_length -= dropped;
    }
    memcpy(producer->tail + producer->tail_length, producer->line, length);
    producer->tail_length += length;
    producer->tail[producer->tail_length++] = '\n';
    producer->tail[producer->tail_length] = '\0';
}

/* Reads standard error as far as it goes. false at its end. */
static bool drain_errors(struct bt_producer *producer)
{
    char bytes[4096];
    for (;;) {
        ssize_t got = read(producer->errors_fd, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 && errno == EAGAIN;
        for (ssize_t i = 0; i < got; i++) {
            if (bytes[i] == '\n' || producer->line_length == sizeof producer->line - 1)
                end_line(producer);
            if (bytes[i] != '\n')
                producer->line[producer->line_length++] = bytes[i];
        }
    }
}

/* Waits for output and reads it into the chunk. Returns how much, 0 at the end, or a negative errno. */
static ssize_t read_chunk(struct bt_producer *producer)
{
    for (;;) {
        struct pollfd polls[2] = {{producer->output_fd, POLLIN, 0}, {producer->errors_fd, POLLIN, 0}};
        if (poll(polls, 2, -1) < 0 && errno != EINTR)
            return -errno;
        if (polls[1].revents != 0 && !drain_errors(producer))
            bt_fd_close(&producer->errors_fd);
        if (polls[0].revents == 0)
            continue;
        ssize_t got = read(producer->output_fd, producer->chunk, sizeof producer->chunk);
        if (got < 0 && errno == EINTR)
            continue;
        producer->is_ended = producer->is_ended || got == 0;
        return got < 0 ? -errno : got;
    }
}

static la_ssize_t read_output(struct archive *archive, void *context, const void **ret_bytes)
{
    struct bt_producer *producer = context;
    ssize_t got = read_chunk(producer);
    *ret_bytes = producer->chunk;
    if (got >= 0)
        return got;
    archive_set_error(archive, (int)-got, "%s", strerror((int)-got));
    return ARCHIVE_FATAL;
}

void bt_producer_drain(struct bt_producer *producer)
{
    while (!producer->is_ended && read_chunk(producer) > 0)
        continue;
}

int bt_producer_open_archive(struct bt_producer *producer, struct archive *archive)
{
    return archive_read_open(archive, producer, NULL, read_output, NULL);
}

int bt_producer_end(struct bt_producer *producer)
{
    int status = 0;
    bt_fd_close(&producer->output_fd);
    if (!producer->is_ended)
        (void)kill(-producer->pid, SIGTERM); /* its whole session, else it first finishes what it is at */
    for (int waited = 0;; waited += POLL_MS) {
        pid_t reaped = waitpid(producer->pid, &status, WNOHANG);
        if (reaped == producer->pid || (reaped < 0 && errno != EINTR))
            break;
        if (waited == CLEAN_UP_MS)
            (void)kill(-producer->pid, SIGKILL);
        struct pollfd errors = {producer->errors_fd, POLLIN, 0};
        (void)poll(&errors, 1, POLL_MS);
        if (errors.revents != 0 && !drain_errors(producer))
            bt_fd_close(&producer->errors_fd);
    }
    if (producer->errors_fd >= 0)
        (void)drain_errors(producer);
    if (producer->line_length > 0)
        end_line(producer);
    bt_fd_close(&producer->errors_fd);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
