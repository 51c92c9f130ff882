/* The guest link against a real SSH server: a person's terminal. */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "lib/memory.h"
#include "tests/netns/guest_link_fixture.h"
#include "vm/guest_link_internal.h"

static void read_until(int fd, const char *wanted)
{
    char text[8192] = "";
    size_t length = 0;
    int64_t deadline_ms = bt_link_now_ms() + 10000;
    while (!strstr(text, wanted)) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (bt_link_now_ms() > deadline_ms || length > sizeof(text) - 1025 || poll(&poll_fd, 1, 10000) <= 0)
            fail_msg("no \"%s\" in \"%s\"", wanted, text);
        ssize_t count = read(fd, text + length, 1024);
        if (count <= 0)
            fail_msg("no \"%s\" in \"%s\" at its end", wanted, text);
        length += (size_t)count;
        text[length] = '\0';
    }
}

/* A child whose terminal is a new pseudo-terminal runs a command in the guest; it exits 100 when it was
 * detached from, 99 on failure, else with the status of the command. */
static pid_t terminal_start(const char *text, int *ret_fd)
{
    struct winsize size = {.ws_row = 33, .ws_col = 101};
    (void)fflush(stdout);
    pid_t pid = forkpty(ret_fd, NULL, NULL, &size);
    if (pid == 0) {
        struct bt_error error = {0};
        const char *const arguments[] = {"sh", "-c", text, NULL};
        const struct bt_guest_command command = command_of(arguments);
        struct bt_guest_link *link = link_open();
        int status = 0;
        bool is_detached = false;
        int result = bt_guest_terminal(link, &command, "\x10\x11", &status, &is_detached, &error);
        struct termios now;
        bool is_restored = tcgetattr(0, &now) == 0 && (now.c_lflag & (ECHO | ICANON)) == (ECHO | ICANON);
        bt_guest_close(link);
        if (result < 0)
            (void)dprintf(1, "%s\n", error.message);
        (void)dprintf(1, "restored=%d\n", is_restored);
        (void)tcdrain(1);
        (void)usleep(100000);
        _exit(result < 0 ? 99 : is_detached ? 100 : status);
    }
    return pid;
}

static int terminal_end(pid_t pid, int fd)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    (void)close(fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void type_text(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void t_terminal_size_input_and_status(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid =
        terminal_start("test -t 0 && test -t 1 && stty size; trap 'stty size' WINCH; echo ready; until read "
                       "line; do :; done; echo got:$line; "
                       "read line; exit 5",
                       &fd);
    read_until(fd, "33 101\r\nready");
    const struct winsize size = {.ws_row = 44, .ws_col = 122};
    assert_int_equal(ioctl(fd, TIOCSWINSZ, &size), 0);
    read_until(fd, "44 122");
    type_text(fd, "hello\n");
    read_until(fd, "got:hello");
    type_text(fd, "\n");
    read_until(fd, "restored=1");
    assert_int_equal(terminal_end(pid, fd), 5);
}

static void t_terminal_hides_the_request(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid = terminal_start("echo start; sleep 0.2; exit 0", &fd);
    char text[4096] = "";
    size_t length = 0;
    ssize_t count;
    while (length < sizeof(text) - 1 && (count = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)count;
    assert_null(memmem(text, length, "hello world", 11)); /* the environment */
    assert_non_null(memmem(text, length, "start", 5));
    assert_int_equal(terminal_end(pid, fd), 0);
}

static void t_terminal_detaches_and_is_restored(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid = terminal_start("echo started; stty raw -echo; cat", &fd);
    read_until(fd, "started");
    (void)usleep(300000);
    type_text(fd, "ab\x10");
    read_until(fd, "ab");
    read_until(fd, "\x10"); /* given up as a detach key after a second */
    type_text(fd, "\x10\x11");
    read_until(fd, "restored=1");
    assert_int_equal(terminal_end(pid, fd), 100);
}

static void t_terminal_is_restored_after_a_signal_and_a_broken_link(void **state)
{
    (void)state;
    int fd = -1;
    pid_t pid = terminal_start("echo started; sleep 60", &fd);
    read_until(fd, "started");
    struct termios now;
    assert_int_equal(tcgetattr(fd, &now), 0);
    assert_int_equal(now.c_lflag & (ECHO | ICANON), 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_int_equal(tcgetattr(fd, &now), 0);
    assert_int_equal(now.c_lflag & (ECHO | ICANON), ECHO | ICANON);
    (void)close(fd);

    pid = terminal_start("echo started; sleep 60", &fd);
    read_until(fd, "started");
    char *text = bt_string_format("kill -KILL $(pgrep -P %d)", server.pid); /* the connection's own process */
    here(text);
    free(text);
    read_until(fd, "restored=1");
    assert_int_equal(terminal_end(pid, fd), 99);
}

int main(void)
{
    fixture_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_terminal_size_input_and_status),
        cmocka_unit_test(t_terminal_hides_the_request),
        cmocka_unit_test(t_terminal_detaches_and_is_restored),
        cmocka_unit_test(t_terminal_is_restored_after_a_signal_and_a_broken_link),
    };
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    guest_server_free(&server);
    return result;
}
