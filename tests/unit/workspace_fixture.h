/* Shared by the tests of the workspace: temporary folders, scripts that set a scene, and a guest that is a
 * folder of this machine. Each test has host/ (the user's folder), guest/ (the agent's /workspace), store/
 * (the guest root's) and state/.
 */
#ifndef BERTH_TESTS_UNIT_WORKSPACE_FIXTURE_H
#define BERTH_TESTS_UNIT_WORKSPACE_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "frontend/workspace_internal.h"
#include "tests/lib/test_folder.h"

struct scene {
    char folder[256], host[300], guest[300], store[300], state[300];
    struct bt_workspace_guest link;
    struct bt_error error;
    struct bt_workspace_base base;
    struct bt_workspace_summary summary;
    struct bt_workspace_applied applied;
};

static inline void run_in(const char *folder, const char *script)
{
    const char *const arguments[] = {"bash", "-euc", script, NULL};
    const char *const environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent",
                                       "GIT_CONFIG_GLOBAL=/dev/null",       "GIT_AUTHOR_NAME=a",
                                       "GIT_AUTHOR_EMAIL=a@a.invalid",      "GIT_COMMITTER_NAME=a",
                                       "GIT_COMMITTER_EMAIL=a@a.invalid",   NULL};
    struct bt_spawn_result result;
    struct bt_error error;
    const struct bt_spawn spawn = {.arguments = arguments, .environment = environment, .folder = folder};
    if (bt_spawn_check(&spawn, &result, &error) < 0)
        fail_msg("%s: %s", script, error.message);
    bt_spawn_result_free(&result);
}

static inline int local_run(void *context, const struct bt_guest_command *command, int *ret_status,
                            struct bt_error *error)
{
    (void)context;
    struct bt_spawn_result result;
    const struct bt_spawn spawn = {.arguments = command->arguments,
                                   .environment = command->environment,
                                   .folder = command->folder,
                                   .input = command->input,
                                   .input_length = command->input_length,
                                   .output_limit = 1024UL * 1024 * 1024};
    int status = bt_spawn_run(&spawn, &result, error);
    if (status < 0)
        return status;
    *ret_status = result.exit_status;
    for (size_t at = 0; at < result.output.length && status == 0;) {
        size_t part = result.output.length - at < 30000 ? result.output.length - at : 30000;
        status = command->on_output(command->context, false, result.output.data + at, part);
        at += part;
    }
    if (result.errors.length > 0)
        (void)command->on_output(command->context, true, result.errors.data, result.errors.length);
    bt_spawn_result_free(&result);
    return status;
}

static inline int local_copy_in(void *context, const char *host_path, const char *guest_path, uint32_t uid,
                                uint32_t gid, struct bt_error *error)
{
    (void)context;
    (void)uid;
    (void)gid;
    const char *const arguments[] = {"cp", "-R", "--", host_path, guest_path, NULL};
    struct bt_spawn_result result;
    int status = bt_spawn_check(&(struct bt_spawn){.arguments = arguments}, &result, error);
    if (status == 0)
        bt_spawn_result_free(&result);
    return status;
}

static inline int scene_open(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    test_folder_make(scene->folder, sizeof scene->folder);
    (void)snprintf(scene->host, sizeof scene->host, "%s/host", scene->folder);
    (void)snprintf(scene->guest, sizeof scene->guest, "%s/guest", scene->folder);
    (void)snprintf(scene->store, sizeof scene->store, "%s/store", scene->folder);
    (void)snprintf(scene->state, sizeof scene->state, "%s/state", scene->folder);
    run_in(scene->folder, "mkdir host guest state home");
    scene->link = (struct bt_workspace_guest){.folder = scene->guest,
                                              .store = scene->store,
                                              .uid = 1000,
                                              .gid = 1000,
                                              .run = local_run,
                                              .copy_in = local_copy_in};
    char home[320];
    (void)snprintf(home, sizeof home, "%s/home", scene->folder);
    setenv("HOME", home, 1);
    unsetenv("XDG_CONFIG_HOME");
    *state = scene;
    return 0;
}

static inline int scene_close(void **state)
{
    struct scene *scene = *state;
    bt_workspace_base_free(&scene->base);
    bt_workspace_summary_free(&scene->summary);
    bt_workspace_applied_free(&scene->applied);
    int result = bt_tree_remove(scene->folder, NULL);
    free(scene);
    return result;
}

static inline void expect_ok(const struct scene *scene, int result)
{
    if (result < 0)
        fail_msg("%s (%s)", scene->error.message, scene->error.hint);
}

/* prepare, copying the listed names, settle. */
static inline void launch(struct scene *scene)
{
    expect_ok(scene, bt_workspace_prepare(scene->host, scene->state, &(struct bt_workspace_options){0},
                                          &scene->base, &scene->error));
    char names[320];
    (void)snprintf(names, sizeof names, "%s/names", scene->folder);
    assert_int_equal(bt_file_write(names, scene->base.names.data, scene->base.names.length, 0600, NULL), 0);
    run_in(scene->folder, "tar -C host --null --verbatim-files-from --no-recursion -T names -cf a.tar\n"
                          "tar -C guest -xf a.tar; rm a.tar names");
    expect_ok(scene, bt_workspace_settle(&scene->link, scene->state, &scene->error));
}

static inline void collect(struct scene *scene)
{
    bt_workspace_summary_free(&scene->summary);
    expect_ok(scene, bt_workspace_collect(&scene->link, scene->state, &scene->summary, &scene->error));
}

static inline int apply_to(struct scene *scene, const char *folder,
                           const struct bt_workspace_apply_options *options)
{
    bt_workspace_applied_free(&scene->applied);
    scene->applied = (struct bt_workspace_applied){0};
    return bt_workspace_apply(scene->state, folder, options, &scene->applied, &scene->error);
}

static inline int apply(struct scene *scene)
{
    return apply_to(scene, scene->host, &(struct bt_workspace_apply_options){0});
}

/* Both folders hold the same files, bytes, execute bits and links (.git apart). */
static inline void assert_same(const struct scene *scene)
{
    run_in(scene->folder,
           "list() { cd \"$1\"; find . -name .git -prune -o -type f -exec sha256sum -z {} + | sort -z\n"
           "find . -name .git -prune -o -type f -perm -100 -printf 'x %P\\0' -o -type l -printf '%P %l\\0' | "
           "sort -z; }\n"
           "(list host) > list1; (list guest) > list2; cmp list1 list2");
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, scene_open, scene_close)

#endif
