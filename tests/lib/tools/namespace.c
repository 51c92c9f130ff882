/* Runs a command as root of user, network, mount, pid, ipc and uts namespaces of its own: the test world's
 * ground.
 *
 *   namespace [--host-ids] [--bind FOLDER NAME]... [--bind-writable FOLDER NAME]... COMMAND [ARGUMENT...]
 *
 * --host-ids: no user namespace, for root only: a container engine needs devices and control groups, which
 * only the machine's own root has. The other namespaces are made all the same.
 *
 * Ids 0..65535 inside are real, separate ids outside. Started by root: a high range that no account has,
 * taken without making an account. Started by a normal user: the user's own subordinate ids (newuidmap(1),
 * newgidmap(1)). Inside, /proc, /sys, /run, /tmp, /home and /root are new; /dev/net/tun can be opened by
 * everybody. When the command ends, or this program is killed, the kernel ends everything inside. Exit
 * status: the command's.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_ID 1879048192UL /* above what systemd-nspawn and shadow's tools hand out */
#define ID_COUNT 65536UL

static _Noreturn void fail(const char *doing)
{
    (void)fprintf(stderr, "namespace: cannot %s: %s\n", doing, strerror(errno));
    _exit(125);
}

static void check(int result, const char *doing)
{
    if (result < 0)
        fail(doing);
}

static void write_map(pid_t child, const char *file, const char *text)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)child, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    check(fd, "open the id map");
    check(write(fd, text, strlen(text)) < 0 ? -1 : 0, "write the id map");
    (void)close(fd);
}

/* newuidmap or newgidmap: id 0 is the caller, 1 and up are its subordinate ids. */
static void run_mapper(const char *program, pid_t child, unsigned own, const char *subordinates)
{
    char pid_text[16], own_text[16], start[24], count[24];
    unsigned long first = 0, number = 0;
    char line[256];
    const struct passwd *entry = getpwuid(getuid());
    const char *user = entry != NULL ? entry->pw_name : getenv("USER");
    FILE *file = fopen(subordinates, "re");
    while (file != NULL && user != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon != NULL && (size_t)(colon - line) == strlen(user) &&
            strncmp(line, user, strlen(user)) == 0 && sscanf(colon + 1, "%lu:%lu", &first, &number) == 2)
            break;
        number = 0;
    }
    if (file != NULL)
        (void)fclose(file);
    if (number < 2000) {
        (void)fprintf(stderr,
                      "namespace: %s has no range of at least 2000 ids for the user %s\n"
                      "  what to do: have an administrator run: usermod --add-subuids 100000-165535 "
                      "--add-subgids 100000-165535 %s, or run this as root\n",
                      subordinates, user == NULL ? "(without a name)" : user, user == NULL ? "USER" : user);
        _exit(125);
    }
    (void)snprintf(pid_text, sizeof pid_text, "%d", (int)child);
    (void)snprintf(own_text, sizeof own_text, "%u", own);
    (void)snprintf(start, sizeof start, "%lu", first);
    (void)snprintf(count, sizeof count, "%lu", number < ID_COUNT - 1 ? number : ID_COUNT - 1);
    pid_t mapper = fork();
    if (mapper == 0) {
        (void)execlp(program, program, pid_text, "0", own_text, "1", "1", start, count, (char *)NULL);
        fail("run newuidmap (package uidmap)");
    }
    int status = 0;
    if (waitpid(mapper, &status, 0) < 0 || status != 0)
        fail("map the ids");
}

static void map_ids(pid_t child, bool is_root)
{
    char text[64];
    if (!is_root) {
        run_mapper("newuidmap", child, getuid(), "/etc/subuid");
        run_mapper("newgidmap", child, getgid(), "/etc/subgid");
        return;
    }
    (void)snprintf(text, sizeof text, "0 %lu %lu\n", FIRST_ID, ID_COUNT);
    write_map(child, "uid_map", text);
    write_map(child, "gid_map", text);
}

/* Root outside may have a device node that others cannot open (0600 without udev): one of our own, then. */
static void make_device(void)
{
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make the mounts private");
    check(mount("tmpfs", "/mnt", "tmpfs", MS_NOSUID, "mode=755"), "mount a tmpfs");
    check(mknod("/mnt/tun", S_IFCHR | 0666, makedev(10, 200)), "make a tun device node");
    check(chmod("/mnt/tun", 0666), "open the tun device node");
}

static void mount_fresh(const char *path, const char *options)
{
    check(mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options), path);
}

struct bind {
    const char *folder, *name;
    bool is_writable;
};
static struct bind binds[8];
static int bind_count;
static bool has_host_ids;

/* Before anything is hidden, and by root outside if there is one: the folder's parents may be closed to
 * others. */
