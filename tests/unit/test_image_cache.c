/* Building disks and caching images, with a stand-in for mmdebstrap that this test writes (a script in PATH):
 * real ones need the network. What is asserted is what lies on the disk afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "images/archive.h"
#include "images/cache.h"
#include "images/disk.h"
#include "images/images.h"
#include "images/recipe.h"
#include "lib/spawn.h"
#include "tests/lib/image_tools.h"
#include "tests/lib/test_folder.h"

struct world {
    char folder[256];
    struct bt_paths paths;
    struct bt_recipe recipe;
    struct bt_list sources;
    char steps[4096];
    char *path_before, *temporary_before;
};

static void report(void *context, const char *step, uint64_t done, uint64_t total)
{
    struct world *world = context;
    size_t length = strlen(world->steps);
    (void)done;
    (void)total;
    (void)snprintf(world->steps + length, sizeof world->steps - length, "[%s]", step);
}

static void write_text(const struct world *world, const char *name, const char *text, mode_t mode)
{
    char path[400];
    struct bt_error error;
    (void)snprintf(path, sizeof path, "%s/%s", world->folder, name);
    assert_int_equal(bt_file_write(path, text, strlen(text), mode, &error), 0);
}

static char *read_text(const struct world *world, const char *name)
{
    char path[400];
    struct bt_error error;
    bt_auto_buffer data = {0};
    (void)snprintf(path, sizeof path, "%s/%s", world->folder, name);
    if (bt_file_read(path, 1 << 20, &data, &error) < 0 || data.data == NULL)
        return bt_string_copy("");
    return bt_string_copy(data.data);
}

/* The stand-in: script lines run with $W as the test's folder. */
static void install_fake(const struct world *world, const char *script)
{
    bt_auto_free char *text =
        bt_string_format("#!/bin/sh\nW=%s\necho run >> $W/runs\n%s\n", world->folder, script);
    write_text(world, "bin/mmdebstrap", text, 0755);
}

static void make_tar(const struct world *world)
{
    char path[400];
    static const struct {
        const char *path, *text;
    } files[] = {{"./etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"},
                 {"./etc/apt/sources.list", "deb [secret]"},
                 {"./usr/share/doc/git/README", "text"},
                 {"./etc/hosts", "hosts"}};
    struct archive *tar = archive_write_new();
    (void)snprintf(path, sizeof path, "%s/root.tar", world->folder);
    archive_write_set_format_pax(tar);
    assert_int_equal(archive_write_open_filename(tar, path), ARCHIVE_OK);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(files); i++) {
        struct archive_entry *entry = archive_entry_new();
        archive_entry_set_pathname(entry, files[i].path);
        archive_entry_set_mode(entry, AE_IFREG | 0644);
        archive_entry_set_size(entry, (la_int64_t)strlen(files[i].text));
        assert_int_equal(archive_write_header(tar, entry), ARCHIVE_OK);
        assert_int_equal(archive_write_data(tar, files[i].text, strlen(files[i].text)),
                         (la_ssize_t)strlen(files[i].text));
        archive_entry_free(entry);
    }
    assert_int_equal(archive_write_close(tar), ARCHIVE_OK);
    (void)archive_write_free(tar);
}

static char *environment(const char *name)
{
    const char *value = getenv(name);
    return value == NULL ? NULL : bt_string_copy(value);
}

