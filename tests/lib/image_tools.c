/* See image_tools.h. */
#include "tests/lib/image_tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "lib/spawn.h"

static char *run(const char *const *arguments, int *ret_status)
{
    struct bt_spawn spawn = {.arguments = arguments};
    struct bt_spawn_result result = {0};
    struct bt_error error;
    assert_int_equal(bt_spawn_run(&spawn, &result, &error), 0);
    char *text = bt_string_copy(result.output.data == NULL ? "" : result.output.data);
    *ret_status = result.exit_status;
    bt_spawn_result_free(&result);
    return text;
}

char *debugfs(const char *image, const char *command)
{
    const char *const arguments[] = {"/usr/sbin/debugfs", "-R", command, image, NULL};
    int status; /* 0 whatever happened */
    return run(arguments, &status);
}

void assert_debugfs(const char *image, const char *command, const char *expected)
{
    bt_auto_free char *text = debugfs(image, command);
    if (strstr(text, expected) == NULL)
        fail_msg("debugfs %s: no '%s' in: %s", command, expected, text);
}

void assert_debugfs_without(const char *image, const char *command, const char *unexpected)
{
    bt_auto_free char *text = debugfs(image, command);
    if (strstr(text, unexpected) != NULL)
        fail_msg("debugfs %s: '%s' in: %s", command, unexpected, text);
}

void assert_image_clean(const char *image)
{
    const char *const arguments[] = {"/usr/sbin/e2fsck", "-f", "-n", image, NULL};
    int status;
    bt_auto_free char *text = run(arguments, &status);
    if (status != 0)
        fail_msg("e2fsck: %s", text);
}
