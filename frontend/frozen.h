/* Images of the user's own: the home of an agent as it was frozen, on the root image that it had. Each is a
 * folder, $STATE/frozen/<name> (0700): frozen.json, and what the backend wrote there.
 *
 * They are of one backend, and private: what an agent kept at home is nobody else's.
 */
#ifndef BERTH_FRONTEND_FROZEN_H
#define BERTH_FRONTEND_FROZEN_H

#include <jansson.h>

#include "frontend/state.h"
#include "lib/error.h"
#include "lib/file.h"

struct bt_frozen {
    char name[BT_NAME_SIZE];
    char folder[768];
    char recipe[128]; /* of the root image, as bt_image_get takes it */
    char backend[24];
    char agent[BT_NAME_SIZE]; /* whose home it was */
    int64_t frozen_seconds;
    uint64_t size_bytes, disk_bytes; /* of the folder: apparent, allocated; by bt_frozen_list */
};

/* -ENOENT without a message: there is none of that name. */
int bt_frozen_load(const struct bt_paths *paths, const char *name, struct bt_frozen *ret_frozen,
                   struct bt_error *error);
/* The record's text to a record; name and folder are the caller's. For tests as well. */
int bt_frozen_parse(const char *text, size_t length, struct bt_frozen *frozen, struct bt_error *error);
/* Whether berth itself has an image of the name. */
bool bt_frozen_is_recipe(const char *name);
/* By name. The caller frees *ret_frozen with free(). */
int bt_frozen_list(const struct bt_paths *paths, struct bt_frozen **ret_frozen, size_t *ret_count,
                   struct bt_error *error);
/* BT_EXIT_NO_TARGET, -ENOENT: there is none. */
int bt_frozen_remove(const struct bt_paths *paths, const char *name, struct bt_error *error);
/* Whether an agent of this backend can begin with it. */
int bt_frozen_check_backend(const struct bt_paths *paths, const char *name, const char *backend,
                            struct bt_error *error);

/* Making one: the folder of a new one, while nobody else makes any; then either end. */
struct bt_freezing {
    struct bt_frozen frozen; /* name, recipe, backend, agent: set by the caller before begin */
    char folder[768];        /* an empty one, for the backend */
    int lock_fd;
};
/* -EEXIST: the name is taken, unless is_replacing. -EBUSY: another freeze is at work. */
int bt_frozen_begin(const struct bt_paths *paths, struct bt_freezing *freezing, bool is_replacing,
                    struct bt_error *error);
/* All at once it has its name. */
int bt_frozen_commit(struct bt_freezing *freezing, struct bt_error *error);
void bt_frozen_discard(struct bt_freezing *freezing); /* after either end as well */

#endif
