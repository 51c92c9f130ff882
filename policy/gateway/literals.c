/* An Aho-Corasick automaton with failure links. See literals.h.
 *
 * Nodes have their children in a list, since almost all have one: a few kilobytes for a dozen secrets where a
 * full table would take megabytes. At the root, where nearly all of a stream passes, two bytes at a time are
 * looked up in a bitmap of the pairs that some string begins with; nothing there depends on the byte before,
 * so the processor looks at several positions at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/literals.h"

#define ROOT 0U
#define PAIR_WORDS (65536 / 64)

struct node {
    uint32_t child, sibling; /* first child, next child of the same parent; ROOT: none */
    uint32_t failure;        /* the longest proper end of this node's string that is a node */
    uint32_t shorter;        /* the nearest node along failure links where a string ends; ROOT: none */
    uint16_t depth;
    uint16_t partial; /* length of the longest end of this node's string that can still become a match */
    uint16_t id;      /* of the string that ends here */
    uint8_t byte;
    bool is_end : 1, is_held : 1; /* is_held: a string that is held goes on from here */
};

struct bt_literals {
    struct node *nodes;
    size_t count, capacity;
    uint32_t first[256]; /* children of the root */
    uint64_t pairs[PAIR_WORDS];
};

struct bt_literals *bt_literals_new(void)
{
    struct bt_literals *literals = bt_new(1, sizeof(*literals));
    literals->capacity = 64;
    literals->nodes = bt_new(literals->capacity, sizeof(*literals->nodes));
    literals->count = 1;
    return literals;
}

struct bt_literals *bt_literals_free(struct bt_literals *literals)
{
    if (literals == NULL)
        return NULL;
    explicit_bzero(literals->nodes, literals->capacity * sizeof(*literals->nodes));
    free(literals->nodes);
    explicit_bzero(literals, sizeof(*literals));
    free(literals);
    return NULL;
}

static uint32_t find_child(const struct bt_literals *literals, uint32_t node, uint8_t byte)
{
    if (node == ROOT)
        return literals->first[byte];
    uint32_t child = literals->nodes[node].child;
    while (child != ROOT && literals->nodes[child].byte != byte)
        child = literals->nodes[child].sibling;
    return child;
}

static void grow(struct bt_literals *literals)
{
    size_t capacity = literals->capacity * 2;
    struct node *nodes = bt_new(capacity, sizeof(*nodes));
    memcpy(nodes, literals->nodes, literals->count * sizeof(*nodes));
    explicit_bzero(literals->nodes, literals->count * sizeof(*nodes));
    free(literals->nodes);
    literals->nodes = nodes;
    literals->capacity = capacity;
}

static uint32_t add_child(struct bt_literals *literals, uint32_t parent, uint8_t byte)
{
    if (literals->count == literals->capacity)
        grow(literals);
    uint32_t added = (uint32_t)literals->count++;
    struct node *node = &literals->nodes[added];
    node->byte = byte;
    node->depth = (uint16_t)(literals->nodes[parent].depth + 1);
    if (parent == ROOT) {
        literals->first[byte] = added;
    } else {
        node->sibling = literals->nodes[parent].child;
        literals->nodes[parent].child = added;
    }
    return added;
}

int bt_literals_add(struct bt_literals *literals, const void *data, size_t length, bool is_held, uint16_t id,
                    size_t nodes_max)
{
    const uint8_t *bytes = data;
    uint32_t node = ROOT;
    if (length < 2 || length > BT_LITERAL_MAX)
        return -EINVAL;
    if (literals->count + length > nodes_max)
        return -E2BIG;
    for (size_t i = 0; i < length; i++) {
        literals->nodes[node].is_held = literals->nodes[node].is_held || is_held;
        uint32_t child = find_child(literals, node, bytes[i]);
        node = child != ROOT ? child : add_child(literals, node, bytes[i]);
    }
    if (!literals->nodes[node].is_end) {
        literals->nodes[node].is_end = true;
        literals->nodes[node].id = id;
    }
    size_t pair = (size_t)bytes[0] << 8 | bytes[1];
    literals->pairs[pair / 64] |= 1ULL << (pair % 64);
    return 0;
}

static uint32_t step(const struct bt_literals *literals, uint32_t node, uint8_t byte)
{
    for (;;) {
        uint32_t child = find_child(literals, node, byte);
        if (child != ROOT || node == ROOT)
            return child;
        node = literals->nodes[node].failure;
    }
}

static void link_node(struct bt_literals *literals, uint32_t parent, uint32_t node)
{
    struct node *nodes = literals->nodes;
    nodes[node].failure = parent == ROOT ? ROOT : step(literals, nodes[parent].failure, nodes[node].byte);
    uint32_t failure = nodes[node].failure;
    nodes[node].shorter = nodes[failure].is_end ? failure : nodes[failure].shorter;
    nodes[node].partial = nodes[node].is_held ? nodes[node].depth : nodes[failure].partial;
}

/* Failure links, breadth first: those of shorter strings are there already. */
void bt_literals_ready(struct bt_literals *literals)
{
    uint32_t *queue = bt_new(literals->count, sizeof(*queue));
    size_t head = 0, tail = 0;
    for (size_t byte = 0; byte < 256; byte++) {
        if (literals->first[byte] == ROOT)
            continue;
        link_node(literals, ROOT, literals->first[byte]);
        queue[tail++] = literals->first[byte];
    }
    while (head < tail) {
        uint32_t parent = queue[head++];
        for (uint32_t next = literals->nodes[parent].child; next != ROOT;
             next = literals->nodes[next].sibling) {
            link_node(literals, parent, next);
            queue[tail++] = next;
        }
    }
    free(queue);
}

static bool has_pair(const struct bt_literals *literals, const uint8_t *at)
{
    size_t pair = (size_t)at[0] << 8 | at[1];
    return (literals->pairs[pair / 64] >> (pair % 64) & 1) != 0;
}

/* The next position where some string may begin; the last byte is always one. */
static size_t skip(const struct bt_literals *literals, const uint8_t *bytes, size_t at, size_t length)
{
    while (at + 4 < length) {
        bool is_first = has_pair(literals, bytes + at), is_second = has_pair(literals, bytes + at + 1);
        bool is_third = has_pair(literals, bytes + at + 2), is_fourth = has_pair(literals, bytes + at + 3);
        if (is_first || is_second || is_third || is_fourth)
            return at + (is_first ? 0 : is_second ? 1 : is_third ? 2 : 3);
        at += 4;
    }
    while (at + 1 < length && !has_pair(literals, bytes + at))
        at++;
    return at;
}

void bt_literals_scan(const struct bt_literals *literals, struct bt_literals_state *state, const void *data,
                      size_t length, bt_literals_found *found, void *context)
{
    const struct node *nodes = literals->nodes;
    const uint8_t *bytes = data;
    uint32_t node = state->node;
    for (size_t at = 0; at < length;) {
        if (node == ROOT)
            at = skip(literals, bytes, at, length);
        node = step(literals, node, bytes[at++]);
        for (uint32_t end = nodes[node].is_end ? node : nodes[node].shorter; end != ROOT;
             end = nodes[end].shorter)
            found(context, nodes[end].id, nodes[end].depth, at);
    }
    state->node = node;
}

size_t bt_literals_partial(const struct bt_literals *literals, const struct bt_literals_state *state)
{
    return literals->nodes[state->node].partial;
}
