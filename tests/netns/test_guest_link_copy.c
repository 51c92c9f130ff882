/* The guest link against a real SSH server: files in and out, and archives of a hostile guest. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/netns/guest_link_fixture.h"

static void t_tree_of_ten_thousand_files_and_back(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("mkdir -p /tmp/tree && cd /tmp/tree && "
         "for i in $(seq 100); do mkdir $i; for j in $(seq 100); do echo $i.$j > $i/$j; done; done; "
         "ln -s 5/7 link; ln -s missing dangling; mkdir empty; printf x > \"$(printf 'bad\\377name')\"; echo "
         "u > "
         "\"$(printf '\\303\\274mlaut')\"; long=$(head -c 200 /dev/zero | tr '\\0' n); mkdir -p $long/$long; "
         "echo deep > "
         "$long/$long/$long; echo '#!' > run; chmod 755 run; chmod 600 5/5; mkfifo pipe; printf 'a\\nb' > "
         "'new\nline'; "
         "touch -d 2001-02-03T04:05:06 old; mkdir -m 777 /tmp/guest");
    if (bt_guest_copy_in(link, "/tmp/tree", "/tmp/guest/tree", 1000, 1000, &error) < 0)
        fail_msg("%s", error.message);
    here("rm /tmp/tree/pipe; diff -r --no-dereference /tmp/tree /tmp/guest/tree && "
         "test $(stat -c %a:%u:%g /tmp/guest/tree/run) = 755:1000:1000 && test $(stat -c %a "
         "/tmp/guest/tree/5/5) = 600 && "
         "test $(stat -c %Y /tmp/guest/tree/old) = $(stat -c %Y /tmp/tree/old) && "
         "test $(find /tmp/guest/tree ! -uid 1000 | wc -l) = 0");
    if (bt_guest_copy_out(link, "/tmp/guest/tree", "/tmp/back", 64 * MEGABYTE, &error) < 0)
        fail_msg("%s", error.message);
    here("diff -r --no-dereference /tmp/tree /tmp/back && test $(stat -c %a /tmp/back/run) = 755");
    /* Again onto itself: contents are replaced, a folder that is there is kept. */
    here("echo other > /tmp/tree/run; chmod 711 /tmp/guest/tree");
    assert_int_equal(bt_guest_copy_in(link, "/tmp/tree", "/tmp/guest/tree", 1000, 1000, &error), 0);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/tree", "/tmp/back", 64 * MEGABYTE, &error), 0);
    here("test \"$(cat /tmp/back/run)\" = other && test $(stat -c %a /tmp/guest/tree) = 711");
    here("rm -rf /tmp/tree /tmp/back /tmp/guest");
    bt_guest_close(link);
}

/* What was freed is used again at once: a peak of memory is then the program's, not the sanitiser's. */
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=0";
}

static long peak_kilobytes(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

static void t_two_gigabytes_with_little_memory(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("mkdir -m 777 /tmp/guest; truncate -s 2G /tmp/big; printf end >> /tmp/big; printf middle | dd "
         "of=/tmp/big bs=1 "
         "seek=1234567890 conv=notrunc status=none; truncate -s 100M /tmp/hole; head -c 40000000 "
         "/dev/urandom > /tmp/dense");
    long before = peak_kilobytes();
    assert_int_equal(bt_guest_copy_in(link, "/tmp/big", "/tmp/guest/big", 1000, 1000, &error), 0);
    assert_int_equal(bt_guest_copy_in(link, "/tmp/hole", "/tmp/guest/new/hole", 1000, 1000, &error), 0);
    assert_int_equal(bt_guest_copy_in(link, "/tmp/dense", "/tmp/guest/dense", 1000, 1000, &error), 0);
    here("cmp /tmp/big /tmp/guest/big && cmp /tmp/hole /tmp/guest/new/hole && cmp /tmp/dense "
         "/tmp/guest/dense");
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/big", "/tmp/back", 3ULL << 30, &error), 0);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/dense", "/tmp/dense2", 3ULL << 30, &error), 0);
    here("cmp /tmp/big /tmp/back && cmp /tmp/dense /tmp/dense2 && test $(du -k /tmp/back | cut -f1) -lt "
         "10000");
    assert_in_range(peak_kilobytes() - before, 0, 32 * 1024);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/guest/dense", "/tmp/dense3", 39 * MEGABYTE, &error),
                     -EFBIG);
    here("rm -rf /tmp/big /tmp/hole /tmp/dense* /tmp/back /tmp/guest");
    bt_guest_close(link);
}

