/* Manifests: what a plan grants and by whom, what is refused and where, what narrows. */
#include "tests/unit/frontend_fixture.h"

#include <errno.h>
#include <unistd.h>

#include "frontend/manifest.h"
#include "frontend/manifest_internal.h"

static int plan_with(const struct fixture *fixture, const char *agent, const char *const *bottles,
                     size_t count, struct bt_plan *plan, struct bt_error *error)
{
    char admin[320];
    snprintf(admin, sizeof admin, "%s/admin.yaml", fixture->folder);
    struct bt_plan_request request = {.paths = &fixture->paths,
                                      .agent = agent,
                                      .bottles = bottles,
                                      .bottle_count = count,
                                      .project_folder = fixture->project,
                                      .admin_policy_path = admin};
    return bt_plan_make(&request, plan, error);
}

static void plan_ok(const struct fixture *fixture, const char *agent, struct bt_plan *plan)
{
    struct bt_error error = {0};
    if (plan_with(fixture, agent, NULL, 0, plan, &error) < 0)
        fail_msg("%s (%s)", error.message, error.hint);
}

static void refuse_agent(const struct fixture *fixture, const char *agent, enum bt_exit status,
                         const char *part)
{
    struct bt_plan plan = {0};
    struct bt_error error = {0};
    assert_true(plan_with(fixture, agent, NULL, 0, &plan, &error) < 0);
    assert_int_equal(error.status, status);
    assert_says(&error, part);
}

/* A bottle of this text, used by an agent, must be refused with this. */
static void refuse_bottle(const struct fixture *fixture, const char *text, const char *part)
{
    fixture_write(fixture, "config/bottles/bad.yaml", text);
    fixture_write(fixture, "config/agents/bad.md", "---\nharness: shell\nbottle: bad\n---\n");
    refuse_agent(fixture, "bad", BT_EXIT_ERROR, part);
}

static const struct bt_route *route_of(const struct bt_plan *plan, const char *host)
{
    for (size_t i = 0; i < plan->route_count; i++) {
        if (strcmp(plan->routes[i].host, host) == 0)
            return &plan->routes[i];
    }
    return NULL;
}

static bool notes_have(const struct bt_plan *plan, const char *part)
{
    for (size_t i = 0; i < plan->notes.count; i++) {
        if (strstr(plan->notes.items[i], part))
            return true;
    }
    return false;
}

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

static void t_manifest_refuses_circles_and_missing_parents(void **state)
{
    const struct fixture *fixture = *state;
    fixture_write(fixture, "config/bottles/bad2.yaml", "extends: bad\n");
    refuse_bottle(fixture, "extends: bad\n", "bad.yaml:1:10");
    refuse_bottle(fixture, "extends: bad2\n", "extends itself");
    refuse_bottle(fixture, "extends: bad3\n", "did you mean 'bad");
    refuse_bottle(fixture, "extends: absent-one\n", "bad.yaml:1:10: there is no bottle 'absent-one'");
}

static void t_manifest_refuses_keys_it_does_not_enforce(void **state)
{
    const struct fixture *fixture = *state;
    fixture_write(fixture, "config/agents/skilled.md", "---\nharness: shell\nskills: [a]\n---\n");
    refuse_agent(fixture, "skilled", BT_EXIT_ERROR,
                 "skilled.md:3:1: 'skills' is not supported by this version");
}

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

