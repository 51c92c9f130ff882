/* See guest_server.h. Must not leave anything outside of the namespaces that it makes. */
#include "tests/lib/guest_server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/file.h"
#include "vm/guest_config.h"

#define INSIDE_VARIABLE "BERTH_TEST_INSIDE"
#define HOST_KEY_PATH "/run/berth-test-host-key"

static void require(bool is_true, const char *what)
{
    if (!is_true) {
        (void)printf("Bail out! %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

char *guest_server_build_path(const char *name)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    require(length > 0, "/proc/self/exe");
    self[length] = '\0';
    char *at = strstr(self, "/build/");
    require(at, "the test program is not below build/");
    return bt_string_format("%.*s/build/%s", (int)(at - self), self, name);
}

/* execv(3) takes pointers to mutable strings for historical reasons only; it writes to none. */
static void execute(const char *path, const char *const *arguments)
{
    (void)execvp(path, (char *const *)(uintptr_t)arguments);
}

static void enter(void)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    require(length > 0, "/proc/self/exe");
    self[length] = '\0';
    const char *const as_root[] = {"unshare", "--net",        "--mount",      "--pid", "--ipc",
                                   "--fork",  "--kill-child", "--mount-proc", self,    NULL};
    const char *const as_user[] = {"unshare",      "--user", "--map-auto", "--map-root-user", "--net",
                                   "--mount",      "--pid",  "--ipc",      "--fork",          "--kill-child",
                                   "--mount-proc", self,     NULL};
    require(setenv(INSIDE_VARIABLE, "1", 1) == 0, "setenv");
    execute("unshare", geteuid() == 0 ? as_root : as_user);
    require(false, "unshare");
}

static struct bt_buffer program_read(const char *name)
{
    struct bt_error error = {0};
    struct bt_buffer program = {0};
    char *path = guest_server_build_path(name);
    require(bt_file_read(path, 16U << 20, &program, &error) == 0, path);
    free(path);
    return program;
}

static void program_write(struct bt_buffer *program, const char *path)
{
    struct bt_error error = {0};
    require(bt_file_write(path, program->data, program->length, 0755, &error) == 0, path);
    bt_buffer_free(program);
}

int guest_server_shell(const char *text)
{
    (void)fflush(stdout);
    pid_t pid = fork();
    require(pid >= 0, "fork");
    if (pid == 0) {
        (void)dup2(STDERR_FILENO, STDOUT_FILENO); /* standard output is for TAP */
        (void)execl("/bin/sh", "sh", "-ec", text, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    require(waitpid(pid, &status, 0) == pid, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void guest_server_enter_namespaces(void)
{
    if (!getenv(INSIDE_VARIABLE))
        enter();
    struct bt_error error = {0};
    /* Before the mounts: the build may be below /tmp. */
    struct bt_buffer init = program_read("berth-init"), probe = program_read("berth-probe");
    require(mount("tmpfs", "/run", "tmpfs", 0, "mode=0755") == 0, "mount /run");
    require(mount("tmpfs", "/root", "tmpfs", 0, "mode=0700") == 0, "mount /root");
    require(mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777") == 0, "mount /tmp");
    require(bt_folder_make(BT_GUEST_FOLDER "/bin", 0755, &error) == 0, "make " BT_GUEST_FOLDER);
    program_write(&init, BT_GUEST_RUN);
    program_write(&probe, BT_GUEST_PROBE);
    bt_auto_fd fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    require(ioctl(fd, SIOCSIFFLAGS, &request) == 0, "loopback up");
}

static void enter_network(const char *network)
{
    if (!network)
        return;
    bt_auto_free char *path = bt_string_format("/run/netns/%s", network);
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
        _exit(126);
}

void guest_server_restart(struct guest_server *server)
{
    char port[32], text[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(server->address.address, text);
    (void)snprintf(port, sizeof(port), "%s:%u", text, server->address.port);
    const char *const arguments[] = {"dropbear", "-F",      "-E", "-s", "-j", "-k",          "-m",
                                     "-W",       "1048576", "-p", port, "-r", HOST_KEY_PATH, NULL};
    (void)fflush(stdout); /* or a child that fails would print it again */
    server->pid = fork();
    require(server->pid >= 0, "fork");
    if (server->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        enter_network(server->network);
        int log_fd = open("/run/dropbear.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        (void)dup2(log_fd, STDERR_FILENO);
        execute("/usr/sbin/dropbear", arguments);
        _exit(127);
    }
}

void guest_server_start(struct guest_server *server, uint32_t address, const char *network)
{
    struct bt_error error = {0};
    *server = (struct guest_server){.network = network};
    require(bt_guest_keys_make(&server->keys, &error) == 0, error.message);
    require(bt_folder_make("/root/.ssh", 0700, &error) == 0, error.message);
    require(bt_file_write("/root/.ssh/authorized_keys", server->keys.public_key,
                          strlen(server->keys.public_key), 0600, &error) == 0,
            error.message);
    require(bt_file_write(HOST_KEY_PATH, server->keys.host_key.data, server->keys.host_key.length, 0600,
                          &error) == 0,
            error.message);
    server->address = (struct bt_guest_address){.address = address,
                                                .port = 22,
                                                .private_key = server->keys.private_key,
                                                .host_public_key = server->keys.host_public_key};
    guest_server_restart(server);
}

void guest_server_stop(struct guest_server *server)
{
    if (server->pid <= 0)
        return;
    (void)kill(server->pid, SIGKILL);
    (void)waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void guest_server_free(struct guest_server *server)
{
    guest_server_stop(server);
    bt_guest_keys_free(&server->keys);
}
