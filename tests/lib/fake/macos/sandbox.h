/* sandbox_init(3). */
#ifndef BERTH_TESTS_FAKE_MACOS_SANDBOX_H
#define BERTH_TESTS_FAKE_MACOS_SANDBOX_H
#include <stdint.h>
#define SANDBOX_NAMED 0x0001
extern const char kSBXProfilePureComputation[];
int sandbox_init(const char *profile, uint64_t flags, char **errorbuf);
void sandbox_free_error(char *errorbuf);
#endif
