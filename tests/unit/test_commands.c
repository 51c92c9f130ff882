/* Command lines: the tables themselves, options, completion, what is printed; and that the manual speaks of
 * all of it. */
#include "tests/unit/frontend_fixture.h"

#include <errno.h>
#include <unistd.h>

#include "frontend/command.h"
#include "frontend/complete.h"
#include "frontend/start.h"

static void t_commands_tables_are_sound(void **state)
{
    (void)state;
    assert_true(bt_command_count <= BT_COMMANDS_MAX);
    for (size_t i = 0; i < bt_command_count; i++) {
        const struct bt_command *command = bt_commands[i];
        struct bt_option options[BT_OPTIONS_MAX];
        size_t count = bt_command_options(command, options);
        assert_non_null(command->run);
        assert_non_null(command->operands);
        assert_true(strlen(command->name) <= 10); /* the column of help */
        assert_true(command->minimum <= command->maximum);
        for (size_t a = 0; a < count; a++) {
            assert_non_null(options[a].help);
            for (size_t b = a + 1; b < count; b++) {
                if (strcmp(options[a].name, options[b].name) == 0 ||
                    (options[a].letter && options[a].letter == options[b].letter))
                    fail_msg("%s: --%s and --%s collide", command->name, options[a].name, options[b].name);
            }
        }
    }
}

/* The text of a file of the source tree, from the tree's top or from build/tests/unit. */
static char *tree_file(const char *name)
{
    bt_auto_buffer text = {0};
    char path[4096], own[3000];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    assert_true(length > 0);
    own[length] = '\0';
    *strrchr(own, '/') = '\0';
    snprintf(path, sizeof path, "%s/../../../%s", own, name);
    if (bt_file_read(path, 1024 * 1024, &text, NULL) < 0 && bt_file_read(name, 1024 * 1024, &text, NULL) < 0)
        fail_msg("cannot find %s", name);
    return bt_string_copy(text.data);
}

static void t_commands_are_all_in_the_manual(void **state)
{
    bt_auto_free char *manual = tree_file("docs/berth.1");
    (void)state;
    for (size_t i = 0; i < bt_command_count; i++) {
        const struct bt_command *command = bt_commands[i];
        struct bt_option options[BT_OPTIONS_MAX];
        size_t count = bt_command_options(command, options);
        char wanted[64];
        snprintf(wanted, sizeof wanted, ".It Cm %s", command->name);
        if (!strstr(manual, wanted))
            fail_msg("docs/berth.1 does not speak of berth %s", command->name);
        for (size_t k = 0; k < count; k++) {
            snprintf(wanted, sizeof wanted, "Fl -%s", options[k].name);
            if (!strstr(manual, wanted))
                fail_msg("docs/berth.1 does not speak of --%s of berth %s", options[k].name, command->name);
        }
    }
}

/* ---- options ---- */

static const struct bt_option table[] = {
    {.name = "flag", .letter = 'f', .help = "h"},
    {.name = "value", .letter = 'v', .value_name = "X", .help = "h"},
    {.name = "many", .value_name = "X", .may_repeat = true, .help = "h"},
};

static int parse(struct bt_arguments *arguments, struct bt_error *error, const char *const *words)
{
    size_t count = 0;
    while (words[count])
        count++;
    return bt_options_parse(table, BT_ARRAY_LENGTH(table), words, count, arguments, error);
}
#define PARSE(...) parse(&arguments, &error, (const char *const[]){__VA_ARGS__, NULL})

static void t_options_in_any_order(void **state)
{
    struct bt_arguments arguments = {0};
    struct bt_error error = {0};
    (void)state;
    assert_int_equal(
        PARSE("one", "--value=a=b", "-f", "--many", "1", "two", "--many", "-2", "--", "-f", "--", "x"), 0);
    assert_int_equal(arguments.operands.count, 2);
    assert_string_equal(bt_option_value(&arguments, "value", NULL), "a=b");
    assert_true(bt_option_is_set(&arguments, "flag"));
    assert_int_equal(bt_option_values(&arguments, "many")->count, 2);
    assert_string_equal(bt_option_value(&arguments, "many", NULL), "-2");
    assert_true(arguments.has_rest);
    assert_int_equal(arguments.rest.count, 3);
    assert_string_equal(arguments.rest.items[1], "--");
    bt_arguments_free(&arguments);
    assert_int_equal(PARSE("-", "-v", ""), 0); /* "-" is an operand, "" a value */
    assert_string_equal(arguments.operands.items[0], "-");
    assert_string_equal(bt_option_value(&arguments, "value", "x"), "");
    bt_arguments_free(&arguments);
}

