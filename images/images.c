/* Images by recipe: the digest of their inputs, the cache, the builders. See images.h.
 *
 * Called by `berth image`, spawn and up. Holds the recipe's lock through a build.
 */
#include "images/images.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "images/cache.h"
#include "images/disk.h"
#include "images/kernel.h"
#include "images/layer.h"
#include "images/npm.h"
#include "images/package.h"
#include "images/progress.h"
#include "images/recipe.h"

/* Raise it when the builders write something else from the same inputs. */
#define WRITER_VERSION 1
/* Kernels and initrds of older builds that stay (agents read them only when they start). */
#define KEPT_BUILDS 3

struct build {
    struct bt_recipe recipe;
    struct bt_list sources;
    struct bt_buffer sources_text;
    char packages_digest[BT_DIGEST_TEXT_SIZE]; /* of what decides the downloads */
    char digest[BT_DIGEST_TEXT_SIZE];          /* of everything */
};

static int get(const struct bt_paths *paths, const char *recipe, bool may_build, bool is_fresh,
               const struct bt_progress *progress, struct bt_image *ret_image, struct bt_error *error);
static int build_prepare(const char *recipe, bool is_base, struct build *ret_build, struct bt_error *error);

static void build_free(struct build *build)
{
    bt_recipe_free(&build->recipe);
    bt_list_free(&build->sources);
    bt_buffer_free(&build->sources_text);
}

static int add_program_digest(struct bt_buffer *inputs, const char *program, struct bt_error *error)
{
    char path[512], digest[BT_DIGEST_TEXT_SIZE];
    int result = bt_program_path(program, path, error);
    if (result == 0)
        result = bt_digest_file(path, digest, error);
    return result < 0 ? result : bt_buffer_add_format(inputs, "%s %s\n", program, digest);
}

/* What an image on top of another one is made from besides its recipe. */
static int add_layer_digests(struct bt_buffer *inputs, const struct bt_recipe *recipe, struct bt_error *error)
{
    BT_CLEANUP(build_free) struct build base = {0};
    int result = build_prepare(recipe->base, true, &base, error);
    if (result == 0)
        result = bt_buffer_add_format(inputs, "base %s\n", base.digest);
    return result < 0 ? result : bt_npm_add_digests(recipe, inputs, error);
}

static int compute_digests(struct build *build, struct bt_error *error)
{
    const struct bt_recipe *recipe = &build->recipe;
    const char *architecture = bt_recipe_architecture();
    bt_auto_buffer inputs = {0};
    if (architecture == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOTSUP, NULL, "images are built on amd64 and arm64 only");
    int result = bt_buffer_add_format(&inputs, "writer %d\narchitecture %s\nsuite %s\n", WRITER_VERSION,
                                      architecture, recipe->suite == NULL ? "-" : recipe->suite);
    if (result == 0)
        result = bt_buffer_add(&inputs, recipe->text.data, recipe->text.length);
    if (result == 0 && build->sources_text.length > 0)
        result = bt_buffer_add(&inputs, build->sources_text.data, build->sources_text.length);
    if (result == 0)
        bt_digest_bytes(inputs.data, inputs.length, build->packages_digest);
    if (result == 0 && recipe->init != NULL)
        result = add_program_digest(&inputs, recipe->init, error);
    for (size_t i = 0; result == 0 && i < recipe->programs.count; i++)
        result = add_program_digest(&inputs, recipe->programs.items[i], error);
    if (result == 0 && recipe->base != NULL)
        result = add_layer_digests(&inputs, recipe, error);
    if (result == 0)
        bt_digest_bytes(inputs.data, inputs.length, build->digest);
    return result;
}

static int build_prepare(const char *recipe, bool is_base, struct build *ret_build, struct bt_error *error)
{
    BT_CLEANUP(build_free) struct build build = {0};
    int result = bt_recipe_load(recipe, &build.recipe, error);
    if (result == 0 && is_base && (build.recipe.form != BT_RECIPE_DISK || build.recipe.base != NULL))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "the image %s cannot be the base of another one",
                       recipe);
    if (result == 0 && build.recipe.form != BT_RECIPE_INITRD && build.recipe.base == NULL)
        result = bt_package_sources(&build.sources, &build.sources_text, error);
    if (result == 0)
        result = compute_digests(&build, error);
    if (result < 0)
        return result;
    *ret_build = build;
    memset(&build, 0, sizeof build);
    return 0;
}

/* The package that a kernel is taken from: kept in the cache folder, so that a new berth-init needs no
 * download. */
static int get_kernel_package(const struct bt_paths *paths, const struct build *build, const char *scratch,
                              bool is_fresh, const struct bt_progress *progress, char ret_path[768],
                              struct bt_error *error)
{
    char folder[768], kept[768];
    (void)snprintf(folder, sizeof folder, "%s/packages/%.16s", paths->cache, build->packages_digest);
    if (!is_fresh && bt_package_find(folder, ret_path))
        return 0;
    int result = bt_folder_make(folder, 0700, error);
    if (result == 0)
        result =
            bt_package_download(build->recipe.package, "linux-image-", scratch, progress, ret_path, error);
    if (result < 0)
        return result;
    const char *name = strrchr(ret_path, '/') + 1;
    if (snprintf(kept, sizeof kept, "%s/%s", folder, name) < (int)sizeof kept &&
        bt_package_keep(ret_path, folder, kept) == 0)
        memcpy(ret_path, kept, sizeof kept);
    return 0;
}

