/* What must not work: repositories and guests that try to run something on the host, to write outside the
 * folder, or to lose the user's work. A planted command would create a file called "witness" in the test's
 * folder.
 */
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include "tests/unit/workspace_fixture.h"

static void expect_no_witness(const struct scene *scene)
{
    run_in(scene->folder, "test -z \"$(find . -name 'witness*')\"");
}

/* Every setting, attribute and hook of git that names a program, in the folder host. */
static void plant(const struct scene *scene)
{
    run_in(
        scene->host,
        "git init -q; W=\"$PWD/../witness\"; run=\"touch $W\"\n"
        "printf '* filter=evil diff=evil merge=evil\\n*.txt text eol=crlf ident\\n*.wide "
        "working-tree-encoding=UTF-16\\n' > "
        ".gitattributes\n"
        "mkdir -p sub/deep; seq 20 > file; echo t > a.txt; echo s > sub/deep/s; git add . 2>/dev/null; git "
        "commit -qm x\n"
        "echo w > w.wide; cp .gitattributes .git/info/attributes\n"
        "for hook in applypatch-msg pre-applypatch post-applypatch pre-commit post-commit post-checkout "
        "post-merge post-rewrite\\\n"
        "  post-index-change pre-auto-gc reference-transaction fsmonitor-watchman prepare-commit-msg "
        "pre-push; do\n"
        "  printf '#!/bin/sh\\n%s-%s\\n' \"$run\" $hook > .git/hooks/$hook; chmod +x .git/hooks/$hook; done\n"
        "printf '[core]\\n\\tfsmonitor = %s-m\\n\\tfsmonitorHookVersion = 2\\n' \"$run\" > ../included\n"
        "for setting in core.fsmonitor core.pager core.editor core.sshCommand core.gitProxy core.askPass "
        "core.alternateRefsCommand\\\n"
        "  diff.external diff.evil.command diff.evil.textconv merge.evil.driver filter.evil.clean "
        "filter.evil.smudge filter.evil.process\\\n"
        "  gpg.program credential.helper sequence.editor pager.diff pager.ls-files interactive.diffFilter "
        "uploadpack.packObjectsHook\\\n"
        "  alias.ls-files alias.diff-tree alias.apply; do git config $setting \"!$run-$setting\" ; git "
        "config $setting \"$run-$setting\"; done\n"
        "git config filter.evil.required true; git config core.hooksPath .git/hooks; git config include.path "
        "\"$PWD/../included\"\n"
        "git config extensions.partialClone origin; git config remote.origin.url \"ext::$run\"; git config "
        "protocol.ext.allow always\n"
        "git config remote.origin.promisor true; git config core.worktree ../..; rm -f ../witness*");
}

static void test_nothing_of_the_repository_runs(void **state)
{
    struct scene *scene = *state;
    plant(scene);
    launch(scene);
    expect_no_witness(scene);
    assert_int_equal(scene->base.file_count, 5);
    run_in(scene->guest, "sed -i s/^2$/two/ file; echo more >> sub/deep/s; printf '* merge=union "
                         "filter=evil\\n' > sub/.gitattributes; echo n > n.txt");
    collect(scene);
    run_in(scene->host, "sed -i s/^19$/nineteen/ file");
    FILE *out = tmpfile();
    expect_ok(scene, bt_workspace_diff(scene->state, &(struct bt_workspace_diff_options){.is_terminal = true},
                                       fileno(out), &scene->error));
    (void)fclose(out);
    expect_ok(scene, apply(scene));
    expect_no_witness(scene);
    run_in(scene->host, "grep -qx two file; grep -qx nineteen file; test \"$(cat n.txt)\" = n; cmp "
                        "sub/deep/s ../guest/sub/deep/s");
    expect_no_witness(scene);
    /* The trap does work on who walks into it. */
    run_in(scene->host,
           "git config --unset core.worktree; git status >/dev/null 2>&1 || true; ls ../witness*");
}

