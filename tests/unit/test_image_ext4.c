/* The ext4 writer: what goes in as tar must come out of the image, read by e2fsprogs and not by our own code.
 * Bad archives are refused and leave nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "images/archive.h"
#include "images/ext4_tar.h"
#include "images/images.h"
#include "tests/lib/image_tools.h"
#include "tests/lib/test_folder.h"

#define MEBIBYTE (1024ULL * 1024)

struct world {
    char folder[256];
    char image[300];
    struct archive *tar;
    int tar_fd; /* the archive under construction */
};

static int setup(void **state)
{
    struct world *world = bt_new(1, sizeof *world);
    test_folder_make(world->folder, sizeof world->folder);
    (void)snprintf(world->image, sizeof world->image, "%s/disk.ext4", world->folder);
    world->tar_fd = memfd_create("tar", MFD_CLOEXEC);
    world->tar = archive_write_new();
    assert_int_equal(archive_write_set_format_pax(world->tar), ARCHIVE_OK);
    assert_int_equal(archive_write_open_fd(world->tar, world->tar_fd), ARCHIVE_OK);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    struct bt_error error;
    bt_archive_free(&world->tar);
    bt_fd_close(&world->tar_fd);
    assert_int_equal(bt_tree_remove(world->folder, &error), 0);
    free(world);
    return 0;
}

/* An entry of the archive; change what differs before add_entry. */
static struct archive_entry *new_entry(const char *path, mode_t mode)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, path);
    archive_entry_set_mode(entry, mode);
    archive_entry_set_mtime(entry, 1700000000, 123456789);
    return entry;
}

static void add_entry(struct world *world, struct archive_entry *entry, const void *data, size_t length)
{
    archive_entry_set_size(entry, (la_int64_t)length);
    assert_int_equal(archive_write_header(world->tar, entry), ARCHIVE_OK);
    if (length > 0)
        assert_int_equal(archive_write_data(world->tar, data, length), (la_ssize_t)length);
    archive_entry_free(entry);
}

static void add_text(struct world *world, const char *path, mode_t mode, const char *text)
{
    add_entry(world, new_entry(path, S_IFREG | mode), text, strlen(text));
}

static void add_link(struct world *world, const char *path, const char *symlink, const char *hardlink)
{
    struct archive_entry *entry = new_entry(path, symlink == NULL ? S_IFREG | 0644 : S_IFLNK | 0777);
    if (symlink != NULL)
        archive_entry_set_symlink(entry, symlink);
    else
        archive_entry_set_hardlink(entry, hardlink);
    add_entry(world, entry, NULL, 0);
}

static int convert(struct world *world, uint64_t size, struct bt_error *error)
{
    (void)archive_write_close(world->tar);
    assert_int_equal(lseek(world->tar_fd, 0, SEEK_SET), 0);
    return bt_ext4_from_tar(world->tar_fd, world->image, size, "test", NULL, error);
}

static size_t count_files(const char *folder)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, NULL);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return count < 2 ? 0 : (size_t)count - 2;
}

static void assert_refused(struct world *world, const char *expected)
{
    struct bt_error error = {0};
    assert_true(convert(world, 8 * MEBIBYTE, &error) < 0);
    if (strstr(error.message, expected) == NULL)
        fail_msg("no '%s' in: %s", expected, error.message);
    assert_int_equal(count_files(world->folder), 0);
}

