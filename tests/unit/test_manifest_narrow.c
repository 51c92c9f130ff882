/* Manifests: policies of an administrator and of a project, which only take away. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/manifest_internal.h"
#include "tests/unit/manifest_fixture.h"

static void intersect(const char *left, const char *right, const char *expected)
{
    char pattern[BT_PATTERN_SIZE];
    bt_pattern_intersect(left, right, pattern);
    if (strcmp(pattern, expected) != 0)
        fail_msg("%s with %s gives '%s', not '%s'", left, right, pattern, expected);
    bt_pattern_intersect(right, left, pattern);
    if (strcmp(pattern, expected) != 0)
        fail_msg("%s with %s gives '%s', not '%s'", right, left, pattern, expected);
}

static void t_manifest_intersects_patterns(void **state)
{
    (void)state;
    intersect("a.example", "a.example", "a.example");
    intersect("a.example", "b.example", "");
    intersect("a.example", "*.example", "a.example");
    intersect("example", "*.example", ""); /* not the apex */
    intersect("*.a.example", "*.example", "*.a.example");
    intersect("*.a.example", "*.b.example", "");
    intersect("*.a.example", "*.a.example", "*.a.example");
    intersect("*.a.example", "a.example", "");
    intersect("x.y.a.example", "*.a.example", "x.y.a.example");
    intersect("xa.example", "*.a.example", ""); /* by label */
    intersect("a.example:443", "a.example", "a.example:443");
    intersect("a.example:8443", "a.example", "");
    intersect("a.example:8443", "*.example:8443", "a.example:8443");
    intersect("a.example:80", "a.example:443", "");
}

static void t_manifest_policies_only_narrow(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_plan plan = {0};
    fixture_write(
        fixture, "config/bottles/dev.yaml",
        "egress: {routes: [{host: \"*.example\", private: true}, {host: other.test}, {host: git.test}]}\n");
    fixture_write(fixture, "config/agents/dev.md", "---\nharness: shell\nbottle: dev\n---\n");
    fixture_write(fixture, "project/.berth/policy.yaml",
                  "egress: {allow: [\"*.a.example\", git.test, unrelated.test]}\n");
    fixture_write(fixture, "admin.yaml", "egress:\n  allow: [\"*.example:443\", git.test]\n");
    plan_ok(fixture, "dev", &plan);
    assert_int_equal(plan.route_count, 2);
    assert_true(json_is_true(json_object_get(route_of(&plan, "*.a.example:443")->rules, "private")));
    assert_string_equal(route_of(&plan, "*.a.example:443")->granted_by,
                        "bottle dev, within project policy, within admin policy");
    assert_non_null(route_of(&plan, "git.test"));
    assert_null(route_of(&plan, "unrelated.test")); /* nobody granted it */
    assert_true(notes_have(&plan, "other.test of bottle dev is not allowed by "));
}

static void t_manifest_empty_admin_list_allows_nothing(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_plan plan = {0};
    struct bt_plan broken = {0};
    struct bt_error error = {0};
    fixture_write(fixture, "config/bottles/dev.yaml", "egress: {routes: [{host: a.example}]}\n");
    fixture_write(fixture, "config/agents/dev.md", "---\nharness: shell\nbottle: dev\n---\n");
    fixture_write(fixture, "admin.yaml", "egress: {allow: []}\n");
    plan_ok(fixture, "dev", &plan);
    assert_int_equal(plan.route_count, 0);
    assert_true(notes_have(&plan, "nothing is allowed"));
    /* A policy that cannot be understood or read stops everything. */
    fixture_write(fixture, "admin.yaml", "egres: {allow: []}\n");
    assert_true(plan_with(fixture, "dev", NULL, 0, &broken, &error) < 0);
    assert_says(&error, "admin.yaml:1:1");
}

static json_t *rules_of(const char *text)
{
    json_t *rules = json_loads(text, 0, NULL);
    assert_non_null(rules);
    return rules;
}

/* Single quotes stand for double ones. expected NULL: nothing is left. */
static void narrow(const char *rules_text, const char *limits_text, const char *expected_text)
{
    char texts[3][512];
    bool is_opened = false;
    const char *given[] = {rules_text, limits_text, expected_text ? expected_text : "{}"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(texts[i], sizeof texts[i], "%s", given[i]);
        for (char *at = texts[i]; (at = strchr(at, '\'')) != NULL;)
            *at = '"';
    }
    json_t *rules = rules_of(texts[0]), *limits = rules_of(texts[1]), *expected = rules_of(texts[2]);
    json_t *result = bt_rules_narrow(rules, limits, &is_opened);
    if (!expected_text ? result != NULL : !result || !json_equal(result, expected)) {
        char *text = result ? json_dumps(result, 0) : NULL;
        print_error("%s with %s gives %s\n", rules_text, limits_text, text ? text : "nothing");
        free(text);
        fail();
    }
    json_decref(rules);
    json_decref(limits);
    json_decref(expected);
    json_decref(result);
}

