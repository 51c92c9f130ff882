/* One error, as the user will read it: what failed and why, what to do, and the exit status.
 *
 * Fallible functions of the unprivileged programs return 0 or a negative errno, fill a struct bt_error that
 * the caller owns, and touch their ret_ outputs only on success. Only main programs print.
 */
#ifndef BERTH_LIB_ERROR_H
#define BERTH_LIB_ERROR_H

#include "ipc/base/base.h"

enum bt_exit {
    BT_EXIT_OK = 0,
    BT_EXIT_ERROR = 1,
    BT_EXIT_INFRASTRUCTURE = 2, /* helper, backend, infra pair */
    BT_EXIT_AGENT_FAILED = 3,
    BT_EXIT_NO_TARGET = 4,
    BT_EXIT_USAGE = 64,
};

struct bt_error {
    enum bt_exit status;
    int code;           /* positive errno */
    char message[1024]; /* what failed and why; no secret, no trailing full stop or newline */
    char hint[512];     /* what to do; may be empty */
};

/* Fills *error and returns -code. hint may be NULL. error may be NULL (then only the code is returned).
 * Longer text is cut, never overrun. */
int bt_fail(struct bt_error *error, enum bt_exit status, int code, const char *hint, const char *format, ...)
    BT_PRINTF(5, 6);

/* Puts context in front of the message of an error: "<context>: <message>". Returns -error->code. error may
 * be NULL: the code is not known then, and -EIO is returned. */
int bt_error_prefix(struct bt_error *error, const char *format, ...) BT_PRINTF(2, 3);

#endif
