/* The image cache on disk. See cache.h. */
#include "images/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "images/disk.h"
#include "images/kernel.h"
#include "images/progress.h"
#include "images/scratch.h"

#define BUILDING ".building-"

/* Splits "<recipe>-<64 hex digits>". */
static bool parse_entry(const char *name, struct bt_image *ret_image)
{
    const size_t digits = BT_DIGEST_TEXT_SIZE - 1;
    size_t length = strlen(name);
    if (name[0] == '.' || length < digits + 2 || length - digits - 1 >= sizeof ret_image->name)
        return false;
    const char *digest = name + length - digits;
    if (digest[-1] != '-' || strspn(digest, "0123456789abcdef") != digits)
        return false;
    memcpy(ret_image->name, name, length - digits - 1);
    ret_image->name[length - digits - 1] = '\0';
    memcpy(ret_image->digest, digest, digits + 1);
    return true;
}

static bool add_file(struct bt_image *image, const char *folder, const char *name, char path[768])
{
    struct stat status;
    if (snprintf(path, 768, "%s/%s", folder, name) >= 768 || stat(path, &status) < 0 ||
        !S_ISREG(status.st_mode)) {
        path[0] = '\0';
        return false;
    }
    image->size_bytes += (uint64_t)status.st_size;
    image->disk_bytes += (uint64_t)status.st_blocks * 512;
    image->built_seconds = status.st_mtime;
    return true;
}

/* name and digest are set; the rest comes from the files of the entry. */
static bool read_entry(const char *images, struct bt_image *image)
{
    char folder[768];
    if (snprintf(folder, sizeof folder, "%s/%s-%s", images, image->name, image->digest) >= (int)sizeof folder)
        return false;
    if (add_file(image, folder, BT_DISK_FILE, image->path))
        return true;
    if (add_file(image, folder, BT_KERNEL_FILE, image->path))
        return add_file(image, folder, BT_INITRD_FILE, image->initrd_path);
    return add_file(image, folder, BT_INITRD_FILE, image->path);
}

bool bt_cache_find(const struct bt_paths *paths, const char *recipe, const char *digest,
                   struct bt_image *ret_image)
{
    struct bt_image image = {0};
    (void)snprintf(image.name, sizeof image.name, "%s", recipe);
    (void)snprintf(image.digest, sizeof image.digest, "%s", digest);
    if (!read_entry(paths->images, &image))
        return false;
    *ret_image = image;
    return true;
}

static int open_lock(const struct bt_paths *paths, const char *recipe)
{
    char path[768];
    (void)snprintf(path, sizeof path, "%s/.lock-%s", paths->images, recipe);
    int lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return lock_fd < 0 ? -errno : lock_fd;
}

/* Images hold no secrets and may be read by whoever reaches them (a demo builds them under another id); what
 * lies above belongs to the user. */
static int make_images_folder(const struct bt_paths *paths, struct bt_error *error)
{
    const char *slash = strrchr(paths->images, '/');
    bt_auto_free char *above =
        slash == NULL ? NULL : bt_string_copy_length(paths->images, (size_t)(slash - paths->images));
    int result = above == NULL || above[0] == '\0' ? 0 : bt_folder_make(above, 0700, error);
    if (result == 0)
        result = bt_folder_make(paths->images, 0755, error);
    return result < 0 ? result : bt_folder_make_own(paths->images, error);
}

int bt_cache_lock(const struct bt_paths *paths, const char *recipe, const struct bt_progress *progress,
                  int *ret_lock_fd, struct bt_error *error)
{
    int result = make_images_folder(paths, error);
    if (result < 0)
        return result;
    bt_auto_fd lock_fd = open_lock(paths, recipe);
    if (lock_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, -lock_fd, NULL, "cannot make a lock in %s: %s", paths->images,
                       strerror(-lock_fd));
    if (flock(lock_fd, LOCK_EX | LOCK_NB) < 0) {
        bt_auto_free char *step = bt_string_format("waiting for another build of %s", recipe);
        bt_progress_report(progress, step, 0, 0);
        while (flock(lock_fd, LOCK_EX) < 0) {
            if (errno != EINTR)
                return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot lock %s: %s", paths->images,
                               strerror(errno));
        }
    }
    *ret_lock_fd = bt_fd_take(&lock_fd);
    return 0;
}

