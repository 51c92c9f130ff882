/* berth credential: the values that routes with `auth` inject. Set from a terminal or a pipe, never from the
 * command line; never shown again.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/credentials.h"
#include "frontend/describe.h"
#include "policy/rules/rules.h"

/* One line more than the largest value, to tell that it is too large. */
#define BT_CREDENTIAL_READ_MAX (BT_CREDENTIAL_VALUE_MAX + 2)

static volatile sig_atomic_t bt_credential_signal;

static void bt_credential_note_signal(int number)
{
    bt_credential_signal = number;
}

/* Reads to the end of the line (a terminal) or of the file (a pipe). */
static int bt_credential_read_all(bool is_terminal, char *text, size_t size, size_t *ret_length,
                                  struct bt_error *error)
{
    size_t length = 0;

    while (length < size) {
        ssize_t got = read(STDIN_FILENO, text + length, size - length);
        if (got < 0 && errno == EINTR && bt_credential_signal == 0)
            continue;
        if (got < 0)
            return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read the value: %s", strerror(errno));
        length += (size_t)got;
        if (got == 0 || (is_terminal && text[length - 1] == '\n'))
            break;
    }
    *ret_length = length;
    return 0;
}

/* Reads a line without showing it. Whatever ends the command meanwhile, the terminal is left as it was. */
static int bt_credential_read_terminal(char *text, size_t *ret_length, struct bt_error *error)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction note = {.sa_handler = bt_credential_note_signal}, previous[BT_ARRAY_LENGTH(numbers)];
    struct termios before, silent;
    int r;

    if (tcgetattr(STDIN_FILENO, &before) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, "give it through a pipe",
                       "cannot turn off the terminal's echo: %s", strerror(errno));
    silent = before;
    silent.c_lflag &= ~(tcflag_t)(ECHO | ECHOE | ECHOK | ECHONL);
    silent.c_cc[VSUSP] = _POSIX_VDISABLE; /* stopped, it would leave a terminal without echo to the shell */
    for (size_t i = 0; i < BT_ARRAY_LENGTH(numbers); i++)
        (void)sigaction(numbers[i], &note, &previous[i]);
    r = tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent) < 0
            ? bt_fail(error, BT_EXIT_ERROR, errno, "give it through a pipe",
                      "cannot turn off the terminal's echo: %s", strerror(errno))
            : bt_credential_read_all(true, text, BT_CREDENTIAL_READ_MAX, ret_length, error);
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(numbers); i++)
        (void)sigaction(numbers[i], &previous[i], NULL);
    (void)fputc('\n', stderr);
    if (bt_credential_signal != 0)
        (void)raise(bt_credential_signal);
    return r;
}

/* A newline at the end is the input's, not the value's. */
static int bt_credential_read(struct bt_context *context, const char *name, char *text, size_t *ret_length,
                              struct bt_error *error)
{
    size_t length = 0;
    int r;

    if (isatty(STDIN_FILENO) == 1) {
        bt_output_progress_end(&context->output);
        (void)fprintf(stderr, "value of %s (not shown): ", name);
        r = bt_credential_read_terminal(text, &length, error);
    } else {
        r = bt_credential_read_all(false, text, BT_CREDENTIAL_READ_MAX, &length, error);
    }
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r'))
        length--;
    *ret_length = length;
    return r;
}

/* Every agent that runs and uses it gets it now. What fails is told; the others go on. */
static int bt_credential_push(struct bt_context *context, const char *name, json_t *updated,
                              struct bt_error *error)
{
    bt_auto_free struct bt_agent *agents = NULL;
    struct bt_state *state = NULL;
    size_t count = 0;
    int r = bt_state_open(&context->paths, &state, error);

    if (r == 0)
        r = bt_state_list(state, NULL, &agents, &count, error);
    bt_state_close(state);
    if (r < 0)
        return r;
    for (size_t i = 0; i < count; i++) {
        struct bt_error own = {0};
        bool is_concerned = false;
        if (bt_agent_status_now(&agents[i]) != BT_AGENT_RUNNING)
            continue;
        if (bt_agent_refresh(&context->paths, &agents[i], name, &is_concerned, &own) < 0) {
            r = bt_fail(error, BT_EXIT_INFRASTRUCTURE, own.code,
                        "stop that agent, or run the command again once its keeper answers",
                        "the agent %s goes on with what it had: %s", agents[i].name, own.message);
        } else if (is_concerned) {
            json_array_append_new(updated, json_string(agents[i].name));
            bt_output_print(&context->output, "agent %s has it\n", agents[i].name);
        }
    }
    return r;
}

