/* More rights than it was given: capabilities, other users, namespaces, other processes, system calls. */
#include "tests/attack/hostile/hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_SIZE 65536

/* capability NUMBER: by every set that there is. What counts is what it has then: gVisor says yes to a number
 * that it does not know, and does nothing. */
static void try_capability(char **words)
{
    unsigned number = (unsigned)number_of(words[0]);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{0}}, now[2] = {{0}};
    struct __user_cap_data_struct *own = &sets[number / 32], *got = &now[number / 32];
    unsigned bit = 1U << (number % 32);
    if (prctl(PR_CAPBSET_READ, number) == 1) {
        done("bounding");
        return;
    }
    own->inheritable = bit;
    (void)syscall(SYS_capset, &header, sets);
    own->permitted = own->effective = bit;
    (void)syscall(SYS_capset, &header, sets);
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0);
    int code = errno;
    (void)syscall(SYS_capget, &header, now);
    bool has_it = ((got->inheritable | got->permitted | got->effective) & bit) != 0 ||
                  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, number, 0, 0) == 1;
    errno = code;
    outcome(has_it ? 0 : -1, "has it");
}

/* identity: what it is by now. */
static void try_identity(char **words)
{
    (void)words;
    (void)printf("uid %u euid %u gid %u egid %u", getuid(), geteuid(), getgid(), getegid());
}

/* execute PATH: by another file, which may have a setuid bit. */
static void try_execute(char **words)
{
    (void)execl(words[0], words[0], "identity", (char *)NULL);
    refused();
}

/* become ID: another user, or its group. */
static void try_become(char **words)
{
    unsigned id = (unsigned)number_of(words[0]);
    gid_t groups[1] = {id};
    if (setgroups(1, groups) == 0)
        done("group");
    else if (setresgid(id, id, id) == 0 && getegid() == id && id != 0)
        done("gid");
    else
        outcome(setresuid(id, id, id), "uid");
}

/* call NUMBER: what is in nobody's list. Arguments that no call takes, in case it is there. */
static void try_call(char **words)
{
    outcome(syscall(number_of(words[0]), -1L, -1L, -1L, -1L, -1L, -1L), "answered");
}

/* call-of-32-bits NUMBER; call-of-x32 NUMBER: the same kernel by other doors. */
static void try_call_of_32_bits(char **words)
{
#ifdef __x86_64__
    long result = number_of(words[0]);
    __asm__ volatile("int $0x80"
                     : "+a"(result)
                     : "b"(-1L), "c"(-1L), "d"(-1L)
                     : "memory", "r8", "r9", "r10", "r11");
    errno = (int)-result;
    outcome(result < 0 ? -1 : 0, "answered");
#else
    (void)words;
    errno = ENOSYS;
    refused();
#endif
}

static void try_call_of_x32(char **words)
{
    outcome(syscall(0x40000000L | number_of(words[0]), -1L, -1L, -1L, -1L, -1L, -1L), "answered");
}

/* unshare FLAGS */
static void try_unshare(char **words)
{
    outcome(unshare((int)number_of(words[0])), "in a namespace of its own");
}

static int end_at_once(void *argument)
{
    (void)argument;
    return 0;
}

/* clone FLAGS */
static void try_clone(char **words)
{
    static char stack[STACK_SIZE];
    int status;
    int child = clone(end_at_once, stack + sizeof(stack), (int)number_of(words[0]) | SIGCHLD, NULL);
    outcome(child, "a child in a namespace");
    if (child > 0)
        (void)waitpid(child, &status, 0);
}

/* enter PATH FLAGS: the namespace of another process. */
static void try_enter(char **words)
{
    int fd = open(words[0], O_RDONLY | O_CLOEXEC);
    outcome(fd < 0 ? -1 : syscall(SYS_setns, fd, number_of(words[1])), "entered");
}

/* trace PID: by attaching, by seizing. */
static void try_trace(char **words)
{
    pid_t process = (pid_t)number_of(words[0]);
    if (ptrace(PTRACE_SEIZE, process, 0, 0) == 0)
        done("seized");
    else
        outcome(ptrace(PTRACE_ATTACH, process, 0, 0), "attached");
}

/* kill PID */
static void try_kill(char **words)
{
    outcome(kill((pid_t)number_of(words[0]), SIGKILL), "killed");
}

/* raise NAME: a limit or a priority. */
static void try_raise(char **words)
{
    static const struct {
        const char *name;
        __rlimit_resource_t resource;
    } limits[] = {{"descriptors", RLIMIT_NOFILE}, {"core", RLIMIT_CORE},      {"memlock", RLIMIT_MEMLOCK},
                  {"queues", RLIMIT_MSGQUEUE},    {"nice", RLIMIT_NICE},      {"realtime", RLIMIT_RTPRIO},
                  {"signals", RLIMIT_SIGPENDING}, {"processes", RLIMIT_NPROC}};
    struct sched_param realtime = {.sched_priority = 1};
    struct rlimit limit = {0};
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (strcmp(words[0], limits[i].name) != 0)
            continue;
        (void)getrlimit(limits[i].resource, &limit);
        if (limit.rlim_max == RLIM_INFINITY) {
            (void)printf("unlimited");
            return;
        }
        limit.rlim_max += 1;
        outcome(setrlimit(limits[i].resource, &limit), "raised");
        return;
    }
    if (strcmp(words[0], "scheduler") == 0)
        outcome(sched_setscheduler(0, SCHED_FIFO, &realtime), "realtime");
    else if (strcmp(words[0], "priority") == 0)
        outcome(setpriority(PRIO_PROCESS, 0, -20), "first");
    else
        outcome(syscall(SYS_ioprio_set, 1, 0, 1 << 13), "disk first");
}

/* personality FLAGS */
static void try_personality(char **words)
{
    outcome(syscall(SYS_personality, number_of(words[0])), "changed");
}

/* terminal: types into the terminal that it was started from (TIOCSTI), and takes that of others. */
static void try_terminal(char **words)
{
    char byte = 'x';
    (void)words;
    outcome(syscall(SYS_ioctl, 0, 0x5412 /* TIOCSTI */, &byte), "typed");
}

/* hold: stays, so that it can be looked at from outside. */
static void try_hold(char **words)
{
    (void)words;
    (void)prctl(PR_SET_NAME, "hostile-held");
    (void)sleep(4);
    done("stayed");
}

const struct attempt privilege_attempts[] = {
    {"capability", try_capability},
    {"identity", try_identity},
    {"execute", try_execute},
    {"become", try_become},
    {"call", try_call},
    {"call-of-32-bits", try_call_of_32_bits},
    {"call-of-x32", try_call_of_x32},
    {"unshare", try_unshare},
    {"clone", try_clone},
    {"enter", try_enter},
    {"trace", try_trace},
    {"kill", try_kill},
    {"raise", try_raise},
    {"personality", try_personality},
    {"terminal", try_terminal},
    {"hold", try_hold},
    {NULL, NULL},
};
