/* Many fixed byte strings looked for at once in a stream, in one pass (Aho and Corasick, "Efficient string
 * matching", 1975): time linear in the bytes whatever the strings are.
 *
 * What it knows beyond a regular expression: how many of the last bytes may be the beginning of a match, so
 * that no more than these need be held back. Used for secrets (secrets.c) and for the anchors of detectors
 * (detectors.c). Pure.
 */
#ifndef BERTH_POLICY_GATEWAY_LITERALS_H
#define BERTH_POLICY_GATEWAY_LITERALS_H

#include "ipc/base/base.h"

struct bt_literals; /* immutable once it is ready */

struct bt_literals *bt_literals_new(void);
struct bt_literals *bt_literals_free(struct bt_literals *literals); /* wipes; accepts NULL, returns NULL */

#define BT_LITERAL_MAX 16384
/* Adds a string of 2 to BT_LITERAL_MAX bytes; id is told with its matches. Only the beginnings of strings
 * that are held count for bt_literals_partial. The same string twice keeps the first id. Returns 0, -EINVAL
 * (its length) or -E2BIG (nodes_max would be passed). */
int bt_literals_add(struct bt_literals *literals, const void *data, size_t length, bool is_held, uint16_t id,
                    size_t nodes_max) BT_MUST_CHECK;
/* No more strings follow. */
void bt_literals_ready(struct bt_literals *literals);

/* Where a stream stands; zero at its start. */
struct bt_literals_state {
    uint32_t node;
};

/* Called for each occurrence: its length, and where it ends within the piece (1..length). Ends never go down.
 */
typedef void bt_literals_found(void *context, unsigned id, size_t length, size_t end);

void bt_literals_scan(const struct bt_literals *literals, struct bt_literals_state *state, const void *data,
                      size_t length, bt_literals_found *found, void *context);

/* The length of the longest end of what was scanned that begins some string that is held, and is not all of
 * it. */
size_t bt_literals_partial(const struct bt_literals *literals, const struct bt_literals_state *state);

#endif
