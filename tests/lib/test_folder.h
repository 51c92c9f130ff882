/* A folder of a test's own. */
#ifndef BERTH_TESTS_LIB_TEST_FOLDER_H
#define BERTH_TESTS_LIB_TEST_FOLDER_H

#include <stddef.h>

/* Makes a new, empty one below $TMPDIR, else /tmp, or ends the test; the caller removes it. */
void test_folder_make(char *ret_path, size_t size);

#endif