static void t_ext4_keeps_contents(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    size_t length = 5 * MEBIBYTE + 1234;
    bt_auto_free uint8_t *data = bt_new(length, 1);
    for (size_t i = 0; i < length; i++) /* a megabyte of it zeros */
        data[i] = i / MEBIBYTE == 2 ? 0 : (uint8_t)(i * 7 + i / 4096);
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8")); /* to write the names; reading must do without */
    add_entry(world, new_entry("./a/b/big", S_IFREG | 0600), data, length);
    add_text(world, "./empty", 0644, "");
    add_text(world, "name with \xc5\x91 letter", 0644, "utf-8");
    assert_non_null(setlocale(LC_CTYPE, "C"));
    assert_int_equal(convert(world, 64 * MEBIBYTE, &error), 0);
    assert_image_clean(world->image);
    char copy[300], command[400], expected[BT_DIGEST_TEXT_SIZE], found[BT_DIGEST_TEXT_SIZE];
    (void)snprintf(copy, sizeof copy, "%s/copy", world->folder);
    (void)snprintf(command, sizeof command, "dump /a/b/big %s", copy);
    free(debugfs(world->image, command));
    bt_digest_bytes(data, length, expected);
    assert_int_equal(bt_digest_file(copy, found, &error), 0);
    assert_string_equal(found, expected);
    assert_debugfs(world->image, "stat /empty", "Size: 0");
    assert_debugfs(world->image, "cat \"/name with \xc5\x91 letter\"", "utf-8");
}

static void t_ext4_keeps_owners_modes_and_times(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    struct archive_entry *entry = new_entry("bin/su", S_IFREG | 06755);
    archive_entry_set_uid(entry, 100123);
    archive_entry_set_gid(entry, 200456);
    add_entry(world, entry, "x", 1);
    entry = new_entry("./", S_IFDIR | 0750);
    archive_entry_set_uid(entry, 1000);
    add_entry(world, entry, NULL, 0);
    entry = new_entry("future", S_IFREG | 0644);
    archive_entry_set_mtime(entry, 4400000000, 0); /* beyond 32 bits */
    add_entry(world, entry, NULL, 0);
    assert_int_equal(convert(world, 16 * MEBIBYTE, &error), 0);
    assert_image_clean(world->image);
    assert_debugfs(world->image, "stat /bin/su", "Mode:  06755");
    assert_debugfs(world->image, "stat /bin/su", "User: 100123   Group: 200456");
    assert_debugfs(world->image, "stat /bin/su", "mtime: 0x6553f100:1d6f3454");
    assert_debugfs(world->image, "stat /", "Mode:  0750");
    assert_debugfs(world->image, "stat /", "User:  1000");
    assert_debugfs(world->image, "stat /bin", "Mode:  0755");
    assert_debugfs(world->image, "stat /future", "2109");
}

static void t_ext4_keeps_links(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char target[200];
    memset(target, 'x', sizeof target - 1);
    target[sizeof target - 1] = '\0';
    add_text(world, "first", 0644, "shared");
    add_link(world, "dir/second", NULL, "./first");
    add_link(world, "dir/third", NULL, "dir/second");
    add_link(world, "short", "../first", NULL);
    add_link(world, "long", target, NULL);
    assert_int_equal(convert(world, 16 * MEBIBYTE, &error), 0);
    assert_image_clean(world->image);
    assert_debugfs(world->image, "cat /dir/third", "shared");
    assert_debugfs(world->image, "stat /dir/third", "Links: 3");
    assert_debugfs(world->image, "stat /short", "Fast link dest: \"../first\"");
    assert_debugfs(world->image, "cat /long", target);
}

static void t_ext4_keeps_device_nodes(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    struct archive_entry *entry = new_entry("dev/null", S_IFCHR | 0666);
    archive_entry_set_rdev(entry, makedev(1, 3));
    add_entry(world, entry, NULL, 0);
    entry = new_entry("dev/disk", S_IFBLK | 0660);
    archive_entry_set_rdev(entry, makedev(259, 70000));
    add_entry(world, entry, NULL, 0);
    add_entry(world, new_entry("dev/pipe", S_IFIFO | 0600), NULL, 0);
    assert_int_equal(convert(world, 16 * MEBIBYTE, &error), 0);
    assert_image_clean(world->image);
    assert_debugfs(world->image, "stat /dev/null", "Type: character special");
    assert_debugfs(world->image, "stat /dev/null", "01:03");
    assert_debugfs(world->image, "stat /dev/disk", "259:70000");
    assert_debugfs(world->image, "stat /dev/pipe", "Type: FIFO");
}

