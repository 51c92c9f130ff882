/* Files with several names, while a file system is read: which of the names came first. Takes memory only for
 * those of which names are still to come, and has a limit, since the file system may be a hostile one's.
 * Internal to images/. */
#ifndef BERTH_IMAGES_HARD_LINKS_H
#define BERTH_IMAGES_HARD_LINKS_H

#include <stddef.h>
#include <stdint.h>

struct bt_hard_links {
    size_t size_max; /* bytes of memory; set by the caller, everything else is zero */
    size_t size;
    void *files;
    struct bt_hard_link *complete; /* the last whose names have all come */
};

/* ret_earlier: the name under which this file came first, until the next call; NULL: path is the first.
 * names: as many as it has. Returns 0, or -EFBIG at the limit. */
int bt_hard_links_meet(struct bt_hard_links *links, uint64_t inode, unsigned names, const char *path,
                       const char **ret_earlier);
void bt_hard_links_free(struct bt_hard_links *links);

#endif
