/* The user's credentials on disk: who may read them, what cannot be one, what a policy's routes need. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "frontend/credentials.h"
#include "policy/rules/rules.h"
#include "tests/lib/test_folder.h"

static struct bt_paths paths;

static int make_state(void **state)
{
    (void)state;
    test_folder_make(paths.state, sizeof(paths.state));
    return 0;
}

static int remove_state(void **state)
{
    (void)state;
    return bt_tree_remove(paths.state, NULL);
}

static int set(const char *name, const char *value)
{
    struct bt_error error = {0};
    int result = bt_credential_set(&paths, name, value, strlen(value), &error);
    /* Whatever is wrong with a value, it is not repeated. */
    if (result < 0 && strlen(value) > 4)
        assert_null(strstr(error.message, value));
    return result;
}

static void test_storing(void **state)
{
    struct bt_credential *credentials = NULL;
    struct stat status;
    size_t count = 0;
    char path[600];
    (void)state;
    assert_int_equal(bt_credential_list(&paths, &credentials, &count, NULL), 0);
    assert_int_equal(count, 0);
    free(credentials);
    assert_int_equal(set("two", "value-of-two"), 0);
    assert_int_equal(set("one", "value-of-one"), 0);
    snprintf(path, sizeof(path), "%s/credentials", paths.state);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0700);
    snprintf(path, sizeof(path), "%s/credentials/one", paths.state);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(bt_credential_list(&paths, &credentials, &count, NULL), 0);
    assert_int_equal(count, 2);
    assert_string_equal(credentials[0].name, "one");
    assert_string_equal(credentials[1].name, "two");
    free(credentials);
    assert_int_equal(bt_credential_remove(&paths, "one", NULL), 0);
    assert_int_equal(bt_credential_remove(&paths, "one", NULL), -ENOENT);
    assert_int_equal(bt_credential_remove(&paths, "../credentials/two", NULL), -EINVAL);
    assert_int_equal(access(path, F_OK), -1);
    /* A folder that others may write in could be anybody's. */
    snprintf(path, sizeof(path), "%s/credentials", paths.state);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(set("one", "value-of-one"), -EPERM);
}

static void test_values(void **state)
{
    char large[BT_CREDENTIAL_VALUE_MAX + 2];
    (void)state;
    memset(large, 'a', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';
    assert_int_equal(set("a", large), -EINVAL);
    large[sizeof(large) - 2] = '\0';
    assert_int_equal(set("a", large), 0);
    assert_int_equal(set("a", "qwert"), -EINVAL);
    assert_int_equal(set("a", ""), -EINVAL);
    assert_int_equal(set("a", "two\nlines-here"), -EINVAL);
    assert_int_equal(set("a", "tab\there-it-is"), -EINVAL);
    assert_int_equal(set("a", " begins-with-blank"), -EINVAL);
    assert_int_equal(set("a", "ends-with-blank "), -EINVAL);
    assert_int_equal(set("a", "pass w\xc3\xb6rd-in-utf8"), -EINVAL);
    assert_int_equal(set("a", "user:pass word"), 0);
    assert_int_equal(set("A", "value-of-one"), -EINVAL);
    assert_int_equal(set("", "value-of-one"), -EINVAL);
    assert_int_equal(set("a/b", "value-of-one"), -EINVAL);
}

static json_t *policy_of(const char *from)
{
    return json_pack("{s:i, s:[{s:s}, {s:s, s:s, s:{s:s, s:s}}, {s:s, s:{s:s, s:s}}]}", "version", 1,
                     "routes", "host", "plain.example", "host", "a.example", "granted_by", "bottle dev",
                     "auth", "scheme", "bearer", "from", from, "host", "b.example", "auth", "scheme",
                     "bearer", "from", "other");
}

static void test_collecting(void **state)
{
    json_t *policy = policy_of("one"), *credentials = NULL, *present = NULL;
    struct bt_error error = {0};
    (void)state;
    assert_int_equal(set("other", "value-of-other"), 0);
    assert_int_equal(bt_credentials_collect(&paths, policy, &credentials, &error), -ENOKEY);
    assert_null(credentials);
    assert_non_null(strstr(error.message, "'one'"));
    assert_non_null(strstr(error.message, "a.example"));
    assert_non_null(strstr(error.message, "bottle dev"));
    assert_non_null(strstr(error.hint, "berth credential set one"));
    /* Of an agent that runs, what needs the missing one is closed, and nothing else. */
    assert_int_equal(bt_credentials_collect_present(&paths, policy, &present, &credentials, &error), 0);
    assert_int_equal(json_array_size(json_object_get(present, "routes")), 2);
    assert_int_equal(json_array_size(json_object_get(policy, "routes")), 3);
    assert_int_equal(json_object_size(credentials), 1);
    json_decref(present);
    json_decref(credentials);
    assert_int_equal(set("one", "value-of-one"), 0);
    assert_int_equal(bt_credentials_collect(&paths, policy, &credentials, &error), 0);
    assert_string_equal(json_string_value(json_object_get(credentials, "one")), "value-of-one");
    assert_int_equal(json_object_size(credentials), 2);
    json_decref(credentials);
    assert_true(bt_credential_is_used(policy, "one"));
    assert_false(bt_credential_is_used(policy, "two"));
    json_decref(policy);
}

/* What somebody wrote there by hand is held against the same rules. */
static void test_damaged(void **state)
{
    json_t *policy = policy_of("one"), *credentials = NULL;
    struct bt_error error = {0};
    char path[600];
    (void)state;
    assert_int_equal(set("one", "value-of-one"), 0);
    snprintf(path, sizeof(path), "%s/credentials/one", paths.state);
    assert_int_equal(bt_file_write(path, "secret\r\nX-Evil: 1", 17, 0600, NULL), 0);
    assert_int_equal(bt_credentials_collect(&paths, policy, &credentials, &error), -EINVAL);
    assert_null(strstr(error.message, "secret"));
    json_decref(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_storing, make_state, remove_state),
        cmocka_unit_test_setup_teardown(test_values, make_state, remove_state),
        cmocka_unit_test_setup_teardown(test_collecting, make_state, remove_state),
        cmocka_unit_test_setup_teardown(test_damaged, make_state, remove_state),
    };
    return cmocka_run_group_tests_name("credentials", tests, NULL, NULL);
}
