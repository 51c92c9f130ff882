/* A tar stream into an ext4 image, in one pass. Internal to images/. */
#ifndef BERTH_IMAGES_EXT4_TAR_H
#define BERTH_IMAGES_EXT4_TAR_H

#include "images/archive.h"
#include "images/images.h"

/* Text put behind a file of the archive, or alone into a new one (0644, root). */
struct bt_ext4_addition {
    const char *path; /* without leading slash */
    const char *text;
};

/* A folder that is there in the end, whatever the archive had. */
struct bt_ext4_folder {
    const char *path; /* without leading slash; its parents may be missing */
    uint32_t uid, gid;
    uint16_t mode;
};

/* What of an archive is taken, and what is added. NULL or zero-initialised: all of it as it is. */
struct bt_ext4_rules {
    const char *const
        *exclude; /* fnmatch(3) patterns; a pattern that matches a folder leaves out all below it */
    size_t exclude_count;
    bool drops_privilege; /* set-id bits of files and security.capability are left out */
    const struct bt_ext4_addition *additions;
    size_t addition_count;
    const struct bt_ext4_folder *folders;
    size_t folder_count;
    const char *base; /* an image that a copy of gets all this; NULL: an empty file system of size_bytes */
};

/* Reads an opened archive (tar format, bt_archive_use_filters) to its end and writes it as an ext4 image at
 * path, made whole or not at all. Kept: owners, modes, times, hard links, symbolic links, device nodes,
 * extended attributes. Refused: absolute names, "..", names that lead through a symbolic link, a path that
 * comes twice (unless both are folders), hard links to what is not there. */
int bt_ext4_write_archive(struct archive *archive, const char *path, uint64_t size_bytes, const char *label,
                          const struct bt_ext4_rules *rules, const struct bt_progress *progress,
                          struct bt_error *error);

#endif
