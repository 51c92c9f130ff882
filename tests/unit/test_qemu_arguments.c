/* vm/qemu_arguments.c: what is on qemu's command line, and what must never be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "vm/qemu_arguments.h"

static const struct bt_machine_config config = {
    .kernel_path = "/images/vmlinux",
    .initrd_path = "/images/initrd",
    .initrd_extra = "TOPSECRET",
    .initrd_extra_length = 9,
    .disks = {{"/images/root.ext4", true}, {"/disks/a,b/scratch.ext4", false}},
    .disk_count = 2,
    .tap_fd = 9,
    .mac = {0x02, 0xbe, 0x27, 0xff, 0, 0x0a},
    .memory_bytes = 512ULL << 20,
    .cpus = 2,
};

/* The value behind an option; nth from 0. */
static const char *value_of(const struct bt_list *arguments, const char *option, size_t nth)
{
    for (size_t i = 0; i + 1 < arguments->count; i++)
        if (strcmp(arguments->items[i], option) == 0 && nth-- == 0)
            return arguments->items[i + 1];
    return "";
}

static void t_qemu_arguments_describe_the_machine(void **state)
{
    (void)state;
    bt_auto_list arguments = {0};
    bt_qemu_arguments(&config, "/usr/bin/qemu", false, 2500000, &arguments);
    assert_string_equal(arguments.items[0], "/usr/bin/qemu");
    assert_string_equal(value_of(&arguments, "-m", 0), "512M");
    assert_string_equal(value_of(&arguments, "-smp", 0), "2");
    assert_string_equal(value_of(&arguments, "-kernel", 0), "/images/vmlinux");
    assert_string_equal(value_of(&arguments, "-initrd", 0), "/proc/self/fd/4");
    assert_non_null(strstr(value_of(&arguments, "-accel", 0), "tcg"));
    assert_non_null(strstr(value_of(&arguments, "-blockdev", 0), "read-only=on"));
    assert_non_null(strstr(value_of(&arguments, "-blockdev", 0), "file.filename=/images/root.ext4"));
    assert_non_null(strstr(value_of(&arguments, "-blockdev", 1), "read-only=off"));
    assert_non_null(strstr(value_of(&arguments, "-netdev", 0), "fd=5"));
    assert_non_null(strstr(value_of(&arguments, "-append", 0), "tsc_early_khz=2500000"));
    assert_string_equal(value_of(&arguments, "-sandbox", 0),
                        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    assert_null(arguments.items[arguments.count]);
}

static void t_qemu_arguments_hold_no_secret(void **state)
{
    (void)state;
    bt_auto_list arguments = {0};
    bt_qemu_arguments(&config, "qemu", false, 0, &arguments);
    for (size_t i = 0; i < arguments.count; i++)
        assert_null(strstr(arguments.items[i], "SECRET"));
}

/* A comma in a path must not become an option of its own. */
static void t_qemu_arguments_escape_commas(void **state)
{
    (void)state;
    bt_auto_list arguments = {0};
    bt_qemu_arguments(&config, "qemu", false, 0, &arguments);
    assert_non_null(strstr(value_of(&arguments, "-blockdev", 1), "file.filename=/disks/a,,b/scratch.ext4"));
}

static void t_qemu_arguments_give_disks_their_numbers(void **state)
{
    (void)state;
    bt_auto_list arguments = {0};
    bt_qemu_arguments(&config, "qemu", false, 0, &arguments);
    assert_non_null(strstr(value_of(&arguments, "-device", 0), "drive=disk0,serial=disk0"));
    assert_non_null(strstr(value_of(&arguments, "-device", 1), "drive=disk1,serial=disk1"));
    assert_non_null(strstr(value_of(&arguments, "-device", 2), "mac=02:be:27:ff:00:0a"));
}

static void t_qemu_arguments_without_network(void **state)
{
    (void)state;
    bt_auto_list arguments = {0};
    struct bt_machine_config lonely = config;
    lonely.tap_fd = -1;
    bt_qemu_arguments(&lonely, "qemu", false, 0, &arguments);
    assert_string_equal(value_of(&arguments, "-netdev", 0), "");
    for (size_t i = 0; i < arguments.count; i++)
        assert_null(strstr(arguments.items[i], "virtio-net"));
}

/* A real processor keeps its defences and its own clock. */
static void t_qemu_arguments_with_kvm(void **state)
{
    (void)state;
    bt_auto_list arguments = {0};
    bt_qemu_arguments(&config, "qemu", true, 2500000, &arguments);
    assert_string_equal(value_of(&arguments, "-accel", 0), "kvm");
    assert_string_equal(value_of(&arguments, "-cpu", 0), "host");
    assert_null(strstr(value_of(&arguments, "-append", 0), "mitigations=off"));
    assert_null(strstr(value_of(&arguments, "-append", 0), "nokaslr"));
    assert_null(strstr(value_of(&arguments, "-append", 0), "tsc"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_qemu_arguments_describe_the_machine),
        cmocka_unit_test(t_qemu_arguments_hold_no_secret),
        cmocka_unit_test(t_qemu_arguments_escape_commas),
        cmocka_unit_test(t_qemu_arguments_give_disks_their_numbers),
        cmocka_unit_test(t_qemu_arguments_without_network),
        cmocka_unit_test(t_qemu_arguments_with_kvm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
