/* What could come next on a command line. See complete.h.
 *
 * Must change nothing and print no error: it runs at every press of the tabulator key.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/backend.h"
#include "frontend/approvals.h"
#include "frontend/command.h"
#include "frontend/complete.h"
#include "frontend/credentials.h"
#include "frontend/frozen.h"
#include "frontend/manifest.h"
#include "frontend/start.h"

struct bt_completion {
    const char *current;
    struct bt_list *candidates;
};

static void bt_complete_add(struct bt_completion *completion, const char *candidate)
{
    if (strncmp(candidate, completion->current, strlen(completion->current)) == 0)
        bt_list_add(completion->candidates, candidate);
}

static void bt_complete_words(struct bt_completion *completion, const char *words)
{
    bt_auto_free char *copy = bt_string_copy(words);
    char *rest = copy, *word;

    while ((word = strsep(&rest, " ")))
        bt_complete_add(completion, word);
}

/* suffix: what is written after the name, ":" for cp. */
static void bt_complete_agents(struct bt_completion *completion, const char *suffix)
{
    bt_auto_free struct bt_agent *agents = NULL;
    bt_auto_free char *database = NULL;
    struct bt_state *state = NULL;
    struct bt_paths paths;
    struct stat status;
    size_t count = 0;

    if (bt_paths_load(&paths, NULL) < 0)
        return;
    /* Completion does not make the database of somebody who has none yet. */
    database = bt_string_format("%s/berth.db", paths.state);
    if (stat(database, &status) < 0 || bt_state_open(&paths, &state, NULL) < 0)
        return;
    if (bt_state_list(state, NULL, &agents, &count, NULL) == 0) {
        for (size_t i = 0; i < count; i++) {
            bt_auto_free char *name = bt_string_format("%s%s", agents[i].name, suffix);
            bt_complete_add(completion, name);
        }
    }
    bt_state_close(state);
}

static void bt_complete_manifests(struct bt_completion *completion)
{
    bt_auto_list names = {0};
    struct bt_paths paths;

    if (bt_paths_load(&paths, NULL) < 0)
        return;
    (void)bt_agent_names(&paths, bt_start_own_folder(), &names, NULL);
    for (size_t i = 0; i < names.count; i++)
        bt_complete_add(completion, names.items[i]);
}

/* The last of "a,b,c". */
static void bt_complete_bottles(struct bt_completion *completion)
{
    const char *comma = strrchr(completion->current, ',');
    int before = comma ? (int)(comma - completion->current) + 1 : 0;
    bt_auto_list names = {0};
    struct bt_paths paths;

    if (bt_paths_load(&paths, NULL) < 0)
        return;
    (void)bt_bottle_names(&paths, &names, NULL);
    for (size_t i = 0; i < names.count; i++) {
        bt_auto_free char *value = bt_string_format("%.*s%s", before, completion->current, names.items[i]);
        bt_complete_add(completion, value);
    }
}

static void bt_complete_credentials(struct bt_completion *completion)
{
    bt_auto_free struct bt_credential *credentials = NULL;
    struct bt_paths paths;
    size_t count = 0;

    if (bt_paths_load(&paths, NULL) < 0 || bt_credential_list(&paths, &credentials, &count, NULL) < 0)
        return;
    for (size_t i = 0; i < count; i++)
        bt_complete_add(completion, credentials[i].name);
}

/* The user's own. */
static void bt_complete_frozen(struct bt_completion *completion)
{
    bt_auto_free struct bt_frozen *frozen = NULL;
    struct bt_paths paths;
    size_t count = 0;

    if (bt_paths_load(&paths, NULL) < 0 || bt_frozen_list(&paths, &frozen, &count, NULL) < 0)
        return;
    for (size_t i = 0; i < count; i++)
        bt_complete_add(completion, frozen[i].name);
}

static void bt_complete_images(struct bt_completion *completion)
{
    bt_complete_words(completion, "kernel infra shell shell-build");
    bt_complete_frozen(completion);
}

static void bt_complete_backends(struct bt_completion *completion)
{
    for (size_t i = 0; i < bt_backend_count; i++)
        bt_complete_add(completion, bt_backends[i]->name);
}

static void bt_complete_approvals(struct bt_completion *completion)
{
    struct bt_paths paths;
    json_t *numbers = NULL, *number;
    size_t index;

    if (bt_paths_load(&paths, NULL) < 0)
        return;
    numbers = bt_approvals_numbers(&paths, BT_ENVIRONMENT_LIVE);
    json_array_foreach(numbers, index, number)
    {
        bt_auto_free char *text = bt_string_format("%lld", (long long)json_integer_value(number));
        bt_complete_add(completion, text);
    }
    json_decref(numbers);
}

