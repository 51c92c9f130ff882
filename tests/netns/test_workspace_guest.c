/* The workspace over a real SSH server and the real berth-init: owners, the agent's own git, what the agent
 * cannot reach, and the patch of what it did. The way itself is tested in tests/unit/test_workspace*.c.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "frontend/workspace.h"
#include "lib/file.h"
#include "tests/lib/guest_server.h"

#define HOST "/tmp/host"
#define STATE "/tmp/state"
#define GUEST "/run/workspace"
#define STORE "/run/store"

static struct guest_server server;
static struct bt_error error;

static void here(const char *text)
{
    int status = guest_server_shell(text);
    if (status != 0)
        fail_msg("status %d of: %s", status, text);
}

static void good(int result)
{
    if (result < 0)
        fail_msg("%s (%s)", error.message, error.hint);
}

static struct bt_guest_link *link_open(void)
{
    struct bt_guest_link *link = NULL;
    good(bt_guest_connect(&server.address, 10000, -1, &link, &error));
    return link;
}

/* Runs sh -c text as the agent; returns its status. */
static int agent(struct bt_guest_link *link, const char *text)
{
    const char *const arguments[] = {"sh", "-ec", text, NULL};
    const char *const environment[] = {"PATH=/usr/bin:/bin", "HOME=/tmp", NULL};
    struct bt_buffer output = {0}, errors = {0};
    const struct bt_guest_command command = {.arguments = arguments,
                                             .environment = environment,
                                             .folder = GUEST,
                                             .uid = 1000,
                                             .gid = 1000,
                                             .input_fd = -1};
    int status = -1;
    good(bt_guest_run_collect(link, &command, 65536, &output, &errors, &status, &error));
    if (status != 0)
        (void)fprintf(stderr, "# %s%s\n", output.data ? output.data : "", errors.data ? errors.data : "");
    bt_buffer_free(&output);
    bt_buffer_free(&errors);
    return status;
}

static void guest_make(struct bt_guest_link *link, struct bt_workspace_guest *guest)
{
    bt_workspace_guest_link(link, GUEST, NULL, guest);
    free((char *)(uintptr_t)guest->store);
    guest->store = bt_string_copy(STORE);
}

static void scene_clean(void)
{
    here("rm -rf " HOST " " STATE " " GUEST " " STORE "; mkdir " HOST " " STATE " " GUEST
         "; chown 1000:1000 " GUEST);
}

static void test_folder(void **state)
{
    (void)state;
    struct bt_workspace_guest guest;
    struct bt_workspace_base base;
    struct bt_workspace_summary summary;
    struct bt_workspace_applied applied = {0};
    scene_clean();
    here("cd " HOST
         "; git init -q; mkdir -p src; seq 100 > src/a; head -c 300000 /dev/urandom > bin; ln -s src/a link\n"
         "printf '#!/bin/sh\\n' > run; chmod 755 run; echo '*.o' > .gitignore; echo x > x.o");
    good(bt_workspace_prepare(HOST, STATE, &(struct bt_workspace_options){0}, &base, &error));
    struct bt_guest_link *link = link_open();
    guest_make(link, &guest);
    good(bt_guest_copy_list_in(link, HOST, base.names.data, base.names.length, GUEST, 1000, 1000, NULL, NULL,
                               &error));
    good(bt_workspace_settle(&guest, STATE, &error));
    assert_int_equal(
        agent(link,
              "test -z \"$(git status --porcelain)\"; git log --oneline | grep -q 'as it was copied in'\n"
              "test -z \"$(find . ! -user 1000)\"; test ! -e x.o; test -x run; test -L link"),
        0);
    assert_int_equal(agent(link, "! touch " STORE "/x 2>/dev/null; ! echo > " STORE "/ignore.git/HEAD"), 0);
    assert_int_equal(
        agent(link, "echo more >> src/a; git add .; git commit -qm work; chmod -x run; echo u > untracked; "
                    "echo y > y.o\n"
                    "chmod 000 untracked; printf x >> bin; rm link; git checkout -q -b other; rm -rf .git"),
        0);
    good(bt_workspace_collect(&guest, STATE, &summary, &error));
    assert_int_equal(summary.changed_count, 5);
    good(bt_workspace_apply(STATE, HOST, &(struct bt_workspace_apply_options){0}, &applied, &error));
    here("cd " HOST "; cmp src/a " GUEST "/src/a; cmp bin " GUEST
         "/bin; test ! -x run; test ! -e link; test \"$(cat untracked)\" = u; test ! -e y.o");
    bt_workspace_applied_free(&applied);
    bt_workspace_summary_free(&summary);
    bt_workspace_base_free(&base);
    bt_workspace_guest_free(&guest);
    bt_guest_close(link);
}

static void test_clone(void **state)
{
    (void)state;
    struct bt_workspace_guest guest;
    struct bt_workspace_summary summary;
    struct bt_workspace_applied applied = {0};
    char commit[BT_WORKSPACE_ID_SIZE];
    scene_clean();
    here("rm -rf /tmp/origin; git init -q /tmp/origin; cd /tmp/origin; git config user.name a; git config "
         "user.email a@a.invalid\n"
         "seq 30 > a; echo b > b; git add .; git commit -qm x; rm -rf " HOST
         "; git clone -q /tmp/origin " HOST);
    struct bt_guest_link *link = link_open();
    guest_make(link, &guest);
    assert_int_equal(
        agent(link, "git -c safe.directory='*' clone -q --no-hardlinks /tmp/origin . 2>&1 || git clone -q -u "
                    "'git -c safe.directory=* upload-pack' file:///tmp/origin ."),
        0);
    good(bt_workspace_record_clone(&guest, STATE, commit, &error));
    assert_int_equal(
        agent(link, "! touch " STORE
                    "/clone.git/x 2>/dev/null; sed -i 's/^3$/three/' a; rm b; echo c > c; rm -rf .git"),
        0);
    good(bt_workspace_collect(&guest, STATE, &summary, &error));
    assert_int_equal(summary.changed_count, 3);
    here("cd " HOST "; sed -i 's/^28$/yours/' a");
    good(bt_workspace_apply(STATE, HOST, &(struct bt_workspace_apply_options){0}, &applied, &error));
    here("cd " HOST "; grep -qx three a; grep -qx yours a; test ! -e b; test \"$(cat c)\" = c");
    bt_workspace_applied_free(&applied);
    bt_workspace_summary_free(&summary);
    bt_workspace_guest_free(&guest);
    bt_guest_close(link);
}

int main(void)
{
    guest_server_enter_namespaces();
    guest_server_start(&server, 0x7f000001, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_clone),
    };
    int result = cmocka_run_group_tests_name("workspace_guest", tests, NULL, NULL);
    guest_server_free(&server);
    return result;
}