static void t_manifest_narrows_rules(void **state)
{
    (void)state;
    narrow("{}", "{}", "{}");
    narrow("{'tls': 'pass'}", "{}", "{'tls': 'pass'}");
    narrow("{'tls': 'pass', 'private': true}", "{'private': false}", "{'tls': 'pass'}");
    narrow("{'tls': 'pass'}", "{'tls': 'intercept'}", "{}");
    narrow("{'tls': 'pass'}", "{'methods': ['GET']}", "{'methods': ['GET']}");
    narrow("{'tls': 'pass'}", "{'log': 1}", "{'tls': 'pass'}");
    narrow("{'tls': 'pass', 'log': 0}", "{'log': 1}", "{'tls': 'pass', 'log': 1}");
    narrow("{'tls': 'pass'}", "{'log': 2}", "{'log': 2}");
    narrow("{'methods': ['GET', 'POST']}", "{'methods': ['HEAD', 'POST', 'PUT']}",
           "{'methods': ['POST', 'HEAD']}");
    narrow("{'methods': ['GET']}", "{'methods': ['GET', 'HEAD']}", "{'methods': ['GET', 'HEAD']}");
    narrow("{'methods': ['GET']}", "{'methods': ['POST']}", NULL);
    narrow("{}", "{'paths': ['/a']}", "{'paths': ['/a']}");
    narrow("{'paths': ['/a/*', '/b']}", "{'paths': ['/a/b/*', '/a/c', '/b', '/d']}",
           "{'paths': ['/b', '/a/b/*', '/a/c']}");
    narrow("{'paths': ['/a/*']}", "{'paths': ['/a']}", NULL);
    narrow("{'paths': ['/a/*']}", "{'paths': ['/*']}", "{'paths': ['/a/*']}");
    narrow("{'headers': {'a': '1'}}", "{'headers': {'b': '2'}}", "{'headers': {'a': '1', 'b': '2'}}");
    narrow("{'headers': {'a': '1'}}", "{'headers': {'a': '2'}}", NULL);
    narrow("{'auth': {'scheme': 'bearer', 'from': 'x'}, 'transparent': 'credentials'}", "{'auth': false}",
           "{'auth': {'scheme': 'none'}}");
    narrow("{'auth': {'scheme': 'bearer', 'from': 'x'}, 'transparent': 'credentials'}",
           "{'transparent': false}", "{'auth': {'scheme': 'bearer', 'from': 'x'}}");
    narrow("{'preserve_auth': true}", "{'preserve_auth': false}", "{}");
    narrow("{}", "{'dlp': {'outbound': 'redact', 'inbound': 'block'}}",
           "{'dlp': {'outbound': 'block', 'inbound': 'block', 'entropy': 'off'}}");
    narrow("{'dlp': {'outbound': 'off', 'entropy': 'warn'}}", "{'dlp': {'outbound': 'supervise'}}",
           "{'dlp': {'outbound': 'supervise', 'inbound': 'warn', 'entropy': 'warn'}}");
    narrow("{}", "{'log': 2}", "{'log': 2}");
    narrow("{'log': 2}", "{'log': 0}", "{'log': 2}");
    narrow("{}", "{'log': 0}", "{}");
}

static void t_manifest_lists_grant_nothing(void **state)
{
    static const char *const wrong[][2] = {
        {"private: true", "'private' can only be false here"},
        {"auth: true", "'auth' can only be false here"},
        {"tls: pass", "'tls' can only be intercept here"},
        {"methods: [get]", "upper case"},
        {"paths: [a]", "plain path"},
        {"granted_by: me", "unknown key 'granted_by'"},
    };
    const struct fixture *fixture = *state;
    bt_auto_plan plan = {0};
    fixture_write(fixture, "config/bottles/dev.yaml",
                  "egress: {routes: [{host: \"*.example\", auth: {scheme: bearer, from: x}}, {host: p.test, "
                  "tls: pass}]}\n");
    fixture_write(fixture, "config/agents/dev.md", "---\nharness: shell\nbottle: dev\n---\n");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(wrong); i++) {
        struct bt_plan broken = {0};
        struct bt_error error = {0};
        char text[256];
        snprintf(text, sizeof text, "egress:\n  allow:\n    - host: a.example\n      %s\n", wrong[i][0]);
        fixture_write(fixture, "admin.yaml", text);
        assert_true(plan_with(fixture, "dev", NULL, 0, &broken, &error) < 0);
        assert_says(&error, "admin.yaml:4:");
        assert_says(&error, wrong[i][1]);
    }
    fixture_write(fixture, "admin.yaml",
                  "egress:\n  allow:\n    - {host: a.example, methods: [GET], paths: [/v1/*], auth: false}\n"
                  "    - \"*.example:443\"\n    - {host: p.test, log: 2, tls: intercept}\n");
    plan_ok(fixture, "dev", &plan);
    assert_int_equal(plan.route_count, 3);
    assert_string_equal(plan.routes[0].host, "a.example");
    assert_null(json_object_get(json_object_get(plan.routes[0].rules, "auth"), "from"));
    assert_string_equal(plan.routes[1].host, "*.example:443");
    assert_non_null(json_object_get(plan.routes[1].rules, "auth"));
    assert_null(json_object_get(plan.routes[2].rules, "tls"));
    assert_true(notes_have(&plan, "TLS to p.test is opened"));
}

