/* vm/init/preload.c: behind a filter that makes this kernel one that does not know the flag. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vm/init/init.h"

static char folder[] = "/tmp/berth-preload-XXXXXX";
static char library[64], list[64];

static int forget_flag(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    int result = filter == NULL
                     ? -ENOMEM
                     : seccomp_rule_add(filter, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(statx), 1,
                                        SCMP_A2(SCMP_CMP_MASKED_EQ, AT_NO_AUTOMOUNT, AT_NO_AUTOMOUNT));
    if (result == 0)
        result = seccomp_load(filter);
    seccomp_release(filter);
    return result;
}

/* The exit status of a program there; 99: this kernel is not seen as one. */
static int run_without_flag(char *preload)
{
    char program[] = "/bin/ls", option[] = "-d";
    char *const arguments[] = {program, option, folder, NULL};
    char *const environment[] = {preload, NULL};
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        if (forget_flag() != 0 || bt_init_is_kernel_whole())
            _exit(99);
        (void)close(STDERR_FILENO);
        (void)execve(program, arguments, environment);
        _exit(98);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void t_a_kernel_that_knows_it_is_whole(void **state)
{
    (void)state;
    assert_true(bt_init_is_kernel_whole());
}

static void t_the_library_makes_up_for_it(void **state)
{
    char preload[80], text[64] = "", nothing[] = "NOTHING=";
    size_t length;
    (void)state;
    (void)snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", library);
    assert_int_equal(bt_init_make_up_for_kernel(library, list), 0);
    assert_int_equal(bt_init_read_file(list, text, sizeof(text), &length), 0);
    assert_string_equal(text, library);
    assert_int_equal(run_without_flag(nothing), 2);
    assert_int_equal(run_without_flag(preload), 0);
}

static void t_what_is_there_is_not_written_over(void **state)
{
    (void)state;
    assert_int_equal(bt_init_make_up_for_kernel(library, list), -EEXIST);
}

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(library, sizeof(library), "%s/preload.so", folder);
    (void)snprintf(list, sizeof(list), "%s/list", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(library);
    (void)unlink(list);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_a_kernel_that_knows_it_is_whole),
        cmocka_unit_test(t_the_library_makes_up_for_it),
        cmocka_unit_test(t_what_is_there_is_not_written_over),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
