/* A cached image as a tar stream: what a container engine imports. The same bytes as the virtual machine's
 * disk or initrd, so both forms of an image have one recipe, one build and one digest.
 */
#ifndef BERTH_IMAGES_EXPORT_H
#define BERTH_IMAGES_EXPORT_H

#include "images/images.h"

/* A folder, or a file of the host (host_path), that the image gets if it has nothing of the name; or a
 * symbolic link (link_target) that takes the place of a file, if the image has the folder that it lies in.
 * Parents first, at most 64. */
struct bt_image_addition {
    const char *path;                           /* in the image, relative */
    const char *host_path, *link_target, *text; /* one of them, or none: a folder */
    unsigned mode;
    unsigned owner; /* uid and gid */
};

/* Writes the tar to a descriptor: the image's files (an ext4 image or a newc archive, by what image->path
 * holds), then the additions. Device nodes, sockets and extended attributes are left out. -EPIPE: nobody
 * reads any more. */
struct bt_image_export_options {
    const struct bt_image_addition *additions;
    size_t addition_count;
    /* The user and group from_id of the image get the number to_id, in the files' owners and in /etc/passwd
     * and /etc/group; both 0: all stay. */
    unsigned from_id, to_id;
    const char *own_folder; /* a top folder of which nothing of an ext4 image is taken; NULL: none */
};
int bt_image_export(const struct bt_image *image, const struct bt_image_export_options *options, int tar_fd,
                    struct bt_error *error);

#endif
