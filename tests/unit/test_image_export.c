/* The way back from an image to a tar: what is added, what a link takes the place of, and what stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "images/archive.h"
#include "images/export.h"
#include "images/ext4_tar.h"
#include "tests/lib/test_folder.h"

struct world {
    const char *own_folder;
    char folder[256];
    struct bt_image image;
};

static void add(struct archive *archive, const char *path, unsigned type, const char *text)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, path);
    archive_entry_set_mode(entry, type | 0755);
    archive_entry_set_nlink(entry, 1);
    archive_entry_set_size(entry, (la_int64_t)strlen(text));
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(archive, text, strlen(text)), (la_ssize_t)strlen(text));
    archive_entry_free(entry);
}

static void add_hard_link(struct archive *archive, const char *path, const char *target)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, path);
    archive_entry_set_mode(entry, AE_IFREG | 0755);
    archive_entry_set_hardlink(entry, target);
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    archive_entry_free(entry);
}

/* The same files as a tar (for a disk) and as a newc archive (an initrd). */
static int make_archive(int (*set_format)(struct archive *), bool has_hard_links)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    struct archive *archive = archive_write_new();
    assert_true(fd >= 0);
    assert_int_equal(set_format(archive), ARCHIVE_OK);
    assert_int_equal(archive_write_open_fd(archive, fd), ARCHIVE_OK);
    add(archive, "store", AE_IFDIR, "");
    add(archive, "store/bundle", AE_IFREG, "the image's own");
    if (has_hard_links) {
        add_hard_link(archive, "store/second", "store/bundle");
        add_hard_link(archive, "store/third", "store/second");
    }
    add(archive, "store/folder", AE_IFDIR, "");
    add(archive, "store/folder/inside", AE_IFREG, "inside");
    add(archive, "tool", AE_IFREG, "tool");
    add(archive, "ours", AE_IFDIR, "");
    add(archive, "ours/program", AE_IFREG, "the image's own");
    assert_int_equal(archive_write_close(archive), ARCHIVE_OK);
    (void)archive_write_free(archive);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static int setup(void **state)
{
    struct world *world = bt_new(1, sizeof *world);
    test_folder_make(world->folder, sizeof world->folder);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    struct bt_error error;
    assert_int_equal(bt_tree_remove(world->folder, &error), 0);
    free(world);
    return 0;
}

static void make_disk(struct world *world)
{
    struct bt_error error = {0};
    bt_auto_fd tar_fd = make_archive(archive_write_set_format_pax, true);
    bt_auto_archive *tar = archive_read_new();
    (void)snprintf(world->image.path, sizeof world->image.path, "%s/image.ext4", world->folder);
    assert_int_equal(archive_read_support_format_tar(tar), ARCHIVE_OK);
    assert_int_equal(archive_read_open_fd(tar, tar_fd, 65536), ARCHIVE_OK);
    if (bt_ext4_write_archive(tar, world->image.path, 64UL << 20, "test", NULL, NULL, &error) != 0)
        fail_msg("%s", error.message);
}

static void make_initrd(struct world *world)
{
    struct bt_error error = {0};
    static char data[65536];
    bt_auto_fd archive_fd = make_archive(archive_write_set_format_cpio_newc, false);
    (void)snprintf(world->image.path, sizeof world->image.path, "%s/initrd", world->folder);
    ssize_t length = read(archive_fd, data, sizeof data);
    assert_true(length > 0 && length < (ssize_t)sizeof data);
    assert_int_equal(bt_file_write(world->image.path, data, (size_t)length, 0600, &error), 0);
}

/* One line an entry, in the archive's order: "path text", "path/ MODE", "path -> target", "path = other". */
static void list(const struct world *world, const struct bt_image_addition *additions, size_t count,
                 struct bt_buffer *ret_listing)
{
    struct bt_error error = {0};
    struct archive_entry *entry;
    const struct bt_image_export_options options = {
        .additions = additions, .addition_count = count, .own_folder = world->own_folder};
    bt_auto_archive *reader = archive_read_new();
    bt_auto_fd tar_fd = memfd_create("tar", MFD_CLOEXEC);
    if (bt_image_export(&world->image, &options, tar_fd, &error) != 0)
        fail_msg("%s", error.message);
    assert_int_equal(lseek(tar_fd, 0, SEEK_SET), 0);
    assert_int_equal(archive_read_support_format_tar(reader), ARCHIVE_OK);
    assert_int_equal(archive_read_open_fd(reader, tar_fd, 65536), ARCHIVE_OK);
    while (archive_read_next_header(reader, &entry) == ARCHIVE_OK) {
        int added;
        char text[64] = "";
        const char *path = archive_entry_pathname(entry);
        (void)archive_read_data(reader, text, sizeof text - 1);
        if (archive_entry_hardlink(entry) != NULL)
            added = bt_buffer_add_format(ret_listing, "%s = %s\n", path, archive_entry_hardlink(entry));
        else if (archive_entry_filetype(entry) == AE_IFLNK)
            added = bt_buffer_add_format(ret_listing, "%s -> %s\n", path, archive_entry_symlink(entry));
        else if (archive_entry_filetype(entry) == AE_IFDIR)
            added = bt_buffer_add_format(ret_listing, "%s %o\n", path, archive_entry_perm(entry));
        else
            added = bt_buffer_add_format(ret_listing, "%s %s\n", path, text);
        assert_int_equal(added, 0);
    }
}

