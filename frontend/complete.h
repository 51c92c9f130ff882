/* Completion of command lines in shells: the scripts in completions/ ask this program, which knows its own
 * tables.
 */
#ifndef BERTH_FRONTEND_COMPLETE_H
#define BERTH_FRONTEND_COMPLETE_H

#include "lib/memory.h"

/* The hidden first argument with which the scripts call berth. */
#define BT_COMPLETE_ARGUMENT "complete"

/* words[0..count) are those after "berth", the last one as far as it is typed (maybe empty). Prints one
 * candidate a line; the line "@files" or "@folders" asks the shell for names of its own. Never fails: no
 * candidates is an answer. */
int bt_complete_main(const char *const *words, size_t count);

/* The candidates, for tests. */
void bt_complete(const char *const *words, size_t count, struct bt_list *ret_candidates);

#endif
