/* The way of a workspace into the guest and back: what is listed and recorded, what the patch holds, that
 * applying it gives what the agent made, byte for byte.
 */
#include "tests/unit/workspace_fixture.h"

static bool has_name(const struct bt_workspace_base *base, const char *name)
{
    for (size_t at = 0; at < base->names.length; at += strlen(base->names.data + at) + 1) {
        if (strcmp(base->names.data + at, name) == 0)
            return true;
    }
    return false;
}

static bool has_text(const struct bt_list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strstr(list->items[i], text) != NULL)
            return true;
    }
    return false;
}

static void prepare(struct scene *scene)
{
    expect_ok(scene, bt_workspace_prepare(scene->host, scene->state, &(struct bt_workspace_options){0},
                                          &scene->base, &scene->error));
}

static void test_checkout_lists_tracked_and_untracked(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host,
           "git init -q; echo '*.o' > .gitignore; echo secret > .git/info/exclude; echo a > a.c; git add .\n"
           "git commit -qm x; echo b > b.c; echo o > a.o; echo s > secret; mkdir sub; echo d > sub/d; rm -f "
           "gone\n"
           "echo t > tracked.o; git add -f tracked.o; ln -s a.c link; echo 1 > was; git add was; rm was");
    run_in(scene->folder,
           "mkdir -p home/.config/git; echo '*.swp' > home/.config/git/ignore; echo x > host/a.swp");
    prepare(scene);
    assert_true(scene->base.is_checkout);
    assert_true(has_name(&scene->base, "a.c"));
    assert_true(has_name(&scene->base, "b.c"));
    assert_true(has_name(&scene->base, ".gitignore"));
    assert_true(has_name(&scene->base, "sub/d"));
    assert_true(has_name(&scene->base, "tracked.o"));
    assert_true(has_name(&scene->base, "link"));
    assert_false(has_name(&scene->base, "a.o"));
    assert_false(has_name(&scene->base, "secret"));
    assert_false(has_name(&scene->base, "a.swp"));
    assert_false(has_name(&scene->base, "was"));
    assert_int_equal(scene->base.file_count, 6);
    for (size_t at = 0; at < scene->base.names.length; at += strlen(scene->base.names.data + at) + 1)
        assert_null(strstr(scene->base.names.data + at, ".git/"));
}

static void test_ignored_are_included_when_asked(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "git init -q; echo '*.o' > .gitignore; echo o > a.o");
    expect_ok(scene, bt_workspace_prepare(scene->host, scene->state,
                                          &(struct bt_workspace_options){.is_ignored_included = true},
                                          &scene->base, &scene->error));
    assert_true(has_name(&scene->base, "a.o"));
    assert_int_equal(scene->base.file_count, 2);
}

static void test_folder_inside_a_checkout(void **state)
{
    struct scene *scene = *state;
    run_in(scene->folder,
           "git init -q; echo '*.o' > .gitignore; echo a > host/a; echo b > host/b.o; echo c > c");
    prepare(scene);
    assert_true(has_name(&scene->base, "a"));
    assert_int_equal(scene->base.file_count, 1);
}

static void test_worktree_submodule_and_nested_repository(void **state)
{
    struct scene *scene = *state;
    run_in(scene->folder,
           "git init -q lib; cd lib; echo '*.tmp' > .gitignore; echo l > l.c; git add .; git commit -qm l; "
           "cd ..\n"
           "git init -q main; cd main; echo m > m.c; git -c protocol.file.allow=always submodule --quiet add "
           "../lib lib\n"
           "git add .; git commit -qm m; rmdir ../host; git worktree add -q ../host -b other; cd ../host\n"
           "git -c protocol.file.allow=always submodule --quiet update --init\n"
           "echo x > lib/x.tmp; echo y > lib/y; git init -q nested; echo n > nested/n");
    prepare(scene);
    assert_true(has_name(&scene->base, "m.c"));
    assert_true(has_name(&scene->base, "lib/l.c"));
    assert_true(has_name(&scene->base, "lib/y"));
    assert_true(has_name(&scene->base, "nested/n"));
    assert_false(has_name(&scene->base, "lib/x.tmp"));
    assert_false(has_name(&scene->base, "lib/.git"));
    assert_false(has_name(&scene->base, ".git"));
}

static void test_sha256_and_split_index(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host,
           "git init -q --object-format=sha256; git config core.splitIndex true; echo a > a; git add a\n"
           "git commit -qm x; echo b > b; git add b; echo '*' > .git/info/exclude; ls .git/sharedindex.*");
    prepare(scene);
    assert_true(has_name(&scene->base, "a"));
    assert_true(has_name(&scene->base, "b"));
    assert_int_equal(scene->base.file_count, 2);
}