static int build_layer(const struct bt_paths *paths, const struct build *build, const char *folder,
                       const struct bt_progress *progress, struct bt_error *error)
{
    struct bt_image base;
    int result = get(paths, build->recipe.base, true, false, progress, &base, error);
    return result < 0 ? result : bt_layer_build(&build->recipe, base.path, folder, progress, error);
}

static int build_into(const struct bt_paths *paths, const struct build *build, const char *folder,
                      bool is_fresh, const struct bt_progress *progress, struct bt_error *error)
{
    char deb_path[768], scratch[768];
    struct bt_error ignored;
    int result;
    switch (build->recipe.form) {
    case BT_RECIPE_INITRD:
        return bt_programs_build(&build->recipe, folder, error);
    case BT_RECIPE_DISK:
        if (build->recipe.base != NULL)
            return build_layer(paths, build, folder, progress, error);
        return bt_disk_build(&build->recipe, &build->sources, folder, progress, error);
    case BT_RECIPE_KERNEL:
        (void)snprintf(scratch, sizeof scratch, "%.700s/download", folder);
        result = bt_folder_make(scratch, 0700, error);
        if (result == 0)
            result = get_kernel_package(paths, build, scratch, is_fresh, progress, deb_path, error);
        if (result == 0)
            result = bt_kernel_build(&build->recipe, deb_path, folder, progress, error);
        (void)bt_tree_remove(scratch, &ignored);
        return result;
    }
    return -EINVAL;
}

/* The lock is held. */
static int build_locked(const struct bt_paths *paths, const struct build *build, bool is_fresh,
                        const struct bt_progress *progress, struct bt_image *ret_image,
                        struct bt_error *error)
{
    const char *name = build->recipe.name;
    char folder[768];
    struct bt_error ignored;
    int result = bt_cache_begin(paths, name, folder, error);
    if (result < 0)
        return result;
    result = build_into(paths, build, folder, is_fresh, progress, error);
    if (result == 0)
        result = bt_cache_commit(paths, name, build->digest, folder, error);
    if (result < 0) {
        (void)bt_tree_remove(folder, &ignored);
        return bt_error_prefix(error, "cannot build the image %s", name);
    }
    if (build->recipe.form != BT_RECIPE_DISK)
        bt_cache_prune(paths, name, KEPT_BUILDS);
    if (!bt_cache_find(paths, name, build->digest, ret_image))
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "the image %s vanished from %s", name,
                       paths->images);
    return 0;
}

static int get(const struct bt_paths *paths, const char *recipe, bool may_build, bool is_fresh,
               const struct bt_progress *progress, struct bt_image *ret_image, struct bt_error *error)
{
    BT_CLEANUP(build_free) struct build build = {0};
    bt_auto_fd lock_fd = -1;
    int result = build_prepare(recipe, false, &build, error);
    if (result < 0)
        return result;
    if (!is_fresh && bt_cache_find(paths, recipe, build.digest, ret_image))
        return 0;
    if (!may_build) {
        bt_auto_free char *hint = bt_string_format("run 'berth image build %s'", recipe);
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, hint, "the image %s is not built", recipe);
    }
    result = bt_cache_lock(paths, recipe, progress, &lock_fd, error);
    if (result < 0)
        return result;
    /* Somebody else may have built it while we waited. */
    if (!is_fresh && bt_cache_find(paths, recipe, build.digest, ret_image))
        return 0;
    return build_locked(paths, &build, is_fresh, progress, ret_image, error);
}

int bt_image_get(const struct bt_paths *paths, const char *recipe, bool is_build_allowed,
                 const struct bt_progress *progress, struct bt_image *ret_image, struct bt_error *error)
{
    const char *at = strchr(recipe, '@');
    if (at != NULL) {
        bt_auto_free char *name = bt_string_copy_length(recipe, (size_t)(at - recipe));
        return bt_image_find(paths, name, at + 1, ret_image, error);
    }
    return get(paths, recipe, is_build_allowed, false, progress, ret_image, error);
}

int bt_image_build(const struct bt_paths *paths, const char *recipe, const struct bt_progress *progress,
                   struct bt_image *ret_image, struct bt_error *error)
{
    return get(paths, recipe, true, true, progress, ret_image, error);
}

int bt_image_find(const struct bt_paths *paths, const char *recipe, const char *digest,
                  struct bt_image *ret_image, struct bt_error *error)
{
    if (strlen(digest) == BT_DIGEST_TEXT_SIZE - 1 && strchr(recipe, '/') == NULL &&
        strchr(digest, '/') == NULL && bt_cache_find(paths, recipe, digest, ret_image))
        return 0;
    return bt_fail(error, BT_EXIT_ERROR, ENOENT,
                   "it was removed; what was built on it cannot be started again",
                   "there is no image %.60s with the digest %.12s", recipe, digest);
}
