/* berth: the command line. Finds the command, reads its options and settings, runs it, prints its error.
 *
 * Must do nothing itself but that; each command is a cmd_*.c of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frontend/command.h"
#include "frontend/complete.h"
#include "frontend/launch.h"

/* A program started with a closed standard descriptor would otherwise get a database or a socket there. */
static void bt_main_fill_descriptors(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static void bt_main_usage(FILE *stream)
{
    fputs("berth runs AI coding agents, each in a virtual machine of its own.\n\n"
          "usage: berth <command> [options]\n\n",
          stream);
    for (size_t i = 0; i < bt_command_count; i++)
        fprintf(stream, "  %-10s %s\n", bt_commands[i]->name, bt_commands[i]->summary);
    fputs("\nberth <command> --help says more; berth spawn shell is a first thing to try.\n", stream);
}

static void bt_main_help(FILE *stream, const struct bt_command *command, const struct bt_option *options,
                         size_t count)
{
    fprintf(stream, "usage: berth %s [options]%s%s\n\n%s.\n", command->name, *command->operands ? " " : "",
            command->operands, command->summary);
    if (command->details)
        fprintf(stream, "\n%s\n", command->details);
    fputs("\noptions:\n", stream);
    bt_options_help(stream, options, count);
}

static const struct bt_command *bt_main_find(const char *name, struct bt_error *error)
{
    const char *names[BT_COMMANDS_MAX] = {0}, *nearest;
    char hint[80] = "berth --help lists the commands";

    for (size_t i = 0; i < bt_command_count; i++) {
        names[i] = bt_commands[i]->name;
        if (strcmp(names[i], name) == 0)
            return bt_commands[i];
    }
    nearest = bt_nearest(name, names, bt_command_count);
    if (name[0] == '-')
        snprintf(hint, sizeof(hint), "options come after the command: berth <command> %.24s", name);
    else if (nearest)
        snprintf(hint, sizeof(hint), "did you mean 'berth %s'?", nearest);
    bt_fail(error, BT_EXIT_USAGE, EINVAL, hint, "unknown command '%.64s'", name);
    return NULL;
}

static int bt_main_check_arguments(const struct bt_command *command, const struct bt_arguments *arguments,
                                   struct bt_error *error)
{
    size_t count = arguments->operands.count;
    bt_auto_free char *hint = bt_string_format("usage: berth %s [options]%s%s", command->name,
                                               *command->operands ? " " : "", command->operands);

    if (count < command->minimum)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, hint, "an operand is missing");
    if (count > command->maximum)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, hint, "too many operands: '%.64s'",
                       arguments->operands.items[command->maximum]);
    if (arguments->has_rest && !command->may_have_rest)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, hint, "this command takes nothing after --");
    if (arguments->has_rest && arguments->rest.count == 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, hint, "there is no command after --");
    return 0;
}

static int bt_main_prepare(const struct bt_command *command, struct bt_context *context,
                           struct bt_error *error)
{
    int r = bt_main_check_arguments(command, &context->arguments, error);

    if (r == 0)
        r = bt_paths_load(&context->paths, error);
    if (r < 0)
        return r;
    if (command->needs != BT_COMMAND_PLAIN)
        r = bt_config_load(&context->paths, &context->config, error);
    if (r < 0 && command->needs == BT_COMMAND_CONFIG_OR_DEFAULTS) {
        bt_output_note(&context->output, "%s; going on with the default settings", error->message);
        r = bt_config_defaults(&context->paths, &context->config, error);
    }
    if (r < 0)
        return r;
    context->environment =
        bt_option_value(&context->arguments, "environment",
                        context->config.environment ? context->config.environment : BT_ENVIRONMENT_LIVE);
    if (!bt_name_is_valid(context->environment))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                       "'%.64s' cannot be the name of an environment", context->environment);
    return 0;
}

/* Before the options are parsed: a wrong option must be reported as a document too. */
static bool bt_main_wants_json(const char *const *arguments, size_t count)
{
    for (size_t i = 0; i < count && strcmp(arguments[i], "--") != 0; i++) {
        if (strcmp(arguments[i], "--json") == 0)
            return true;
    }
    return false;
}

static int bt_main_run(const struct bt_command *command, const char *const *words, size_t count)
{
    struct bt_option options[BT_OPTIONS_MAX];
    size_t option_count = bt_command_options(command, options);
    struct bt_context context = {0};
    struct bt_error error = {.status = BT_EXIT_ERROR};
    int r, status;

    bt_output_init(&context.output, bt_main_wants_json(words, count), false);
    r = bt_options_parse(options, option_count, words, count, &context.arguments, &error);
    if (r == 0 && bt_option_is_set(&context.arguments, "help")) {
        bt_main_help(stdout, command, options, option_count);
        bt_arguments_free(&context.arguments);
        return BT_EXIT_OK;
    }
    if (r == 0) {
        context.output.is_quiet = bt_option_is_set(&context.arguments, "quiet");
        r = bt_main_prepare(command, &context, &error);
    }
    if (r == 0)
        r = command->run(&context, &error);
    bt_output_progress_end(&context.output);
    status = r < 0 ? bt_output_error(&context.output, command->name, &error) : context.exit_status;
    bt_config_free(&context.config);
    bt_arguments_free(&context.arguments);
    return status;
}

static int bt_main_dispatch(int argc, const char *const *argv)
{
    struct bt_output output;
    struct bt_error error = {.status = BT_EXIT_USAGE};
    const struct bt_command *command;
    const char *name = argc > 1 ? argv[1] : "help";
    const char *const help[] = {"--help"};
    bool is_help = strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;

    if (argc <= 1) {
        bt_main_usage(stderr);
        return BT_EXIT_USAGE;
    }
    if (is_help && argc == 2) {
        bt_main_usage(stdout);
        return BT_EXIT_OK;
    }
    if (strcmp(name, "--version") == 0)
        name = "version";
    command = bt_main_find(is_help ? argv[2] : name, &error);
    if (!command) {
        bt_output_init(&output, bt_main_wants_json(argv + 1, (size_t)argc - 1), false);
        return bt_output_error(&output, NULL, &error);
    }
    return is_help ? bt_main_run(command, help, 1) : bt_main_run(command, argv + 2, (size_t)argc - 2);
}

int main(int argc, char **argv)
{
    int status;

    if (argc < 1)
        return 127;
    bt_main_fill_descriptors();
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], BT_KEEPER_ARGUMENT) == 0)
        return bt_keeper_main();
    if (argc >= 2 && strcmp(argv[1], BT_COMPLETE_ARGUMENT) == 0)
        return bt_complete_main((const char *const *)argv + 2, (size_t)argc - 2);
    status = bt_main_dispatch(argc, (const char *const *)argv);
    /* A full disk or a closed pipe behind stdout must not look like success; EPIPE is the reader's choice. */
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && errno != EPIPE && status == BT_EXIT_OK) {
        fprintf(stderr, "berth: cannot write the output: %s\n", strerror(errno));
        status = BT_EXIT_ERROR;
    }
    return status;
}
