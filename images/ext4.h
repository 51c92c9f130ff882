/* ext4 file systems in files, made by libext2fs without root and without mounting. Internal to images/; the
 * public functions are in images.h. */
#ifndef BERTH_IMAGES_EXT4_H
#define BERTH_IMAGES_EXT4_H

#include <et/com_err.h>
#include <ext2fs/ext2_fs.h>
#include <ext2fs/ext2fs.h>

#include "images/images.h"

#define BT_EXT4_BLOCK 4096U

struct bt_ext4_volume {
    ext2_filsys fs;
    char path[768];    /* where it is to be */
    char partial[776]; /* where it is until then */
};

/* Creates an empty file system of size_bytes (rounded down to whole blocks; 1 MiB to 16 TiB) as a sparse file
 * of mode 0600 beside path. is_writable: a journal and a random UUID, for disks that guests write; otherwise
 * neither, and all bytes follow from the arguments. The volume is freed by exactly one of commit and discard.
 */
int bt_ext4_volume_create(const char *path, uint64_t size_bytes, const char *label, bool is_writable,
                          struct bt_ext4_volume **ret_volume, struct bt_error *error);

/* The same as a copy of an image without a journal, which must not change meanwhile, to be added to. */
int bt_ext4_volume_copy(const char *source, const char *path, const char *label,
                        struct bt_ext4_volume **ret_volume, struct bt_error *error);

/* Writes everything out and gives the file its name; is_synced: waits until it is on the disk. Frees the
 * volume also on failure, and then nothing is left of it. */
int bt_ext4_volume_commit(struct bt_ext4_volume *volume, bool is_synced, struct bt_error *error);
void bt_ext4_volume_discard(struct bt_ext4_volume *volume); /* accepts NULL */

/* Turns a libext2fs code into an error: "cannot <action>: ...". A full file system is told from a full host
 * disk. */
int bt_ext4_fail(const struct bt_ext4_volume *volume, errcode_t code, struct bt_error *error,
                 const char *action);

#endif
