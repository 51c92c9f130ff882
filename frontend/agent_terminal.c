/* Looking at an agent's terminal and typing into it without entering it. See agent.h.
 *
 * The terminal is a tmux session in the guest, which lives as long as the guest, whatever becomes of the
 * keeper's or anybody's connection. tmux there is the agent's: what it answers is text of the agent, and no
 * more.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "frontend/agent.h"

#define TIMEOUT_MS 10000
#define SESSION "=agent:"

static int ask(const struct bt_paths *paths, const struct bt_agent *agent,
               const struct bt_guest_command *command, struct bt_buffer *ret_output, struct bt_error *error)
{
    int status = 0;
    int result = bt_agent_ask(paths, agent, command, BT_PEEK_BYTES_MAX, ret_output, &status, error);
    if (result < 0 || status == 0)
        return result;
    bt_buffer_free(ret_output);
    return bt_fail(
        error, BT_EXIT_ERROR, ENOTTY,
        "berth logs shows what the work of an agent in the background prints; berth exec runs a command",
        "the agent %s has no terminal: it runs a command", agent->name);
}

/* Drops blank lines at the end, and all but the last lines (0 = all). */
static void cut(struct bt_buffer *text, unsigned lines)
{
    size_t start, left = lines;
    while (text->length > 0 && strchr(" \t\n", text->data[text->length - 1]) != NULL)
        text->length--;
    for (start = text->length; start > 0; start--) {
        if (text->data[start - 1] == '\n' && lines > 0 && --left == 0)
            break;
    }
    if (text->data == NULL)
        return;
    memmove(text->data, text->data + start, text->length - start);
    text->length -= start;
    text->data[text->length] = '\0';
}

int bt_agent_peek(const struct bt_paths *paths, const struct bt_agent *agent, unsigned lines,
                  struct bt_buffer *ret_text, struct bt_error *error)
{
    char first[16];
    const char *const words[] = {"tmux", "capture-pane", "-p", "-t", SESSION, "-S", first, NULL};
    const struct bt_guest_command command = {.arguments = words, .timeout_ms = TIMEOUT_MS};
    (void)snprintf(first, sizeof first, "-%u", lines); /* -0: the first line of the screen */
    int result = ask(paths, agent, &command, ret_text, error);
    if (result == 0)
        cut(ret_text, lines);
    return result;
}

int bt_agent_steer(const struct bt_paths *paths, const struct bt_agent *agent, const char *text,
                   size_t length, struct bt_error *error)
{
    /* Text goes in by standard input: it is on no command line, and nothing reads it as keys or options. */
    static const char *const pasted[] = {
        "tmux",  "load-buffer", "-b",    "berth", "-",         ";",  "paste-buffer", "-p",    "-d", "-b",
        "berth", "-t",          SESSION, ";",     "send-keys", "-t", SESSION,        "Enter", NULL};
    static const char *const enter[] = {"tmux", "send-keys", "-t", SESSION, "Enter", NULL};
    const struct bt_guest_command command = {.arguments = length > 0 ? pasted : enter,
                                             .input = text,
                                             .input_length = length,
                                             .timeout_ms = TIMEOUT_MS};
    bt_auto_buffer output = {0};
    return ask(paths, agent, &command, &output, error);
}