/* After a change: the trail, the agents, the document. */
static int bt_credential_changed(struct bt_context *context, const char *act, const char *name,
                                 struct bt_error *error)
{
    json_t *updated = json_array();
    int r = bt_audit_write(&context->paths, act, context->environment, NULL,
                           json_pack("{s:s}", "credential", name), error);

    if (r == 0)
        r = bt_credential_push(context, name, updated, error);
    if (r < 0) {
        json_decref(updated);
        return r;
    }
    bt_output_document(&context->output, json_pack("{s:s, s:o}", "credential", name, "agents", updated));
    return 0;
}

static int bt_credential_run_set(struct bt_context *context, const char *name, struct bt_error *error)
{
    char text[BT_CREDENTIAL_READ_MAX];
    size_t length = 0;
    int r = bt_credential_check_name(name, error);

    if (r == 0)
        r = bt_credential_read(context, name, text, &length, error);
    if (r == 0)
        r = bt_credential_set(&context->paths, name, text, length, error);
    explicit_bzero(text, sizeof(text));
    if (r < 0)
        return r;
    bt_output_print(&context->output, "credential %s is set\n", name);
    return bt_credential_changed(context, "credential-set", name, error);
}

static int bt_credential_run_remove(struct bt_context *context, const char *name, struct bt_error *error)
{
    int r = bt_credential_remove(&context->paths, name, error);

    /* Done again it does the rest: an agent may not have been told the first time. */
    if (r < 0 && r != -ENOENT)
        return r;
    bt_output_print(&context->output, "%s %s%s\n", r == 0 ? "credential" : "there is no credential", name,
                    r == 0 ? " is removed, and every route that needs it is closed"
                           : ": nothing to remove; every route that needs it is closed");
    return bt_credential_changed(context, "credential-rm", name, error);
}

static int bt_credential_run_list(struct bt_context *context, struct bt_error *error)
{
    static const char *const titles[] = {"CREDENTIAL", "CHANGED"};
    bt_auto_free struct bt_credential *credentials = NULL;
    int64_t now = (int64_t)time(NULL);
    json_t *array = json_array();
    struct bt_table table;
    size_t count = 0;
    int r = bt_credential_list(&context->paths, &credentials, &count, error);

    if (r < 0) {
        json_decref(array);
        return r;
    }
    bt_table_init(&table, titles, BT_ARRAY_LENGTH(titles));
    for (size_t i = 0; i < count; i++) {
        char age[BT_OUTPUT_TEXT_SIZE], changed[BT_OUTPUT_TEXT_SIZE];
        bt_output_age(now - credentials[i].changed_seconds, age);
        bt_describe_time(credentials[i].changed_seconds, changed);
        bt_table_add(&table, BT_COLOR_NONE, "%s", credentials[i].name);
        bt_table_add(&table, BT_COLOR_NONE, "%s ago", age);
        json_array_append_new(array,
                              json_pack("{s:s, s:s}", "name", credentials[i].name, "changed", changed));
    }
    if (count == 0)
        bt_output_note(&context->output, "no credentials yet; berth credential set NAME stores one");
    bt_table_print(&context->output, &table);
    bt_output_document(&context->output, json_pack("{s:o}", "credentials", array));
    return 0;
}

static int bt_credential_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_list *operands = &context->arguments.operands;
    const char *verb = operands->items[0];

    if (strcmp(verb, "list") == 0 && operands->count == 1)
        return bt_credential_run_list(context, error);
    if (strcmp(verb, "set") == 0 && operands->count == 2)
        return bt_credential_run_set(context, operands->items[1], error);
    if (strcmp(verb, "rm") == 0 && operands->count == 2)
        return bt_credential_run_remove(context, operands->items[1], error);
    return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                   operands->count > 2 ? "the value is read from the terminal or a pipe, never from here"
                                       : "berth credential set NAME, list, or rm NAME",
                   "this is not something to do with credentials");
}

const struct bt_command bt_command_credential = {
    .name = "credential",
    .operands = "set NAME | list | rm NAME",
    .summary = "Store what the gateway writes into an agent's requests",
    .details =
        "A route of a bottle names it: auth: {scheme: bearer, from: NAME}. The value is read from the "
        "terminal\n"
        "without echo, or from a pipe, and is never shown again. The agent never has it. Agents that run "
        "and use it\n"
        "get the new value at once.",
    .minimum = 1,
    .maximum = 3,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_credential_run,
};