static void t_ext4_keeps_extended_attributes(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    static const uint8_t capability[20] = {1, 0, 0, 2, 0, 32};
    /* As acl(5) has it in attributes: version 2, then tag, permissions and id of each entry. user::rw-
     * user:1000:r-- group::r-- mask::r-- other::--- */
    static const uint8_t acl[44] = {2, 0,   0,   0,   1,   0,   6,  0, 255, 255, 255, 255, 2,   0,  4,
                                    0, 232, 3,   0,   0,   4,   0,  4, 0,   255, 255, 255, 255, 16, 0,
                                    4, 0,   255, 255, 255, 255, 32, 0, 0,   0,   255, 255, 255, 255};
    char large[2000];
    memset(large, 'v', sizeof large);
    struct archive_entry *entry = new_entry("ping", S_IFREG | 0755);
    archive_entry_xattr_add_entry(entry, "security.capability", capability, sizeof capability);
    archive_entry_xattr_add_entry(entry, "user.large", large, sizeof large);
    archive_entry_xattr_add_entry(entry, "system.posix_acl_access", acl, sizeof acl);
    add_entry(world, entry, "x", 1);
    assert_int_equal(convert(world, 16 * MEBIBYTE, &error), 0);
    assert_image_clean(world->image);
    assert_debugfs(world->image, "ea_get -x /ping security.capability", "01 00 00 02 00 20 00 00");
    assert_debugfs(world->image, "ea_list /ping", "user.large (2000)");
    assert_debugfs(world->image, "ea_get -x /ping system.posix_acl_access", "02 00 00 00 01 00 06 00");
}

static void t_ext4_fills_large_folders(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    for (int i = 0; i < 3000; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "folder/a-name-that-takes-some-room-in-its-folder-%06d", i);
        add_text(world, path, 0644, "x");
    }
    assert_int_equal(convert(world, 64 * MEBIBYTE, &error), 0);
    assert_image_clean(world->image);
    assert_debugfs(world->image, "cat /folder/a-name-that-takes-some-room-in-its-folder-002999", "x");
}

static void t_ext4_is_reproducible(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char second[300], digests[2][BT_DIGEST_TEXT_SIZE];
    add_text(world, "a/file", 0644, "text");
    assert_int_equal(convert(world, 16 * MEBIBYTE, &error), 0);
    struct timespec wait = {.tv_sec = 1, .tv_nsec = 10000000};
    assert_int_equal(nanosleep(&wait, NULL), 0);
    (void)snprintf(second, sizeof second, "%s/second", world->folder);
    assert_int_equal(lseek(world->tar_fd, 0, SEEK_SET), 0);
    assert_int_equal(bt_ext4_from_tar(world->tar_fd, second, 16 * MEBIBYTE, "test", NULL, &error), 0);
    assert_int_equal(bt_digest_file(world->image, digests[0], &error), 0);
    assert_int_equal(bt_digest_file(second, digests[1], &error), 0);
    assert_string_equal(digests[0], digests[1]);
}

