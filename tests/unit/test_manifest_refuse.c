/* Manifests: what is refused, with its place. */
#include <stdio.h>

#include "tests/unit/manifest_fixture.h"

/* A bottle of this text, used by an agent, must be refused with this. */
static void refuse_bottle(const struct fixture *fixture, const char *text, const char *part)
{
    fixture_write(fixture, "config/bottles/bad.yaml", text);
    fixture_write(fixture, "config/agents/bad.md", "---\nharness: shell\nbottle: bad\n---\n");
    refuse_agent(fixture, "bad", BT_EXIT_ERROR, part);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_manifest_refuses_circles_and_missing_parents),
        FIXTURE_TEST(t_manifest_refuses_keys_it_does_not_enforce),
        FIXTURE_TEST(t_manifest_refuses_what_cannot_be_kept),
        FIXTURE_TEST(t_manifest_refuses_mistakes_where_they_are),
        FIXTURE_TEST(t_manifest_refuses_bad_agents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
