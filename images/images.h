/* Images: what guests boot from. Recipes are data (images/recipes/<name>.yaml, installed under
 * share/berth/recipes); a build is cached by the digest of its inputs.
 *
 *   kernel    Debian's cloud kernel, taken from its package without installing it: vmlinux and a base initrd
 * (modules in load order and berth-init) shell     Debian minimal root (mmdebstrap as the user -> tar ->
 * ext4, in one pass, no root, no unpacked tree) infra     gateway and orchestrator: static programs only, so
 * it is an initrd and not a disk
 */
#ifndef BERTH_IMAGES_IMAGES_H
#define BERTH_IMAGES_IMAGES_H

#include "lib/error.h"
#include "lib/file.h"

struct bt_image {
    char name[64];                    /* recipe */
    char digest[BT_DIGEST_TEXT_SIZE]; /* of the inputs */
    char path[768];                   /* the ext4 image; kernel: vmlinux */
    char initrd_path[768];            /* kernel only: base initrd */
    uint64_t size_bytes;              /* apparent */
    uint64_t disk_bytes;              /* allocated */
    int64_t built_seconds;            /* time(2) of the build */
};

/* Progress of long work: step is a short sentence, done/total in bytes or 0 when unknown. An empty step: this
 * work is over, something else is about to be shown. */
struct bt_progress {
    void (*report)(void *context, const char *step, uint64_t done, uint64_t total);
    void *context;
};

/* The image of a recipe, from the cache or built now. is_build_allowed = false: -ENOENT with the command to
 * run. Two builders at once wait for each other (a lock file). A build that is cut short leaves nothing in
 * the cache. */
/* recipe may also be "<name>@<digest>": exactly that image, which is not built here (bt_image_find). */
int bt_image_get(const struct bt_paths *paths, const char *recipe, bool is_build_allowed,
                 const struct bt_progress *progress, struct bt_image *ret_image, struct bt_error *error);
/* Builds again even if cached. */
int bt_image_build(const struct bt_paths *paths, const char *recipe, const struct bt_progress *progress,
                   struct bt_image *ret_image, struct bt_error *error);
/* The image of exactly this digest, from the cache: what a kept agent was started with, whatever the recipe
 * says now. -ENOENT when it was removed. */
int bt_image_find(const struct bt_paths *paths, const char *recipe, const char *digest,
                  struct bt_image *ret_image, struct bt_error *error);
/* All cached images, by name and then newest first; *ret_images is owned by the caller (free). */
int bt_image_list(const struct bt_paths *paths, struct bt_image **ret_images, size_t *ret_count,
                  struct bt_error *error);

/* The folder that holds berth's own programs (berth-init, ...): beside the running executable (a build tree),
 * else the installed libexec folder. Recipes likewise. */
int bt_program_path(const char *program, char ret_path[512], struct bt_error *error);
int bt_recipe_path(const char *recipe, char ret_path[512], struct bt_error *error);
/* Any other file that comes with berth, by its path in the tree and below the installation's prefix. */
int bt_data_path(const char *built, const char *installed, char ret_path[512], struct bt_error *error);

/* An empty sparse ext4 file system (libext2fs), made whole or not at all; mode 0600. Fast: a few ms, few MiB.
 */
int bt_ext4_make_empty(const char *path, uint64_t size_bytes, const char *label, struct bt_error *error);
/* A copy of a disk that nobody writes to, made whole or not at all; mode 0600. Holes stay holes, and nothing
 * of the file system is looked at. -EFBIG: it takes more than bytes_max on the host. */
int bt_ext4_copy(const char *source, const char *path, uint64_t bytes_max, struct bt_error *error);
/* Reads a tar stream (any format libarchive knows) from a descriptor and writes it as an ext4 image, one
 * pass. */
int bt_ext4_from_tar(int tar_fd, const char *path, uint64_t size_bytes, const char *label,
                     const struct bt_progress *progress, struct bt_error *error);

#endif
