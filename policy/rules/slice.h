/* Pieces of HTTP that are borrowed from whoever read them: shared by the reader (policy/gateway/http.h),
 * which makes them, and the rules, which hold them against a policy.
 */
#ifndef BERTH_POLICY_RULES_SLICE_H
#define BERTH_POLICY_RULES_SLICE_H

#include "ipc/base/base.h"

/* Borrowed, without NUL at the end. */
struct bt_http_slice {
    const char *data;
    size_t length;
};

struct bt_http_field {
    struct bt_http_slice name, value; /* value without blanks around it */
};

#endif