static void test_plain_folder_with_special_files(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "mkdir a; echo x > a/b; mkfifo pipe; : > empty; mkdir vacant");
    prepare(scene);
    assert_false(scene->base.is_checkout);
    assert_int_equal(scene->base.file_count, 2);
    assert_true(has_text(&scene->base.notes, "pipe is left out"));
}

static void test_nothing_is_left_after_a_failure(void **state)
{
    struct scene *scene = *state;
    struct bt_workspace_options options = {0};
    assert_int_equal(
        bt_workspace_prepare("/nonexistent/x", scene->state, &options, &scene->base, &scene->error), -ENOENT);
    assert_non_null(strstr(scene->error.message, "/nonexistent/x"));
    run_in(scene->folder, "echo x > file");
    char file[400];
    (void)snprintf(file, sizeof file, "%s/file", scene->folder);
    assert_int_equal(bt_workspace_prepare(file, scene->state, &options, &scene->base, &scene->error),
                     -ENOTDIR);
    run_in(scene->state, "test -z \"$(ls -A)\"");
}

static void test_unreadable_file_is_named(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo a > a; echo b > locked; chmod 000 locked");
    run_in(scene->folder, "chmod 777 . host state home");
    pid_t pid = fork();
    if (pid == 0) { /* root reads everything */
        bool is_good = (geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0)) &&
                       bt_workspace_prepare(scene->host, scene->state, &(struct bt_workspace_options){0},
                                            &scene->base, &scene->error) == -EACCES &&
                       strstr(scene->error.message, "locked") != NULL;
        _exit(is_good ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    run_in(scene->state, "test -z \"$(ls -A)\"");
}

/* The folder of the keys, and what holds it, is never a workspace; what lies in it is. */
static void test_home_folder_is_refused(void **state)
{
    struct scene *scene = *state;
    bt_auto_free char *before = bt_string_copy(getenv("HOME"));
    bt_auto_free char *home = bt_string_format("%s/home", scene->host);
    bt_auto_free char *beside = bt_string_format("%s/home-not", scene->host);
    bt_auto_free char *project = bt_string_format("%s/project", home);
    const char *const refused[] = {"/", scene->host, home};
    const char *const allowed[] = {project, beside};
    run_in(scene->host, "mkdir -p home/project home-not; echo x > home/project/x; echo x > home-not/x");
    assert_int_equal(setenv("HOME", home, 1), 0);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(refused); i++) {
        struct bt_workspace_listing listing = {0};
        assert_int_equal(bt_workspace_list(refused[i], scene->state, false, &listing, &scene->error),
                         -EINVAL);
        assert_non_null(strstr(scene->error.message, "home folder"));
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(allowed); i++) {
        struct bt_workspace_listing listing = {0};
        assert_int_equal(bt_workspace_list(allowed[i], scene->state, false, &listing, &scene->error), 0);
        bt_workspace_listing_free(&listing);
    }
    assert_int_equal(before == NULL ? unsetenv("HOME") : setenv("HOME", before, 1), 0);
}

static void test_guest_gets_a_clean_repository(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host,
           "git init -q; printf '*.txt text eol=crlf\\n*.id ident\\n*.b filter=f\\n' > .gitattributes\n"
           "printf 'a\\nb\\n' > a.txt; printf 'x\\r\\ny\\n' > b.txt; echo '$Id: 0 $' > c.id; echo b > d.b; "
           "mkdir -p e/f; echo 1 > e/f/g");
    launch(scene);
    run_in(scene->guest,
           "test -z \"$(git status --porcelain)\"; test \"$(git log --oneline | wc -l)\" = 1\n"
           "test \"$(git branch --show-current)\" = main; git fsck --strict; cmp a.txt ../host/a.txt\n"
           "echo more >> a.txt; git commit -qam work; echo z > z; git add z; git stash -q; git stash pop -q");
    assert_true(scene->base.has_repository);
    collect(scene);
    assert_int_equal(scene->summary.changed_count, 2);
}

