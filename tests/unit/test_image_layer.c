/* Images on top of another one: what npm installs comes into a copy of the base, as root's and runnable; what
 * npm says when it fails is told; nothing of the packages runs. npm itself is a stand-in here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "images/archive.h"
#include "images/layer.h"
#include "tests/lib/image_tools.h"
#include "tests/lib/test_folder.h"

struct world {
    char folder[256];
    char base[300], image[400], out[300];
    struct bt_recipe recipe;
    char *path_before;
};

static void make_base(const struct world *world)
{
    static const char text[] = "of the base";
    struct bt_error error = {0};
    bt_auto_fd tar_fd = memfd_create("tar", MFD_CLOEXEC);
    struct archive *tar = archive_write_new();
    assert_int_equal(archive_write_set_format_pax(tar), ARCHIVE_OK);
    assert_int_equal(archive_write_open_fd(tar, tar_fd), ARCHIVE_OK);
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, "usr/local/bin/old");
    archive_entry_set_mode(entry, AE_IFREG | 0755);
    archive_entry_set_size(entry, sizeof text - 1);
    assert_int_equal(archive_write_header(tar, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(tar, text, sizeof text - 1), (la_ssize_t)(sizeof text - 1));
    archive_entry_free(entry);
    assert_int_equal(archive_write_close(tar), ARCHIVE_OK);
    (void)archive_write_free(tar);
    assert_int_equal(lseek(tar_fd, 0, SEEK_SET), 0);
    assert_int_equal(bt_ext4_from_tar(tar_fd, world->base, 64UL << 20, "base", NULL, &error), 0);
}

static int setup(void **state)
{
    struct world *world = bt_new(1, sizeof *world);
    struct bt_error error = {0};
    test_folder_make(world->folder, sizeof world->folder);
    (void)snprintf(world->base, sizeof world->base, "%s/base.ext4", world->folder);
    (void)snprintf(world->out, sizeof world->out, "%s/out", world->folder);
    (void)snprintf(world->image, sizeof world->image, "%s/image.ext4", world->out);
    assert_int_equal(bt_folder_make(world->out, 0755, &error), 0);
    make_base(world);
    world->path_before = bt_string_copy(getenv("PATH"));
    bt_auto_free char *search = bt_string_format("%s:%s", world->folder, world->path_before);
    assert_int_equal(setenv("PATH", search, 1), 0);
    assert_int_equal(bt_recipe_load("pi", &world->recipe, &error), 0);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    struct bt_error error;
    (void)setenv("PATH", world->path_before, 1);
    bt_recipe_free(&world->recipe);
    free(world->path_before);
    assert_int_equal(bt_tree_remove(world->folder, &error), 0);
    free(world);
    return 0;
}

/* The stand-in: script lines run with $W as the test's folder, in the folder where npm would. */
static void install_npm(const struct world *world, const char *script)
{
    struct bt_error error;
    bt_auto_free char *path = bt_string_format("%s/npm", world->folder);
    bt_auto_free char *text = bt_string_format("#!/bin/sh\nW=%s\n%s\n", world->folder, script);
    assert_int_equal(bt_file_write(path, text, strlen(text), 0755, &error), 0);
}

/* One that installs every command of the recipe. */
static void install_working_npm(const struct world *world, const char *more)
{
    bt_auto_buffer script = {0};
    for (size_t i = 1; i < world->recipe.commands.count; i += 2)
        assert_int_equal(bt_buffer_add_format(&script,
                                              "f=node_modules/%s; mkdir -p ${f%%/*}\n"
                                              "echo command >$f; chmod 4775 $f\n",
                                              world->recipe.commands.items[i]),
                         0);
    assert_int_equal(bt_buffer_add_text(&script, more), 0);
    install_npm(world, script.data);
}

static int build(const struct world *world, struct bt_error *error)
{
    return bt_layer_build(&world->recipe, world->base, world->out, NULL, error);
}

static void assert_contains(const char *text, const char *expected)
{
    if (strstr(text, expected) == NULL)
        fail_msg("no '%s' in: %s", expected, text);
}

