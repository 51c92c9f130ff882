/* The helper's words on standard error, built by hand in fixed buffers and written by write(2).
 *
 * Used by all stages of the helper. No stdio, no locale, no memory of its own. Callers pass only their own
 * constant texts, numbers, and paths of root's command line, never bytes of a client.
 */
#ifndef BERTH_HELPER_SAY_H
#define BERTH_HELPER_SAY_H

#include "ipc/base/base.h"

#define BT_TEXT_SIZE 512

struct bt_text {
    char bytes[BT_TEXT_SIZE];
    size_t length;
};

/* Append; what does not fit is cut off. */
void bt_text_add(struct bt_text *text, const char *addition);
void bt_text_add_number(struct bt_text *text, uint64_t number);
/* Writes "berth-helper: TEXT\n" to standard error, or nothing when that would block. */
void bt_say_text(const struct bt_text *text);

void bt_say(const char *message);
void bt_say_number(const char *before, uint64_t number, const char *after);
/* "WHAT: reason of the (negative) errno (error N); HINT": what failed, or the path of root's that is wrong;
 * why; what to do, which may be NULL. */
void bt_say_error(const char *what, int error, const char *hint);

/* For what cannot be unless this program is wrong: says so and ends by a trap. The rules in the kernel stay
 * as they are. */
_Noreturn void bt_die(const char *what);
static inline void bt_require(bool condition, const char *what)
{
    if (!condition)
        bt_die(what);
}

#endif