static void test_every_kind_of_change_comes_back(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "printf 'one\\ntwo\\n' > text; printf 'no end' > noend; printf 'a\\r\\nb\\r\\n' > "
                        "crlf; head -c 70000 /dev/urandom > binary\n"
                        ": > empty; echo gone > gone; mkdir -p d/e; echo deep > d/e/deep; echo m > mode; seq "
                        "100 > old-name; echo f > file-to-folder\n"
                        "mkdir folder-to-file; echo x > folder-to-file/x; printf 'x\\n' > $'new\\nline \"q\" "
                        "\\\\b \\xc3\\xa4 \\xff'; ln -s text link; echo same > same");
    launch(scene);
    run_in(scene->guest, "echo three >> text; printf 'no end either' > noend; printf 'a\\r\\nc\\r\\n' > "
                         "crlf; printf 'Z' | dd of=binary bs=1 seek=100 conv=notrunc status=none\n"
                         "rm gone; rm -r d; chmod +x mode; mv old-name new-name; rm file-to-folder; mkdir "
                         "file-to-folder; echo in > file-to-folder/in\n"
                         "rm -r folder-to-file; echo now > folder-to-file; printf 'y\\n' >> $'new\\nline "
                         "\"q\" \\\\b \\xc3\\xa4 \\xff'; echo u > 'un tracked'; : > empty2\n"
                         "head -c 3000 /dev/urandom > newbin; mkdir -p n/o; echo p > n/o/p; touch same; "
                         "chmod 700 n/o/p; echo dash > -dash; rm link");
    collect(scene);
    assert_true(bt_workspace_has_patch(scene->state));
    assert_int_equal(scene->summary.notes.count, 0);
    run_in(scene->folder, "cp -a host copy; cd copy; git init -q; git apply --binary ../state/patch");
    expect_ok(scene, apply(scene));
    assert_same(scene);
    run_in(scene->folder, "rm -rf copy/.git; diff -r copy host; test ! -e host/d; test -z \"$(ls -A host | "
                          "grep berth || true)\"");
    expect_ok(scene, apply(scene)); /* applying twice is applying once */
    assert_int_equal(scene->applied.written.count + scene->applied.removed.count, 0);
}

static void test_no_change_is_no_patch(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo a > a");
    launch(scene);
    run_in(scene->guest, "echo x > a; echo a > a; touch a");
    collect(scene);
    assert_int_equal(scene->summary.changed_count, 0);
    assert_false(bt_workspace_has_patch(scene->state));
    run_in(scene->guest, "echo x > a");
    collect(scene);
    assert_true(bt_workspace_has_patch(scene->state));
    run_in(scene->guest, "echo a > a");
    collect(scene);
    assert_false(bt_workspace_has_patch(scene->state));
    assert_int_equal(apply(scene), -ENOENT);
}

static void test_ignored_by_the_agents_rules_stays_out(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "git init -q; echo '*.o' > .gitignore; echo local > .git/info/exclude; echo a > a; "
                        "echo k > kept.o; git add -f kept.o");
    launch(scene);
    run_in(scene->guest, "mkdir -p node_modules/x; echo j > node_modules/x/j; echo o > a.o; echo new > "
                         "kept.o; echo l > local\n"
                         "echo node_modules/ >> .gitignore; echo b > b; mkfifo pipe; mkdir -p sub; git init "
                         "-q sub/repo; echo r > sub/repo/r");
    collect(scene);
    assert_int_equal(scene->summary.changed_count, 3); /* .gitignore, b, kept.o */
    assert_true(has_text(&scene->summary.notes, "pipe"));
    assert_true(has_text(&scene->summary.notes, "sub/repo is a git repository of its own"));
    expect_ok(scene, apply(scene));
    run_in(scene->host, "test ! -e node_modules; test ! -e a.o; test ! -e sub; test ! -e local; test \"$(cat "
                        "kept.o)\" = new; test \"$(cat b)\" = b");
}

static void test_three_way_merge(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "seq 20 > both; echo a > mine; echo t > theirs; seq 50 > renamed");
    launch(scene);
    run_in(scene->guest, "sed -i 's/^2$/two/' both; echo T > theirs; mv renamed moved");
    run_in(scene->host, "sed -i 's/^18$/eighteen/' both; echo A > mine; sed -i 's/^30$/thirty/' renamed");
    collect(scene);
    expect_ok(scene, apply(scene));
    run_in(scene->host,
           "grep -qx two both; grep -qx eighteen both; test \"$(cat mine)\" = A; test \"$(cat theirs)\" = T\n"
           "grep -qx thirty moved; test ! -e renamed");
}