static int setup(void **state)
{
    struct world *world = bt_new(1, sizeof *world);
    struct bt_error error;
    char path[600];
    world->path_before = environment("PATH");
    world->temporary_before = environment("TMPDIR");
    test_folder_make(world->folder, sizeof world->folder);
    (void)snprintf(world->paths.images, sizeof world->paths.images, "%s/data/images", world->folder);
    (void)snprintf(world->paths.cache, sizeof world->paths.cache, "%s/cache", world->folder);
    (void)snprintf(path, sizeof path, "%s/bin", world->folder);
    assert_int_equal(bt_folder_make(path, 0755, &error), 0);
    bt_auto_free char *search = bt_string_format("%s:%s", path, world->path_before);
    assert_int_equal(setenv("PATH", search, 1), 0);
    (void)snprintf(path, sizeof path, "%s/tmp", world->folder);
    assert_int_equal(bt_folder_make(path, 0755, &error), 0);
    assert_int_equal(setenv("TMPDIR", path, 1), 0);
    (void)snprintf(path, sizeof path, "%s/out", world->folder);
    assert_int_equal(bt_folder_make(path, 0755, &error), 0);
    make_tar(world);
    world->recipe.suite = bt_string_copy("bookworm");
    world->recipe.variant = bt_string_copy("minbase");
    world->recipe.user_name = bt_string_copy("agent");
    world->recipe.user_home = bt_string_copy("/home/agent");
    world->recipe.user_shell = bt_string_copy("/bin/bash");
    world->recipe.user_uid = world->recipe.user_gid = 1000;
    world->recipe.size_bytes = 64 << 20;
    bt_list_add(&world->recipe.packages, "git");
    bt_list_add(&world->recipe.exclude, "usr/share/doc/*");
    bt_list_add(&world->recipe.folders, "/workspace");
    bt_list_add(&world->sources, "/etc/apt/sources.list");
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    struct bt_error error;
    (void)setenv("PATH", world->path_before, 1);
    (void)(world->temporary_before == NULL ? unsetenv("TMPDIR")
                                           : setenv("TMPDIR", world->temporary_before, 1));
    bt_recipe_free(&world->recipe);
    bt_list_free(&world->sources);
    assert_int_equal(bt_tree_remove(world->folder, &error), 0);
    free(world->path_before);
    free(world->temporary_before);
    free(world);
    return 0;
}

static int build_disk(struct world *world, struct bt_error *error)
{
    const struct bt_progress progress = {report, world};
    char folder[300];
    (void)snprintf(folder, sizeof folder, "%s/out", world->folder);
    return bt_disk_build(&world->recipe, &world->sources, folder, &progress, error);
}

/* Names in a folder of the world, without those that start with ".lock". */
static size_t count_files(const struct world *world, const char *name)
{
    char path[600];
    size_t count = 0;
    const struct dirent *entry;
    (void)snprintf(path, sizeof path, "%s/%s", world->folder, name);
    DIR *stream = opendir(path);
    while (stream != NULL && (entry = readdir(stream)) != NULL)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                 strncmp(entry->d_name, ".lock", 5) != 0;
    if (stream != NULL)
        (void)closedir(stream);
    return count;
}

static void assert_contains(const char *text, const char *expected)
{
    if (strstr(text, expected) == NULL)
        fail_msg("no '%s' in: %s", expected, text);
}

static void t_disk_is_built(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char image[400];
    install_fake(world,
                 "echo \"$@\" > $W/arguments\n"
                 "for a; do case $a in --aptopt=*) cat ${a#--aptopt=} > $W/settings;; esac; done\n"
                 "echo \"$TMPDIR\" > $W/temporary; touch $TMPDIR/left-over; env > $W/environment\n"
                 "echo 'I: unpacking...' >&2; echo 'I: done' >&2; cat $W/root.tar; head -c 300000 /dev/zero");
    assert_int_equal(setenv("BERTH_SECRET", "very-secret", 1), 0);
    assert_int_equal(build_disk(world, &error), 0);
    assert_int_equal(unsetenv("BERTH_SECRET"), 0);
    assert_contains(world->steps, "[unpacking]");
    assert_null(strstr(world->steps, "[done]"));
    assert_contains(world->steps, "[writing the image]");
    bt_auto_free char *arguments = read_text(world, "arguments");
    assert_contains(arguments, "--mode=unshare --format=tar --variant=minbase --include=git");
    assert_contains(arguments, "--dpkgopt=path-exclude=/usr/share/doc/*/* bookworm - /etc/apt/sources.list");
    bt_auto_free char *settings = read_text(world, "settings");
    assert_contains(settings, "Acquire::Languages");
    bt_auto_free char *variables = read_text(world, "environment");
    assert_null(strstr(variables, "very-secret"));
    assert_int_equal(count_files(world, "tmp"), 0);
    assert_int_equal(count_files(world, "out"), 1);
    (void)snprintf(image, sizeof image, "%s/out/image.ext4", world->folder);
    assert_debugfs(image, "cat /etc/passwd",
                   "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\n");
    assert_debugfs(image, "stat /workspace", "User:  1000   Group:  1000");
    assert_debugfs_without(image, "ls /etc/apt", "sources.list"); /* may hold a password of this machine */
}