static void test_nothing_of_a_parent_or_the_environment_runs(void **state)
{
    struct scene *scene = *state;
    run_in(scene->folder,
           "git init -q; git config core.fsmonitor \"touch $PWD/witness\"; echo a > host/a\n"
           "mkdir bin; printf '#!/bin/sh\\ntouch %s/witness\\n' \"$PWD\" > host/git; chmod +x host/git");
    setenv("GIT_DIR", "/nonexistent", 1);
    setenv("GIT_EXTERNAL_DIFF", "touch witness", 1);
    setenv("GIT_CONFIG_COUNT", "1", 1);
    setenv("GIT_CONFIG_KEY_0", "core.fsmonitor", 1);
    setenv("GIT_CONFIG_VALUE_0", "touch witness", 1);
    launch(scene);
    run_in(scene->guest, "echo b > a");
    collect(scene);
    expect_ok(scene, apply(scene));
    static const char *const names[] = {"GIT_DIR", "GIT_EXTERNAL_DIFF", "GIT_CONFIG_COUNT",
                                        "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++)
        unsetenv(names[i]);
    expect_no_witness(scene);
}

static void test_no_write_through_a_symlinked_folder(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "mkdir d; echo 1 > d/f; echo k > keep");
    launch(scene);
    run_in(scene->guest, "echo 2 > d/f; echo new > d/new; echo K > keep");
    collect(scene);
    run_in(scene->folder, "mkdir outside; mv host/d/f outside/f; rmdir host/d; ln -s ../outside host/d");
    assert_int_equal(apply(scene), -EPERM);
    assert_non_null(strstr(scene->error.message, "symbolic link"));
    run_in(scene->folder,
           "test \"$(cat outside/f)\" = 1; test ! -e outside/new; test \"$(cat host/keep)\" = k");
    expect_ok(scene, apply_to(scene, scene->host,
                              &(struct bt_workspace_apply_options){.is_skipping_refused = true}));
    run_in(scene->folder,
           "test \"$(cat outside/f)\" = 1; test ! -e outside/new; test \"$(cat host/keep)\" = K");
}

static void test_no_write_through_a_symlinked_file(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo 1 > f");
    launch(scene);
    run_in(scene->guest, "echo 2 > f");
    collect(scene);
    run_in(scene->folder, "echo 1 > outside; ln -sf ../outside host/f");
    assert_true(apply(scene) < 0);
    run_in(scene->folder, "test \"$(cat outside)\" = 1; test -L host/f");
}

static void test_symlinks_of_the_agent_are_refused(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo 1 > f; ln -s f old");
    launch(scene);
    run_in(scene->guest, "ln -s /etc evil; rm f; ln -s ../../outside f; ln -sfn /etc/passwd old; echo x > x; "
                         "ln -s host loop; mkdir dir; ln -s .. dir/up");
    collect(scene);
    assert_int_equal(apply(scene), -EPERM);
    assert_int_equal(scene->applied.refused.count, 5);
    run_in(scene->host, "test ! -e evil; test \"$(cat f)\" = 1; test \"$(readlink old)\" = f; test ! -e x");
    expect_ok(scene, apply_to(scene, scene->host,
                              &(struct bt_workspace_apply_options){.is_skipping_refused = true}));
    run_in(scene->host,
           "test ! -e evil; test \"$(cat f)\" = 1; test \"$(readlink old)\" = f; test \"$(cat x)\" = x");
}

static void test_a_link_that_becomes_a_folder(void **state)
{
    struct scene *scene = *state;
    run_in(scene->folder, "mkdir outside; ln -s ../outside host/d; echo 1 > host/f");
    launch(scene);
    run_in(scene->guest, "rm d; mkdir d; echo in > d/in");
    collect(scene);
    expect_ok(scene, apply(scene));
    run_in(scene->folder, "test ! -L host/d; test \"$(cat host/d/in)\" = in; test -z \"$(ls outside)\"");
}

/* Puts a file of this name into the agent's commit, past every check that collect makes. */
static void craft(struct scene *scene, const char *path, const char *mode)
{
    char script[1400];
    (void)snprintf(
        script, sizeof script,
        "export GIT_DIR=$PWD/base.git; blob=$(echo evil | git hash-object -w --stdin); "
        "entry=$(printf '%%s blob %%s\\t' %s $blob)\n"
        "path=%s; tree=; while :; do name=${path##*/}; if [ -z \"$tree\" ]; then line=\"%s blob "
        "$blob\"$'\\t'\"$name\"\n"
        "else line=\"040000 tree $tree\"$'\\t'\"$name\"; fi\n"
        "[ %s != 160000 ] || [ -n \"$tree\" ] || line=\"160000 commit ${blob//[0-9]/7}\"$'\\t'\"$name\"\n"
        "tree=$(printf '%%s\\0' \"$line\" | git mktree -z --missing); case $path in */*) "
        "path=${path%%/*};; *) break;; esac; done\n"
        "git update-ref refs/berth/agent $(git commit-tree -m x $tree); echo x > patch",
        mode, path, mode, mode);
    run_in(scene->state, script);
}

