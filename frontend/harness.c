/* What each harness needs. See harness.h.
 *
 * Called for plans and launches. Keys here are placeholders: a harness that finds none does not start, and
 * the gateway puts the user's own in their place.
 */
#include "frontend/harness.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "images/images.h"

#define PLACEHOLDER "the-gateway-has-the-key"
#define WORDS_MAX 8

static const struct definition {
    const char *name;
    const char *image;
    const char *bottle;
    const char *environment[WORDS_MAX];
    const char *command[WORDS_MAX];   /* in front of the prompt */
    const char *continued[WORDS_MAX]; /* the same, in its newest session; empty: it keeps none */
    const char *terminal[WORDS_MAX];  /* with a person; empty: the user's shell */
} definitions[BT_HARNESS_MAX] = {
    [BT_HARNESS_CLAUDE] =
        {
            .name = "claude",
            .image = "claude",
            .bottle = "claude",
            .environment = {"ANTHROPIC_API_KEY=" PLACEHOLDER, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"},
            .command = {"claude", "--dangerously-skip-permissions", "--print", "--"},
            .continued = {"claude", "--dangerously-skip-permissions", "--continue", "--print", "--"},
            .terminal = {"claude", "--dangerously-skip-permissions"},
        },
    /* Without any key it sends its requests without one; the rest of its settings is in the image. */
    [BT_HARNESS_CODEX] =
        {
            .name = "codex",
            .image = "codex",
            .bottle = "codex",
            .command = {"codex", "exec", "--dangerously-bypass-approvals-and-sandbox",
                        "--skip-git-repo-check", "--"},
            .continued = {"codex", "exec", "--dangerously-bypass-approvals-and-sandbox",
                          "--skip-git-repo-check", "resume", "--last", "--"},
            .terminal = {"codex", "--no-daemon", "--dangerously-bypass-approvals-and-sandbox"},
        },
    [BT_HARNESS_PI] =
        {
            .name = "pi",
            .image = "pi",
            .bottle = "pi",
            .environment = {"ANTHROPIC_API_KEY=" PLACEHOLDER, "PI_OFFLINE=1"},
            .command = {"pi", "--print", "--"},
            .continued = {"pi", "--continue", "--print", "--"},
            .terminal = {"pi"},
        },
    [BT_HARNESS_SHELL] = {.name = "shell", .image = "shell", .command = {"bash", "-lc"}},
};

const char *bt_harness_name(enum bt_harness harness)
{
    return (unsigned)harness < BT_HARNESS_MAX ? definitions[harness].name : "unknown";
}

bool bt_harness_find(const char *name, enum bt_harness *ret_harness)
{
    for (unsigned i = 0; i < BT_HARNESS_MAX; i++) {
        if (strcmp(name, definitions[i].name) == 0) {
            *ret_harness = (enum bt_harness)i;
            return true;
        }
    }
    return false;
}

const char *const *bt_harness_names(void)
{
    static const char *names[BT_HARNESS_MAX];
    for (unsigned i = 0; i < BT_HARNESS_MAX; i++)
        names[i] = definitions[i].name;
    return names;
}

const char *bt_harness_image(enum bt_harness harness)
{
    return definitions[harness].image;
}

const char *bt_harness_bottle(enum bt_harness harness)
{
    return definitions[harness].bottle;
}

void bt_harness_environment(enum bt_harness harness, struct bt_list *environment)
{
    for (size_t i = 0; i < WORDS_MAX && definitions[harness].environment[i] != NULL; i++)
        bt_list_add(environment, definitions[harness].environment[i]);
}

void bt_harness_command(enum bt_harness harness, const char *prompt, bool is_continued, struct bt_list *words)
{
    const struct definition *definition = &definitions[harness];
    const char *const *first =
        is_continued && definition->continued[0] != NULL ? definition->continued : definition->command;
    for (size_t i = 0; i < WORDS_MAX && first[i] != NULL; i++)
        bt_list_add(words, first[i]);
    bt_list_add(words, prompt);
}

void bt_harness_terminal(enum bt_harness harness, struct bt_list *words)
{
    /* What it would ask a person once (its looks, whether the folder is trusted) the image has answered, in
     * files for its home, which is empty in the beginning. */
    static const char settle[] =
        "if [ -d /etc/berth/home ]; then cp -rn /etc/berth/home/. ~; fi; exec \"$@\"";
    const char *const *terminal = definitions[harness].terminal;
    if (terminal[0] == NULL)
        return;
    bt_list_add(words, "sh");
    bt_list_add(words, "-c");
    bt_list_add(words, settle);
    bt_list_add(words, "sh");
    for (size_t i = 0; i < WORDS_MAX && terminal[i] != NULL; i++)
        bt_list_add(words, terminal[i]);
}

const char *bt_harness_continue_prompt(enum bt_harness harness)
{
    return definitions[harness].continued[0] != NULL ? "Continue where you stopped." : NULL;
}

int bt_harness_bottle_path(const char *bottle, char ret_path[512], struct bt_error *error)
{
    char built[128], installed[128];
    for (unsigned i = 0; i < BT_HARNESS_MAX; i++) {
        if (definitions[i].bottle == NULL || strcmp(definitions[i].bottle, bottle) != 0)
            continue;
        (void)snprintf(built, sizeof built, "frontend/bottles/%s.yaml", definitions[i].bottle);
        (void)snprintf(installed, sizeof installed, "share/berth/bottles/%s.yaml", definitions[i].bottle);
        int result = bt_data_path(built, installed, ret_path, error);
        return result == -ENOENT ? -EIO : result; /* an installation that is not whole is no missing bottle */
    }
    return -ENOENT;
}