static void t_ext4_follows_rules(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    static const char *const exclude[] = {"usr/share/doc/*", "secret"};
    static const struct bt_ext4_addition additions[] = {{"etc/passwd", "agent:x:1000:1000\n"},
                                                        {"new/file", "new\n"}};
    static const struct bt_ext4_folder folders[] = {{"home/agent", 1000, 1000, 0755}};
    const struct bt_ext4_rules rules = {exclude, 2, true, additions, 2, folders, 1, NULL};
    struct archive_entry *entry = new_entry("ping", S_IFREG | 04755);
    archive_entry_xattr_add_entry(entry, "security.capability", "12345678", 8);
    add_entry(world, entry, "x", 1);
    add_text(world, "usr/share/doc/git/README", 0644, "long");
    add_text(world, "secret/key", 0600, "k");
    add_text(world, "etc/passwd", 0640, "root:x:0:0\n");
    (void)archive_write_close(world->tar);
    assert_int_equal(lseek(world->tar_fd, 0, SEEK_SET), 0);
    bt_auto_archive *archive = archive_read_new();
    (void)archive_read_support_format_tar(archive);
    assert_int_equal(archive_read_open_fd(archive, world->tar_fd, 10240), ARCHIVE_OK);
    assert_int_equal(
        bt_ext4_write_archive(archive, world->image, 16 * MEBIBYTE, "test", &rules, NULL, &error), 0);
    assert_image_clean(world->image);
    assert_debugfs(world->image, "stat /ping", "Mode:  0755");
    bt_auto_free char *attributes = debugfs(world->image, "ea_list /ping");
    assert_null(strstr(attributes, "security.capability"));
    assert_debugfs(world->image, "cat /etc/passwd", "root:x:0:0\nagent:x:1000:1000\n");
    assert_debugfs(world->image, "stat /etc/passwd", "Mode:  0640");
    assert_debugfs(world->image, "cat /new/file", "new\n");
    assert_debugfs(world->image, "stat /home/agent", "User:  1000   Group:  1000");
    bt_auto_free char *root = debugfs(world->image, "ls -p /");
    assert_null(strstr(root, "secret"));
    bt_auto_free char *doc = debugfs(world->image, "ls -p /usr/share");
    assert_null(strstr(doc, "README"));
}

static void t_ext4_refuses_parent_names(void **state)
{
    add_text(*state, "a/../../etc/passwd", 0644, "x");
    assert_refused(*state, "contains '..'");
}

static void t_ext4_refuses_absolute_names(void **state)
{
    add_text(*state, "/etc/passwd", 0644, "x");
    assert_refused(*state, "absolute");
}

static void t_ext4_refuses_paths_through_links(void **state)
{
    add_link(*state, "lib", "usr/lib", NULL);
    add_text(*state, "lib/file", 0644, "x");
    assert_refused(*state, "symbolic link");
}

static void t_ext4_refuses_paths_below_files(void **state)
{
    add_text(*state, "file", 0644, "x");
    add_text(*state, "file/below", 0644, "x");
    assert_refused(*state, "no folder");
}

static void t_ext4_refuses_doubles(void **state)
{
    add_text(*state, "file", 0644, "x");
    add_text(*state, "./file", 0644, "y");
    assert_refused(*state, "comes twice");
}

static void t_ext4_refuses_dangling_hard_links(void **state)
{
    add_link(*state, "link", NULL, "missing");
    assert_refused(*state, "not in the image");
}

static void t_ext4_refuses_hard_links_to_folders(void **state)
{
    add_entry(*state, new_entry("folder", S_IFDIR | 0755), NULL, 0);
    add_link(*state, "link", NULL, "folder");
    assert_refused(*state, "hard link to a folder");
}

static void t_ext4_refuses_what_does_not_fit(void **state)
{
    size_t length = 9 * MEBIBYTE;
    bt_auto_free char *data = bt_new(length, 1);
    memset(data, 'x', length);
    add_entry(*state, new_entry("large", S_IFREG | 0644), data, length);
    assert_refused(*state, "too small");
}

static void t_ext4_refuses_too_many_files(void **state)
{
    for (int i = 0; i < 600; i++) {
        char path[32];
        (void)snprintf(path, sizeof path, "%d", i);
        add_text(*state, path, 0644, "");
    }
    assert_refused(*state, "too small");
}