static void assert_failure(struct world *world, const char *script, int code, const char *message,
                           const char *hint)
{
    struct bt_error error = {0};
    install_fake(world, script);
    assert_int_equal(build_disk(world, &error), -code);
    assert_contains(error.message, message);
    assert_contains(error.hint, hint);
    assert_int_equal(count_files(world, "tmp"), 0);
}

static void t_disk_explains_failures(void **state)
{
    assert_failure(*state, "echo 'W: /etc/subuid is empty' >&2; exit 25", EPERM, "/etc/subuid is empty",
                   "usermod");
    assert_failure(*state, "echo 'E: cannot find newuidmap' >&2; exit 25", EPERM, "newuidmap", "uidmap");
    assert_failure(*state, "echo 'I: running'; echo 'E: Failed to fetch x' >&2; exit 25", EHOSTUNREACH,
                   "Failed to fetch x", "network");
    assert_failure(*state, "cat $W/root.tar | head -c 5000; echo 'tar: No space left on device' >&2; exit 2",
                   ENOSPC, "No space left", "free some space");
    assert_failure(*state, "echo 'E: Unable to locate package gti' >&2; exit 25", ENOENT, "gti", "recipe");
    assert_failure(*state,
                   "echo 'dpkg: error processing package x' >&2; for i in $(seq 500); do "
                   "echo 'Setting up a package that has nothing to do with it' >&2; done; "
                   "echo 'E: Sub-process returned an error code' >&2; exit 25",
                   EIO, "status 25: dpkg: error processing package x", "");
    assert_failure(*state, "exit 3", EIO, "status 3", "");
    assert_failure(*state, "kill -9 $$", EIO, "status 137", "");
}

static void t_disk_survives_floods_of_messages(void **state)
{
    assert_failure(*state,
                   "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo 'E: the reason' >&2; exit 9",
                   EIO, "E: the reason", "");
}

static void t_disk_refuses_cut_streams(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    install_fake(world, "head -c 2000 $W/root.tar");
    assert_true(build_disk(world, &error) < 0);
    assert_contains(error.message, "archive");
}

static void t_disk_stops_its_producer(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    install_fake(world, "trap 'kill -9 $!; echo stopped > $W/stopped; exit 1' TERM\n"
                        "truncate -s 100M $W/large; tar -C $W -c large & wait; sleep 20 & wait");
    assert_int_equal(build_disk(world, &error), -ENOSPC);
    assert_contains(error.message, "too small");
    bt_auto_free char *stopped = read_text(world, "stopped");
    assert_string_equal(stopped, "stopped\n");
}

static void t_disk_names_missing_mmdebstrap(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char link[400], search[300];
    (void)snprintf(search, sizeof search, "%s/bin", world->folder);
    (void)snprintf(link, sizeof link, "%s/bin/apt-config", world->folder);
    assert_int_equal(symlink("/usr/bin/apt-config", link), 0);
    assert_int_equal(setenv("PATH", search, 1), 0);
    assert_int_equal(build_disk(world, &error), -ENOENT);
    assert_contains(error.hint, "install the package mmdebstrap");
    assert_int_equal(count_files(world, "tmp"), 0);
}

