/* A full disk: the ext4 writer on a small tmpfs in a mount namespace of this test. Each attempt must say that
 * the disk is full, and leave it as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "images/archive.h"
#include "images/images.h"
#include "tests/lib/test_folder.h"

#define MEBIBYTE (1024ULL * 1024)

static char folder[300];

static void write_map(const char *path, const char *text)
{
    bt_auto_fd map_fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(map_fd >= 0);
    assert_int_equal(bt_write_all(map_fd, text, strlen(text)), 0);
}

/* Root of a user namespace when it is not root already. */
static int setup(void **state)
{
    (void)state;
    char uid_map[64], gid_map[64];
    (void)snprintf(uid_map, sizeof uid_map, "0 %u 1", (unsigned)geteuid());
    (void)snprintf(gid_map, sizeof gid_map, "0 %u 1", (unsigned)getegid());
    test_folder_make(folder, sizeof folder);
    if (geteuid() != 0) {
        assert_int_equal(unshare(CLONE_NEWUSER | CLONE_NEWNS), 0);
        write_map("/proc/self/setgroups", "deny");
        write_map("/proc/self/uid_map", uid_map);
        write_map("/proc/self/gid_map", gid_map);
    } else {
        assert_int_equal(unshare(CLONE_NEWNS), 0);
    }
    assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    assert_int_equal(mount("space", folder, "tmpfs", 0, "size=3m"), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(umount(folder), 0);
    return rmdir(folder);
}

static uint64_t free_bytes(void)
{
    struct statvfs status;
    assert_int_equal(statvfs(folder, &status), 0);
    return (uint64_t)status.f_bfree * status.f_frsize;
}

static int make_tar(size_t length)
{
    int tar_fd = memfd_create("tar", MFD_CLOEXEC);
    bt_auto_free char *data = bt_new(length, 1);
    struct archive *tar = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    memset(data, 'x', length);
    archive_write_set_format_pax(tar);
    assert_int_equal(archive_write_open_fd(tar, tar_fd), ARCHIVE_OK);
    archive_entry_set_pathname(entry, "large");
    archive_entry_set_mode(entry, AE_IFREG | 0644);
    archive_entry_set_size(entry, (la_int64_t)length);
    assert_int_equal(archive_write_header(tar, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(tar, data, length), (la_ssize_t)length);
    archive_entry_free(entry);
    assert_int_equal(archive_write_close(tar), ARCHIVE_OK);
    (void)archive_write_free(tar);
    assert_int_equal(lseek(tar_fd, 0, SEEK_SET), 0);
    return tar_fd;
}

static void t_space_full_disk_stops_the_writer(void **state)
{
    (void)state;
    char path[320];
    uint64_t before = free_bytes();
    (void)snprintf(path, sizeof path, "%s/image", folder);
    /* Sizes around the limit, so that contents, or only the last metadata, do not fit. */
    for (size_t length = 2 * MEBIBYTE; length <= 5 * MEBIBYTE; length += MEBIBYTE / 4) {
        struct bt_error error = {0};
        bt_auto_fd tar_fd = make_tar(length);
        int result = bt_ext4_from_tar(tar_fd, path, 64 * MEBIBYTE, "space", NULL, &error);
        if (length < 3 * MEBIBYTE - MEBIBYTE / 2) {
            assert_int_equal(result, 0);
            assert_int_equal(unlink(path), 0);
        } else if (length > 3 * MEBIBYTE || result < 0) {
            assert_int_equal(result, -ENOSPC);
            assert_non_null(strstr(error.message, "is full"));
            assert_non_null(strstr(error.hint, "free some space"));
            assert_int_equal(access(path, F_OK), -1);
        } else {
            assert_int_equal(unlink(path), 0);
        }
        assert_int_equal(free_bytes(), before);
    }
}

static void t_space_full_disk_makes_no_empty_disk(void **state)
{
    (void)state;
    char path[320], filler[320];
    struct bt_error error = {0};
    (void)snprintf(path, sizeof path, "%s/empty", folder);
    (void)snprintf(filler, sizeof filler, "%s/filler", folder);
    bt_auto_fd filler_fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(filler_fd >= 0);
    assert_int_equal(posix_fallocate(filler_fd, 0, (off_t)(free_bytes() - 32 * 1024)), 0);
    uint64_t before = free_bytes();
    assert_int_equal(bt_ext4_make_empty(path, 1024 * MEBIBYTE, "space", &error), -ENOSPC);
    assert_non_null(strstr(error.message, "is full"));
    assert_int_equal(free_bytes(), before);
    assert_int_equal(unlink(filler), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_space_full_disk_stops_the_writer),
        cmocka_unit_test(t_space_full_disk_makes_no_empty_disk),
    };
    return cmocka_run_group_tests_name("image-space", tests, setup, teardown);
}
