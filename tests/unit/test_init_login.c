/* vm/init/login.c: root's line of /etc/passwd, and only that, changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "vm/init/login.h"

static void t_login_replaces_the_shell_of_root(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\n",
         "root:x:0:0:root:/root:/s\nagent:x:1000:1000::/home/agent:/bin/bash\n"},
        {"daemon:x:1:1::/:/bin/sh\nroot:x:0:0:::", "daemon:x:1:1::/:/bin/sh\nroot:x:0:0:::/s"},
        {"toor:x:0:0::/root:/bin/root:\nroot:x:0:0::/root:\nx",
         "toor:x:0:0::/root:/bin/root:\nroot:x:0:0::/root:/s\nx"},
    };
    char text[256];
    for (size_t i = 0; i < BT_ARRAY_LENGTH(cases); i++) {
        assert_int_equal(bt_login_replace_shell(cases[i][0], "/s", text, sizeof(text)), 0);
        assert_string_equal(text, cases[i][1]);
    }
}

static void t_login_refuses_other_files(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "\n\n",
                                        "root",
                                        "root:",
                                        "root:x:0:0:root:/root",
                                        "root:x:0:0:root\nagent:/root:/bin/sh\n",
                                        "root:x:0:0:root:/root:/bin/sh:more\n",
                                        "xroot:x:0:0:root:/root:/bin/sh\n"};
    char text[256];
    for (size_t i = 0; i < BT_ARRAY_LENGTH(texts); i++)
        assert_int_equal(bt_login_replace_shell(texts[i], "/s", text, sizeof(text)), -ENOENT);
}

static void t_login_does_not_cut(void **state)
{
    (void)state;
    static const char passwd[] = "root:x:0:0:root:/root:/bin/bash\n";
    char text[64];
    for (size_t size = 1; size < strlen("root:x:0:0:root:/root:/s\n") + 1; size++)
        assert_int_equal(bt_login_replace_shell(passwd, "/s", text, size), -ENOSPC);
    assert_int_equal(bt_login_replace_shell(passwd, "/s", text, strlen("root:x:0:0:root:/root:/s\n") + 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_login_replaces_the_shell_of_root),
        cmocka_unit_test(t_login_refuses_other_files),
        cmocka_unit_test(t_login_does_not_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