static void t_manifest_project_adds_agents_only(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_plan own = {0};
    bt_auto_plan projects = {0};
    bt_auto_plan shell = {0};
    bt_auto_list names = {0};
    fixture_write(fixture, "config/agents/mine.md", "---\nharness: shell\n---\nmine\n");
    fixture_write(fixture, "project/.berth/agents/mine.md", "---\nharness: shell\n---\ntheirs\n");
    fixture_write(fixture, "project/.berth/agents/new.md", "---\nharness: shell\n---\ntheirs\n");
    fixture_write(fixture, "project/.berth/agents/shell.md", "---\nharness: shell\n---\ntheirs\n");
    fixture_write(fixture, "project/.berth/bottles/wide.yaml", "egress: {routes: [{host: \"*.example\"}]}\n");
    fixture_write(fixture, "project/sub/file", "x");
    plan_ok(fixture, "mine", &own);
    assert_string_equal(own.prompt, "mine");
    assert_false(own.is_project_agent);
    assert_true(notes_have(&own, "agents/mine.md is not used"));
    assert_true(notes_have(&own, "bottles is not used"));
    plan_ok(fixture, "shell", &shell);
    assert_string_equal(shell.prompt, "");
    plan_ok(fixture, "new", &projects);
    assert_true(projects.is_project_agent);
    assert_string_equal(projects.prompt, "theirs");
    assert_int_equal(bt_agent_names(&fixture->paths, fixture->project, &names, NULL), 0);
    assert_true(bt_list_has(&names, "new") && bt_list_has(&names, "mine") && bt_list_has(&names, "shell"));
    assert_int_equal(names.count, BT_HARNESS_MAX + 2);
}

static void t_manifest_project_bottles_cannot_be_used(void **state)
{
    const struct fixture *fixture = *state;
    fixture_write(fixture, "project/.berth/bottles/wide.yaml", "egress: {routes: [{host: \"*.example\"}]}\n");
    fixture_write(fixture, "project/.berth/agents/new.md", "---\nharness: shell\nbottle: wide\n---\n");
    refuse_agent(fixture, "new", BT_EXIT_ERROR, "there is no bottle 'wide'");
}

static void t_manifest_project_links_lead_nowhere(void **state)
{
    const struct fixture *fixture = *state;
    char target[512], link[512];
    struct bt_plan plan = {0};
    struct bt_error error = {0};
    fixture_write(fixture, "secret.md", "---\nharness: shell\n---\nprivate text of the user\n");
    fixture_write(fixture, "project/.berth/agents/x.md", "---\nharness: shell\n---\n");
    snprintf(target, sizeof target, "%s/secret.md", fixture->folder);
    snprintf(link, sizeof link, "%s/.berth/agents/leak.md", fixture->project);
    assert_int_equal(symlink(target, link), 0);
    assert_true(plan_with(fixture, "leak", NULL, 0, &plan, &error) < 0);
    assert_says(&error, "symbolic links");
    /* A folder that is a link, likewise. */
    snprintf(link, sizeof link, "%s/sub", fixture->project);
    assert_int_equal(bt_folder_make(link, 0700, NULL), 0);
    snprintf(link, sizeof link, "%s/sub/.berth", fixture->project);
    snprintf(target, sizeof target, "%s/config", fixture->folder);
    assert_int_equal(symlink(target, link), 0);
    snprintf(link, sizeof link, "%s/sub", fixture->project);
    struct bt_plan_request request = {.paths = &fixture->paths,
                                      .agent = "shell",
                                      .project_folder = link,
                                      .admin_policy_path = "/nonexistent"};
    assert_true(bt_plan_make(&request, &plan, &error) < 0);
    assert_says(&error, ".berth");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_manifest_intersects_patterns),
        FIXTURE_TEST(t_manifest_policies_only_narrow),
        FIXTURE_TEST(t_manifest_empty_admin_list_allows_nothing),
        FIXTURE_TEST(t_manifest_narrows_rules),
        FIXTURE_TEST(t_manifest_lists_grant_nothing),
        FIXTURE_TEST(t_manifest_project_adds_agents_only),
        FIXTURE_TEST(t_manifest_project_bottles_cannot_be_used),
        FIXTURE_TEST(t_manifest_project_links_lead_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
