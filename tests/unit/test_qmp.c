/* vm/qmp.c against monitors that greet, say nothing, say too much, or end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "vm/qmp.h"

#define GREETING "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n"
#define RETURN "{\"return\": {}}\r\n"

/* The monitor's side, in a process of its own. */
typedef void monitor(int socket_fd);

static void say(int socket_fd, const char *text)
{
    (void)!write(socket_fd, text, strlen(text));
}

static void hear(int socket_fd, const char *wanted)
{
    char text[256] = "";
    if (read(socket_fd, text, sizeof(text) - 1) <= 0 || strstr(text, wanted) == NULL)
        _exit(1);
}

static int open_with(monitor *function, int timeout_ms)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(pair[0]);
        function(pair[1]);
        _exit(0);
    }
    (void)close(pair[1]);
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    int result = bt_qmp_open(pair[0], pid_fd, timeout_ms);
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(pair[0]);
    (void)close(pid_fd);
    return result;
}

static void monitor_greets(int socket_fd)
{
    say(socket_fd, GREETING);
    hear(socket_fd, "qmp_capabilities");
    say(socket_fd, RETURN);
    (void)pause();
}

static void monitor_dawdles(int socket_fd)
{
    for (const char *at = GREETING; *at != '\0'; at++) {
        (void)!write(socket_fd, at, 1);
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    hear(socket_fd, "qmp_capabilities");
    say(socket_fd, "{\"event\": \"RESUME\"}\r\n" RETURN);
    (void)pause();
}

static void monitor_is_silent(int socket_fd)
{
    (void)socket_fd;
    (void)pause();
}

static void monitor_floods(int socket_fd)
{
    static char text[8192];
    memset(text, 'x', sizeof(text) - 1);
    for (;;)
        say(socket_fd, text);
}

static void monitor_ends(int socket_fd)
{
    (void)close(socket_fd);
}

static void monitor_ends_after_greeting(int socket_fd)
{
    say(socket_fd, GREETING);
}

static void t_qmp_opens(void **state)
{
    (void)state;
    assert_int_equal(open_with(monitor_greets, 10000), 0);
    assert_int_equal(open_with(monitor_dawdles, 10000), 0);
}

static void t_qmp_does_not_hang(void **state)
{
    (void)state;
    assert_int_equal(open_with(monitor_is_silent, 50), -ETIMEDOUT);
    assert_int_equal(open_with(monitor_floods, 10000), -EPROTO);
    assert_int_equal(open_with(monitor_ends, 10000), -ECANCELED);
    assert_int_equal(open_with(monitor_ends_after_greeting, 10000), -ECANCELED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_qmp_opens),
        cmocka_unit_test(t_qmp_does_not_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
