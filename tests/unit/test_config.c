/* config.yaml: defaults, every key, every refusal with its position. */
#include "tests/unit/frontend_fixture.h"

#include <errno.h>

#include "frontend/config.h"

static void refuse(const struct fixture *fixture, const char *text, const char *part)
{
    struct bt_config config;
    struct bt_error error = {0};
    fixture_write(fixture, "config/config.yaml", text);
    if (bt_config_load(&fixture->paths, &config, &error) == 0)
        fail_msg("taken, though it should be refused with \"%s\":\n%s", part, text);
    assert_int_equal(error.status, BT_EXIT_ERROR);
    assert_says(&error, part);
}

static void t_config_has_defaults_without_a_file(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_config config = {0};
    struct bt_error error = {0};
    assert_int_equal(bt_config_load(&fixture->paths, &config, &error), 0);
    assert_int_equal(config.idle_stop_seconds, 900);
    assert_int_equal(config.approval_seconds, 300);
    assert_string_equal(config.environment, "live");
    assert_string_equal(config.helper_socket, "/run/berth/helper.sock");
    assert_int_equal(config.probe_repeat, BT_PROBE_ONCE);
    assert_int_equal(config.resolvers.count, 0);
    assert_null(config.backend);
    assert_null(config.parent_proxy);
}

static void t_config_reads_every_key(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_config config = {0};
    struct bt_error error = {0};
    char trust[700];
    fixture_write(fixture, "config/ca.pem", "x");
    fixture_write(fixture, "config/config.yaml",
                  "gateway:\n  resolvers: [203.0.113.53, \"198.51.100.1:5353\"]\n  trust: [ca.pem]\n"
                  "  parent_proxy: http://proxy.corp.example:3128\ninfra: {idle_stop: 0}\n"
                  "probe: {public_address: 203.0.113.10, repeat: always}\nbackend: qemu\n"
                  "helper:\n  socket: /tmp/helper.sock\nenvironment: work\n");
    if (bt_config_load(&fixture->paths, &config, &error) < 0)
        fail_msg("%s", error.message);
    snprintf(trust, sizeof trust, "%s/ca.pem", fixture->paths.config);
    assert_int_equal(config.resolvers.count, 2);
    assert_string_equal(config.resolvers.items[1], "198.51.100.1:5353");
    assert_string_equal(config.trust.items[0], trust);
    assert_string_equal(config.parent_proxy, "http://proxy.corp.example:3128");
    assert_int_equal(config.idle_stop_seconds, 0);
    assert_string_equal(config.probe_public_address, "203.0.113.10");
    assert_int_equal(config.probe_repeat, BT_PROBE_ALWAYS);
    assert_string_equal(config.backend, "qemu");
    assert_string_equal(config.helper_socket, "/tmp/helper.sock");
    assert_string_equal(config.environment, "work");
}

static void t_config_refuses_with_a_position(void **state)
{
    const struct fixture *fixture = *state;
    refuse(fixture, "gatway: {}\n", "config.yaml:1:1: unknown key 'gatway'; did you mean 'gateway'?");
    refuse(fixture, "gateway:\n  resolver: []\n",
           "config.yaml:2:3: unknown key 'resolver'; did you mean 'resolvers'?");
    refuse(fixture, "gateway: {resolvers: 1.2.3.4}\n", "must be a list");
    refuse(fixture, "gateway: {resolvers: [dns.example]}\n", "config.yaml:1:23");
    refuse(fixture, "gateway: {resolvers: [127.0.0.53]}\n", "lives on this host only");
    refuse(fixture, "gateway: {resolvers: [\"1.2.3.4:0\"]}\n", "a resolver is");
    refuse(fixture, "gateway: {trust: [absent.pem]}\n", "absent.pem");
    refuse(fixture, "gateway: {parent_proxy: \"http://me:secret@proxy:1\"}\n", "credentials");
    refuse(fixture, "gateway: {parent_proxy: \"https://proxy:1\"}\n", "http://host:port");
    refuse(fixture, "gateway: {parent_proxy: \"http://proxy\"}\n", "http://host:port");
    refuse(fixture, "gateway: {parent_proxy: \"http://proxy:1/x\"}\n", "http://host:port");
    refuse(fixture, "infra: {idle_stop: soon}\n", "'idle_stop' must be a duration");
    refuse(fixture, "gateway: {approval_wait: 6m}\n", "'approval_wait' must be a duration from 1s to 5m");
    refuse(fixture, "gateway: {approval_wait: 0}\n", "config.yaml:1:26: 'approval_wait' must be a duration");
    refuse(fixture, "probe: {repeat: sometimes}\n", "once, always or off");
    refuse(fixture, "probe: {public_address: \"::1\"}\n", "IPv4");
    refuse(fixture, "helper: {socket: relative.sock}\n", "absolute path");
    refuse(fixture, "environment: Live\n", "cannot be the name of an environment");
    refuse(fixture, "backend: \"../x\"\n", "is not a backend");
    refuse(fixture, "- a\n", "config.yaml:1:1: must be a mapping");
}

static void t_config_never_repeats_a_password(void **state)
{
    const struct fixture *fixture = *state;
    bt_auto_config config = {0};
    struct bt_error error = {0};
    fixture_write(fixture, "config/config.yaml", "gateway: {parent_proxy: \"http://me:secret@proxy:1\"}\n");
    assert_true(bt_config_load(&fixture->paths, &config, &error) < 0);
    assert_null(strstr(error.message, "secret"));
    assert_null(strstr(error.hint, "secret"));
}

static void t_config_reads_durations(void **state)
{
    uint64_t seconds = 7;
    (void)state;
    assert_int_equal(bt_duration_parse("90s", &seconds), 0);
    assert_int_equal(seconds, 90);
    assert_int_equal(bt_duration_parse("15m", &seconds), 0);
    assert_int_equal(seconds, 900);
    assert_int_equal(bt_duration_parse("2h", &seconds), 0);
    assert_int_equal(seconds, 7200);
    assert_int_equal(bt_duration_parse("1d", &seconds), 0);
    assert_int_equal(seconds, 86400);
    assert_int_equal(bt_duration_parse("0", &seconds), 0);
    assert_int_equal(seconds, 0);
    for (const char *const *bad =
             (const char *const[]){"", "5", "m", "-1m", "1.5h", "1m ", "1mm", "99999999d", NULL};
         *bad; bad++)
        assert_int_equal(bt_duration_parse(*bad, &seconds), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(t_config_has_defaults_without_a_file), FIXTURE_TEST(t_config_reads_every_key),
        FIXTURE_TEST(t_config_refuses_with_a_position),     FIXTURE_TEST(t_config_never_repeats_a_password),
        cmocka_unit_test(t_config_reads_durations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
