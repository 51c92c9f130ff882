/* Guests that were taken over: lists, archives and bases that lie. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/workspace_fixture.h"

/* A guest that answers as it likes. */
struct liar {
    const char *program, *answer;
    size_t length;
    int status;
};

static int lying_run(void *context, const struct bt_guest_command *command, int *ret_status,
                     struct bt_error *error)
{
    const struct liar *liar = context;
    if (strcmp(command->arguments[0], liar->program) != 0)
        return local_run(NULL, command, ret_status, error);
    *ret_status = liar->status;
    return liar->length == 0 ? 0 : command->on_output(command->context, false, liar->answer, liar->length);
}

static int lying_copy_in(void *context, const char *host_path, const char *guest_path, uint32_t uid,
                         uint32_t gid, struct bt_error *error)
{
    (void)context;
    return local_copy_in(NULL, host_path, guest_path, uid, gid, error);
}

static int collect_from_liar(struct scene *scene, const char *program, const char *answer, size_t length,
                             int status)
{
    struct liar liar = {.program = program, .answer = answer, .length = length, .status = status};
    struct bt_workspace_guest guest = scene->link;
    guest.context = &liar;
    guest.run = lying_run;
    guest.copy_in = lying_copy_in;
    bt_workspace_summary_free(&scene->summary);
    scene->summary = (struct bt_workspace_summary){0};
    return bt_workspace_collect(&guest, scene->state, &scene->summary, &scene->error);
}

static void test_lists_of_a_lying_guest(void **state)
{
    struct scene *scene = *state;
    static const char hostile[] = "f 644:1:1:1 3 ../escape\0f 644:1:1:1 3 /etc/passwd\0f 644:1:1:1 3 "
                                  ".git/config\0f 644:1:1:1 3 a/../b\0"
                                  "p 644:1:1:1 3 pipe\0l 777:1:1:1 3 .GIT";
    static const char *const broken[] = {
        "x", "f", "f ", "f 1 2", "f 1 x y", "f 1 2 ", "f 1 99999999999999999999 y", "f 1 -1 y"};
    run_in(scene->host, "echo 1 > f");
    launch(scene);
    expect_ok(scene, collect_from_liar(scene, "find", hostile, sizeof hostile, 0));
    assert_int_equal(scene->summary.changed_count, 1); /* f, which the list does not have: deleted */
    assert_int_equal(scene->summary.notes.count, 6);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(broken); i++) {
        if (collect_from_liar(scene, "find", broken[i], strlen(broken[i]) + 1, 0) != -EBADMSG)
            fail_msg("the list \"%s\" is taken", broken[i]);
    }
    assert_true(collect_from_liar(scene, "find", NULL, 0, 127) < 0);
    run_in(scene->folder, "test ! -e escape; test \"$(cat host/f)\" = 1");
}

static void tar_answer(struct scene *scene, const char *script, struct bt_buffer *ret_tar)
{
    char path[400];
    run_in(scene->folder, script);
    (void)snprintf(path, sizeof path, "%s/lie.tar", scene->folder);
    assert_int_equal(bt_file_read(path, 10UL * 1024 * 1024, ret_tar, NULL), 0);
}

static void test_archives_of_a_lying_guest(void **state)
{
    struct scene *scene = *state;
    static const char *const scripts[] = {
        "cd guest; tar -P --transform 's,^f$,../escape,' -cf ../lie.tar f",
        "cd guest; tar --transform 's,^f$,other,' -cf ../lie.tar f",
        "cd guest; tar -cf ../lie.tar f; tar -rf ../lie.tar f", /* twice */
        "cd guest; tar -cf ../lie.tar f; head -c 700 ../lie.tar > ../x; mv ../x ../lie.tar",
        "head -c 5000 /dev/urandom > lie.tar",
        /* grows without bound */
        "truncate -s 4T sparse; tar -S --transform 's,^sparse$,f,' -cf lie.tar sparse; rm sparse",
        "mkdir d; truncate -s 5000 d/f; ln -s \"$(head -c 4000 /dev/zero | tr '\\0' a)aaa\" l; tar "
        "--transform 's,^l$,.git,' -cf lie.tar l; rm -r d l",
    };
    run_in(scene->host, "echo 1 > f");
    launch(scene);
    run_in(scene->guest, "echo 2 > f");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(scripts); i++) {
        struct bt_buffer tar = {0};
        tar_answer(scene, scripts[i], &tar);
        if (collect_from_liar(scene, "tar", tar.data, tar.length, 0) == 0)
            fail_msg("taken: %s", scripts[i]);
        bt_buffer_free(&tar);
        assert_false(bt_workspace_has_patch(scene->state));
    }
    run_in(scene->folder, "test ! -e escape; test ! -e other; test \"$(cat host/f)\" = 1");
    collect(scene); /* and with an honest guest it still works */
    assert_int_equal(scene->summary.changed_count, 1);
}

static void test_base_of_a_lying_guest(void **state)
{
    struct scene *scene = *state;
    char commit[BT_WORKSPACE_ID_SIZE];
    char answer[200];
    run_in(scene->folder, "git init -q origin; cd origin; echo a > a; git add a; git commit -qm x; cd ..; "
                          "rmdir guest; git clone -q origin guest");
    expect_ok(scene, bt_workspace_record_clone(&scene->link, scene->state, commit, &scene->error));
    run_in(scene->guest, "echo b > a; chmod +x a");
    static const char *const contents[] = {"b\n", "a\nx", "", "a"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(contents); i++) {
        int length =
            snprintf(answer, sizeof answer, "78981922613b2afb6025042ff6bd878ac1994e85 blob %zu\n%s\n",
                     strlen(contents[i]), contents[i]);
        struct liar liar = {.program = "git", .answer = answer, .length = (size_t)length};
        struct bt_workspace_guest guest = scene->link;
        guest.context = &liar;
        guest.run = lying_run;
        guest.copy_in = lying_copy_in;
        assert_int_equal(bt_workspace_collect(&guest, scene->state, &scene->summary, &scene->error),
                         -EBADMSG);
        assert_false(bt_workspace_has_patch(scene->state));
    }
    collect(scene);
    assert_int_equal(scene->summary.changed_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_lists_of_a_lying_guest),
        SCENE_TEST(test_archives_of_a_lying_guest),
        SCENE_TEST(test_base_of_a_lying_guest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
