/* berth run: an agent on a folder or a repository, in one short line. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "frontend/manifest.h"
#include "frontend/start.h"

/* A folder that exists is a folder, whatever it looks like; everything with a scheme or in scp form is an
 * address. */
static int bt_run_classify(const char *what, bool *ret_is_repository, struct bt_error *error)
{
    struct stat status;
    bool is_address = strstr(what, "://") != NULL;

    if (!is_address && stat(what, &status) == 0 && S_ISDIR(status.st_mode)) {
        *ret_is_repository = false;
        return 0;
    }
    if (!is_address && strncmp(what, "git@", 4) != 0)
        return bt_fail(error, BT_EXIT_USAGE, ENOENT, "give a folder, or the https:// address of a repository",
                       "'%.200s' is neither a folder nor an address", what);
    *ret_is_repository = true;
    return bt_start_check_repository(what, error);
}

static int bt_run_command_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_arguments *arguments = &context->arguments;
    struct bt_start start = {
        .manifest = bt_option_value(arguments, "agent", BT_AGENT_SHELL),
        .command = arguments->has_rest ? (const char *const *)arguments->rest.items : NULL,
    };
    bt_auto_buffer prompt = {0};
    bool is_repository = false;
    int r = bt_run_classify(arguments->operands.items[0], &is_repository, error);

    for (size_t i = 1; i < arguments->operands.count && r == 0; i++) {
        if (bt_buffer_add_format(&prompt, "%s%s", i > 1 ? " " : "", arguments->operands.items[i]) < 0)
            r = bt_fail(error, BT_EXIT_USAGE, E2BIG, NULL, "the prompt is too long");
    }
    if (r < 0)
        return r;
    start.prompt = prompt.data;
    if (is_repository)
        bt_list_add(&start.repositories, arguments->operands.items[0]);
    else
        start.workspace = arguments->operands.items[0];
    r = bt_start_run(context, &start, error);
    bt_list_free(&start.repositories);
    return r;
}

static const struct bt_option bt_run_options[] = {
    BT_START_OPTIONS,
    {.name = "agent", .letter = 'a', .value_name = "MANIFEST", .help = "the agent manifest (shell)"},
};

const struct bt_command bt_command_run = {
    .name = "run",
    .operands = "<folder|https URL> [prompt...] [-- command...]",
    .summary = "Let an agent work on a folder or a repository",
    .details = "A folder is copied in and its changes come back as a patch; an address is cloned in the "
               "guest through\n"
               "the gateway. Words after it are the prompt. For the shell harness a prompt is a script.",
    .options = bt_run_options,
    .option_count = BT_ARRAY_LENGTH(bt_run_options),
    .minimum = 1,
    .maximum = 256,
    .may_have_rest = true,
    .needs = BT_COMMAND_CONFIG,
    .run = bt_run_command_run,
};