static void t_options_refuse_by_name(void **state)
{
    struct bt_arguments arguments = {0};
    struct bt_error error = {0};
    uint64_t number = 7;
    (void)state;
    assert_true(PARSE("--valeu", "x") < 0);
    assert_int_equal(error.status, BT_EXIT_USAGE);
    assert_says(&error, "did you mean --value?");
    assert_true(PARSE("-x") < 0);
    assert_true(PARSE("--value") < 0);
    assert_says(&error, "needs a value");
    assert_true(PARSE("--flag=1") < 0);
    assert_true(PARSE("-v", "1", "-v", "2") < 0);
    assert_true(PARSE("-fv", "1") < 0);
    assert_int_equal(PARSE("-v", "12"), 0);
    assert_int_equal(bt_option_number(&arguments, "value", 1, 1, 12, &number, &error), 0);
    assert_int_equal(number, 12);
    assert_true(bt_option_number(&arguments, "value", 1, 1, 11, &number, &error) < 0);
    assert_int_equal(bt_option_number(&arguments, "many", 5, 1, 11, &number, &error), 0);
    assert_int_equal(number, 5);
    bt_arguments_free(&arguments);
}

/* ---- repositories ---- */

static void t_start_takes_https_repositories_only(void **state)
{
    struct bt_error error = {0};
    char host[300];
    uint16_t port = 0;
    (void)state;
    assert_int_equal(bt_start_check_repository("https://git.example/a/b.git", &error), 0);
    assert_int_equal(bt_start_check_repository("https://git.example:8443/a@b", &error), 0);
    assert_int_equal(bt_start_repository_host("https://git.example:8443/a@b", host, sizeof host, &port), 0);
    assert_string_equal(host, "git.example");
    assert_int_equal(port, 8443);
    for (const char *const *bad =
             (const char *const[]){"http://git.example/a", "ssh://git@git.example/a", "git@git.example:a/b",
                                   "/tmp/x", "file:///etc", "https://", "https://:443/a",
                                   "https://git.example:0/", "https://git.example:x/",
                                   "https://git.example/a b", "https://git.example/\n",
                                   "-https://git.example/", "https://git.example/\xc3\xa9", "", NULL};
         *bad; bad++) {
        error = (struct bt_error){0};
        if (bt_start_check_repository(*bad, &error) == 0)
            fail_msg("taken: %s", *bad);
        assert_int_equal(error.status, BT_EXIT_USAGE);
    }
    assert_true(bt_start_check_repository("https://me:hunter2@git.example/a", &error) < 0);
    assert_null(strstr(error.message, "hunter2"));
}

/* ---- completion ---- */

static void expect(const char *words, const char *expected)
{
    bt_auto_list list = {0};
    bt_auto_list candidates = {0};
    bt_auto_buffer all = {0};
    char *copy = bt_string_copy(words), *rest = copy, *word;
    while ((word = strsep(&rest, " ")))
        bt_list_add(&list, word);
    bt_complete((const char *const *)list.items, list.count, &candidates);
    for (size_t i = 0; i < candidates.count; i++)
        assert_int_equal(bt_buffer_add_format(&all, "%s%s", i ? " " : "", candidates.items[i]), 0);
    if (strcmp(all.data ? all.data : "", expected) != 0)
        fail_msg("'%s' completes to '%s', not '%s'", words, all.data ? all.data : "", expected);
    free(copy);
}

