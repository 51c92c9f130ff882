/* Builds a disk on top of another one: a copy of it, what npm installs, and the recipe's files. */
#ifndef BERTH_IMAGES_LAYER_H
#define BERTH_IMAGES_LAYER_H

#include "images/images.h"
#include "images/recipe.h"

/* Writes folder/image.ext4 from base, an image without a journal. */
int bt_layer_build(const struct bt_recipe *recipe, const char *base, const char *folder,
                   const struct bt_progress *progress, struct bt_error *error);

#endif
