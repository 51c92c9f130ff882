/* What must not work: repositories that try to run something on the host, or to write outside the folder. A
 * planted command would create a file called "witness" in the test's folder. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_nothing_of_the_repository_runs),
        SCENE_TEST(test_nothing_of_a_parent_or_the_environment_runs),
        SCENE_TEST(test_no_write_through_a_symlinked_folder),
        SCENE_TEST(test_no_write_through_a_symlinked_file),
        SCENE_TEST(test_symlinks_of_the_agent_are_refused),
        SCENE_TEST(test_a_link_that_becomes_a_folder),
        SCENE_TEST(test_crafted_names_are_refused),
        SCENE_TEST(test_names_are_judged),
        SCENE_TEST(test_files_that_run_are_pointed_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
