/* The user's audit trail. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontend/audit.h"
#include "tests/unit/frontend_fixture.h"

static void t_audit_keeps_whole_lines(void **state)
{
    const struct fixture *fixture = *state;
    enum { CHILDREN = 8, LINES = 50 };
    json_t *lines = NULL;
    size_t damaged = 9;
    struct stat status;
    char path[600];
    assert_int_equal(bt_audit_read(&fixture->paths, 10, &lines, &damaged, NULL), 0); /* none yet */
    assert_int_equal(json_array_size(lines), 0);
    json_decref(lines);
    for (int i = 0; i < CHILDREN; i++) {
        if (fork() == 0) {
            for (int n = 0; n < LINES; n++) {
                if (bt_audit_write(&fixture->paths, "spawn", "live", "one", json_pack("{s:i}", "n", n),
                                   NULL) < 0)
                    _exit(1);
            }
            _exit(0);
        }
    }
    for (int i = 0, child = 0; i < CHILDREN; i++) {
        assert_true(wait(&child) > 0);
        assert_int_equal(child, 0);
    }
    assert_int_equal(bt_audit_read(&fixture->paths, 1000, &lines, &damaged, NULL), 0);
    assert_int_equal(json_array_size(lines), CHILDREN * LINES);
    assert_int_equal(damaged, 0);
    json_decref(lines);
    snprintf(path, sizeof path, "%s/audit.jsonl", fixture->paths.state);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
}

static void t_audit_passes_over_damaged_lines(void **state)
{
    const struct fixture *fixture = *state;
    json_t *lines = NULL;
    size_t damaged = 0;
    fixture_write(fixture, "state/audit.jsonl",
                  "{\"act\":\"a\"}\nhalf a li\n[1]\n{\"act\":\"b\"}\n{\"act\":\"c\"");
    assert_int_equal(bt_audit_read(&fixture->paths, 10, &lines, &damaged, NULL), 0);
    assert_int_equal(json_array_size(lines), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(lines, 0), "act")), "a");
    assert_int_equal(damaged, 3);
    json_decref(lines);
    assert_int_equal(bt_audit_read(&fixture->paths, 1, &lines, &damaged, NULL), 0);
    assert_string_equal(json_string_value(json_object_get(json_array_get(lines, 0), "act")),
                        "b"); /* the newest */
    json_decref(lines);
}

/* A full trail is put aside once, however many processes notice it at the same time. */
static void t_audit_is_put_aside_once(void **state)
{
    const struct fixture *fixture = *state;
    enum { CHILDREN = 8 };
    json_t *lines = NULL;
    size_t damaged = 0;
    struct stat status;
    char path[700];
    fixture_write(fixture, "state/audit.jsonl", "{}\n");
    snprintf(path, sizeof path, "%s/audit.jsonl", fixture->paths.state);
    assert_int_equal(truncate(path, 64L * 1024 * 1024), 0); /* sparse */
    for (int i = 0; i < CHILDREN; i++) {
        if (fork() == 0)
            _exit(bt_audit_write(&fixture->paths, "stop", "live", "one", NULL, NULL) < 0);
    }
    for (int i = 0, child = 0; i < CHILDREN; i++) {
        assert_true(wait(&child) > 0);
        assert_int_equal(child, 0);
    }
    assert_int_equal(bt_audit_read(&fixture->paths, 100, &lines, &damaged, NULL), 0);
    assert_int_equal(json_array_size(lines), CHILDREN);
    json_decref(lines);
    snprintf(path, sizeof path, "%s/audit.jsonl.1", fixture->paths.state);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 64L * 1024 * 1024);
}

static void t_audit_refuses_a_link(void **state)
{
    const struct fixture *fixture = *state;
    char path[700], target[700];
    fixture_write(fixture, "victim", "precious");
    snprintf(path, sizeof path, "%s/audit.jsonl", fixture->paths.state);
    snprintf(target, sizeof target, "%s/victim", fixture->folder);
    assert_int_equal(bt_folder_make(fixture->paths.state, 0700, NULL), 0);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(bt_audit_write(&fixture->paths, "spawn", "live", NULL, NULL, NULL), -ELOOP);
    bt_auto_buffer text = {0};
    assert_int_equal(bt_file_read(target, 100, &text, NULL), 0);
    assert_string_equal(text.data, "precious");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_audit_keeps_whole_lines),
        FIXTURE_TEST(t_audit_passes_over_damaged_lines),
        FIXTURE_TEST(t_audit_is_put_aside_once),
        FIXTURE_TEST(t_audit_refuses_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
