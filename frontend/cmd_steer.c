/* berth steer: types a text and Enter into an agent's terminal. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/command.h"

static int bt_steer_too_long(struct bt_error *error)
{
    return bt_fail(error, BT_EXIT_USAGE, E2BIG, "bring it in as a file: berth cp",
                   "the text is longer than %u bytes", BT_STEER_BYTES_MAX);
}

static int bt_steer_read(struct bt_buffer *text, struct bt_error *error)
{
    text->limit = BT_STEER_BYTES_MAX;
    for (;;) {
        char chunk[4096];
        ssize_t got = read(STDIN_FILENO, chunk, sizeof(chunk));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read the text: %s", strerror(errno));
        if (got == 0)
            break;
        if (bt_buffer_add(text, chunk, (size_t)got) < 0)
            return bt_steer_too_long(error);
    }
    if (text->length > 0 && text->data[text->length - 1] == '\n') /* of the last line; Enter comes anyway */
        text->data[--text->length] = '\0';
    return 0;
}

/* A control character would be a key: it could end what is pasted, or interrupt what runs. */
static int bt_steer_check(const char *text, size_t length, struct bt_error *error)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f)
            return bt_fail(error, BT_EXIT_USAGE, EINVAL, "berth attach is for keys",
                           "byte %zu of the text is a control character; only newline and tab are typed",
                           i + 1);
    }
    return 0;
}

/* The words with blanks between them, or standard input for "-". */
static int bt_steer_text(const struct bt_arguments *arguments, size_t first, struct bt_buffer *text,
                         struct bt_error *error)
{
    const struct bt_list *words = &arguments->operands;

    if (words->count == first)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "usage: berth steer N text..., or - for standard input",
                       "the text is missing");
    if (words->count == first + 1 && strcmp(words->items[first], "-") == 0)
        return bt_steer_read(text, error);
    text->limit = BT_STEER_BYTES_MAX;
    for (size_t i = first; i < words->count; i++) {
        if (bt_buffer_add_format(text, "%s%s", i > first ? " " : "", words->items[i]) < 0)
            return bt_steer_too_long(error);
    }
    return 0;
}

static int bt_steer_find(struct bt_context *context, struct bt_agent *agent, struct bt_error *error)
{
    struct bt_state *state = NULL;
    int r = bt_state_open(&context->paths, &state, error);

    if (r == 0)
        r = bt_option_is_set(&context->arguments, "latest")
                ? bt_state_find_latest(state, context->environment, agent, error)
                : bt_state_find(state, context->environment, context->arguments.operands.items[0], agent,
                                error);
    bt_state_close(state);
    return r;
}

static int bt_steer_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_agent agent;
    bt_auto_buffer text = {0};
    size_t first = bt_option_is_set(&context->arguments, "latest") ? 0 : 1;
    int r = bt_steer_text(&context->arguments, first, &text, error);

    if (r == 0)
        r = bt_steer_check(text.data ? text.data : "", text.length, error);
    if (r == 0)
        r = bt_steer_find(context, &agent, error);
    if (r == 0)
        r = bt_agent_steer(&context->paths, &agent, text.data, text.length, error);
    if (r == 0)
        r = bt_audit_write(&context->paths, "steer", agent.environment, agent.name,
                           json_pack("{s:I}", "bytes", (json_int_t)text.length), error);
    if (r < 0)
        return r;
    bt_output_document(&context->output,
                       json_pack("{s:s, s:I}", "name", agent.name, "bytes", (json_int_t)text.length));
    return 0;
}

static const struct bt_option bt_steer_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
};

const struct bt_command bt_command_steer = {
    .name = "steer",
    .operands = "N text... | N -",
    .summary = "Type a text and Enter into a running agent's terminal",
    .details = "- takes the text from standard input. Nothing waits for an answer: berth peek shows it.",
    .options = bt_steer_options,
    .option_count = BT_ARRAY_LENGTH(bt_steer_options),
    .minimum = 1,
    .maximum = 256,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_steer_run,
};