static void t_layer_adds_to_a_copy(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char before[BT_DIGEST_TEXT_SIZE], after[BT_DIGEST_TEXT_SIZE];
    bt_list_add(&world->recipe.exclude, "opt/pi/node_modules/*/left-out");
    bt_list_add(&world->recipe.files, "etc/pi/config");
    bt_list_add(&world->recipe.files, "a setting\n");
    install_working_npm(world, "mkdir -p node_modules/x/left-out; echo x >node_modules/x/left-out/y\n"
                               "echo kept >node_modules/x/kept; chmod 600 node_modules/x/kept\n");
    assert_int_equal(bt_digest_file(world->base, before, &error), 0);
    if (build(world, &error) < 0)
        fail_msg("%s", error.message);
    assert_int_equal(bt_digest_file(world->base, after, &error), 0);
    assert_string_equal(before, after);
    assert_image_clean(world->image);
    assert_debugfs(world->image, "cat /usr/local/bin/old", "of the base");
    assert_debugfs(world->image, "stat /usr/local/bin/pi", "Type: symlink");
    assert_debugfs(world->image, "cat /usr/local/bin/pi",
                   "/opt/pi/node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js");
    assert_debugfs(world->image,
                   "cat /opt/pi/node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js", "command");
    const char *file = "stat /opt/pi/node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js";
    assert_debugfs(world->image, file, "Mode:  0755"); /* neither set-id nor group's to write */
    assert_debugfs(world->image, file, "User:     0   Group:     0");
    assert_debugfs(world->image, "stat /opt/pi/node_modules/x/kept", "Mode:  0644");
    assert_debugfs_without(world->image, "ls /opt/pi/node_modules/x", "left-out");
    assert_debugfs(world->image, "cat /etc/pi/config", "a setting");
    assert_debugfs(world->image, "show_super_stats -h", "volume name:   pi");
    bt_auto_free char *root = bt_string_format("%s/root", world->out);
    assert_int_equal(access(root, F_OK), -1);
}

static void t_layer_is_what_the_lock_file_pins(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    bt_auto_buffer said = {0};
    bt_auto_free char *path = bt_string_format("%s/said", world->folder);
    install_working_npm(world, "grep -q '\"integrity\": \"sha512-' package-lock.json && pinned=yes\n"
                               "echo \"$* $pinned ${npm_config_x-} ${BERTH_SECRET-}\" >$W/said\n");
    assert_int_equal(setenv("npm_config_x", "own-setting", 1), 0);
    assert_int_equal(setenv("BERTH_SECRET", "very-secret", 1), 0);
    assert_int_equal(build(world, &error), 0);
    assert_int_equal(unsetenv("npm_config_x"), 0);
    assert_int_equal(unsetenv("BERTH_SECRET"), 0);
    assert_int_equal(bt_file_read(path, 4096, &said, &error), 0);
    assert_contains(said.data, "ci --ignore-scripts ");
    assert_contains(said.data, " yes own-setting");
    assert_null(strstr(said.data, "very-secret"));
    assert_null(strstr(said.data, "registry"));
}

static void t_layer_explains_failures(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    bt_auto_free char *root = bt_string_format("%s/root", world->out);
    install_npm(world, "echo 'npm error code EINTEGRITY' >&2; exit 1");
    assert_true(build(world, &error) < 0);
    assert_contains(error.message, "EINTEGRITY");
    install_npm(world, "exit 0");
    assert_int_equal(build(world, &error), -ENOENT);
    assert_contains(error.message, "npm installed no program node_modules/");
    assert_int_equal(setenv("PATH", world->out, 1), 0);
    assert_int_equal(build(world, &error), -ENOENT);
    assert_contains(error.hint, "install the package npm");
    assert_int_equal(access(root, F_OK), -1);
    assert_int_equal(access(world->image, F_OK), -1);
}

/* A package is not what unpacks beside the base's files. */
static void t_layer_replaces_nothing_of_the_base(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    install_working_npm(world, "mkdir -p ../../usr/local/bin; echo x >../../usr/local/bin/old\n");
    assert_int_equal(build(world, &error), -EBADMSG);
    assert_contains(error.message, "comes twice");
    assert_int_equal(access(world->image, F_OK), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(t_layer_adds_to_a_copy),
        TEST(t_layer_is_what_the_lock_file_pins),
        TEST(t_layer_explains_failures),
        TEST(t_layer_replaces_nothing_of_the_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
