/* All there is of something: everything here is bounded in what it takes and ends with the attempt. */
#include "tests/attack/hostile/hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1024UL * 1024)

static void tell(const char *what, unsigned long count, bool is_whole)
{
    int code = errno;
    (void)printf("%s %lu", what, count);
    if (!is_whole)
        (void)printf(" %s", strerrorname_np(code));
}

static int wait_for_ever(void *argument)
{
    (void)argument;
    for (;;)
        (void)pause();
    return 0;
}

/* processes MAXIMUM: children that share its memory, so that only their number counts. */
static void try_processes(char **words)
{
    unsigned long maximum = (unsigned long)number_of(words[0]), count = 0;
    char *stacks = mmap(NULL, maximum * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t *children = calloc(maximum, sizeof(*children));
    if (stacks == MAP_FAILED || children == NULL)
        return;
    errno = 0;
    for (; count < maximum; count++) {
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD;
        children[count] = clone(wait_for_ever, stacks + (count + 1) * 4096, flags, NULL);
        if (children[count] < 0)
            break;
    }
    tell("processes", count, count == maximum);
    (void)fflush(stdout);
    (void)sleep(1);
    for (unsigned long i = 0; i < count; i++)
        (void)kill(children[i], SIGKILL);
    for (unsigned long i = 0; i < count; i++)
        (void)waitpid(children[i], NULL, 0);
}

/* memory MIB: touched a MiB at a time. What the kernel does to it ends it. */
static void try_memory(char **words)
{
    unsigned long maximum = (unsigned long)number_of(words[0]), count = 0;
    for (; count < maximum; count++) {
        char *piece = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece == MAP_FAILED)
            break;
        memset(piece, 1, MIB);
    }
    tell("mebibytes", count, count == maximum);
}

/* shared MIB: memory that no process owns (System V), which stays when its maker ends. */
static void try_shared(char **words)
{
    unsigned long maximum = (unsigned long)number_of(words[0]), count = 0;
    int id = shmget(IPC_PRIVATE, maximum * MIB, IPC_CREAT | 0600);
    char *memory = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
    if (memory == (char *)-1) {
        refused();
        return;
    }
    (void)shmctl(id, IPC_RMID, NULL);
    for (; count < maximum; count++)
        memset(memory + count * MIB, 1, MIB);
    tell("mebibytes", count, true);
}

/* fill FOLDER MIB: one file. */
static void try_fill(char **words)
{
    static char piece[MIB];
    char path[512];
    unsigned long maximum = (unsigned long)number_of(words[1]), count = 0;
    (void)snprintf(path, sizeof(path), "%s/hostile-filled", words[0]);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        refused();
        return;
    }
    memset(piece, 1, sizeof(piece));
    ssize_t length = 1;
    while (count < maximum * MIB && (length = write(fd, piece, sizeof(piece))) > 0)
        count += (unsigned long)length;
    tell("mebibytes", count / MIB, length > 0);
    (void)unlink(path);
    (void)close(fd);
}

/* files FOLDER MAXIMUM: empty ones. */
static void try_files(char **words)
{
    unsigned long maximum = (unsigned long)number_of(words[1]), count = 0;
    char path[512];
    for (; count < maximum; count++) {
        (void)snprintf(path, sizeof(path), "%s/hostile-%lu", words[0], count);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            break;
        (void)close(fd);
    }
    tell("files", count, count == maximum);
    for (unsigned long i = 0; i < count; i++) {
        (void)snprintf(path, sizeof(path), "%s/hostile-%lu", words[0], i);
        (void)unlink(path);
    }
}

static int open_one(const char *kind)
{
    if (strcmp(kind, "inotify") == 0)
        return inotify_init1(IN_CLOEXEC);
    if (strcmp(kind, "sockets") == 0)
        return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (strcmp(kind, "memories") == 0)
        return memfd_create("hostile", MFD_CLOEXEC);
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* open KIND MAXIMUM: descriptors of one process. */
static void try_open(char **words)
{
    unsigned long maximum = (unsigned long)number_of(words[1]), count = 0;
    while (count < maximum && open_one(words[0]) >= 0)
        count++;
    tell(words[0], count, count == maximum);
}

/* leave: processes that outlive whoever started them and hear no signal. */
static void try_leave(char **words)
{
    (void)words;
    for (int i = 0; i < 8; i++) {
        if (fork() != 0)
            continue;
        (void)setsid();
        if (fork() != 0)
            _exit(0);
        (void)close(0);
        (void)close(1);
        (void)close(2);
        (void)signal(SIGTERM, SIG_IGN);
        (void)signal(SIGHUP, SIG_IGN);
        (void)alarm(0);
        (void)wait_for_ever(NULL);
    }
    while (wait(NULL) > 0)
        continue;
    done("left eight");
}

const struct attempt exhaust_attempts[] = {
    {"processes", try_processes}, {"memory", try_memory}, {"shared", try_shared}, {"fill", try_fill},
    {"files", try_files},         {"open", try_open},     {"leave", try_leave},   {NULL, NULL},
};
