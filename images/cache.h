/* The image cache: <images>/<recipe>-<digest>/, complete or absent.
 *
 * A build works in <images>/.building-<recipe> under a lock and becomes visible by one rename. What a killed
 * builder left there is removed by the next one, and by whoever lists the images.
 */
#ifndef BERTH_IMAGES_CACHE_H
#define BERTH_IMAGES_CACHE_H

#include "images/images.h"
#include "images/recipe.h"

/* Fills *ret_image from the cache. Returns false when it is not there. */
bool bt_cache_find(const struct bt_paths *paths, const char *recipe, const char *digest,
                   struct bt_image *ret_image);

/* Waits for other builders of this recipe. *ret_lock_fd: closing it unlocks. */
int bt_cache_lock(const struct bt_paths *paths, const char *recipe, const struct bt_progress *progress,
                  int *ret_lock_fd, struct bt_error *error);
/* An empty folder for a build; the lock must be held. */
int bt_cache_begin(const struct bt_paths *paths, const char *recipe, char ret_folder[768],
                   struct bt_error *error);
/* Makes the folder the image of this digest, replacing one that is there. */
int bt_cache_commit(const struct bt_paths *paths, const char *recipe, const char *digest, const char *folder,
                    struct bt_error *error);
/* Removes all but the newest kept images of a recipe. For images that are read only while a machine starts.
 */
void bt_cache_prune(const struct bt_paths *paths, const char *recipe, size_t kept);

#endif
