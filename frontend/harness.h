/* Harnesses: the programs that are agents, and what each needs to work in a guest. */
#ifndef BERTH_FRONTEND_HARNESS_H
#define BERTH_FRONTEND_HARNESS_H

#include "lib/error.h"
#include "lib/memory.h"

enum bt_harness { BT_HARNESS_CLAUDE, BT_HARNESS_CODEX, BT_HARNESS_PI, BT_HARNESS_SHELL, BT_HARNESS_MAX };
const char *bt_harness_name(enum bt_harness harness);
/* False when there is none of that name. */
bool bt_harness_find(const char *name, enum bt_harness *ret_harness);
/* For "did you mean" and lists; BT_HARNESS_MAX of them. */
const char *const *bt_harness_names(void);

/* The recipe of its image. A bottle may name another one. */
const char *bt_harness_image(enum bt_harness harness);
/* The bottle of an agent that names none; NULL: the one that allows nothing. */
const char *bt_harness_bottle(enum bt_harness harness);
/* Appends its variables, which bottles may set otherwise. None is a secret. */
void bt_harness_environment(enum bt_harness harness, struct bt_list *environment);
/* Appends the words that have it work on a prompt, alone and without questions. is_continued: in its newest
 * session, which is in its home. */
void bt_harness_command(enum bt_harness harness, const char *prompt, bool is_continued,
                        struct bt_list *words);
/* Appends the words that have it work with a person in the agent's terminal; none for the shell, which the
 * terminal has by itself. */
void bt_harness_terminal(enum bt_harness harness, struct bt_list *words);
/* What one that is resumed in its session without a prompt is told; NULL for one that keeps no session. */
const char *bt_harness_continue_prompt(enum bt_harness harness);

/* The file of a bottle that comes with berth. -ENOENT, without a word in error: none has that name. */
int bt_harness_bottle_path(const char *bottle, char ret_path[512], struct bt_error *error);

#endif
