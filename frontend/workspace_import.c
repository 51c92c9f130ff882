/* One stream of commits into base.git, through git fast-import(1): files of any size and any name, read by
 * berth itself, byte for byte, into one pack; no index, no work tree, no attribute is looked at.
 *
 * Called by prepare, collect and apply. The stream ends with "done": a stream that was cut leaves nothing
 * behind but an unreferenced pack.
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_SIZE (256UL * 1024)

static _Noreturn void child_run(int input_fd, int errors_fd, char **arguments, char **environment,
                                pid_t parent)
{
    sigset_t none;
    struct sigaction normal = {.sa_handler = SIG_DFL};
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)sigaction(SIGPIPE, &normal, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (getppid() == parent && null_fd >= 0 && dup2(input_fd, 0) == 0 && dup2(null_fd, 1) == 1 &&
        dup2(errors_fd, 2) == 2 && chdir("/") == 0)
        (void)execvpe(arguments[0], arguments, environment);
    _exit(127);
}

int bt_workspace_import_start(const char *state_folder, int compression,
                              struct bt_workspace_import *ret_import, struct bt_error *error)
{
    bt_auto_list arguments = {0};
    bt_auto_list environment = {0};
    bt_auto_free char *repository = bt_string_format("%s/" BT_WORKSPACE_REPOSITORY, state_folder);
    bt_workspace_git_environment(repository, NULL, &environment);
    bt_list_add(&arguments, "git");
    bt_list_add(&arguments, "-c");
    bt_list_add_format(&arguments, "core.compression=%d", compression);
    bt_list_add(&arguments, "fast-import");
    bt_list_add(&arguments, "--quiet");
    bt_list_add(&arguments, "--force"); /* references are replaced, whatever they were */
    bt_list_add(&arguments, "--done");
    bt_list_add(&arguments, "--depth=0");
    bt_list_add(&arguments, "--big-file-threshold=16m");
    bt_list_add(&arguments, "--date-format=raw");
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make a pipe: %s", strerror(errno));
    bt_auto_fd input_fd = ends[0];
    bt_auto_fd output_fd = ends[1];
    bt_auto_fd errors_fd = memfd_create("git-errors", MFD_CLOEXEC);
    /* The pipe of a git that failed must give an error, not end this program. */
    struct sigaction ignore = {.sa_handler = SIG_IGN}, previous;
    (void)sigaction(SIGPIPE, &ignore, &previous);
    pid_t parent = getpid();
    pid_t pid = errors_fd < 0 ? -1 : fork();
    if (pid < 0) {
        (void)sigaction(SIGPIPE, &previous, NULL);
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot start git: %s", strerror(errno));
    }
    if (pid == 0)
        child_run(input_fd, errors_fd, arguments.items, environment.items, parent);
    FILE *stream = fdopen(output_fd, "w");
    if (stream == NULL)
        abort(); /* only without memory, which ends this program everywhere */
    (void)bt_fd_take(&output_fd);
    (void)setvbuf(stream, NULL, _IOFBF, CHUNK_SIZE);
    *ret_import = (struct bt_workspace_import){
        .stream = stream, .pid = pid, .errors_fd = bt_fd_take(&errors_fd), .previous = previous};
    return 0;
}

/* A path as fast-import reads it: in quotes, with the three bytes escaped that would end it. */
static void put_path(struct bt_workspace_import *import, const char *path)
{
    (void)putc('"', import->stream);
    for (; *path != '\0'; path++) {
        if (*path == '\n')
            (void)fputs("\\n", import->stream);
        else if (*path == '"' || *path == '\\')
            (void)fprintf(import->stream, "\\%c", *path);
        else
            (void)putc(*path, import->stream);
    }
    (void)fputs("\"\n", import->stream);
}

void bt_workspace_import_commit(struct bt_workspace_import *import, const char *reference, const char *from,
                                bool is_empty, const char *message)
{
    (void)fprintf(import->stream, "commit %s\ncommitter berth <berth@localhost> %lld +0000\ndata %zu\n%s\n",
                  reference, (long long)time(NULL), strlen(message), message);
    if (from != NULL)
        (void)fprintf(import->stream, "from %s\n", from);
    if (is_empty)
        (void)fputs("deleteall\n", import->stream);
}

void bt_workspace_import_remove(struct bt_workspace_import *import, const char *path)
{
    (void)fputs("D ", import->stream);
    put_path(import, path);
}

void bt_workspace_import_object(struct bt_workspace_import *import, unsigned mode, const char *id,
                                const char *path)
{
    (void)fprintf(import->stream, "M %06o %s ", mode, id);
    put_path(import, path);
}

void bt_workspace_import_file(struct bt_workspace_import *import, unsigned mode, const char *path,
                              uint64_t size)
{
    (void)fprintf(import->stream, "M %06o inline ", mode);
    put_path(import, path);
    (void)fprintf(import->stream, "data %llu\n", (unsigned long long)size);
}

void bt_workspace_import_data(struct bt_workspace_import *import, const void *data, size_t length)
{
    (void)fwrite(data, 1, length, import->stream);
}

int bt_workspace_import_open_file(struct bt_workspace_import *import, unsigned mode, const char *path, int fd,
                                  uint64_t size)
{
    static char chunk[CHUNK_SIZE];
    bt_workspace_import_file(import, mode, path, size);
    while (size > 0) {
        ssize_t got = read(fd, chunk, size < sizeof chunk ? (size_t)size : sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return -EAGAIN;
        bt_workspace_import_data(import, chunk, (size_t)got);
        if (ferror(import->stream))
            return -EPIPE;
        size -= (uint64_t)got;
    }
    return 0;
}

/* The end of what git said, on one line. */
static void read_errors(int errors_fd, char *ret_text, size_t size)
{
    off_t length = lseek(errors_fd, 0, SEEK_END);
    off_t from = length > (off_t)size - 1 ? length - (off_t)size + 1 : 0;
    ssize_t got = pread(errors_fd, ret_text, size - 1, from);
    size_t end = got > 0 ? (size_t)got : 0;
    while (end > 0 && (ret_text[end - 1] == '\n' || ret_text[end - 1] == ' '))
        end--;
    ret_text[end] = '\0';
    for (size_t i = 0; i < end; i++) {
        if ((unsigned char)ret_text[i] < ' ')
            ret_text[i] = ' ';
    }
}

int bt_workspace_import_finish(struct bt_workspace_import *import, int result, struct bt_error *error)
{
    int status = 0;
    char text[400];
    if (result == 0)
        (void)fputs("done\n", import->stream);
    else
        (void)kill(import->pid, SIGTERM); /* it then removes its unfinished pack */
    bool is_broken = ferror(import->stream) != 0;
    is_broken |= fclose(import->stream) != 0;
    import->stream = NULL;
    while (waitpid(import->pid, &status, 0) < 0 && errno == EINTR)
        ;
    (void)sigaction(SIGPIPE, &import->previous, NULL);
    bool has_failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0 || is_broken;
    read_errors(import->errors_fd, text, sizeof text);
    bt_fd_close(&import->errors_fd);
    /* A broken pipe is how git's own failure is first noticed: its words are the reason. */
    if (result < 0 && result != -EPIPE)
        return result;
    if (!has_failed)
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, "install git", "cannot run git");
    bool is_full = strstr(text, "No space left") != NULL;
    return bt_fail(error, BT_EXIT_ERROR, is_full ? ENOSPC : EIO,
                   is_full ? "make room on the disk that holds berth's state" : NULL,
                   "cannot record the workspace: git: %s", text[0] != '\0' ? text : "ended early");
}
