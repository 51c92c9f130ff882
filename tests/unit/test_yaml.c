/* The YAML reader: positions, refusals, bounds, typed values. */
#include "tests/unit/frontend_fixture.h"

#include <errno.h>

#include "lib/memory.h"
#include "lib/yaml.h"

static struct bt_yaml *parse(const char *text)
{
    struct bt_yaml *root = NULL;
    struct bt_error error = {0};
    if (bt_yaml_parse("f.yaml", text, strlen(text), 1, &root, &error) < 0)
        fail_msg("%s", error.message);
    return root;
}

static void refuse(const char *text, const char *part)
{
    struct bt_yaml *root = NULL;
    struct bt_error error = {0};
    assert_true(bt_yaml_parse("f.yaml", text, strlen(text), 1, &root, &error) < 0);
    assert_null(root);
    assert_says(&error, part);
}

static void t_yaml_reads_a_tree_with_positions(void **state)
{
    struct bt_yaml *root = parse("a: 1\nb:\n  - x\n  - {c: \"two\\nlines\"}\nlast: [p, q]\n");
    const struct bt_yaml *list = bt_yaml_get(root, "b");
    (void)state;
    assert_int_equal(root->kind, BT_YAML_MAPPING);
    assert_int_equal(root->count, 3);
    assert_string_equal(bt_yaml_get(root, "a")->text, "1");
    assert_true(bt_yaml_get(root, "a")->is_plain);
    assert_int_equal(list->kind, BT_YAML_SEQUENCE);
    assert_int_equal(list->count, 2);
    assert_int_equal(list->values[0]->line, 3);
    assert_int_equal(list->values[0]->column, 5);
    assert_string_equal(bt_yaml_get(list->values[1], "c")->text, "two\nlines");
    assert_false(bt_yaml_get(list->values[1], "c")->is_plain);
    assert_int_equal(bt_yaml_get(root, "last")->count, 2);
    assert_null(bt_yaml_get(root, "absent"));
    assert_null(bt_yaml_free(root));
    assert_null(bt_yaml_free(NULL));
}

static void t_yaml_counts_lines_from_the_given_one(void **state)
{
    struct bt_yaml *root = NULL;
    struct bt_error error = {0};
    (void)state;
    assert_int_equal(bt_yaml_parse("m.md", "a: 1\nb: 2\n", 10, 2, &root, &error), 0);
    assert_int_equal(bt_yaml_get(root, "b")->line, 3);
    bt_yaml_free(root);
}

static void t_yaml_takes_an_empty_document_as_an_empty_mapping(void **state)
{
    static const char *const empty[] = {"", "\n", "# only a comment\n", "---\n", "---\n...\n", "~\n"};
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(empty); i++) {
        struct bt_yaml *root = parse(empty[i]);
        assert_int_equal(root->kind, BT_YAML_MAPPING);
        assert_int_equal(root->count, 0);
        bt_yaml_free(root);
    }
}

static void t_yaml_refuses_what_is_not_data(void **state)
{
    (void)state;
    refuse("a: &x 1\nb: *x\n", "f.yaml:1:4");
    refuse("b: *x\n", "f.yaml:1:4");
    refuse("a: !!str 1\n", "tags are not used");
    refuse("a: !thing {}\n", "tags are not used");
    refuse("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: key 'a' was given at line 1 already");
    refuse("a: 1\n---\nb: 2\n", "f.yaml:2:1");
    refuse("{[a]: 1}\n", "a key must be a word");
    refuse("a: \"x\\0y\"\n", "NUL");
    refuse("a: [1\n", "f.yaml:2:1");
    refuse("a: 1\n b: 2\n", "f.yaml:2:");
    refuse("a: \xff\xfe\n", "f.yaml:1:4");
    refuse("ok: 1\na: \xc3\x28\n", "f.yaml:2:");
}

