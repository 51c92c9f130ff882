/* The unprivileged runtime: numbers, addresses, buffers, files, child processes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/file.h"
#include "lib/spawn.h"

static void t_number_parse_is_strict(void **state)
{
    (void)state;
    uint64_t value = 7;
    static const char *const wrong[] = {
        "", "-1", "+1", " 1", "1 ", "01", "0x1", "1.0", "18446744073709551616"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(wrong); i++)
        assert_true(bt_number_parse(wrong[i], strlen(wrong[i]), 0, UINT64_MAX, &value) < 0);
    assert_int_equal(value, 7);
    assert_int_equal(bt_number_parse("18446744073709551615", 20, 0, UINT64_MAX, &value), 0);
    assert_true(value == UINT64_MAX);
    assert_int_equal(bt_number_parse("0", 1, 1, 5, &value), -ERANGE);
    assert_int_equal(bt_number_parse("5", 1, 1, 5, &value), 0);
    assert_int_equal(value, 5);
}

static void t_ipv4_round_trip(void **state)
{
    (void)state;
    char text[BT_IPV4_TEXT_SIZE];
    uint32_t address = 0;
    assert_int_equal(bt_ipv4_parse("203.0.113.255", &address), 0);
    bt_ipv4_format(address, text);
    assert_string_equal(text, "203.0.113.255");
    static const char *const wrong[] = {"",         "1.2.3",  "1.2.3.4.5", "1.2.3.256", "01.2.3.4",
                                        "1.2.3.4 ", "1.2.3.", ".1.2.3",    "0x1.2.3.4", "16909060"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(wrong); i++)
        assert_int_equal(bt_ipv4_parse(wrong[i], &address), -EINVAL);
}

static void t_buffer_keeps_its_limit(void **state)
{
    (void)state;
    bt_auto_buffer buffer = {.limit = 10};
    assert_int_equal(bt_buffer_add(&buffer, "12345", 5), 0);
    assert_int_equal(bt_buffer_add(&buffer, "123456", 6), -ENOSPC);
    assert_int_equal(bt_buffer_add_format(&buffer, "%d", 67890), 0);
    assert_string_equal(buffer.data, "1234567890");
}

static void t_nearest_suggests_only_what_is_near(void **state)
{
    (void)state;
    static const char *const known[] = {"resources", "egress", "env"};
    assert_string_equal(bt_nearest("resorces", known, 3), "resources");
    assert_string_equal(bt_nearest("egres", known, 3), "egress");
    assert_null(bt_nearest("zzz", known, 3));
}

static char *make_folder(void)
{
    char *folder = bt_string_copy("/tmp/berth-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static void t_file_write_and_tree_remove(void **state)
{
    (void)state;
    struct bt_error error = {0};
    bt_auto_free char *folder = make_folder();
    bt_auto_free char *deep = bt_string_format("%s/a/b", folder);
    bt_auto_free char *path = bt_string_format("%s/file", deep);
    bt_auto_free char *outside = bt_string_format("%s.outside", folder);
    bt_auto_free char *link = bt_string_format("%s/link", deep);
    bt_auto_buffer data = {0};
    assert_int_equal(bt_folder_make(deep, 0700, &error), 0);
    assert_int_equal(bt_file_write(path, "one", 3, 0600, &error), 0);
    assert_int_equal(bt_file_write(path, "two", 3, 0640, &error), 0);
    assert_int_equal(bt_file_read(path, 3, &data, &error), 0);
    assert_string_equal(data.data, "two");
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    bt_auto_buffer none = {0};
    assert_int_equal(bt_file_read(path, 2, &none, &error), -EFBIG);
    assert_int_equal(bt_file_write(outside, "keep", 4, 0600, &error), 0);
    assert_int_equal(symlink(outside, link), 0);
    assert_int_equal(bt_tree_remove(folder, &error), 0);
    assert_int_equal(access(folder, F_OK), -1);
    assert_int_equal(access(outside, F_OK), 0);
    assert_int_equal(unlink(outside), 0);
}

static void t_folder_of_our_own(void **state)
{
    char folder[] = "/tmp/berth-own-XXXXXX";
    struct stat status;
    struct bt_error error;
    (void)state;
    assert_non_null(mkdtemp(folder));
    bt_auto_free char *made = bt_string_format("%s/a/b", folder);
    assert_int_equal(bt_folder_make_own(made, &error), 0);
    assert_int_equal(stat(made, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0700);
    assert_int_equal(chmod(made, 0755), 0); /* others may look */
    assert_int_equal(bt_folder_make_own(made, &error), 0);
    assert_int_equal(chmod(made, 0775), 0);
    assert_int_equal(bt_folder_make_own(made, &error), -EPERM);
    assert_int_equal(chmod(made, 01777), 0);
    assert_int_equal(bt_folder_make_own(made, &error), -EPERM);
    assert_int_equal(chmod(made, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(made, 54321, 54321), 0);
        assert_int_equal(bt_folder_make_own(made, &error), -EPERM);
        assert_non_null(strstr(error.message, "54321"));
    }
    assert_int_equal(bt_tree_remove(folder, &error), 0);
}