static void t_complete_knows_what_comes_next(void **state)
{
    struct fixture *fixture = *state;
    struct bt_state *database = NULL;
    struct bt_agent agent = {.name = "dev-one", .environment = "live", .manifest = "dev"};
    assert_int_equal(bt_process_identify(getpid(), &agent.keeper), 0);
    fixture_write(fixture, "config/bottles/dev.yaml", "");
    fixture_write(fixture, "config/agents/dev.md", "");
    setenv("BERTH_CONFIG_HOME", fixture->paths.config, 1);
    setenv("BERTH_STATE_HOME", fixture->paths.state, 1);
    expect("sp", "spawn");
    expect("",
           "spawn run resume list status exec attach peek steer stop rm diff apply freeze cp probe why logs "
           "approvals credential "
           "doctor up down image audit "
           "cleanup "
           "version help");
    expect("rm ", ""); /* and no database was made for the question */
    assert_int_equal(access(fixture->paths.state, F_OK), -1);
    assert_int_equal(bt_state_open(&fixture->paths, &database, NULL), 0);
    assert_int_equal(bt_state_reserve(database, &agent, NULL), 0);
    bt_state_close(database);
    expect("rm ", "dev-one");
    expect("rm x", "");
    expect("cp d", "dev-one: @files");
    expect("spawn d", "dev");
    expect("spawn dev ", "");
    expect("spawn --bottles none,d", "none,dev");
    expect("spawn --workspace ", "@folders");
    expect("spawn --name -", ""); /* the value of an option is no option */
    expect("spawn dev --dr", "--dry-run");
    expect("spawn dev -- ", "@files");
    expect("cleanup ", "bots images workspaces");
    expect("approvals ", "list show allow deny");
    expect("approvals allow ", ""); /* nothing waits, and nothing is said about that */
    expect("approvals allow --re", "--remember");
    expect("list --names ", "agents manifests bottles");
    expect("nonsense ", "");
    unsetenv("BERTH_CONFIG_HOME");
    unsetenv("BERTH_STATE_HOME");
}

/* ---- what is printed ---- */

static void clean(const char *text, const char *expected)
{
    bt_auto_free char *copy = bt_string_copy(text);
    bt_output_clean(copy);
    assert_string_equal(copy, expected);
}

static void t_output_lets_no_control_through(void **state)
{
    (void)state;
    clean("plain\ttext\n", "plain\ttext\n");
    clean("\033[2Jx", "?[2Jx");
    clean("a\rb\bc\x7f", "a?b?c?");
    clean("\xc2\x9b"
          "31m",
          "??31m"); /* U+009B, a CSI in one character */
    clean("\x9b"
          "31m",
          "?31m");                              /* the same as a lone byte */
    clean("gpj.\xe2\x80\xae.sh", "gpj.???.sh"); /* U+202E: what follows runs from right to left */
    clean("\xe2\x82\xac \xe2\x80", "\xe2\x82\xac \xe2\x80");
    clean("gr\xc3\xbc\xc3\x9f"
          "e",
          "gr\xc3\xbc\xc3\x9f"
          "e"); /* letters whose second byte looks like one */
    json_t *text = bt_output_json_text("bad \xff byte");
    assert_string_equal(json_string_value(text), "bad ? byte");
    json_decref(text);
}

static void t_output_speaks_to_people(void **state)
{
    char text[BT_OUTPUT_TEXT_SIZE];
    (void)state;
    bt_output_bytes(1023, text);
    assert_string_equal(text, "1023 B");
    bt_output_bytes(3ULL << 29, text);
    assert_string_equal(text, "1.5 GiB");
    bt_output_age(59, text);
    assert_string_equal(text, "59s");
    bt_output_age(3600 + 120, text);
    assert_string_equal(text, "1h 2m");
    bt_output_age(-5, text);
    assert_string_equal(text, "0s"); /* a clock that was set back */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_commands_tables_are_sound),
        cmocka_unit_test(t_commands_are_all_in_the_manual),
        cmocka_unit_test(t_options_in_any_order),
        cmocka_unit_test(t_options_refuse_by_name),
        cmocka_unit_test(t_start_takes_https_repositories_only),
        FIXTURE_TEST(t_complete_knows_what_comes_next),
        cmocka_unit_test(t_output_lets_no_control_through),
        cmocka_unit_test(t_output_speaks_to_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
