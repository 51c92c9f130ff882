/* The user's own images: records, good and damaged, and what a freeze that was cut short leaves; what is
 * given to a builder, and what that answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "frontend/build.h"
#include "frontend/frozen.h"
#include "images/context.h"
#include "tests/lib/test_folder.h"

static struct bt_paths paths;

static int set_up(void **state)
{
    (void)state;
    test_folder_make(paths.state, sizeof paths.state);
    return 0;
}

static int tear_down(void **state)
{
    struct bt_error error;
    (void)state;
    return bt_tree_remove(paths.state, &error);
}

static struct bt_freezing named(const char *name)
{
    struct bt_freezing freezing = {.frozen = {.recipe = "shell", .backend = "docker", .agent = "one"},
                                   .lock_fd = -1};
    (void)snprintf(freezing.frozen.name, sizeof freezing.frozen.name, "%s", name);
    return freezing;
}

static void make(const char *name, const char *content)
{
    struct bt_freezing freezing = named(name);
    struct bt_error error = {0};
    assert_int_equal(bt_frozen_begin(&paths, &freezing, true, &error), 0);
    bt_auto_free char *file = bt_string_format("%s/home.tar", freezing.folder);
    assert_int_equal(bt_file_write(file, content, strlen(content), 0600, &error), 0);
    assert_int_equal(bt_frozen_commit(&freezing, &error), 0);
    bt_frozen_discard(&freezing);
}

static void test_record(void **state)
{
    static const char *const damaged[] = {
        "",
        "{",
        "[]",
        "{\"recipe\": \"shell\", \"backend\": \"docker\", \"agent\": \"a\"}",
        "{\"recipe\": \"shell\", \"backend\": \"docker\", \"agent\": \"a\", \"frozen_seconds\": \"1\"}",
        "{\"recipe\": \"../shell\", \"backend\": \"docker\", \"agent\": \"a\", \"frozen_seconds\": 1}",
        "{\"recipe\": \"\", \"backend\": \"docker\", \"agent\": \"a\", \"frozen_seconds\": 1}",
        "{\"recipe\": \"shell\", \"recipe\": \"x\", \"backend\": \"docker\", \"agent\": \"a\", "
        "\"frozen_seconds\": 1}",
        "{\"recipe\": \"shell\", \"backend\": \"a backend of a very very long name\", \"agent\": \"a\", "
        "\"frozen_seconds\": 1}",
        "{\"recipe\": \"shell\", \"backend\": [], \"agent\": \"a\", \"frozen_seconds\": 1}",
    };
    static const char good[] =
        "{\"recipe\": \"shell\", \"backend\": \"docker\", \"agent\": \"a\", \"frozen_seconds\": 7}";
    struct bt_frozen frozen = {.folder = "/f"};
    struct bt_error error = {0};
    (void)state;
    assert_int_equal(bt_frozen_parse(good, strlen(good), &frozen, &error), 0);
    assert_string_equal(frozen.recipe, "shell");
    assert_int_equal(frozen.frozen_seconds, 7);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(damaged); i++) {
        assert_int_equal(bt_frozen_parse(damaged[i], strlen(damaged[i]), &frozen, &error), -EBADMSG);
        assert_non_null(strstr(error.message, "/f/frozen.json is damaged"));
    }
}

static void test_life(void **state)
{
    bt_auto_free struct bt_frozen *list = NULL;
    struct bt_frozen frozen;
    struct bt_error error = {0};
    struct stat status;
    size_t count = 7;
    (void)state;
    assert_int_equal(bt_frozen_list(&paths, &list, &count, &error), 0);
    assert_int_equal(count, 0);
    free(BT_TAKE(list));
    make("second", "22");
    make("first", "1");
    make("first", "111"); /* replaced */
    assert_int_equal(bt_frozen_list(&paths, &list, &count, &error), 0);
    assert_int_equal(count, 2);
    assert_string_equal(list[0].name, "first");
    assert_string_equal(list[1].name, "second");
    assert_int_equal(bt_frozen_load(&paths, "first", &frozen, &error), 0);
    bt_auto_free char *file = bt_string_format("%s/home.tar", frozen.folder);
    assert_int_equal(stat(file, &status), 0);
    assert_int_equal(status.st_size, 3);
    assert_int_equal(bt_frozen_check_backend(&paths, "first", "docker", &error), 0);
    assert_int_equal(bt_frozen_check_backend(&paths, "first", "qemu", &error), -EOPNOTSUPP);
    assert_int_equal(bt_frozen_remove(&paths, "first", &error), 0);
    assert_int_equal(bt_frozen_load(&paths, "first", &frozen, &error), -ENOENT);
    assert_int_equal(bt_frozen_remove(&paths, "first", &error), -ENOENT);
    assert_int_equal(error.status, BT_EXIT_NO_TARGET);
    assert_int_equal(bt_frozen_remove(&paths, "../frozen", &error), -ENOENT);
    assert_int_equal(bt_frozen_remove(&paths, ".lock", &error), -ENOENT);
}

static void test_cut_short(void **state)
{
    struct bt_freezing freezing = named("half"), other = named("other"), taken = named("second");
    struct bt_frozen frozen;
    struct bt_error error = {0};
    struct stat status;
    (void)state;
    make("second", "22");
    assert_int_equal(bt_frozen_begin(&paths, &freezing, false, &error), 0);
    bt_auto_free char *file = bt_string_format("%s/home.tar", freezing.folder);
    assert_int_equal(bt_file_write(file, "x", 1, 0600, &error), 0);
    assert_int_equal(bt_frozen_begin(&paths, &other, false, &error), -EBUSY);
    bt_frozen_discard(&other); /* and takes nothing from the one that works */
    assert_int_equal(stat(file, &status), 0);
    bt_fd_close(&freezing.lock_fd); /* killed */
    assert_int_equal(bt_frozen_load(&paths, "half", &frozen, &error), -ENOENT);
    assert_int_equal(bt_frozen_begin(&paths, &taken, false, &error), -EEXIST);
    bt_frozen_discard(&taken);
    other = named("other");
    assert_int_equal(bt_frozen_begin(&paths, &other, false, &error), 0);
    assert_int_equal(stat(file, &status), -1);
    bt_frozen_discard(&other);
    assert_int_equal(stat(other.folder, &status), -1);
    freezing = named("a/b");
    assert_int_equal(bt_frozen_begin(&paths, &freezing, false, &error), -EINVAL);
}