static void test_conflict_changes_nothing(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo 1 > both; echo o > other");
    launch(scene);
    run_in(scene->guest, "echo 2 > both; echo O > other");
    run_in(scene->host, "echo 3 > both");
    collect(scene);
    assert_int_equal(apply(scene), -EEXIST);
    assert_int_equal(scene->error.status, BT_EXIT_ERROR);
    assert_non_null(strstr(scene->error.message, "both"));
    assert_int_equal(scene->applied.conflicts.count, 1);
    run_in(scene->host, "test \"$(cat both other)\" = $'3\\no'");
    expect_ok(scene, apply_to(scene, scene->host,
                              &(struct bt_workspace_apply_options){.has_conflict_markers = true}));
    run_in(scene->host,
           "grep -q '<<<<<<< yours' both; grep -q '>>>>>>> agent' both; test \"$(cat other)\" = O");
    assert_int_equal(scene->applied.conflicts.count, 1);
    run_in(scene->state, "git --git-dir=base.git for-each-ref | grep -q refs/berth/before/");
}

static void test_dry_run_changes_nothing(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo 1 > a; echo b > b");
    launch(scene);
    run_in(scene->guest, "echo 2 > a; rm b; echo c > c");
    collect(scene);
    expect_ok(scene, apply_to(scene, scene->host, &(struct bt_workspace_apply_options){.is_dry_run = true}));
    assert_int_equal(scene->applied.written.count, 2);
    assert_int_equal(scene->applied.removed.count, 1);
    run_in(scene->host, "test \"$(cat a b)\" = $'1\\nb'; test ! -e c; test \"$(ls -A | wc -l)\" = 2");
}

static void test_failure_while_writing_puts_everything_back(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "mkdir a z; echo 1 > a/1; echo 2 > a/2; echo d > a/gone; mkdir -p m");
    launch(scene);
    run_in(scene->guest,
           "echo one > a/1; rm a/gone; mkdir -p m; echo f > n; echo y > y; mkdir -p x/y; echo x > x/y/z");
    collect(scene);
    run_in(scene->host, "mkdir y; echo mine > y/mine"); /* y, the last one, cannot take its place */
    assert_int_equal(apply(scene) < 0, 1);
    run_in(scene->host, "test \"$(cat a/1)\" = 1; test \"$(cat a/gone)\" = d; test ! -e n; test ! -e x; test "
                        "\"$(cat y/mine)\" = mine\n"
                        "test -z \"$(ls -A | grep berth || true)\"");
    run_in(scene->host, "rm -r y");
    expect_ok(scene, apply(scene));
    run_in(scene->host, "test \"$(cat a/1)\" = one; test ! -e a/gone; test -e x/y/z; test \"$(cat y)\" = y");
}

static void test_modes_of_the_user_are_kept(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo 1 > private; chmod 600 private; echo 1 > program; chmod 640 program");
    launch(scene);
    run_in(scene->guest, "echo 2 > private; chmod 755 program");
    collect(scene);
    expect_ok(scene, apply(scene));
    run_in(scene->host, "test \"$(stat -c %a private program)\" = $'600\\n750'");
}

static void test_clone(void **state)
{
    struct scene *scene = *state;
    run_in(scene->folder,
           "git init -q origin; cd origin; seq 30 > a; echo b > b; echo c > c; head -c 999 /dev/urandom > "
           "bin; git add .\n"
           "git commit -qm x; cd ..; rmdir guest host; git clone -q origin guest; git clone -q origin host");
    char commit[BT_WORKSPACE_ID_SIZE];
    expect_ok(scene, bt_workspace_record_clone(&scene->link, scene->state, commit, &scene->error));
    assert_int_equal(strlen(commit), 40);
    run_in(scene->guest,
           "sed -i s/^3$/three/ a; rm b; echo new > new; printf x >> bin; rm -rf .git/objects; git init -q");
    run_in(scene->host, "sed -i s/^27$/yours/ a");
    collect(scene);
    assert_int_equal(scene->summary.changed_count, 4);
    run_in(scene->folder, "git clone -q origin plain; cd plain; git apply --check ../state/patch");
    expect_ok(scene, apply(scene));
    run_in(
        scene->host,
        "grep -qx three a; grep -qx yours a; test ! -e b; test \"$(cat new)\" = new; cmp bin ../guest/bin");
}

static void test_too_large_names_the_largest(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "echo a > a");
    launch(scene);
    run_in(scene->guest, "truncate -s 600M huge; echo b > b");
    assert_int_equal(bt_workspace_collect(&scene->link, scene->state, &scene->summary, &scene->error),
                     -EFBIG);
    assert_non_null(strstr(scene->error.message, "huge"));
    run_in(scene->guest, "echo huge > .gitignore");
    collect(scene);
    assert_int_equal(scene->summary.changed_count, 2);
}

