/* Manifests: what a plan has of agent, bottles and their parents, and how it is shown. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/manifest_fixture.h"

static void t_manifest_first_use_needs_no_file(void **state)
{
    bt_auto_plan plan = {0};
    plan_ok(*state, "shell", &plan);
    assert_int_equal(plan.harness, BT_HARNESS_SHELL);
    assert_int_equal(plan.route_count, 0);
    assert_true(notes_have(&plan, "nothing is allowed"));
    assert_string_equal(plan.prompt, "");
    assert_string_equal(plan.image, "shell");
    assert_int_equal(plan.resources.memory_bytes, BT_MEMORY_DEFAULT);
    assert_false(plan.resources.is_memory_asked || plan.resources.is_cpus_asked ||
                 plan.resources.is_disk_asked);
    assert_int_equal(json_array_size(json_object_get(plan.policy, "routes")), 0);
    assert_int_equal(json_integer_value(json_object_get(plan.policy, "version")), 1);
}

static void t_manifest_reads_agent_and_bottle(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_plan plan = {0};
    fixture_write(
        fixture, "config/bottles/dev.yaml",
        "egress:\n  routes:\n    - host: Example.COM.\n    - {host: \"*.corp.example:8443\", private: true, "
        "tls: pass}\nresources: {memory: 512M, cpus: 4, disk: 2G}\nenv: {TOKEN_FILE: /x, EMPTY: \"\"}\n"
        "image: shell-build\n");
    fixture_write(fixture, "config/agents/dev.md",
                  "---\nharness: shell\nbottle: dev\n---\n\nFirst.\n\nSecond.\n\n");
    plan_ok(fixture, "dev", &plan);
    assert_int_equal(plan.route_count, 2);
    assert_non_null(route_of(&plan, "example.com")); /* canonical */
    assert_true(json_is_true(json_object_get(route_of(&plan, "*.corp.example:8443")->rules, "private")));
    assert_string_equal(route_of(&plan, "example.com")->granted_by, "bottle dev");
    assert_non_null(strstr(route_of(&plan, "example.com")->source, "dev.yaml:3:7"));
    assert_int_equal(plan.resources.memory_bytes, 512ULL << 20);
    assert_int_equal(plan.resources.cpus, 4);
    assert_int_equal(plan.environment.count, 2);
    assert_string_equal(plan.environment.items[1], "EMPTY=");
    assert_string_equal(plan.image, "shell-build");
    assert_string_equal(plan.prompt, "First.\n\nSecond.");
}

static void t_manifest_combines_bottles(void **state)
{
    const struct fixture *fixture = *state;
    static const char *const stack[] = {"child", "other"};
    bt_auto_plan plan = {0};
    bt_auto_plan stacked = {0};
    struct bt_error error = {0};
    fixture_write(fixture, "config/bottles/base.yaml",
                  "egress: {routes: [{host: base.example}]}\nresources: {memory: 1G, cpus: 1}\nenv: {A: "
                  "\"1\", B: \"1\"}\n");
    fixture_write(fixture, "config/bottles/child.yaml",
                  "extends: base\nresources: {memory: 3G, disk: 16G}\nenv: {B: \"2\"}\n");
    fixture_write(fixture, "config/bottles/other.yaml",
                  "extends: base\negress: {routes: [{host: other.example}]}\n");
    fixture_write(fixture, "config/agents/a.md", "---\nharness: shell\nbottle: child\n---\n");
    plan_ok(fixture, "a", &plan);
    assert_int_equal(plan.bottles.count, 2);
    assert_string_equal(plan.bottles.items[0], "base");
    assert_int_equal(plan.resources.memory_bytes, 3ULL << 30); /* by key */
    assert_int_equal(plan.resources.cpus, 1);
    assert_true(plan.resources.is_memory_asked && plan.resources.is_cpus_asked);
    assert_true(plan.resources.is_disk_asked); /* with the value that it would have anyway */
    assert_int_equal(plan.resources.disk_bytes, BT_DISK_DEFAULT);
    assert_string_equal(plan.environment.items[0], "A=1"); /* by variable */
    assert_string_equal(plan.environment.items[1], "B=2");
    assert_string_equal(route_of(&plan, "base.example")->granted_by, "bottle base"); /* inherited */
    /* A parent that both have is applied once, so it takes nothing of the child back. */
    assert_int_equal(plan_with(fixture, "a", stack, 2, &stacked, &error), 0);
    assert_int_equal(stacked.bottles.count, 3);
    assert_int_equal(stacked.resources.memory_bytes, 3ULL << 30);
    assert_int_equal(stacked.route_count, 1); /* egress is replaced whole, and that is said */
    assert_non_null(route_of(&stacked, "other.example"));
    assert_true(notes_have(&stacked, "the egress of bottle other replaces"));
}

