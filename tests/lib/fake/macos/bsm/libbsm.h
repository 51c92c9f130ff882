/* audit_token_to_euid(3). */
#ifndef BERTH_TESTS_FAKE_MACOS_LIBBSM_H
#define BERTH_TESTS_FAKE_MACOS_LIBBSM_H
#include <sys/types.h>
typedef struct {
    unsigned val[8];
} audit_token_t;
uid_t audit_token_to_euid(audit_token_t token);
#endif