static void test_base(void **state)
{
    static const char *const good[] = {
        "ARG BERTH_BASE\nFROM $BERTH_BASE\n",
        "ARG BERTH_BASE\n  from ${BERTH_BASE}",
        "FROM debian AS first\nFROM\t$BERTH_BASE AS last\r\nRUN true\n",
    };
    static const char *const bad[] = {
        "",
        "FROM debian\n",
        "FROM $BERTH_BASE\nFROM debian\n",
        "FROM $BERTH_BASEX\n",
        "#FROM $BERTH_BASE\n",
        "FROM\n$BERTH_BASE\n",
        "FROMM $BERTH_BASE\n",
    };
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(good); i++)
        assert_true(bt_build_is_on_base(good[i]));
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++)
        assert_false(bt_build_is_on_base(bad[i]));
}

#define ID "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_build_log(void **state)
{
    static const char text[] = "{\"stream\": \"Step 1\\u001b[2J\\n\"}\r\n{\"stream\": \"\\n\"}\r\n"
                               "{\"aux\": {\"ID\": \"" ID "\"}}\r\n{\"error\": \"bad\\nthing\"}\n";
    static const char other_id[] = "{\"aux\": {\"ID\": \"sha256:../../etc\"}}\n{\"aux\": {\"ID\": 7}}\n";
    (void)state;
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct bt_docker_build_log log = {0};
        for (size_t at = 0; at < sizeof text - 1; at += piece)
            assert_int_equal(
                bt_docker_build_log_take(&log, text + at,
                                         sizeof text - 1 - at < piece ? sizeof text - 1 - at : piece),
                0);
        assert_string_equal(log.image_id, ID);
        assert_string_equal(log.last, "Step 1 [2J ");
        assert_string_equal(log.failure, "bad thing");
        bt_buffer_free(&log.line);
    }
    struct bt_docker_build_log log = {0};
    assert_int_equal(bt_docker_build_log_take(&log, other_id, strlen(other_id)), 0);
    assert_string_equal(log.image_id, "");
    assert_int_equal(bt_docker_build_log_take(&log, "[1]\n", 4), -EBADMSG);
    bt_auto_free char *endless = bt_new(1, 600000);
    memset(endless, 'x', 600000);
    assert_int_equal(bt_docker_build_log_take(&log, endless, 600000), 0);
    assert_int_equal(bt_docker_build_log_take(&log, endless, 600000), -EFBIG);
    bt_buffer_free(&log.line);
}

/* The digest of a folder; what it is packed from may be changed between two. */
static void digest_of(const char *folder, char ret_digest[BT_DIGEST_TEXT_SIZE])
{
    struct bt_build_context context = {.fd = -1};
    struct bt_error error = {0};
    assert_int_equal(bt_context_pack(&paths, folder, false, "FROM x", &context, &error), 0);
    bt_auto_fd fd = context.fd;
    bt_auto_free char *bytes = bt_new(1, context.bytes);
    char again[BT_DIGEST_TEXT_SIZE];
    assert_int_equal(read(fd, bytes, context.bytes), (ssize_t)context.bytes);
    bt_digest_bytes(bytes, context.bytes, again);
    assert_string_equal(again, context.digest);
    memcpy(ret_digest, again, sizeof again);
}

static void test_context(void **state)
{
    bt_auto_free char *folder = bt_string_format("%s/folder", paths.state);
    bt_auto_free char *file = bt_string_format("%s/Grüße", folder);
    bt_auto_free char *link = bt_string_format("%s/link", folder);
    char first[BT_DIGEST_TEXT_SIZE], second[BT_DIGEST_TEXT_SIZE];
    struct bt_build_context context;
    struct bt_error error = {0};
    (void)state;
    (void)snprintf(paths.cache, sizeof paths.cache, "%.400s/cache", paths.state);
    assert_int_equal(bt_folder_make(folder, 0700, &error), 0);
    assert_int_equal(bt_file_write(file, "1", 1, 0600, &error), 0);
    digest_of(folder, first);
    assert_int_equal(chmod(file, 0664), 0); /* no part of it */
    digest_of(folder, second);
    assert_string_equal(first, second);
    assert_int_equal(chmod(file, 0700), 0);
    digest_of(folder, second);
    assert_string_not_equal(first, second);
    assert_int_equal(symlink("/etc/passwd", link), 0);
    digest_of(folder, first);
    assert_string_not_equal(first, second);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(mkfifo(link, 0600), 0);
    assert_int_equal(bt_context_pack(&paths, folder, false, "", &context, &error), -EINVAL);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(truncate(file, (off_t)BT_CONTEXT_BYTES_MAX + 1), 0);
    assert_int_equal(bt_context_pack(&paths, folder, false, "", &context, &error), -EFBIG);
    assert_int_equal(bt_context_pack(&paths, file, false, "", &context, &error), -ENOTDIR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_record, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_life, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cut_short, set_up, tear_down),
        cmocka_unit_test(test_base),
        cmocka_unit_test(test_build_log),
        cmocka_unit_test_setup_teardown(test_context, set_up, tear_down),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
