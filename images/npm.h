/* Packages of the npm registry, exactly those that a recipe pins, laid out as an image will have them. */
#ifndef BERTH_IMAGES_NPM_H
#define BERTH_IMAGES_NPM_H

#include "images/images.h"
#include "images/recipe.h"

/* Appends what of the recipe's folder decides the result: part of the image's digest. */
int bt_npm_add_digests(const struct bt_recipe *recipe, struct bt_buffer *inputs, struct bt_error *error);

/* Below root, an existing folder: opt/<recipe>/node_modules, and usr/local/bin/<command> leading into it.
 * Runs npm as the caller; where packages come from is npm's own configuration. Each package must have the
 * digest of the recipe's lock file, and none runs a script. */
int bt_npm_install(const struct bt_recipe *recipe, const char *root, const struct bt_progress *progress,
                   struct bt_error *error);

#endif
