/* Builds a root disk: mmdebstrap's tar, straight into an ext4 image. */
#ifndef BERTH_IMAGES_DISK_H
#define BERTH_IMAGES_DISK_H

#include "images/images.h"
#include "images/recipe.h"

#define BT_DISK_FILE "image.ext4"

/* Writes folder/image.ext4. Runs mmdebstrap as the caller: a normal user needs uidmap and an entry in
 * /etc/subuid and /etc/subgid; uid 0 (of the machine or of a user namespace with a full range of ids) needs
 * neither. sources: files of apt sources. When the build fails, the message holds the end of what mmdebstrap
 * said. */
int bt_disk_build(const struct bt_recipe *recipe, const struct bt_list *sources, const char *folder,
                  const struct bt_progress *progress, struct bt_error *error);

#endif