static uint64_t progress_bytes;
static void on_progress(void *context, uint64_t bytes)
{
    (void)context;
    progress_bytes = bytes;
}

static void t_list_is_copied_and_nothing_else(void **state)
{
    (void)state;
    static const char names[] = "a/one\0two\0gone\0link";
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("mkdir -p /tmp/source/a; cd /tmp/source; echo 1 > a/one; echo 22 > two; echo 3 > unlisted; ln -s "
         "a/one link; "
         "ln -s /etc escape; mkdir -m 777 /tmp/guest");
    assert_int_equal(bt_guest_copy_list_in(link, "/tmp/source", names, sizeof(names), "/tmp/guest", 1000,
                                           1000, on_progress, NULL, &error),
                     0);
    assert_int_equal(progress_bytes, 5);
    here("cd /tmp/guest; test \"$(find . | sort | tr '\\n' ' ')\" = '. ./a ./a/one ./link ./two '");
    static const char through[] = "escape/passwd", outside[] = "../etc/passwd";
    assert_int_equal(bt_guest_copy_list_in(link, "/tmp/source", through, sizeof(through), "/tmp/guest", 1000,
                                           1000, NULL, NULL, &error),
                     -ELOOP);
    assert_int_equal(bt_guest_copy_list_in(link, "/tmp/source", outside, sizeof(outside), "/tmp/guest", 1000,
                                           1000, NULL, NULL, &error),
                     -EXDEV);
    here("rm -rf /tmp/source /tmp/guest");
    bt_guest_close(link);
}

static void t_copy_failures_say_why(void **state)
{
    (void)state;
    struct bt_guest_link *link = link_open();
    struct bt_error error = {0};
    here("echo x > /tmp/file; mkdir -m 755 /tmp/closed");
    assert_int_equal(bt_guest_copy_in(link, "/tmp/file", "/tmp/closed/file", 1000, 1000, &error), -EIO);
    assert_non_null(strstr(error.message, "Permission denied"));
    assert_int_equal(bt_guest_copy_in(link, "/tmp/absent", "/tmp/x", 1000, 1000, &error), -ENOENT);
    assert_int_equal(bt_guest_copy_out(link, "/tmp/absent", "/tmp/y", 1000000, &error), -EIO);
    assert_non_null(strstr(error.message, "No such file"));
    assert_int_equal(bt_guest_copy_out(link, "/tmp/file", "/tmp/absent/y", 1000000, &error), -ENOENT);
    bt_guest_close(link);
    here("rm -rf /tmp/file /tmp/closed");
}

struct evil_entry {
    const char *name;
    unsigned type;
    const char *text;
};

static void tar_entry(struct archive *archive, const char *name, unsigned type, const char *text)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, type);
    archive_entry_set_perm(entry, type == AE_IFREG ? 06755 : 0755);
    if (type == AE_IFLNK)
        archive_entry_set_symlink(entry, text);
    archive_entry_set_size(entry, type == AE_IFREG ? (la_int64_t)strlen(text) : 0);
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    if (type == AE_IFREG)
        assert_int_equal(archive_write_data(archive, text, strlen(text)), strlen(text));
    archive_entry_free(entry);
}

