/* An interactive terminal in a guest, on the terminal that this program was started on.
 *
 * Called by `berth attach`, `berth exec` and `berth spawn`. The local terminal is restored on every way out,
 * signals included: they are taken as events while it is raw, and raised again once it is not.
 */
#include "vm/guest_link_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "lib/file.h"

#define HOLD_MS 1000 /* how long the start of the detach keys is kept from the command */
#define TYPED_MAX 4096
#define VARIABLES_MAX 16384

struct terminal {
    struct bt_guest_session *session;
    struct termios before;
    sigset_t mask_before;
    int signal_fd;
    int raised; /* a signal that ended it */
    bool is_detached;
    bool is_raw;
    struct bt_detach detach;
    char typed[TYPED_MAX + BT_DETACH_KEYS_MAX];
};

bool bt_detach_feed(struct bt_detach *detach, const char *typed, size_t length, char *ret_out,
                    size_t *ret_length)
{
    size_t keys_length = strlen(detach->keys), out = 0;
    for (size_t i = 0; i < length && keys_length > 0; i++) {
        /* On a mismatch release as few held bytes as possible: keys may begin within keys. */
        while (detach->matched > 0 && detach->keys[detach->matched] != typed[i]) {
            size_t shift = 1;
            while (memcmp(detach->keys, detach->keys + shift, detach->matched - shift) != 0)
                shift++;
            memcpy(ret_out + out, detach->keys, shift);
            out += shift;
            detach->matched -= shift;
        }
        if (detach->keys[detach->matched] != typed[i])
            ret_out[out++] = typed[i];
        else if (++detach->matched == keys_length) {
            detach->matched = 0;
            *ret_length = out;
            return true;
        }
    }
    if (keys_length == 0) {
        memcpy(ret_out, typed, length);
        out = length;
    }
    *ret_length = out;
    return false;
}

static void window_size(int *ret_columns, int *ret_rows)
{
    struct winsize size = {0};
    (void)ioctl(STDIN_FILENO, TIOCGWINSZ, &size);
    *ret_columns = size.ws_col ? size.ws_col : 80;
    *ret_rows = size.ws_row ? size.ws_row : 24;
}

static int terminal_raw(struct terminal *terminal, struct bt_error *error)
{
    sigset_t signals;
    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &terminal->before) < 0)
        return bt_fail(error, BT_EXIT_USAGE, ENOTTY, "run it from a terminal, or use berth exec without one",
                       "standard input is not a terminal");
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGWINCH);
    (void)sigaddset(&signals, SIGHUP);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGQUIT);
    (void)sigaddset(&signals, SIGTERM);
    terminal->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (terminal->signal_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot receive signals: %s", strerror(errno));
    struct termios raw = terminal->before;
    cfmakeraw(&raw);
    (void)sigprocmask(SIG_BLOCK, &signals, &terminal->mask_before);
    terminal->is_raw = true;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot set the terminal to raw mode: %s",
                       strerror(errno));
    return 0;
}

/* A program that was left by detaching or by a broken link had no chance to switch off what it had switched
 * on: alternate screen, mouse reports, bracketed paste, application keys, hidden cursor, colours. */
static void terminal_restore(struct terminal *terminal, bool is_cut_off)
{
    static const char reset[] =
        "\033[?1049l\033[?1000l\033[?1002l\033[?1003l\033[?1006l\033[?2004l\033[?1l\033>\033[?25h"
        "\033[0m\r\n";
    if (!terminal->is_raw)
        return;
    if (is_cut_off && isatty(STDOUT_FILENO))
        (void)!write(STDOUT_FILENO, reset, sizeof(reset) - 1);
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &terminal->before);
    (void)sigprocmask(SIG_SETMASK, &terminal->mask_before, NULL);
    bt_fd_close(&terminal->signal_fd);
    terminal->is_raw = false;
}

static int show(void *context, bool is_stderr, const char *data, size_t length)
{
    (void)context;
    return bt_write_all(is_stderr ? STDERR_FILENO : STDOUT_FILENO, data, length) < 0;
}

static void take_signals(struct terminal *terminal)
{
    struct signalfd_siginfo info;
    while (read(terminal->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGWINCH) {
            window_size(&terminal->session->columns, &terminal->session->rows);
            terminal->session->is_resized = true;
        } else {
            terminal->raised = (int)info.ssi_signo;
        }
    }
}

