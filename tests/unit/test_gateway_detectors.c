/* Every detector against the vectors of its data file, in one piece and byte by byte, blocked and
 * overwritten. Vectors are joined here: no file of the project holds anything that looks like a secret. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <glob.h>

#include "lib/file.h"
#include "lib/yaml.h"
#include "tests/lib/filter_run.h"

static char *join_parts(const struct bt_yaml *parts)
{
    bt_auto_buffer text = {0};
    assert_int_equal(parts->kind, BT_YAML_SEQUENCE);
    for (size_t i = 0; i < parts->count; i++)
        assert_int_equal(bt_buffer_add_text(&text, parts->values[i]->text), 0);
    return BT_TAKE(text.data);
}

/* Runs a text through a filter with other text around it. */
static void run_text(struct filter_run *run, const char *text)
{
    bt_auto_free char *body = bt_string_format("{\"before\": 1} %s {\"behind\": 2}\n", text);
    filter_run_clear(run);
    filter_run(run, body, strlen(body));
}

static void check_inbound(const char *name, const char *text, bool is_positive)
{
    bt_auto_free char *rule = bt_string_format("inbound:%s", name);
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
        struct filter_run run = {.is_response = true, .cut = cut};
        run_text(&run, text);
        assert_int_equal(run.verdict, BT_FILTER_PASS);
        if (filter_run_found(&run, rule) != is_positive)
            fail_msg("%s %s: %s", rule, is_positive ? "did not find" : "found", text);
        run.settings.dlp.inbound = BT_DLP_INBOUND_BLOCK;
        run_text(&run, text);
        assert_int_equal(run.verdict, is_positive ? BT_FILTER_BLOCK : BT_FILTER_PASS);
        filter_run_clear(&run);
    }
}

/* The run of bytes that only the secret has must be gone. */
static void check_overwritten(const struct filter_run *run, const char *text)
{
    size_t length = strlen(text), kept = 0;
    for (size_t at = 0; at < run->output_length; at++)
        kept += run->output[at] == '*' ? 1 : 0;
    assert_int_equal(run->output_length, length + strlen("{\"before\": 1}  {\"behind\": 2}\n"));
    assert_true(kept >= 16);
    assert_null(strstr(run->output, text));
    assert_non_null(strstr(run->output, "{\"before\": 1} "));
    assert_non_null(strstr(run->output, "{\"behind\": 2}\n"));
}

static void check_outbound(const char *name, const char *text, bool is_positive)
{
    bt_auto_free char *rule = bt_string_format("dlp:%s", name);
    for (enum filter_run_cut cut = CUT_NONE; cut <= CUT_BYTES; cut++) {
        struct filter_run run = {.cut = cut};
        run_text(&run, text);
        if (filter_run_found(&run, rule) != is_positive)
            fail_msg("%s %s: %s", rule, is_positive ? "did not find" : "found", text);
        assert_int_equal(run.verdict, run.finding_count != 0 ? BT_FILTER_BLOCK : BT_FILTER_PASS);
        run.settings.dlp.outbound = BT_DLP_OUTBOUND_REDACT;
        run_text(&run, text);
        assert_int_equal(run.verdict, BT_FILTER_PASS);
        if (is_positive)
            check_overwritten(&run, text);
        filter_run_clear(&run);
    }
}

static size_t check_list(const struct bt_yaml *detector, const char *key)
{
    const struct bt_yaml *list = bt_yaml_get(detector, key);
    const struct bt_yaml *direction = bt_yaml_get(detector, "direction");
    const char *name = bt_yaml_get(detector, "name")->text;
    bool is_positive = strcmp(key, "positive") == 0;
    assert_non_null(list);
    for (size_t i = 0; i < list->count; i++) {
        bt_auto_free char *text = join_parts(list->values[i]);
        if (direction != NULL && strcmp(direction->text, "inbound") == 0)
            check_inbound(name, text, is_positive);
        else
            check_outbound(name, text, is_positive);
    }
    return list->count;
}

static size_t check_file(const char *path)
{
    bt_auto_buffer text = {0};
    struct bt_yaml *root = NULL;
    struct bt_error error = {0};
    size_t count = 0;
    assert_int_equal(bt_file_read(path, 1024 * 1024, &text, &error), 0);
    assert_int_equal(bt_yaml_parse(path, text.data, text.length, 1, &root, &error), 0);
    const struct bt_yaml *list = bt_yaml_get(root, "detectors");
    for (size_t i = 0; i < list->count; i++) {
        assert_true(check_list(list->values[i], "positive") > 0);
        assert_true(check_list(list->values[i], "negative") > 0);
        count++;
    }
    (void)bt_yaml_free(root);
    return count;
}

static void test_vectors(void **state)
{
    glob_t files;
    size_t count = 0;
    (void)state;
    assert_int_equal(glob("policy/rules/detectors/*.yaml", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        count += check_file(files.gl_pathv[i]);
    globfree(&files);
    assert_true(count >= 25);
}

static int start(void **state)
{
    (void)state;
    return bt_filters_start(NULL);
}

static int stop(void **state)
{
    (void)state;
    bt_filters_stop();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
