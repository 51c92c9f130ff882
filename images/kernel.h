/* Builds a kernel image: vmlinux and the base initrd, from a Debian kernel package. */
#ifndef BERTH_IMAGES_KERNEL_H
#define BERTH_IMAGES_KERNEL_H

#include "images/images.h"
#include "images/recipe.h"

/* Names within an image's folder. */
#define BT_KERNEL_FILE "kernel"
#define BT_INITRD_FILE "initrd"

/* Takes the package apart and writes folder/kernel (uncompressed with a PVH entry where there is one, else as
 * packaged) and folder/initrd: /init and /berth/modules/NN-name.ko, to be loaded in name order. */
int bt_kernel_build(const struct bt_recipe *recipe, const char *deb_path, const char *folder,
                    const struct bt_progress *progress, struct bt_error *error);

/* Builds the image of form initrd: folder/initrd with the recipe's programs in /berth/bin. */
int bt_programs_build(const struct bt_recipe *recipe, const char *folder, struct bt_error *error);

#endif