/* Gives the typed bytes to the command; the session must have nothing left to send. */
static void take_typed(struct terminal *terminal)
{
    char typed[TYPED_MAX];
    ssize_t count = read(STDIN_FILENO, typed, sizeof(typed));
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    size_t length = 0;
    if (count <= 0 || bt_detach_feed(&terminal->detach, typed, (size_t)count, terminal->typed, &length))
        terminal->is_detached = true;
    terminal->session->out = terminal->typed;
    terminal->session->out_length = length;
}

static int terminal_loop(struct terminal *terminal, struct bt_error *error)
{
    struct bt_guest_session *session = terminal->session;
    while (!session->is_closed && !terminal->is_detached && !terminal->raised) {
        int result = bt_guest_session_step(session, error);
        if (result < 0)
            return result;
        bool may_type = session->out_length == 0;
        struct pollfd extra[2] = {{.fd = may_type ? STDIN_FILENO : -1, .events = POLLIN},
                                  {.fd = terminal->signal_fd, .events = POLLIN}};
        bool is_holding = may_type && terminal->detach.matched > 0;
        int at_most_ms = result > 0 ? 0 : is_holding ? HOLD_MS : -1;
        int64_t before_ms = bt_link_now_ms();
        if ((result = bt_guest_session_wait(session, extra, 2, at_most_ms, error)) < 0)
            return result;
        if (extra[1].revents)
            take_signals(terminal);
        if (extra[0].revents) {
            take_typed(terminal);
        } else if (is_holding && bt_link_now_ms() - before_ms >= HOLD_MS) {
            memcpy(terminal->typed, terminal->detach.keys, terminal->detach.matched);
            session->out = terminal->typed;
            session->out_length = terminal->detach.matched;
            terminal->detach.matched = 0;
        }
    }
    return 0;
}

/* The command's environment with TERM of this terminal, unless it has one. The caller frees the list and
 * *ret_text. */
static const char **environment_with_term(const char *const *environment, char **ret_text)
{
    const char *type = getenv("TERM");
    size_t count = 0;
    bool has_term = false;
    for (; environment && environment[count] && count < VARIABLES_MAX; count++)
        has_term |= strncmp(environment[count], "TERM=", 5) == 0;
    const char **list = bt_new(count + 2, sizeof(*list));
    for (size_t i = 0; i < count; i++)
        list[i] = environment[i];
    *ret_text = bt_string_format("TERM=%s", type && *type ? type : "xterm-256color");
    if (!has_term)
        list[count] = *ret_text;
    return list;
}

static int terminal_run(struct terminal *terminal, struct bt_guest_link *link,
                        const struct bt_guest_command *command, int *ret_status, struct bt_error *error)
{
    char *term_text = NULL;
    int columns, rows;
    const char **environment = environment_with_term(command->environment, &term_text);
    struct bt_guest_command shown = *command;
    shown.environment = environment;
    shown.on_output = show;
    shown.context = NULL;
    window_size(&columns, &rows);
    int result = bt_guest_session_start(link, &shown, term_text + 5, columns, rows, terminal->session, error);
    free(environment);
    free(term_text);
    if (result < 0)
        return result;
    result = terminal_raw(terminal, error);
    if (result == 0)
        result = terminal_loop(terminal, error);
    if (result == 0 && terminal->session->is_closed)
        result = bt_guest_session_finish(terminal->session, ret_status, error);
    terminal_restore(terminal, !terminal->session->is_closed);
    bt_guest_session_close(terminal->session);
    return result;
}

int bt_guest_terminal(struct bt_guest_link *link, const struct bt_guest_command *command,
                      const char *detach_keys, int *ret_status, bool *ret_is_detached, struct bt_error *error)
{
    if (detach_keys && strlen(detach_keys) > BT_DETACH_KEYS_MAX)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "use at most 16 keys", "too many detach keys");
    struct terminal *terminal = bt_new(1, sizeof(*terminal));
    terminal->session = bt_new(1, sizeof(*terminal->session));
    terminal->signal_fd = -1;
    terminal->detach.keys = detach_keys ? detach_keys : "";
    int status = 0;
    int result = isatty(STDIN_FILENO) ? terminal_run(terminal, link, command, &status, error)
                                      : terminal_raw(terminal, error); /* says what is wrong */
    int raised = terminal->raised;
    bool is_detached = terminal->is_detached;
    free(terminal->session);
    explicit_bzero(terminal->typed, sizeof(terminal->typed));
    free(terminal);
    if (raised) {
        (void)raise(raised);
        return bt_fail(error, BT_EXIT_ERROR, EINTR, NULL, "the terminal was ended by a signal (%s)",
                       strsignal(raised));
    }
    if (result == 0) {
        *ret_status = status;
        *ret_is_detached = is_detached;
    }
    return result;
}