static void t_manifest_refuses_what_cannot_be_kept(void **state)
{
    static const struct {
        const char *keys, *place, *part;
    } cases[] = {
        {"tls: pass\n      methods: [GET]", "bad.yaml:4:7", "exclude each other"},
        {"tls: pass\n      dlp: {outbound: off}", "bad.yaml:4:7", "\"dlp\""},
        {"tls: pass\n      log: 2", "bad.yaml:4:7", "\"log\": 2"},
        {"tls: maybe", "bad.yaml:4:7", "intercept or pass"},
        {"methods: []", "bad.yaml:4:16", "a list of 1 to 64"},
        {"methods: GET", "bad.yaml:4:16", "a list of 1 to 64"},
        {"methods: [get]", "bad.yaml:4:7", "upper case"},
        {"paths: [/a*]", "bad.yaml:4:7", "plain path"},
        {"paths: [/a/../b]", "bad.yaml:4:7", "plain path"},
        {"paths: [[/a]]", "bad.yaml:4:15", "must be a text"},
        {"headers: {Host: a}", "bad.yaml:4:7", "belongs to the connection"},
        {"headers: {A: b, a: c}", "bad.yaml:4:23", "twice"},
        {"headers: {X-Api-Key: a}", "bad.yaml:4:7", "credentials"},
        {"auth: {scheme: bearer}", "bad.yaml:4:7", "from"},
        {"auth: {scheme: bearer, from: a, value: b}", "bad.yaml:4:39", "unknown key 'value'"},
        {"auth: {scheme: basic, from: a}\n      preserve_auth: true", "bad.yaml:4:7", "exclude each other"},
        {"transparent: credentials", "bad.yaml:4:7", "nothing to inject"},
        {"dlp: {outbound: warn}", "bad.yaml:4:7", "redact"},
        {"dlp: {entropy: block}", "bad.yaml:4:7", "\"entropy\" is not off or warn"},
        {"dlp: true", "bad.yaml:4:12", "mapping"},
        {"log: 3", "bad.yaml:4:12", "from 0 to 2"},
    };
    const struct fixture *fixture = *state;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "egress:\n  routes:\n    - host: a.example\n      %s\n", cases[i].keys);
        refuse_bottle(fixture, text, cases[i].place);
        refuse_bottle(fixture, text, cases[i].part);
    }
    refuse_bottle(fixture, "egress: {dlp: {outbound: no}, routes: []}\n", "bad.yaml:1:10");
    refuse_bottle(fixture,
                  "egress: {routes: [{host: a.example, paths: [/a]}, {host: a.example, tls: pass}]}\n",
                  "cannot be both intercepted and passed through");
}

static void t_manifest_refuses_mistakes_where_they_are(void **state)
{
    const struct fixture *fixture = *state;
    refuse_bottle(fixture, "egress:\n  routes:\n    - host: a.example\n      metods: [GET]\n",
                  "bad.yaml:4:7: unknown key 'metods'; did you mean 'methods'?");
    refuse_bottle(fixture, "egress: {}\n", "'egress' needs 'routes'");
    refuse_bottle(fixture, "egress: {routes: }\n", "'routes' must be a list");
    refuse_bottle(fixture, "egress: {routes: [{private: true}]}\n", "bad.yaml:1:19: a route needs 'host'");
    refuse_bottle(fixture, "egress: {routes: [{host: 10.0.0.1}]}\n", "bad.yaml:1:26");
    refuse_bottle(fixture, "egress: {routes: [{host: \"*\"}]}\n", "bad.yaml:1:26");
    refuse_bottle(fixture, "egress: {routes: [{host: \"a.example:99999\"}]}\n", "port");
    refuse_bottle(fixture, "egress: {routes: [{host: \"a.example\\0.evil.example\"}]}\n", "NUL");
    refuse_bottle(fixture, "egress: {routes: [{host: a.example}, {host: A.Example}]}\n",
                  "has a route already that takes every request");
    refuse_bottle(fixture, "egress: {routes: [{host: a.example, private: yes}]}\n", "true or false");
    refuse_bottle(fixture, "resources: {memory: 1T}\n", "'memory' must be a size");
    refuse_bottle(fixture, "resources: {memory: 64M}\n", "from 128M to 64G");
    refuse_bottle(fixture, "resources: {cpus: 0}\n", "from 1 to 32");
    refuse_bottle(fixture, "env: {\"A=B\": x}\n", "name of a variable");
    refuse_bottle(fixture, "env: {https_proxy: x}\n", "is set by berth");
    refuse_bottle(fixture, "env: {A: {}}\n", "bad.yaml:1:10");
    refuse_bottle(fixture, "image: infra\n", "berth's own");
    refuse_bottle(fixture, "image: ../x\n", "cannot be the name of an image");
}