int bt_cache_begin(const struct bt_paths *paths, const char *recipe, char ret_folder[768],
                   struct bt_error *error)
{
    char folder[768];
    (void)snprintf(folder, sizeof folder, "%s/" BUILDING "%s", paths->images, recipe);
    bt_scratch_remove(folder);
    int result = bt_tree_remove(folder, error);
    if (result == 0)
        result = bt_folder_make(folder, 0755, error);
    if (result == 0)
        memcpy(ret_folder, folder, sizeof folder);
    return result;
}

int bt_cache_commit(const struct bt_paths *paths, const char *recipe, const char *digest, const char *folder,
                    struct bt_error *error)
{
    static const char *const files[] = {BT_DISK_FILE, BT_KERNEL_FILE, BT_INITRD_FILE};
    char target[768];
    int result = chmod(folder, 0755) < 0 ? -errno : 0; /* whatever the umask was */
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(files); i++) {
        (void)snprintf(target, sizeof target, "%.740s/%s", folder, files[i]);
        result = chmod(target, 0644) < 0 && errno != ENOENT ? -errno : 0;
    }
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot open up the modes in %s: %s", folder,
                       strerror(-result));
    (void)snprintf(target, sizeof target, "%s/%s-%s", paths->images, recipe, digest);
    if (rename(folder, target) == 0)
        return 0;
    /* The same image again: exchanged in one step, so that there is never none. */
    if ((errno == EEXIST || errno == ENOTEMPTY) &&
        renameat2(AT_FDCWD, folder, AT_FDCWD, target, RENAME_EXCHANGE) == 0)
        return bt_tree_remove(folder, error);
    return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot put the image in place at %s: %s", target,
                   strerror(errno));
}

static int compare_images(const void *left, const void *right)
{
    const struct bt_image *a = left, *b = right;
    int names = strcmp(a->name, b->name);
    if (names != 0)
        return names;
    return (a->built_seconds < b->built_seconds) - (a->built_seconds > b->built_seconds);
}

/* What a builder that was killed left behind: its lock is free. */
static void sweep(const struct bt_paths *paths, const char *entry)
{
    char path[768];
    struct bt_error ignored;
    bt_auto_fd lock_fd = open_lock(paths, entry + sizeof BUILDING - 1);
    if (lock_fd < 0 || flock(lock_fd, LOCK_EX | LOCK_NB) < 0 ||
        snprintf(path, sizeof path, "%s/%s", paths->images, entry) >= (int)sizeof path)
        return;
    bt_scratch_remove(path);
    (void)bt_tree_remove(path, &ignored);
}

int bt_image_list(const struct bt_paths *paths, struct bt_image **ret_images, size_t *ret_count,
                  struct bt_error *error)
{
    bt_auto_free struct bt_image *images = bt_new(1, sizeof *images);
    size_t count = 0;
    const struct dirent *entry;
    DIR *stream = opendir(paths->images);
    if (stream == NULL && errno != ENOENT)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", paths->images,
                       strerror(errno));
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        struct bt_image image = {0};
        if (strncmp(entry->d_name, BUILDING, sizeof BUILDING - 1) == 0)
            sweep(paths, entry->d_name);
        if (!parse_entry(entry->d_name, &image) || !read_entry(paths->images, &image))
            continue;
        struct bt_image *larger = bt_new(count + 1, sizeof *larger);
        memcpy(larger, images, count * sizeof *larger);
        free(images);
        images = larger;
        images[count++] = image;
    }
    if (stream != NULL)
        (void)closedir(stream);
    qsort(images, count, sizeof *images, compare_images);
    *ret_images = BT_TAKE(images);
    *ret_count = count;
    return 0;
}

void bt_cache_prune(const struct bt_paths *paths, const char *recipe, size_t kept)
{
    bt_auto_free struct bt_image *images = NULL;
    struct bt_error ignored;
    size_t count;
    if (bt_image_list(paths, &images, &count, &ignored) < 0)
        return;
    for (size_t i = 0, seen = 0; i < count; i++) {
        if (strcmp(images[i].name, recipe) != 0 || seen++ < kept)
            continue;
        char path[768];
        (void)snprintf(path, sizeof path, "%s/%s-%s", paths->images, images[i].name, images[i].digest);
        (void)bt_tree_remove(path, &ignored);
    }
}
