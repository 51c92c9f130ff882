/* Manifests: what each harness has by itself, and how it gets a prompt. */
#include <string.h>

#include "tests/unit/manifest_fixture.h"

/* Each harness has an agent, a bottle and an image without a file of the user's: its provider's host with the
 * user's key, and no other. */
static void t_manifest_harnesses_come_with_all_they_need(void **state)
{
    static const struct {
        const char *harness, *host, *credential;
    } expected[] = {{"claude", "api.anthropic.com", "anthropic"},
                    {"codex", "api.openai.com", "openai"},
                    {"pi", "api.anthropic.com", "anthropic"}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(expected); i++) {
        bt_auto_plan plan = {0};
        plan_ok(*state, expected[i].harness, &plan);
        assert_string_equal(bt_harness_name(plan.harness), expected[i].harness);
        assert_string_equal(plan.image, expected[i].harness);
        assert_string_equal(plan.agent_source, "built in");
        assert_int_equal(plan.route_count, 1);
        const struct bt_route *route = route_of(&plan, expected[i].host);
        assert_non_null(route);
        assert_string_equal(json_string_value(json_object_get(json_object_get(route->rules, "auth"), "from")),
                            expected[i].credential);
        assert_true(json_array_size(json_object_get(route->rules, "paths")) > 0);
    }
}

static void t_manifest_harnesses_can_be_changed(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_plan own = {0}, shadowed = {0}, extended = {0};
    fixture_write(fixture, "config/agents/mine.md", "---\nharness: claude\n---\nWork.\n");
    plan_ok(fixture, "mine", &own);
    assert_string_equal(own.bottles.items[0], "claude");
    fixture_write(fixture, "config/bottles/more.yaml",
                  "extends: claude\nimage: shell\nenv: {ANTHROPIC_API_KEY: other}\n");
    fixture_write(fixture, "config/agents/mine.md", "---\nharness: claude\nbottle: more\n---\n");
    plan_ok(fixture, "mine", &extended);
    assert_string_equal(extended.image, "shell");
    assert_int_equal(extended.route_count, 1);
    assert_true(bt_list_has(&extended.environment, "ANTHROPIC_API_KEY=other"));
    fixture_write(fixture, "config/bottles/claude.yaml", "egress: {routes: [{host: other.example}]}\n");
    plan_ok(fixture, "claude", &shadowed);
    assert_int_equal(shadowed.route_count, 1);
    assert_non_null(route_of(&shadowed, "other.example"));
}

/* A prompt is one word behind the options, whatever it begins with; a key in the guest is a placeholder. */
static void t_manifest_harnesses_take_prompts(void **state)
{
    (void)state;
    for (unsigned i = 0; i < BT_HARNESS_MAX; i++) {
        bt_auto_list words = {0}, environment = {0};
        enum bt_harness found = BT_HARNESS_MAX;
        assert_true(bt_harness_find(bt_harness_names()[i], &found));
        assert_int_equal(found, i);
        bt_harness_command(found, "--version", false, &words);
        bt_auto_list continued = {0};
        bt_harness_command(found, "--version", true, &continued);
        assert_string_equal(continued.items[continued.count - 1], "--version");
        assert_int_equal(bt_list_has(&continued, "--continue") || bt_list_has(&continued, "resume"),
                         found != BT_HARNESS_SHELL);
        assert_int_equal(bt_harness_continue_prompt(found) != NULL, found != BT_HARNESS_SHELL);
        bt_auto_list terminal = {0};
        bt_harness_terminal(found, &terminal);
        if (found == BT_HARNESS_SHELL)
            assert_int_equal(terminal.count, 0);
        else
            assert_true(bt_list_has(&terminal, bt_harness_name(found)));
        bt_harness_environment(found, &environment);
        assert_string_equal(words.items[words.count - 1], "--version");
        assert_string_equal(words.items[words.count - 2], found == BT_HARNESS_SHELL ? "-lc" : "--");
        for (size_t k = 0; k < environment.count; k++)
            assert_true(strstr(environment.items[k], "_KEY=") == NULL ||
                        strstr(environment.items[k], "the-gateway-has-the-key") != NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_manifest_harnesses_come_with_all_they_need),
        FIXTURE_TEST(t_manifest_harnesses_can_be_changed),
        FIXTURE_TEST(t_manifest_harnesses_take_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