static void t_manifest_refuses_bad_agents(void **state)
{
    const struct fixture *fixture = *state;
    refuse_agent(fixture, "dve", BT_EXIT_NO_TARGET, "there is no agent manifest 'dve'");
    fixture_write(fixture, "config/agents/dev.md", "---\nharness: shell\n---\n");
    refuse_agent(fixture, "dve", BT_EXIT_NO_TARGET, "did you mean 'dev'?");
    refuse_agent(fixture, "../dev", BT_EXIT_USAGE, "cannot be the name");
    fixture_write(fixture, "config/agents/plain.md", "harness: shell\n");
    refuse_agent(fixture, "plain", BT_EXIT_ERROR, "plain.md:1:1: an agent manifest begins with front matter");
    fixture_write(fixture, "config/agents/open.md", "---\nharness: shell\n");
    refuse_agent(fixture, "open", BT_EXIT_ERROR, "has no end");
    fixture_write(fixture, "config/agents/typo.md", "---\nharnes: shell\n---\n");
    refuse_agent(fixture, "typo", BT_EXIT_ERROR,
                 "typo.md:2:1: unknown key 'harnes'; did you mean 'harness'?");
    fixture_write(fixture, "config/agents/none.md", "---\n---\n");
    refuse_agent(fixture, "none", BT_EXIT_ERROR, "needs 'harness'");
    fixture_write(fixture, "config/agents/shel.md", "---\nharness: shel\n---\n");
    refuse_agent(fixture, "shel", BT_EXIT_ERROR,
                 "shel.md:2:10: unknown harness 'shel'; did you mean 'shell'?");
    fixture_write(fixture, "config/agents/bytes.md", "---\nharness: shell\n---\n\xff\xfe\n");
    refuse_agent(fixture, "bytes", BT_EXIT_ERROR, "not UTF-8");
    fixture_write(fixture, "config/agents/lost.md", "---\nharness: shell\nbottle: absent\n---\n");
    refuse_agent(fixture, "lost", BT_EXIT_ERROR, "lost.md:3:9: there is no bottle 'absent'");
}

static void t_manifest_windows_line_ends_pass(void **state)
{
    bt_auto_plan plan = {0};
    fixture_write(*state, "config/agents/dos.md", "---\r\nharness: shell\r\n---\r\nWork.\r\n");
    plan_ok(*state, "dos", &plan);
    assert_string_equal(plan.prompt, "Work.");
}

/* ---- narrowing ---- */

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
        FIXTURE_TEST(t_manifest_refuses_circles_and_missing_parents),
        FIXTURE_TEST(t_manifest_refuses_keys_it_does_not_enforce),
        FIXTURE_TEST(t_manifest_harnesses_come_with_all_they_need),
        FIXTURE_TEST(t_manifest_harnesses_can_be_changed),
        FIXTURE_TEST(t_manifest_harnesses_take_prompts),
        FIXTURE_TEST(t_manifest_reads_what_requests_are_for),
        FIXTURE_TEST(t_manifest_refuses_what_cannot_be_kept),
        FIXTURE_TEST(t_manifest_refuses_mistakes_where_they_are),
        FIXTURE_TEST(t_manifest_refuses_bad_agents),
        FIXTURE_TEST(t_manifest_windows_line_ends_pass),
        cmocka_unit_test(t_manifest_intersects_patterns),
        FIXTURE_TEST(t_manifest_policies_only_narrow),
        cmocka_unit_test(t_manifest_narrows_rules),
        FIXTURE_TEST(t_manifest_lists_grant_nothing),
        FIXTURE_TEST(t_manifest_empty_admin_list_allows_nothing),
        FIXTURE_TEST(t_manifest_project_adds_agents_only),
        FIXTURE_TEST(t_manifest_project_bottles_cannot_be_used),
        FIXTURE_TEST(t_manifest_project_links_lead_nowhere),
        FIXTURE_TEST(t_manifest_json_shows_no_values_of_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
