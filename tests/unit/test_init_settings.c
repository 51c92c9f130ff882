/* vm/init/settings.c: a guest that is told nonsense must not boot half configured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "vm/init/settings.h"

#define NETWORK "address 10.243.0.1\nprefix 31\ngateway 10.243.0.0\n"

static int parse(const char *text, struct bt_settings *ret_settings, unsigned *ret_line)
{
    return bt_settings_parse(text, strlen(text), ret_settings, ret_line);
}

static void t_settings_accepts_every_role(void **state)
{
    (void)state;
    struct bt_settings settings;
    unsigned line;
    assert_int_equal(parse("role agent\nhostname a\nroot 0\n", &settings, &line), 0);
    assert_int_equal(settings.role, BT_SETTINGS_AGENT);
    assert_int_equal(settings.address, 0);
    assert_int_equal(parse("hostname b-2\n" NETWORK "role gateway\n", &settings, &line), 0);
    assert_int_equal(settings.role, BT_SETTINGS_GATEWAY);
    assert_int_equal(settings.address, 0x0af30001);
    assert_int_equal(parse("role orchestrator\nhostname o\nregistry 0\ntime 5\n", &settings, &line), 0);
    assert_int_equal(settings.registry_disk, 0);
    assert_int_equal(settings.time_seconds, 5);
}

static void t_settings_names_the_wrong_line(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned line;
    } cases[] = {
        {"", 0},
        {"role gateway\n", 0},
        {"hostname a\n", 0},
        {"role agent\nhostname a\n", 0}, /* an agent without a root image */
        {"role gateway\nhostname a\naddress 10.0.0.1\n", 0},
        {"role gateway\nhostname a", 2}, /* cut short */
        {"role king\n", 1},
        {"role gateway\nrole gateway\n", 2},
        {"role gateway\nhost a\n", 2},
        {"role gateway\nhostname A\n", 2},
        {"role gateway\nhostname \n", 2},
        {"role gateway\nhostname a b\n", 2},
        {"role  gateway\n", 1},
        {"\n", 1},
        {"role\n", 1},
        {"hostname a\nrole gateway\naddress 10.0.0.256\n", 3},
        {"hostname a\nrole gateway\naddress 10.0.0\n", 3},
        {"hostname a\nrole gateway\naddress 1000.1000.1000.1000\n", 3},
        {"hostname a\nrole gateway\nprefix 0\n", 3},
        {"hostname a\nrole gateway\nprefix 33\n", 3},
        {"hostname a\nrole gateway\nroot 16\n", 3},
        {"hostname a\nrole gateway\nroot -1\n", 3},
        {"hostname a\nrole gateway\ntime 99999999999999999999\n", 3},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        struct bt_settings settings = {.prefix_length = 99};
        unsigned line = 77;
        assert_int_equal(parse(cases[i].text, &settings, &line), -EINVAL);
        assert_int_equal(line, cases[i].line);
        assert_int_equal(settings.prefix_length, 99); /* untouched */
    }
}

static void t_settings_survives_every_cut_and_change(void **state)
{
    (void)state;
    static const char whole[] = "role agent\nhostname a\nroot 0\n" NETWORK "time 12\nscratch 1\n";
    char text[sizeof(whole)];
    struct bt_settings settings;
    unsigned line;
    for (size_t length = 0; length < sizeof(whole); length++)
        (void)bt_settings_parse(whole, length, &settings, &line);
    for (size_t at = 0; at < sizeof(whole) - 1; at++) {
        for (unsigned value = 0; value < 256; value++) {
            memcpy(text, whole, sizeof(whole));
            text[at] = (char)value;
            (void)bt_settings_parse(text, sizeof(whole) - 1, &settings, &line);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_settings_accepts_every_role),
        cmocka_unit_test(t_settings_names_the_wrong_line),
        cmocka_unit_test(t_settings_survives_every_cut_and_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