static void bind_folders(void)
{
    check(mount("tmpfs", "/opt", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"), "mount a tmpfs on /opt");
    for (int i = 0; i < bind_count; i++) {
        char target[256];
        (void)snprintf(target, sizeof target, "/opt/%s", binds[i].name);
        check(mkdir(target, 0755), target);
        check(mount(binds[i].folder, target, NULL, MS_BIND, NULL), binds[i].folder);
        if (binds[i].is_writable)
            continue;
        unsigned long locked = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV;
        if (mount(NULL, target, NULL, locked, NULL) < 0) /* flags that the source's mount has must be kept */
            check(mount(NULL, target, NULL, locked | MS_RELATIME, NULL), "make it read-only");
    }
}

/* A sysfs of this network namespace. The control groups stay those of the machine. */
static void mount_sys(void)
{
    if (has_host_ids) {
        check(mkdir("/mnt/cgroup", 0755), "/mnt/cgroup");
        check(mount("/sys/fs/cgroup", "/mnt/cgroup", NULL, MS_BIND | MS_REC, NULL),
              "keep the control groups");
    }
    check(mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /sys");
    if (has_host_ids)
        check(mount("/mnt/cgroup", "/sys/fs/cgroup", NULL, MS_MOVE, NULL), "place the control groups");
}

/* The folder that it was started in may lie below a new mount (a clone in /home or /tmp does): programs such
 * as git end when theirs cannot be found. */
static void stand_somewhere(const char *folder)
{
    if (folder[0] != '/' || chdir(folder) < 0)
        check(chdir("/"), "go to /");
}

static void build_world(bool is_root)
{
    char folder[4096];
    if (getcwd(folder, sizeof folder) == NULL)
        folder[0] = '\0';
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make the mounts private");
    if (!is_root)
        bind_folders();
    if (is_root)
        check(mount("/mnt/tun", "/dev/net/tun", NULL, MS_BIND, NULL), "place the tun device");
    check(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /proc");
    mount_sys();
    mount_fresh("/run", "mode=755");
    mount_fresh("/tmp", "mode=1777");
    mount_fresh("/home", "mode=755");
    mount_fresh("/root", "mode=700");
    stand_somewhere(folder);
    check(sethostname("berth-world", 11), "set the host name");
}

/* Process 1 of the namespace: starts the command, reaps everything, ends with the command. */
static _Noreturn void be_init(char **arguments)
{
    pid_t command = fork();
    check((int)command, "fork");
    if (command == 0) {
        (void)unsetenv("TMPDIR"); /* which lies below the old /tmp */
        (void)execvp(arguments[0], arguments);
        fail(arguments[0]);
    }
    for (;;) {
        int status;
        pid_t ended = waitpid(-1, &status, 0);
        if (ended == command)
            _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }
}

/* Without a user namespace: everything else is new. */
static void unshare_as_root(void)
{
    check(unshare(CLONE_NEWNS), "unshare the mounts");
    make_device();
    bind_folders();
    check(unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS),
          "make the namespaces");
    check(setgroups(0, NULL), "drop the groups");
}

static void unshare_with_ids(int ready_write, int mapped_read, bool is_root)
{
    char byte = 'r';
    if (is_root) {
        check(unshare(CLONE_NEWNS), "unshare the mounts");
        make_device();
        bind_folders();
        check(setgroups(0, NULL), "drop the groups");
        check(setresgid(FIRST_ID, FIRST_ID, FIRST_ID), "become a group without privilege");
        check(setresuid(FIRST_ID, FIRST_ID, FIRST_ID), "become a user without privilege");
        check(prctl(PR_SET_DUMPABLE, 1), "become dumpable"); /* else the id maps belong to root */
        check(prctl(PR_SET_PDEATHSIG, SIGKILL), "set the death signal");
    }
    check(unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS),
          "make the namespaces (are unprivileged user namespaces allowed?)");
    check(write(ready_write, &byte, 1) == 1 ? 0 : -1, "report");
    check(read(mapped_read, &byte, 1) == 1 ? 0 : -1, "wait for the id map");
    check(setgroups(0, NULL), "drop the groups");
    check(setresgid(0, 0, 0), "become the group 0 inside");
    check(setresuid(0, 0, 0), "become the user 0 inside");
}

static _Noreturn void enter(int ready_write, int mapped_read, bool is_root, char **arguments)
{
    check(prctl(PR_SET_PDEATHSIG, SIGKILL), "set the death signal");
    if (has_host_ids)
        unshare_as_root();
    else
        unshare_with_ids(ready_write, mapped_read, is_root);
    pid_t first = fork();
    check((int)first, "fork");
    if (first == 0) {
        check(prctl(PR_SET_PDEATHSIG, SIGKILL), "set the death signal");
        (void)signal(SIGTERM, SIG_DFL);
        build_world(is_root);
        be_init(arguments);
    }
    int status = 0;
    while (waitpid(first, &status, 0) < 0)
        if (errno != EINTR)
            fail("wait");
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static pid_t entered;

static void forward(int number)
{
    (void)number;
    if (entered > 0)
        (void)kill(entered, SIGKILL);
}

int main(int count, char **arguments)
{
    int ready[2], mapped[2];
    char byte;
    int status = 0;
    bool is_root = geteuid() == 0;
    arguments++;
    if (count > 1 && strcmp(arguments[0], "--host-ids") == 0 && is_root) {
        has_host_ids = true;
        arguments++;
        count--;
    }
    while (count > 3 && strncmp(arguments[0], "--bind", 6) == 0 && bind_count < 8) {
        bool is_writable = strcmp(arguments[0], "--bind-writable") == 0;
        binds[bind_count++] = (struct bind){arguments[1], arguments[2], is_writable};
        arguments += 3;
        count -= 3;
    }
    if (count < 2) {
        (void)fputs(
            "usage: namespace [--host-ids] [--bind|--bind-writable FOLDER NAME]... COMMAND [ARGUMENT...]\n",
            stderr);
        return 64;
    }
    check(pipe2(ready, O_CLOEXEC), "make a pipe");
    check(pipe2(mapped, O_CLOEXEC), "make a pipe");
    entered = fork();
    check((int)entered, "fork");
    if (entered == 0)
        enter(ready[1], mapped[0], is_root, arguments);
    (void)signal(SIGTERM, forward);
    (void)signal(SIGINT, forward);
    (void)signal(SIGHUP, forward);
    (void)close(ready[1]);
    if (!has_host_ids && read(ready[0], &byte, 1) == 1) {
        map_ids(entered, is_root);
        check(write(mapped[1], "m", 1) == 1 ? 0 : -1, "report");
    }
    while (waitpid(entered, &status, 0) < 0)
        if (errno != EINTR)
            fail("wait");
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