/* What a guest whose tar is the attacker's sends: these entries, whatever was asked for. */
static int copy_out_evil(const struct evil_entry *entries, size_t count, struct bt_error *error)
{
    struct archive *archive = archive_write_new();
    (void)archive_write_set_format_gnutar(archive);
    assert_int_equal(archive_write_open_filename(archive, "/tmp/evil.tar"), ARCHIVE_OK);
    for (size_t i = 0; i < count; i++)
        tar_entry(archive, entries[i].name, entries[i].type, entries[i].text);
    (void)archive_write_free(archive);
    here("rm -rf /tmp/out; mkdir -p /tmp/out; printf '#!/bin/sh\\nexec cat /tmp/evil.tar\\n' > "
         "/usr/local/sbin/tar; chmod 755 "
         "/usr/local/sbin/tar /tmp/evil.tar");
    struct bt_guest_link *link = link_open();
    int result = bt_guest_copy_out(link, "/w", "/tmp/out/w", 1000000, error);
    bt_guest_close(link);
    here("rm /usr/local/sbin/tar /tmp/evil.tar");
    return result;
}

static void t_hostile_archives(void **state)
{
    (void)state;
    struct bt_error error = {0};
    const struct evil_entry up[] = {{"w", AE_IFDIR, ""}, {"w/../../escape", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(up, 2, &error), -EINVAL);
    const struct evil_entry absolute[] = {{"w", AE_IFDIR, ""}, {"/tmp/escape", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(absolute, 2, &error), -EINVAL);
    const struct evil_entry second_top[] = {{"w", AE_IFDIR, ""}, {"other", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(second_top, 2, &error), -EINVAL);
    const struct evil_entry through[] = {
        {"w", AE_IFDIR, ""}, {"w/d", AE_IFDIR, ""}, {"w/l", AE_IFLNK, "d"}, {"w/l/file", AE_IFREG, "x"}};
    assert_true(copy_out_evil(through, 4, &error) < 0);
    here("test ! -e /tmp/out/w/d/file && test ! -e /tmp/escape && test ! -e /tmp/out/other && test ! -e "
         "/tmp/out/escape");
    const struct evil_entry links[] = {
        {"w", AE_IFDIR, ""},           {"w/abs", AE_IFLNK, "/etc/passwd"}, {"w/up", AE_IFLNK, "../x"},
        {"w/a", AE_IFDIR, ""},         {"w/a/top", AE_IFLNK, ".."},        {"w/a/out", AE_IFLNK, "top/../x"},
        {"w/a/ok", AE_IFLNK, "../up"}, {"w/device", AE_IFCHR, ""},         {"w/file", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(links, BT_ARRAY_LENGTH(links), &error), -EXDEV);
    here("cd /tmp/out/w; test \"$(find . | sort | tr '\\n' ' ')\" = '. ./a ./a/ok ./a/top ./file '; test "
         "$(stat -c %a file) = "
         "755");
    /* A link that is already here, put there by whoever: not followed. */
    const struct evil_entry plain[] = {
        {"w", AE_IFDIR, ""}, {"w/d", AE_IFDIR, ""}, {"w/d/file", AE_IFREG, "x"}};
    assert_int_equal(copy_out_evil(plain, 3, &error), 0);
    static struct evil_entry many[2000];
    many[0] = plain[0];
    for (size_t i = 1; i < BT_ARRAY_LENGTH(many); i++)
        many[i] = (struct evil_entry){"w/same", AE_IFREG, ""};
    assert_int_equal(copy_out_evil(many, BT_ARRAY_LENGTH(many), &error), -EFBIG);
    here("rm -rf /tmp/out");
}

int main(void)
{
    fixture_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_tree_of_ten_thousand_files_and_back),
        cmocka_unit_test(t_two_gigabytes_with_little_memory),
        cmocka_unit_test(t_list_is_copied_and_nothing_else),
        cmocka_unit_test(t_copy_failures_say_why),
        cmocka_unit_test(t_hostile_archives),
    };
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    guest_server_free(&server);
    return result;
}