static void bt_complete_value(struct bt_completion *completion, const char *value_name)
{
    if (strcmp(value_name, "N") == 0)
        bt_complete_agents(completion, "");
    else if (strcmp(value_name, "MANIFEST") == 0)
        bt_complete_manifests(completion);
    else if (strcmp(value_name, "A,B") == 0)
        bt_complete_bottles(completion);
    else if (strcmp(value_name, "IMAGE") == 0)
        bt_complete_frozen(completion);
    else if (strcmp(value_name, "BACKEND") == 0)
        bt_complete_backends(completion);
    else if (strcmp(value_name, "WHAT") == 0)
        bt_complete_words(completion, "agents manifests bottles");
    else if (strcmp(value_name, "DIR") == 0)
        bt_list_add(completion->candidates, "@folders");
}

static void bt_complete_operand(struct bt_completion *completion, const struct bt_command *command,
                                size_t index)
{
    const char *operands = command->operands;

    if (strcmp(command->name, "cp") == 0) {
        bt_complete_agents(completion, ":");
        bt_list_add(completion->candidates, "@files");
    } else if (strcmp(command->name, "run") == 0) {
        if (index == 0)
            bt_list_add(completion->candidates, "@folders");
    } else if (strcmp(command->name, "cleanup") == 0) {
        bt_complete_words(completion, index == 0 ? "bots images workspaces" : "");
    } else if (strcmp(command->name, "credential") == 0) {
        if (index == 0)
            bt_complete_words(completion, "set list rm");
        else if (index == 1)
            bt_complete_credentials(completion);
    } else if (strcmp(command->name, "approvals") == 0) {
        if (index == 0)
            bt_complete_words(completion, "list show allow deny");
        else if (index == 1)
            bt_complete_approvals(completion);
    } else if (strcmp(command->name, "image") == 0) {
        if (index == 0)
            bt_complete_words(completion, "build list rm");
        else
            bt_complete_images(completion);
    } else if (strcmp(command->name, "freeze") == 0 || strcmp(command->name, "steer") == 0) {
        if (index == 0)
            bt_complete_agents(completion, "");
    } else if (strncmp(operands, "<agent>", 7) == 0) {
        if (index == 0)
            bt_complete_manifests(completion);
    } else if ((operands[0] == 'N' || strncmp(operands, "[N]", 3) == 0) && index < command->maximum) {
        bt_complete_agents(completion, "");
    }
}

static const struct bt_option *bt_complete_option(const struct bt_option *options, size_t count,
                                                  const char *word)
{
    for (size_t i = 0; i < count; i++) {
        if ((strncmp(word, "--", 2) == 0 && strcmp(word + 2, options[i].name) == 0) ||
            (word[0] == '-' && options[i].letter && word[1] == options[i].letter && word[2] == '\0'))
            return &options[i];
    }
    return NULL;
}

static void bt_complete_command(struct bt_completion *completion, const struct bt_command *command,
                                const char *const *words, size_t count)
{
    struct bt_option options[BT_OPTIONS_MAX];
    size_t option_count = bt_command_options(command, options), operands = 0;
    const struct bt_option *waiting = NULL; /* the option whose value comes next */

    for (size_t i = 0; i + 1 < count; i++) {
        const struct bt_option *option = waiting ? NULL : bt_complete_option(options, option_count, words[i]);
        if (!waiting && strcmp(words[i], "--") == 0) {
            bt_list_add(completion->candidates, "@files"); /* another command's words */
            return;
        }
        operands += !waiting && words[i][0] != '-';
        waiting = option && option->value_name ? option : NULL;
    }
    if (waiting) {
        bt_complete_value(completion, waiting->value_name);
        return;
    }
    for (size_t i = 0; i < option_count && completion->current[0] == '-'; i++) {
        bt_auto_free char *option = bt_string_format("--%s", options[i].name);
        bt_complete_add(completion, option);
    }
    if (completion->current[0] != '-')
        bt_complete_operand(completion, command, operands);
}

void bt_complete(const char *const *words, size_t count, struct bt_list *ret_candidates)
{
    struct bt_completion completion = {.current = count > 0 ? words[count - 1] : "",
                                       .candidates = ret_candidates};
    bool is_help = count == 2 && strcmp(words[0], "help") == 0;

    for (size_t i = 0; i < bt_command_count; i++) {
        if (count <= 1 || is_help)
            bt_complete_add(&completion, bt_commands[i]->name);
        else if (strcmp(words[0], bt_commands[i]->name) == 0)
            bt_complete_command(&completion, bt_commands[i], words + 1, count - 1);
    }
    if (count <= 1)
        bt_complete_words(&completion, "help");
}

int bt_complete_main(const char *const *words, size_t count)
{
    bt_auto_list candidates = {0};

    bt_complete(words, count, &candidates);
    for (size_t i = 0; i < candidates.count; i++) {
        if (candidates.items[i][0] != '\0')
            puts(candidates.items[i]);
    }
    return 0;
}