static void test_names_in_messages_are_harmless(void **state)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    char name[2 * BT_WORKSPACE_TEXT_SIZE];
    (void)state;
    assert_string_equal(bt_workspace_printable("a\nb\033[2J", text), "a?b?[2J");
    assert_string_equal(bt_workspace_printable("x\xc2\x9b"
                                               "31m",
                                               text),
                        "x??31m");
    /* U+202E: what follows would be shown from right to left. */
    assert_string_equal(bt_workspace_printable("gpj.\xe2\x80\xae.sh", text), "gpj.???.sh");
    assert_string_equal(bt_workspace_printable("gr\xc3\xbc\xc3\x9f", text), "gr\xc3\xbc\xc3\x9f");
    /* A character that the end cuts. */
    memset(name, 'n', sizeof name);
    memcpy(name + BT_WORKSPACE_TEXT_SIZE - 6, "\xe2\x80\xae", 4);
    (void)bt_workspace_printable(name, text);
    assert_true(strlen(text) < BT_WORKSPACE_TEXT_SIZE);
    assert_null(strstr(text, "\xe2"));
}

static void test_diff_on_a_terminal_is_harmless(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "printf 'a\\n-- old\\n' > a");
    launch(scene);
    run_in(scene->guest, "printf 'a\\n\\033]0;owned\\007 \\302\\233 \\342\\200\\256 \\303\\244 "
                         "\\342\\202\\254 \\23331m \\360\\237\\222\\233\\n' > a");
    collect(scene);
    char path[400];
    (void)snprintf(path, sizeof path, "%s/out", scene->folder);
    FILE *out = fopen(path, "w");
    const struct bt_workspace_diff_options options = {.is_terminal = true, .has_color = true};
    expect_ok(scene, bt_workspace_diff(scene->state, &options, fileno(out), &scene->error));
    (void)fclose(out);
    run_in(scene->folder, "grep -q $'\\e\\[32m+^\\[]0;owned^G <U+009B> <U+202E> \\xc3\\xa4 \\xe2\\x82\\xac "
                          "<9B>31m \\xf0\\x9f\\x92\\x9b\\e\\[m$' out\n"
                          "grep -q $'^\\e\\[31m--- old\\e\\[m$' out; ! grep -q $'\\a' out");
    out = fopen(path, "w");
    expect_ok(scene, bt_workspace_diff(scene->state, &(struct bt_workspace_diff_options){0}, fileno(out),
                                       &scene->error));
    (void)fclose(out);
    run_in(scene->folder, "cmp out state/patch");
    out = fopen(path, "w");
    expect_ok(scene,
              bt_workspace_diff(scene->state,
                                &(struct bt_workspace_diff_options){.is_stat = true, .is_terminal = true},
                                fileno(out), &scene->error));
    (void)fclose(out);
    run_in(scene->folder, "grep -q '1 file changed, 1 insertion(+), 1 deletion(-)' out");
    run_in(scene->folder, "! grep -q -e '^diff' -e '^@@' out"); /* and not the patch as well */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_checkout_lists_tracked_and_untracked),
        SCENE_TEST(test_ignored_are_included_when_asked),
        SCENE_TEST(test_folder_inside_a_checkout),
        SCENE_TEST(test_worktree_submodule_and_nested_repository),
        SCENE_TEST(test_sha256_and_split_index),
        SCENE_TEST(test_plain_folder_with_special_files),
        SCENE_TEST(test_nothing_is_left_after_a_failure),
        SCENE_TEST(test_unreadable_file_is_named),
        SCENE_TEST(test_home_folder_is_refused),
        SCENE_TEST(test_guest_gets_a_clean_repository),
        SCENE_TEST(test_every_kind_of_change_comes_back),
        SCENE_TEST(test_no_change_is_no_patch),
        SCENE_TEST(test_ignored_by_the_agents_rules_stays_out),
        SCENE_TEST(test_three_way_merge),
        SCENE_TEST(test_conflict_changes_nothing),
        SCENE_TEST(test_dry_run_changes_nothing),
        SCENE_TEST(test_failure_while_writing_puts_everything_back),
        SCENE_TEST(test_modes_of_the_user_are_kept),
        SCENE_TEST(test_clone),
        SCENE_TEST(test_too_large_names_the_largest),
        SCENE_TEST(test_diff_on_a_terminal_is_harmless),
        cmocka_unit_test(test_names_in_messages_are_harmless),
    };
    return cmocka_run_group_tests_name("workspace", tests, NULL, NULL);
}
