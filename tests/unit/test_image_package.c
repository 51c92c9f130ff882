/* Finding and downloading packages, with stand-ins for apt that this test writes (scripts in PATH): what they
 * are called with and what lies on the disk afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "images/package.h"
#include "lib/file.h"
#include "tests/lib/test_folder.h"

struct world {
    char folder[256];
    char downloads[300];
    char *path_before;
};

static int setup(void **state)
{
    struct world *world = bt_new(1, sizeof *world);
    struct bt_error error;
    char path[300];
    test_folder_make(world->folder, sizeof world->folder);
    (void)snprintf(world->downloads, sizeof world->downloads, "%s/downloads", world->folder);
    assert_int_equal(bt_folder_make(world->downloads, 0700, &error), 0);
    (void)snprintf(path, sizeof path, "%s/bin", world->folder);
    assert_int_equal(bt_folder_make(path, 0700, &error), 0);
    world->path_before = bt_string_copy(getenv("PATH"));
    bt_auto_free char *search = bt_string_format("%s:%s", path, world->path_before);
    assert_int_equal(setenv("PATH", search, 1), 0);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    struct bt_error error;
    (void)setenv("PATH", world->path_before, 1);
    assert_int_equal(bt_tree_remove(world->folder, &error), 0);
    free(world->path_before);
    free(world);
    return 0;
}

/* A program whose calls are recorded in the file "calls"; $W is the test's folder. */
static void install_fake(const struct world *world, const char *name, const char *script)
{
    char path[400];
    struct bt_error error;
    bt_auto_free char *text =
        bt_string_format("#!/bin/sh\nW=%s\necho %s \"$@\" >> $W/calls\n%s\n", world->folder, name, script);
    (void)snprintf(path, sizeof path, "%s/bin/%s", world->folder, name);
    assert_int_equal(bt_file_write(path, text, strlen(text), 0755, &error), 0);
}

static char *read_calls(const struct world *world)
{
    char path[300];
    struct bt_error error;
    bt_auto_buffer data = {0};
    (void)snprintf(path, sizeof path, "%s/calls", world->folder);
    assert_int_equal(bt_file_read(path, 1 << 20, &data, &error), 0);
    return bt_string_copy(data.data == NULL ? "" : data.data);
}

static int download(const struct world *world, char ret_path[768], struct bt_error *error)
{
    return bt_package_download("meta", "real-", world->downloads, NULL, ret_path, error);
}

#define SHOW                                                                                                 \
    "for last; do :; done\n"                                                                                 \
    "case $last in meta) echo 'Package: meta'; echo 'Depends: other (>= 1), real-6.1-cloud (= 6.1.2) | "     \
    "x';;\n"                                                                                                 \
    "real-6.1-cloud) echo 'Package: real-6.1-cloud'; echo 'Depends: kmod, linux-base';; *) exit 100;; esac"

static void t_package_follows_metapackages(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char path[768];
    install_fake(world, "apt-cache", SHOW);
    install_fake(world, "apt-get", "for last; do :; done; echo deb > ${last}_6.1.2_amd64.deb");
    assert_int_equal(download(world, path, &error), 0);
    bt_auto_free char *expected = bt_string_format("%s/real-6.1-cloud_6.1.2_amd64.deb", world->downloads);
    assert_string_equal(path, expected);
    assert_int_equal(access(path, R_OK), 0);
    bt_auto_free char *calls = read_calls(world);
    assert_string_equal(calls, "apt-cache show --no-all-versions meta\n"
                               "apt-cache show --no-all-versions real-6.1-cloud\n"
                               "apt-get -q download real-6.1-cloud\n");
}

static void t_package_fetches_lists_of_its_own(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char path[768];
    /* The host's lists know nothing; ours, once fetched, do. */
    install_fake(world, "apt-cache",
                 "test -e $W/updated || { echo 'E: No packages found' >&2; exit 100; }\n" SHOW);
    install_fake(
        world, "apt-get",
        "for last; do :; done\ncase \"$*\" in *update*) grep -q 'clear APT::Update::Post-Invoke' $2 && "
        "test -d \"${4#*=}/partial\" && touch $W/updated;; *) echo deb > $last.deb;; esac");
    assert_int_equal(download(world, path, &error), 0);
    assert_int_equal(access(path, R_OK), 0);
    bt_auto_free char *calls = read_calls(world);
    bt_auto_free char *lists = bt_string_format("-o Dir::State::Lists=%s/lists", world->downloads);
    assert_non_null(strstr(calls, lists));
}

static void t_package_says_why_it_failed(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char path[768];
    install_fake(world, "apt-cache", "exit 100");
    install_fake(world, "apt-get", "echo 'E: Failed to fetch it' >&2; exit 100");
    assert_true(download(world, path, &error) < 0);
    assert_non_null(strstr(error.message, "cannot download meta"));
    assert_non_null(strstr(error.message, "E: Failed to fetch it"));
    assert_non_null(strstr(error.hint, "apt-get update"));
}

static void t_package_refuses_circles(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char path[768];
    install_fake(world, "apt-cache", "echo 'Depends: real-again'");
    install_fake(world, "apt-get", "exit 0");
    assert_true(download(world, path, &error) < 0);
}

static void t_package_keeps_one(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char first[400], second[400], kept[400], found[768];
    (void)snprintf(first, sizeof first, "%s/old.deb", world->downloads);
    (void)snprintf(second, sizeof second, "%s/new.deb", world->folder);
    (void)snprintf(kept, sizeof kept, "%s/new.deb", world->downloads);
    assert_false(bt_package_find(world->downloads, found));
    assert_int_equal(bt_file_write(first, "old", 3, 0600, &error), 0);
    assert_int_equal(bt_file_write(second, "new", 3, 0600, &error), 0);
    assert_int_equal(bt_package_keep(second, world->downloads, kept), 0);
    assert_true(bt_package_find(world->downloads, found));
    assert_string_equal(found, kept);
    assert_int_equal(access(first, F_OK), -1);
}

static void t_package_environment_is_chosen(void **state)
{
    (void)state;
    bt_auto_list environment = {0};
    assert_int_equal(setenv("BERTH_TEST_TOKEN", "secret", 1), 0);
    assert_int_equal(setenv("http_proxy", "http://127.0.0.1:9", 1), 0);
    bt_package_environment("/some/where", &environment);
    assert_int_equal(unsetenv("BERTH_TEST_TOKEN"), 0);
    assert_int_equal(unsetenv("http_proxy"), 0);
    assert_true(bt_list_has(&environment, "TMPDIR=/some/where"));
    assert_true(bt_list_has(&environment, "http_proxy=http://127.0.0.1:9"));
    assert_false(bt_list_has(&environment, "BERTH_TEST_TOKEN=secret"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(t_package_follows_metapackages),
        TEST(t_package_fetches_lists_of_its_own),
        TEST(t_package_says_why_it_failed),
        TEST(t_package_refuses_circles),
        TEST(t_package_keeps_one),
        cmocka_unit_test(t_package_environment_is_chosen),
    };
    return cmocka_run_group_tests_name("image-package", tests, NULL, NULL);
}
