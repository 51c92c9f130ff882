/* The user's work is not lost when something is killed, full, or cannot be read. */
#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/workspace_fixture.h"

/* kill -9 at any moment of an application: every file is the old or the new one, and applying again completes
 * it. */
static void test_killed_while_applying(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "for i in $(seq 150); do mkdir -p d$((i % 9)); echo old-$i > d$((i % 9))/f$i; done");
    launch(scene);
    run_in(scene->guest, "for i in $(seq 140); do echo new-$i > d$((i % 9))/f$i; done; rm d*/f14?; mkdir n; "
                         "for i in $(seq 20); do echo new > n/$i; done");
    collect(scene);
    run_in(scene->folder, "cp -a host original");
    for (int i = 0; i < 25; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(apply(scene) == 0 ? 0 : 1);
        (void)usleep((useconds_t)(20000 + i * 4000));
        (void)kill(pid, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        run_in(scene->host, "for i in $(seq 139); do read -r line < d$((i % 9))/f$i; test \"$line\" = old-$i "
                            "|| test \"$line\" = new-$i; done");
        if (i % 5 == 0)
            run_in(scene->folder, "rm -rf host; cp -a original host");
    }
    expect_ok(scene, apply(scene));
    assert_same(scene);
    run_in(scene->host, "test -z \"$(ls -A | grep berth || true)\"");
}

static void test_leftovers_of_a_killed_git(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo 1 > a");
    launch(scene);
    run_in(scene->guest, "echo 2 > a");
    run_in(scene->state, "cd base.git; mkdir -p refs/heads; : > refs/berth/agent.lock; : > "
                         "refs/heads/yours.lock; : > packed-refs.lock; : > objects/pack/tmp_pack_x; "
                         ": > objects/pack/pack-0123.keep");
    run_in(scene->host,
           "mkdir -m 700 .berth-apply-0123456789abcdef; echo old > .berth-apply-0123456789abcdef/0");
    collect(scene);
    expect_ok(scene, apply(scene));
    run_in(scene->host, "test \"$(cat a)\" = 2; test \"$(ls -A)\" = a");
    run_in(scene->state, "test -z \"$(find base.git -name '*.lock' -o -name 'tmp_*' -o -name '*.keep')\"");
}

/* A user namespace in which this user is root. */
static bool become_root(void)
{
    char uids[64], gids[64];
    (void)snprintf(uids, sizeof uids, "0 %u 1", geteuid());
    (void)snprintf(gids, sizeof gids, "0 %u 1", getegid());
    const char *const maps[][2] = {
        {"/proc/self/setgroups", "deny"}, {"/proc/self/uid_map", uids}, {"/proc/self/gid_map", gids}};
    if (geteuid() == 0)
        return true;
    if (unshare(CLONE_NEWUSER) < 0)
        return false;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(maps); i++) {
        FILE *map = fopen(maps[i][0], "w");
        if (map == NULL || fputs(maps[i][1], map) < 0 || fclose(map) != 0)
            return false;
    }
    return true;
}

static bool has_full_disk(struct scene *scene)
{
    char target[400];
    (void)snprintf(target, sizeof target, "%s/small", scene->folder);
    return become_root() && unshare(CLONE_NEWNS) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mkdir(target, 0700) == 0 &&
           mount("tmpfs", target, "tmpfs", 0, "size=1m") == 0;
}

static int apply_to_a_full_disk(struct scene *scene)
{
    char target[400];
    (void)snprintf(target, sizeof target, "%s/small", scene->folder);
    if (!has_full_disk(scene))
        return 77;
    struct bt_workspace_base base;
    int result =
        bt_workspace_prepare(scene->host, target, &(struct bt_workspace_options){0}, &base, &scene->error);
    if (result != -ENOSPC || strstr(scene->error.message, "room") == NULL)
        return 1;
    run_in(scene->folder, "test -z \"$(ls -A small)\"; echo 1 > small/a; echo 1 > small/z");
    if (apply_to(scene, target, &(struct bt_workspace_apply_options){0}) != -ENOSPC)
        return 2;
    run_in(scene->folder, "test \"$(cat small/a small/z)\" = $'1\\n1'; test \"$(ls -A small | wc -l)\" = 2");
    return 0;
}

static void test_full_disk(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo 1 > a; echo 1 > z");
    launch(scene);
    run_in(scene->guest, "echo 2 > a; head -c 3000000 /dev/urandom > big; echo 2 > z");
    collect(scene);
    pid_t pid = fork();
    if (pid == 0)
        _exit(apply_to_a_full_disk(scene));
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    run_in(scene->folder, "! test -e small || rmdir small");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
}

