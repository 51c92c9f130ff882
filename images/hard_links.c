/* Which name of a file came first. See hard_links.h. */
#include "images/hard_links.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"

#define OVERHEAD 64U /* of one: a node of the tree, and what malloc adds */

struct bt_hard_link {
    uint64_t inode;
    unsigned names_left;
    char path[];
};

static int compare(const void *one, const void *other)
{
    uint64_t a = ((const struct bt_hard_link *)one)->inode, b = ((const struct bt_hard_link *)other)->inode;
    return (a > b) - (a < b);
}

static size_t size_of(const char *path)
{
    return sizeof(struct bt_hard_link) + strlen(path) + 1 + OVERHEAD;
}

static int add(struct bt_hard_links *links, uint64_t inode, unsigned names_left, const char *path)
{
    size_t size = size_of(path);
    if (links->size + size > links->size_max)
        return -EFBIG;
    struct bt_hard_link *link = bt_new(1, size - OVERHEAD);
    link->inode = inode;
    link->names_left = names_left;
    memcpy(link->path, path, strlen(path));
    if (tsearch(link, &links->files, compare) == NULL)
        abort();
    links->size += size;
    return 0;
}

int bt_hard_links_meet(struct bt_hard_links *links, uint64_t inode, unsigned names, const char *path,
                       const char **ret_earlier)
{
    const struct bt_hard_link key = {.inode = inode};
    free(BT_TAKE(links->complete));
    struct bt_hard_link **found = names > 1 ? tfind(&key, &links->files, compare) : NULL;
    if (found == NULL) {
        int result = names > 1 ? add(links, inode, names - 1, path) : 0;
        if (result == 0)
            *ret_earlier = NULL;
        return result;
    }
    struct bt_hard_link *link = *found;
    if (--link->names_left == 0) {
        (void)tdelete(link, &links->files, compare);
        links->size -= size_of(link->path);
        links->complete = link;
    }
    *ret_earlier = link->path;
    return 0;
}

void bt_hard_links_free(struct bt_hard_links *links)
{
    free(BT_TAKE(links->complete));
    tdestroy(links->files, free);
    links->files = NULL;
    links->size = 0;
}
