/* What a builder of container images is given: a folder as a tar, with the Dockerfile that it works by.
 *
 * Equal contents give equal bytes: names in order, no times, all of it root's and readable (0644, or 0755 for
 * folders and what its owner may execute), whatever the folder's own modes are.
 */
#ifndef BERTH_IMAGES_CONTEXT_H
#define BERTH_IMAGES_CONTEXT_H

#include "lib/error.h"
#include "lib/file.h"

#define BT_CONTEXT_BYTES_MAX (512ULL << 20)
#define BT_CONTEXT_ENTRIES_MAX 20000U
#define BT_CONTEXT_DOCKERFILE ".berth-dockerfile" /* in the tar, with these two names */
#define BT_CONTEXT_OVERLAY ".berth-overlay"

struct bt_build_context {
    int fd; /* at its beginning; a file without a name, which nobody else can change; the caller closes it */
    uint64_t bytes;
    char digest[BT_DIGEST_TEXT_SIZE]; /* of the tar */
};

/* No symbolic link is followed (they are in the tar as what they are). Refused: what is neither file, folder
 * nor link, -EFBIG more than the limits above, -EBUSY a file that changes meanwhile. is_overlay: the folder
 * is the one of that name in the tar. */
int bt_context_pack(const struct bt_paths *paths, const char *folder, bool is_overlay, const char *dockerfile,
                    struct bt_build_context *ret_context, struct bt_error *error);

#endif