static void test_crafted_names_are_refused(void **state)
{
    struct scene *scene = *state;
    static const char *const names[] = {
        ".git/hooks/pre-commit",
        ".GIT/config",
        "sub/.Git/config",
        "git~1/config",
        "GIT~1",
        "$'.g\\xe2\\x80\\x8cit/config'",
        "../outside",
        "a/../../outside",
        "a/./b",
        ".git./x",
        "$'.git /config'",
        "'.git::$INDEX_ALLOCATION/config'",
        "'a\\.git\\config'",
        "'..\\outside'",
        "$'\\xef\\xbb\\xbf.git/config'",
        ".git",
        "sub/.git",
    };
    run_in(scene->host, "echo 1 > f; mkdir -p .git/hooks");
    launch(scene);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        craft(scene, names[i], "100644");
        int result = apply(scene);
        if (result != -EPERM)
            fail_msg("%s: %d %s", names[i], result, result < 0 ? scene->error.message : "");
        run_in(scene->folder, "test ! -e outside; test -z \"$(find host -name '*config*' -o -name "
                              "'pre-commit')\"; test \"$(ls -A host | sort | tr '\\n' ' ')\" = '.git f '");
    }
    craft(scene, "module", "160000");
    assert_int_equal(apply(scene), -EPERM);
    craft(scene, "link", "120000");
    assert_int_equal(apply(scene), -EPERM);
    run_in(scene->host, "test ! -e link; test ! -e module");
}

static void test_names_are_judged(void **state)
{
    (void)state;
    static const char *const good[] = {
        "a",   "a/b",   ".gitignore", ".github/x", "git",         "a.git", ".gita",  "..a", "a..",
        "...", "git~2", "\xff\xfe",   "new\nline", ".gitmodules", "a\\b",  ".git-x", ".gi"};
    static const char *const bad[] = {"",
                                      "/a",
                                      "a//b",
                                      "a/",
                                      "./a",
                                      "a/..",
                                      "..",
                                      ".git",
                                      ".giT/x",
                                      "x/.git/y",
                                      ".git.../a",
                                      ".git  /a",
                                      ".git. ./a",
                                      "git~1",
                                      ".git\xe2\x80\x8d/x",
                                      "\xe2\x81\xaa.git",
                                      ".git:x"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(good); i++) {
        if (bt_workspace_path_refusal(good[i]) != NULL)
            fail_msg("%s is refused", good[i]);
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(bad); i++) {
        if (bt_workspace_path_refusal(bad[i]) == NULL)
            fail_msg("%s is not refused", bad[i]);
    }
    char long_name[300];
    memset(long_name, 'a', sizeof long_name);
    long_name[256] = '\0';
    assert_non_null(bt_workspace_path_refusal(long_name));
    long_name[255] = '\0';
    assert_null(bt_workspace_path_refusal(long_name));
}

static void test_files_that_run_are_pointed_out(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo a > Makefile; echo p > plain");
    launch(scene);
    run_in(scene->guest, "echo b > Makefile; echo q > plain; mkdir -p .github/workflows .vscode .claude; "
                         "echo c > .github/workflows/ci.yml\n"
                         "echo d > .vscode/tasks.json; echo e > .claude/settings.json; echo f > .envrc; echo "
                         "g > tool; chmod +x tool; echo h > .gitattributes");
    collect(scene);
    expect_ok(scene, apply(scene));
    assert_int_equal(scene->applied.warnings.count, 7);
    assert_int_equal(scene->applied.written.count, 8);
}

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

static bool has_note(const struct scene *scene, const char *first, const char *second)
{
    for (size_t i = 0; i < scene->summary.notes.count; i++)
        if (strncmp(scene->summary.notes.items[i], first, strlen(first)) == 0 &&
            strstr(scene->summary.notes.items[i], second) != NULL)
            return true;
    return false;
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
#define TEST(name) cmocka_unit_test_setup_teardown(name, scene_open, scene_close)
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_of_the_repository_runs),
        TEST(test_nothing_of_a_parent_or_the_environment_runs),
        TEST(test_no_write_through_a_symlinked_folder),
        TEST(test_no_write_through_a_symlinked_file),
        TEST(test_symlinks_of_the_agent_are_refused),
        TEST(test_a_link_that_becomes_a_folder),
        TEST(test_crafted_names_are_refused),
        TEST(test_names_are_judged),
        TEST(test_files_that_run_are_pointed_out),
        TEST(test_lists_of_a_lying_guest),
        TEST(test_archives_of_a_lying_guest),
        TEST(test_base_of_a_lying_guest),
        TEST(test_killed_while_applying),
        TEST(test_leftovers_of_a_killed_git),
        TEST(test_full_disk),
        TEST(test_unreadable_folders_are_unchanged),
        TEST(test_an_unreadable_workspace_is_unchanged),
        TEST(test_a_list_with_holes_is_refused),
    };
    return cmocka_run_group_tests_name("workspace_hostile", tests, NULL, NULL);
}