static const struct bt_image_addition additions[] = {
    {.path = "tmp", .mode = 01777},
    {.path = "store", .mode = 0700},
    {.path = "store/bundle", .link_target = "/run/bundle", .mode = 0777},
    {.path = "store/new", .link_target = "/run/new", .mode = 0777},
    {.path = "store/folder", .link_target = "/run/folder", .mode = 0777},
    {.path = "elsewhere/bundle", .link_target = "/run/bundle", .mode = 0777},
    {.path = "store/bundle/below", .link_target = "/run/bundle", .mode = 0777},
};

static void has(const struct bt_buffer *listing, const char *line)
{
    bt_auto_free char *wanted = bt_string_format("\n%s\n", line);
    if (strstr(listing->data, wanted) == NULL)
        fail_msg("no line '%s' in:%s", line, listing->data);
}

static void check_additions(struct world *world)
{
    bt_auto_buffer listing = {0};
    assert_int_equal(bt_buffer_add_text(&listing, "\n"), 0);
    list(world, additions, BT_ARRAY_LENGTH(additions), &listing);
    has(&listing, "tmp/ 1777");
    has(&listing, "store/ 755"); /* what is there stays as it is */
    has(&listing, "store/bundle -> /run/bundle");
    has(&listing, "store/new -> /run/new");
    has(&listing, "store/folder/ 755"); /* a folder is not replaced, nor what is in it */
    has(&listing, "store/folder/inside inside");
    has(&listing, "tool tool");
    assert_null(strstr(listing.data, "store/bundle the image's own"));
    assert_null(strstr(listing.data, "elsewhere"));
    assert_null(strstr(listing.data, "below"));
}

static void t_disk(void **state)
{
    struct world *world = *state;
    bt_auto_buffer listing = {0};
    make_disk(world);
    check_additions(world);
    assert_int_equal(bt_buffer_add_text(&listing, "\n"), 0);
    list(world, additions, BT_ARRAY_LENGTH(additions), &listing);
    has(&listing, "store/second the image's own"); /* another name of what was replaced */
    has(&listing, "store/third = store/second");
}

static void t_initrd(void **state)
{
    make_initrd(*state);
    check_additions(*state);
}

static void t_nothing_added(void **state)
{
    struct world *world = *state;
    bt_auto_buffer listing = {0};
    make_disk(world);
    assert_int_equal(bt_buffer_add_text(&listing, "\n"), 0);
    list(world, NULL, 0, &listing);
    has(&listing, "store/bundle the image's own");
    has(&listing, "store/second = store/bundle");
    has(&listing, "store/third = store/bundle");
    assert_null(strstr(listing.data, "tmp"));
}

/* Of a folder that is ours alone an image has nothing, be it a folder or a file or a link there. */
static void t_own_folder(void **state)
{
    static const struct bt_image_addition own[] = {
        {.path = "ours", .mode = 0755},
        {.path = "ours/program", .text = "berth's", .mode = 0755},
        {.path = "store/new", .text = "text", .mode = 0644},
    };
    struct world *world = *state;
    bt_auto_buffer listing = {0};
    world->own_folder = "ours";
    make_disk(world);
    assert_int_equal(bt_buffer_add_text(&listing, "\n"), 0);
    list(world, own, BT_ARRAY_LENGTH(own), &listing);
    has(&listing, "ours/ 755");
    has(&listing, "ours/program berth's");
    has(&listing, "store/new text");
    has(&listing, "store/bundle the image's own");
    assert_null(strstr(listing.data, "ours/program the image's own"));
    assert_null(strstr(listing.data, "= ours"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(t_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(t_initrd, setup, teardown),
        cmocka_unit_test_setup_teardown(t_nothing_added, setup, teardown),
        cmocka_unit_test_setup_teardown(t_own_folder, setup, teardown),
    };
    return cmocka_run_group_tests_name("image export", tests, NULL, NULL);
}
