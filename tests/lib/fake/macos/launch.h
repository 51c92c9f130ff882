/* launch_activate_socket(3). */
#ifndef BERTH_TESTS_FAKE_MACOS_LAUNCH_H
#define BERTH_TESTS_FAKE_MACOS_LAUNCH_H
#include <stddef.h>
int launch_activate_socket(const char *name, int **fds, size_t *count);
#endif