static void t_spawn_separates_streams_and_status(void **state)
{
    (void)state;
    struct bt_error error = {0};
    struct bt_spawn_result result;
    const char *const arguments[] = {"sh", "-c", "cat; echo problem >&2; exit 7", NULL};
    struct bt_spawn spawn = {.arguments = arguments, .input = "hello", .input_length = 5};
    assert_int_equal(bt_spawn_run(&spawn, &result, &error), 0);
    assert_int_equal(result.exit_status, 7);
    assert_string_equal(result.output.data, "hello");
    assert_string_equal(result.errors.data, "problem\n");
    bt_spawn_result_free(&result);
    assert_true(bt_spawn_check(&spawn, &result, &error) < 0);
    assert_non_null(strstr(error.message, "problem"));
}

static void t_spawn_limits_time_and_output(void **state)
{
    (void)state;
    struct bt_error error = {0};
    struct bt_spawn_result result;
    const char *const sleeper[] = {"sleep", "30", NULL};
    assert_int_equal(
        bt_spawn_run(&(struct bt_spawn){.arguments = sleeper, .timeout_ms = 50}, &result, &error),
        -ETIMEDOUT);
    const char *const flood[] = {"head", "-c", "100000", "/dev/zero", NULL};
    assert_int_equal(
        bt_spawn_run(&(struct bt_spawn){.arguments = flood, .output_limit = 1000}, &result, &error), -EFBIG);
    const char *const missing[] = {"/no/such/program", NULL};
    assert_int_equal(bt_spawn_run(&(struct bt_spawn){.arguments = missing}, &result, &error), -ENOENT);
}

static void t_error_prefix_is_put_in_front(void **state)
{
    struct bt_error error = {0};
    char longest[2 * sizeof(error.message)];
    (void)state;
    (void)bt_fail(&error, BT_EXIT_ERROR, ENOENT, "look for it", "no such file");
    assert_int_equal(bt_error_prefix(&error, "cannot open %s", "x"), -ENOENT);
    assert_string_equal(error.message, "cannot open x: no such file");
    assert_string_equal(error.hint, "look for it");
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(bt_error_prefix(&error, "%s", longest), -ENOENT);
    assert_int_equal(strlen(error.message), sizeof(error.message) - 1);
}

/* Whoever only tries asks for no error. */
static void t_error_prefix_without_an_error(void **state)
{
    (void)state;
    assert_int_equal(bt_error_prefix(NULL, "cannot open %s", "x"), -EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_number_parse_is_strict),
        cmocka_unit_test(t_ipv4_round_trip),
        cmocka_unit_test(t_buffer_keeps_its_limit),
        cmocka_unit_test(t_nearest_suggests_only_what_is_near),
        cmocka_unit_test(t_file_write_and_tree_remove),
        cmocka_unit_test(t_error_prefix_is_put_in_front),
        cmocka_unit_test(t_error_prefix_without_an_error),
        cmocka_unit_test(t_folder_of_our_own),
        cmocka_unit_test(t_spawn_separates_streams_and_status),
        cmocka_unit_test(t_spawn_limits_time_and_output),
    };
    return cmocka_run_group_tests_name("lib", tests, NULL, NULL);
}
