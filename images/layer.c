/* Builds a disk on top of another one. See layer.h.
 *
 * Called by the image cache. The new files pass through tar(1), which makes root their owner, and then
 * through the same writer as everything else.
 */
#include "images/layer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "images/disk.h"
#include "images/ext4_tar.h"
#include "images/npm.h"
#include "images/package.h"
#include "images/producer.h"

static int start_tar(const char *root, const struct bt_progress *progress, struct bt_producer *ret_producer,
                     struct bt_error *error)
{
    const char *const arguments[] = {"tar",
                                     "--create",
                                     "--format=pax",
                                     "--sort=name",
                                     "--owner=0",
                                     "--group=0",
                                     "--numeric-owner",
                                     "--mode=u+rwX,go+rX,go-w",
                                     "--mtime=@946684800",
                                     "--pax-option=delete=atime,delete=ctime",
                                     "-C",
                                     root,
                                     "opt",
                                     "usr",
                                     NULL};
    bt_auto_list environment = {0};
    bt_package_environment(NULL, &environment);
    return bt_producer_start(arguments, (const char *const *)environment.items, -1, progress, ret_producer,
                             error);
}

static int write_image(const struct bt_recipe *recipe, const char *base, struct bt_producer *producer,
                       const char *path, const struct bt_progress *progress, struct bt_error *error)
{
    size_t count = recipe->files.count / 2;
    bt_auto_free struct bt_ext4_addition *additions = bt_new(count + 1, sizeof *additions);
    const struct bt_ext4_rules rules = {
        .exclude = (const char *const *)recipe->exclude.items,
        .exclude_count = recipe->exclude.count,
        .drops_privilege = true,
        .additions = additions,
        .addition_count = count,
        .base = base,
    };
    for (size_t i = 0; i < count; i++)
        additions[i] = (struct bt_ext4_addition){recipe->files.items[2 * i], recipe->files.items[2 * i + 1]};
    bt_auto_archive *archive = archive_read_new();
    if (archive == NULL)
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot read the archive: out of memory");
    (void)archive_read_support_format_tar(archive);
    if (bt_producer_open_archive(producer, archive) != ARCHIVE_OK)
        return bt_fail(error, BT_EXIT_ERROR, bt_archive_errno(archive), NULL, "cannot read the archive: %s",
                       archive_error_string(archive));
    int result = bt_ext4_write_archive(archive, path, 0, recipe->name, &rules, progress, error);
    if (result == 0)
        bt_producer_drain(producer);
    return result;
}

int bt_layer_build(const struct bt_recipe *recipe, const char *base, const char *folder,
                   const struct bt_progress *progress, struct bt_error *error)
{
    char path[800], root[800];
    struct bt_error ignored;
    bt_auto_free struct bt_producer *producer = bt_new(1, sizeof *producer);
    (void)snprintf(path, sizeof path, "%s/" BT_DISK_FILE, folder);
    (void)snprintf(root, sizeof root, "%s/root", folder);
    int result = bt_folder_make(root, 0700, error);
    if (result == 0)
        result = bt_npm_install(recipe, root, progress, error);
    if (result == 0)
        result = start_tar(root, progress, producer, error);
    if (result == 0) {
        result = write_image(recipe, base, producer, path, progress, error);
        bool is_stopped = !producer->is_ended;
        int status = bt_producer_end(producer);
        if (status != 0 && !is_stopped)
            result = bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "tar failed with status %d: %.600s", status,
                             producer->tail);
    }
    (void)bt_tree_remove(root, &ignored);
    return result;
}
