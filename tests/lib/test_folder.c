/* See test_folder.h. */
#include "tests/lib/test_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

void test_folder_make(char *ret_path, size_t size)
{
    const char *parent = getenv("TMPDIR");
    int length = snprintf(ret_path, size, "%s/berth-test-XXXXXX",
                          parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    assert_true(length > 0 && (size_t)length < size);
    assert_non_null(mkdtemp(ret_path));
}