static void t_image_is_cached(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    struct bt_image image, again;
    bt_auto_free struct bt_image *list = NULL;
    size_t count;
    install_fake(world, "cat $W/root.tar");
    assert_int_equal(bt_image_get(&world->paths, "shell", false, NULL, &image, &error), -ENOENT);
    assert_contains(error.hint, "berth image build shell");
    assert_int_equal(bt_image_get(&world->paths, "shell", true, NULL, &image, &error), 0);
    assert_string_equal(image.name, "shell");
    assert_int_equal(access(image.path, R_OK), 0);
    assert_true(image.disk_bytes < image.size_bytes);
    assert_int_equal(bt_image_get(&world->paths, "shell", false, NULL, &again, &error), 0);
    assert_string_equal(again.path, image.path);
    bt_auto_free char *runs = read_text(world, "runs");
    assert_string_equal(runs, "run\n");
    assert_int_equal(bt_image_build(&world->paths, "shell", NULL, &again, &error), 0);
    assert_string_equal(again.path, image.path);
    bt_auto_free char *more_runs = read_text(world, "runs");
    assert_string_equal(more_runs, "run\nrun\n");
    assert_int_equal(bt_image_list(&world->paths, &list, &count, &error), 0);
    assert_int_equal(count, 1);
    assert_string_equal(list[0].digest, image.digest);
    assert_int_equal(bt_image_find(&world->paths, "shell", image.digest, &again, &error), 0);
    assert_string_equal(again.path, image.path);
    image.digest[0] = image.digest[0] == 'a' ? 'b' : 'a';
    assert_int_equal(bt_image_find(&world->paths, "shell", image.digest, &again, &error), -ENOENT);
    assert_int_equal(bt_image_find(&world->paths, "../shell", image.digest, &again, &error), -ENOENT);
    assert_int_equal(count_files(world, "data/images"), 1);
}

static void t_image_failure_keeps_the_old_one(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    struct bt_image image;
    install_fake(world, "exit 1");
    assert_true(bt_image_get(&world->paths, "shell", true, NULL, &image, &error) < 0);
    assert_contains(error.message, "cannot build the image shell: ");
    assert_int_equal(count_files(world, "data/images"), 0);
    install_fake(world, "cat $W/root.tar");
    assert_int_equal(bt_image_get(&world->paths, "shell", true, NULL, &image, &error), 0);
    install_fake(world, "head -c 3000 $W/root.tar; exit 1");
    assert_true(bt_image_build(&world->paths, "shell", NULL, &image, &error) < 0);
    assert_int_equal(bt_image_get(&world->paths, "shell", false, NULL, &image, &error), 0);
    assert_int_equal(count_files(world, "data/images"), 1);
    assert_int_equal(count_files(world, "tmp"), 0);
}

static pid_t start_builder(const struct world *world)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct bt_image image;
        struct bt_error error;
        _exit(bt_image_get(&world->paths, "shell", true, NULL, &image, &error) == 0 ? 0 : 1);
    }
    return pid;
}

static void t_image_builders_wait(void **state)
{
    struct world *world = *state;
    pid_t builders[3];
    install_fake(world, "sleep 0.5; cat $W/root.tar");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(builders); i++)
        builders[i] = start_builder(world);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(builders); i++) {
        int status;
        assert_int_equal(waitpid(builders[i], &status, 0), builders[i]);
        assert_int_equal(status, 0);
    }
    bt_auto_free char *runs = read_text(world, "runs");
    assert_string_equal(runs, "run\n");
    assert_int_equal(count_files(world, "data/images"), 1);
}

static void wait_for_text(const struct world *world, const char *name)
{
    const struct timespec step = {.tv_nsec = 20000000};
    for (int i = 0; i < 500; i++) {
        bt_auto_free char *text = read_text(world, name);
        if (text[0] != '\0')
            return;
        (void)nanosleep(&step, NULL);
    }
    fail_msg("%s did not come", name);
}

static void t_image_killed_builder_leaves_nothing(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    bt_auto_free struct bt_image *list = NULL;
    size_t count;
    int status;
    install_fake(world, "trap 'kill -9 $!; echo stopped > $W/stopped; exit 1' TERM\n"
                        "cat $W/root.tar; echo ready > $TMPDIR/file; sleep 20 & echo ready > $W/ready; wait");
    pid_t builder = start_builder(world);
    wait_for_text(world, "ready");
    assert_int_equal(kill(builder, SIGKILL), 0);
    assert_int_equal(waitpid(builder, &status, 0), builder);
    wait_for_text(world, "stopped"); /* told by the kernel that its parent died */
    assert_int_equal(count_files(world, "tmp"), 1);
    assert_int_equal(bt_image_list(&world->paths, &list, &count, &error), 0);
    assert_int_equal(count, 0);
    assert_int_equal(count_files(world, "data/images"), 0);
    assert_int_equal(count_files(world, "tmp"), 0);
}