static void t_ext4_refuses_truncated_archives(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char data[20000];
    memset(data, 'x', sizeof data);
    add_entry(world, new_entry("file", S_IFREG | 0644), data, sizeof data);
    (void)archive_write_close(world->tar);
    assert_int_equal(ftruncate(world->tar_fd, 9000), 0);
    assert_int_equal(lseek(world->tar_fd, 0, SEEK_SET), 0);
    assert_true(bt_ext4_from_tar(world->tar_fd, world->image, 8 * MEBIBYTE, "test", NULL, &error) < 0);
    assert_int_equal(count_files(world->folder), 0);
}

static void t_ext4_refuses_what_is_no_archive(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    bt_auto_fd empty_fd = memfd_create("empty", MFD_CLOEXEC);
    assert_true(bt_ext4_from_tar(empty_fd, world->image, 8 * MEBIBYTE, "test", NULL, &error) < 0);
    assert_int_equal(count_files(world->folder), 0);
}

static void t_ext4_makes_empty_disks(void **state)
{
    struct world *world = *state;
    static const uint64_t sizes[] = {MEBIBYTE, 5 * MEBIBYTE + 777, 64 * MEBIBYTE, 1024 * MEBIBYTE,
                                     16384 * MEBIBYTE};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(sizes); i++) {
        struct bt_error error = {0};
        struct stat status;
        assert_int_equal(bt_ext4_make_empty(world->image, sizes[i], "scratch", &error), 0);
        assert_int_equal(stat(world->image, &status), 0);
        assert_int_equal(status.st_size, sizes[i]);
        assert_int_equal(status.st_mode & 07777, 0600);
        assert_true(status.st_blocks * 512 < (blkcnt_t)(2 * MEBIBYTE));
        assert_image_clean(world->image);
        assert_debugfs(world->image, "show_super_stats -h", "scratch");
        if (sizes[i] >= 64 * MEBIBYTE)
            assert_debugfs(world->image, "show_super_stats -h", "has_journal");
        assert_int_equal(count_files(world->folder), 1);
        assert_int_equal(unlink(world->image), 0);
    }
}

static void t_ext4_refuses_bad_empty_disks(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    assert_int_equal(bt_ext4_make_empty(world->image, 1000, "x", &error), -EINVAL);
    assert_int_equal(bt_ext4_make_empty(world->image, UINT64_MAX, "x", &error), -EINVAL);
    assert_int_equal(bt_ext4_make_empty("/nonexistent-folder/x", MEBIBYTE, "x", &error), -ENOENT);
    assert_int_equal(bt_ext4_make_empty(world->image, MEBIBYTE, "x", &error), 0);
    assert_int_equal(bt_ext4_make_empty(world->image, MEBIBYTE, "x", &error), -EEXIST);
    assert_image_clean(world->image);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(t_ext4_keeps_contents),
        TEST(t_ext4_keeps_owners_modes_and_times),
        TEST(t_ext4_keeps_links),
        TEST(t_ext4_keeps_device_nodes),
        TEST(t_ext4_keeps_extended_attributes),
        TEST(t_ext4_fills_large_folders),
        TEST(t_ext4_is_reproducible),
        TEST(t_ext4_follows_rules),
        TEST(t_ext4_refuses_parent_names),
        TEST(t_ext4_refuses_absolute_names),
        TEST(t_ext4_refuses_paths_through_links),
        TEST(t_ext4_refuses_paths_below_files),
        TEST(t_ext4_refuses_doubles),
        TEST(t_ext4_refuses_dangling_hard_links),
        TEST(t_ext4_refuses_hard_links_to_folders),
        TEST(t_ext4_refuses_what_does_not_fit),
        TEST(t_ext4_refuses_too_many_files),
        TEST(t_ext4_refuses_truncated_archives),
        TEST(t_ext4_refuses_what_is_no_archive),
        TEST(t_ext4_makes_empty_disks),
        TEST(t_ext4_refuses_bad_empty_disks),
    };
    return cmocka_run_group_tests_name("ext4", tests, NULL, NULL);
}
