/* A user of its own for tests of the frontend: folders in a temporary one, removed afterwards. */
#ifndef BERTH_TESTS_UNIT_FRONTEND_FIXTURE_H
#define BERTH_TESTS_UNIT_FRONTEND_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/file.h"
#include "tests/lib/test_folder.h"

struct fixture {
    char folder[256];
    struct bt_paths paths;
    char project[320]; /* a folder for a project, empty */
};

static inline void fixture_write(const struct fixture *fixture, const char *name, const char *text)
{
    char path[512];
    char *slash;
    snprintf(path, sizeof path, "%s/%s", fixture->folder, name);
    slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(bt_folder_make(path, 0700, NULL), 0);
    *slash = '/';
    assert_int_equal(bt_file_write(path, text, strlen(text), 0600, NULL), 0);
}

static inline int fixture_set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    if (!fixture)
        return -1;
    test_folder_make(fixture->folder, sizeof fixture->folder);
    snprintf(fixture->paths.config, sizeof fixture->paths.config, "%s/config", fixture->folder);
    snprintf(fixture->paths.state, sizeof fixture->paths.state, "%s/state", fixture->folder);
    snprintf(fixture->paths.images, sizeof fixture->paths.images, "%s/images", fixture->folder);
    snprintf(fixture->paths.cache, sizeof fixture->paths.cache, "%s/cache", fixture->folder);
    snprintf(fixture->paths.runtime, sizeof fixture->paths.runtime, "%s/run", fixture->folder);
    snprintf(fixture->project, sizeof fixture->project, "%s/project", fixture->folder);
    *state = fixture;
    return bt_folder_make(fixture->project, 0700, NULL);
}

static inline int fixture_tear_down(void **state)
{
    struct fixture *fixture = *state;
    int result = bt_tree_remove(fixture->folder, NULL);
    free(fixture);
    return result;
}

#define FIXTURE_TEST(function) cmocka_unit_test_setup_teardown(function, fixture_set_up, fixture_tear_down)

/* The message of an error must hold a piece of text; the whole is shown when it does not. */
static inline void assert_says(const struct bt_error *error, const char *part)
{
    if (!strstr(error->message, part) && !strstr(error->hint, part))
        fail_msg("\"%s\" is neither in \"%s\" nor in \"%s\"", part, error->message, error->hint);
}

#endif