static void t_cache_prunes_old_builds(void **state)
{
    struct world *world = *state;
    struct bt_error error = {0};
    char folder[768], path[800], digest[BT_DIGEST_TEXT_SIZE];
    bt_auto_free struct bt_image *list = NULL;
    size_t count;
    bt_auto_fd lock_fd = -1;
    assert_int_equal(bt_cache_lock(&world->paths, "infra", NULL, &lock_fd, &error), 0);
    for (int i = 0; i < 5; i++) {
        const struct timespec times[2] = {{.tv_sec = 1700000000 + i}, {.tv_sec = 1700000000 + i}};
        memset(digest, 'a' + i, sizeof digest - 1);
        digest[sizeof digest - 1] = '\0';
        assert_int_equal(bt_cache_begin(&world->paths, "infra", folder, &error), 0);
        (void)snprintf(path, sizeof path, "%s/initrd", folder);
        assert_int_equal(bt_file_write(path, "x", 1, 0600, &error), 0);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        assert_int_equal(bt_cache_commit(&world->paths, "infra", digest, folder, &error), 0);
    }
    bt_cache_prune(&world->paths, "infra", 2);
    assert_int_equal(bt_image_list(&world->paths, &list, &count, &error), 0);
    assert_int_equal(count, 2);
    assert_int_equal(list[0].digest[0], 'e');
    assert_int_equal(list[1].digest[0], 'd');
}

static void t_recipes_of_the_tree_load(void **state)
{
    (void)state;
    static const char *const names[] = {"kernel", "infra", "shell", "shell-build", "claude", "codex", "pi"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        struct bt_error error = {0};
        bt_auto_recipe recipe = {0};
        if (bt_recipe_load(names[i], &recipe, &error) < 0)
            fail_msg("%s: %s", names[i], error.message);
        assert_string_equal(recipe.name, names[i]);
        if (recipe.base != NULL) {
            assert_string_equal(recipe.base, "shell");
            assert_int_equal(recipe.packages.count, 0);
            assert_string_equal(recipe.commands.items[0], names[i]);
        } else if (recipe.form == BT_RECIPE_DISK) {
            assert_true(bt_list_has(&recipe.packages, "git"));
            assert_int_equal(recipe.user_uid, 1000);
            assert_false(recipe.keeps_privilege);
        }
    }
}

static void t_recipes_refuse_bad_names(void **state)
{
    (void)state;
    struct bt_error error = {0};
    struct bt_recipe recipe = {0};
    assert_int_equal(bt_recipe_load("shel", &recipe, &error), -ENOENT);
    assert_int_equal(error.status, BT_EXIT_NO_TARGET);
    assert_contains(error.hint, "shell");
    assert_int_equal(bt_recipe_load("../../etc/passwd", &recipe, &error), -EINVAL);
    assert_int_equal(bt_recipe_load("", &recipe, &error), -EINVAL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(t_disk_is_built),
        TEST(t_disk_explains_failures),
        TEST(t_disk_survives_floods_of_messages),
        TEST(t_disk_refuses_cut_streams),
        TEST(t_disk_stops_its_producer),
        TEST(t_disk_names_missing_mmdebstrap),
        TEST(t_image_is_cached),
        TEST(t_image_failure_keeps_the_old_one),
        TEST(t_image_builders_wait),
        TEST(t_image_killed_builder_leaves_nothing),
        TEST(t_cache_prunes_old_builds),
        cmocka_unit_test(t_recipes_of_the_tree_load),
        cmocka_unit_test(t_recipes_refuse_bad_names),
    };
    return cmocka_run_group_tests_name("image-cache", tests, NULL, NULL);
}