static void t_yaml_is_bounded(void **state)
{
    bt_auto_buffer deep = {0};
    bt_auto_buffer wide = {0};
    char *big = calloc(1, 1024 * 1024 + 2);
    struct bt_error error = {0};
    struct bt_yaml *root = NULL;
    (void)state;
    for (int i = 0; i < 5000; i++)
        assert_int_equal(bt_buffer_add_text(&deep, "["), 0);
    refuse(deep.data, "nested deeper");
    assert_int_equal(bt_buffer_add_text(&wide, "["), 0);
    for (int i = 0; i < 20001; i++)
        assert_int_equal(bt_buffer_add_text(&wide, "1,"), 0);
    assert_int_equal(bt_buffer_add_text(&wide, "]"), 0);
    refuse(wide.data, "values");
    assert_non_null(big);
    memset(big, '#', 1024 * 1024 + 1);
    assert_int_equal(bt_yaml_parse("f", big, 1024 * 1024 + 1, 1, &root, &error), -EFBIG);
    free(big);
}

static void t_yaml_suggests_the_nearest_key(void **state)
{
    static const char *const known[] = {"egress", "resources", "env"};
    struct bt_yaml *root = parse("egres: 1\n");
    struct bt_yaml *far = parse("completely: 1\n");
    struct bt_error error = {0};
    (void)state;
    assert_int_equal(bt_yaml_check_keys(root, known, 3, &error), -EINVAL);
    assert_says(&error, "f.yaml:1:1: unknown key 'egres'; did you mean 'egress'?");
    assert_int_equal(bt_yaml_check_keys(far, known, 3, &error), -EINVAL);
    assert_says(&error, "known keys: egress, resources, env");
    assert_int_equal(bt_yaml_check_keys(bt_yaml_get(root, "egres"), known, 3, &error), -EINVAL);
    bt_yaml_free(root);
    bt_yaml_free(far);
}

static void t_yaml_gives_typed_values(void **state)
{
    struct bt_yaml *root =
        parse("s: text\nq: \"true\"\nb: true\nn: 12\nm: 1536M\ng: 2GiB\nnull: null\nempty:\nneg: -1\n"
              "huge: 99999999999999999999G\nlist: []\nraw: 4096\n");
    struct bt_error error = {0};
    const char *text = NULL;
    bool flag = false;
    uint64_t number = 0;
    (void)state;
    assert_int_equal(bt_yaml_string(root, "s", NULL, &text, &error), 0);
    assert_string_equal(text, "text");
    assert_int_equal(bt_yaml_string(root, "absent", "fallback", &text, &error), 0);
    assert_string_equal(text, "fallback");
    assert_true(bt_yaml_string(root, "empty", NULL, &text, &error) < 0);
    assert_true(bt_yaml_string(root, "list", NULL, &text, &error) < 0);
    assert_says(&error, "f.yaml:11:7");
    assert_int_equal(bt_yaml_bool(root, "b", false, &flag, &error), 0);
    assert_true(flag);
    assert_true(bt_yaml_bool(root, "q", false, &flag, &error) < 0); /* quoted: text */
    assert_int_equal(bt_yaml_number(root, "n", 0, 1, 12, &number, &error), 0);
    assert_int_equal(number, 12);
    assert_true(bt_yaml_number(root, "n", 0, 1, 11, &number, &error) < 0);
    assert_true(bt_yaml_number(root, "neg", 0, 0, 11, &number, &error) < 0);
    assert_int_equal(number, 12); /* untouched on failure */
    assert_int_equal(bt_yaml_size(root, "m", 0, 1, UINT64_MAX, &number, &error), 0);
    assert_int_equal(number, 1536ULL << 20);
    assert_int_equal(bt_yaml_size(root, "g", 0, 1, UINT64_MAX, &number, &error), 0);
    assert_int_equal(number, 2ULL << 30);
    assert_int_equal(bt_yaml_size(root, "raw", 0, 1, UINT64_MAX, &number, &error), 0);
    assert_int_equal(number, 4096);
    assert_true(bt_yaml_size(root, "huge", 0, 1, UINT64_MAX, &number, &error) < 0);
    assert_true(bt_yaml_size(root, "g", 0, 1, 1ULL << 30, &number, &error) < 0);
    assert_says(&error, "from 1 to 1G");
    bt_yaml_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_yaml_reads_a_tree_with_positions),
        cmocka_unit_test(t_yaml_counts_lines_from_the_given_one),
        cmocka_unit_test(t_yaml_takes_an_empty_document_as_an_empty_mapping),
        cmocka_unit_test(t_yaml_refuses_what_is_not_data),
        cmocka_unit_test(t_yaml_is_bounded),
        cmocka_unit_test(t_yaml_suggests_the_nearest_key),
        cmocka_unit_test(t_yaml_gives_typed_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