static void t_manifest_reads_what_requests_are_for(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_plan plan = {0};
    fixture_write(fixture, "config/bottles/dev.yaml",
                  "egress:\n"
                  "  dlp: {inbound: block}\n"
                  "  routes:\n"
                  "    - host: api.example\n"
                  "      methods: [GET, POST]\n"
                  "      paths: [/v1/messages, /v1/files/*]\n"
                  "      headers: {X-Team: Red}\n"
                  "      auth: {scheme: header, header: X-Api-Key, from: example}\n"
                  "      transparent: credentials\n"
                  "      dlp: {outbound: redact, inbound: warn}\n"
                  "      log: 2\n"
                  "    - {host: api.example, methods: [DELETE], preserve_auth: true}\n"
                  "    - {host: pinned.example, tls: pass}\n");
    fixture_write(fixture, "config/agents/dev.md", "---\nharness: shell\nbottle: dev\n---\n");
    plan_ok(fixture, "dev", &plan);
    json_t *expected =
        json_loads("[{\"host\": \"api.example\", \"granted_by\": \"bottle dev\", \"methods\": [\"GET\", "
                   "\"POST\"], \"paths\":"
                   " [\"/v1/messages\", \"/v1/files/*\"], \"headers\": {\"x-team\": \"Red\"}, \"auth\": "
                   "{\"scheme\": \"header\","
                   " \"header\": \"x-api-key\", \"from\": \"example\"}, \"transparent\": \"credentials\", "
                   "\"dlp\": {\"outbound\":"
                   " \"redact\", \"inbound\": \"warn\"}, \"log\": 2},"
                   " {\"host\": \"api.example\", \"granted_by\": \"bottle dev\", \"methods\": [\"DELETE\"], "
                   "\"preserve_auth\": true,"
                   " \"dlp\": {\"inbound\": \"block\"}},"
                   " {\"host\": \"pinned.example\", \"granted_by\": \"bottle dev\", \"tls\": \"pass\"}]",
                   0, NULL);
    assert_non_null(expected);
    if (!json_equal(expected, json_object_get(plan.policy, "routes"))) {
        char *text = json_dumps(plan.policy, 0);
        print_error("%s\n", text);
        free(text);
        fail();
    }
    json_decref(expected);
}

static void t_manifest_windows_line_ends_pass(void **state)
{
    bt_auto_plan plan = {0};
    fixture_write(*state, "config/agents/dos.md", "---\r\nharness: shell\r\n---\r\nWork.\r\n");
    plan_ok(*state, "dos", &plan);
    assert_string_equal(plan.prompt, "Work.");
}

static void t_manifest_json_shows_no_values_of_variables(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_plan plan = {0};
    json_t *document;
    char *text;
    fixture_write(fixture, "config/bottles/dev.yaml", "env: {API_KEY: hunter2}\n");
    fixture_write(fixture, "config/agents/dev.md", "---\nharness: shell\nbottle: dev\n---\n");
    plan_ok(fixture, "dev", &plan);
    document = bt_plan_to_json(&plan);
    assert_non_null(document);
    text = json_dumps(document, 0);
    assert_non_null(strstr(text, "API_KEY"));
    assert_null(strstr(text, "hunter2"));
    free(text);
    json_decref(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_manifest_first_use_needs_no_file),
        FIXTURE_TEST(t_manifest_reads_agent_and_bottle),
        FIXTURE_TEST(t_manifest_combines_bottles),
        FIXTURE_TEST(t_manifest_reads_what_requests_are_for),
        FIXTURE_TEST(t_manifest_windows_line_ends_pass),
        FIXTURE_TEST(t_manifest_json_shows_no_values_of_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