static bool has_note(const struct scene *scene, const char *first, const char *second)
{
    for (size_t i = 0; i < scene->summary.notes.count; i++)
        if (strncmp(scene->summary.notes.items[i], first, strlen(first)) == 0 &&
            strstr(scene->summary.notes.items[i], second) != NULL)
            return true;
    return false;
}

/* As in a container, where nobody has a right over the agent's files: the reader is a user like any other. */
static int run_without_rights(void *context, const struct bt_guest_command *command, int *ret_status,
                              struct bt_error *error)
{
    static const char *const lowered[] = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    const char *arguments[64];
    size_t count = 0;
    for (size_t i = 0; geteuid() == 0 && i < BT_ARRAY_LENGTH(lowered); i++)
        arguments[count++] = lowered[i];
    for (size_t i = 0; command->arguments[i] != NULL; i++)
        arguments[count++] = command->arguments[i];
    arguments[count] = NULL;
    struct bt_guest_command copy = *command;
    copy.arguments = arguments;
    return local_run(context, &copy, ret_status, error);
}

static void launch_without_rights(struct scene *scene)
{
    run_in(scene->folder, "chmod 755 . guest state");
    launch(scene);
    run_in(scene->folder, "test $(id -u) != 0 || chown -R 65534:65534 guest; mkdir -p store");
    scene->link.run = run_without_rights;
    expect_ok(scene, bt_workspace_settle(&scene->link, scene->state, &scene->error));
}

/* What nobody can look at is not taken for deleted. */
static void test_unreadable_folders_are_unchanged(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "mkdir -p open/locked/deep listed sub; echo 1 > open/locked/deep/f; echo 1 > "
                        "open/locked/g; echo 1 > listed/h; echo 1 > open/gone; echo 1 > sub/file");
    launch_without_rights(scene);
    run_in(scene->guest, "echo 2 > open/locked/g; rm open/gone; chmod 000 open/locked; chmod 644 listed; "
                         "chmod 000 sub/file");
    collect(scene);
    assert_true(has_note(scene, "open/locked ", "cannot be read"));
    assert_true(has_note(scene, "listed ", "cannot be read"));
    assert_true(has_note(scene, "sub/file ", "cannot be read"));
    expect_ok(scene, apply(scene));
    run_in(scene->host, "test \"$(cat open/locked/deep/f open/locked/g listed/h sub/file)\" = "
                        "\"$(printf '1\\n1\\n1\\n1')\"; test ! -e open/gone");
}

static void test_an_unreadable_workspace_is_unchanged(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "mkdir d; echo 1 > d/f; echo 1 > g");
    launch_without_rights(scene);
    run_in(scene->folder, "chmod 100 guest"); /* it can be entered, so that find starts */
    collect(scene);
    run_in(scene->folder, "chmod 755 guest");
    assert_true(has_note(scene, "the workspace ", "cannot be read"));
    assert_int_equal(scene->summary.changed_count, 0);
}

/* find that fails for another reason than a file that went away says nothing about what is there. */
static int run_failing(void *context, const struct bt_guest_command *command, int *ret_status,
                       struct bt_error *error)
{
    static const char *const loud[] = {"sh", "-c", "echo \"find: './d': $0\" >&2; exit 1", NULL, NULL};
    const char *arguments[BT_ARRAY_LENGTH(loud)];
    struct bt_guest_command copy = *command;
    memcpy(arguments, loud, sizeof(loud));
    arguments[3] = context;
    copy.arguments = arguments;
    return local_run(NULL, &copy, ret_status, error);
}

static void test_a_list_with_holes_is_refused(void **state)
{
    struct scene *scene = *state;
    struct bt_buffer text = {0};
    char failing[] = "Input/output error", vanished[] = "No such file or directory";
    run_in(scene->host, "mkdir d; echo 1 > d/f");
    launch(scene);
    scene->link.run = run_failing;
    scene->link.context = failing;
    assert_int_equal(bt_workspace_stamps_ask(&scene->link, &text, &scene->error), -EIO);
    assert_non_null(strstr(scene->error.message, "'./d': Input/output error"));
    scene->link.context = vanished;
    expect_ok(scene, bt_workspace_stamps_ask(&scene->link, &text, &scene->error));
    bt_buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_killed_while_applying),
        SCENE_TEST(test_leftovers_of_a_killed_git),
        SCENE_TEST(test_full_disk),
        SCENE_TEST(test_unreadable_folders_are_unchanged),
        SCENE_TEST(test_an_unreadable_workspace_is_unchanged),
        SCENE_TEST(test_a_list_with_holes_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
