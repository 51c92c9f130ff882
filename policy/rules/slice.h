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

bool bt_http_slice_is(struct bt_http_slice slice, const char *text);        /* exactly */
bool bt_http_slice_is_nocase(struct bt_http_slice slice, const char *text); /* ASCII case ignored */
/* A field's name as CGI, WSGI and their like hand it on, who make one of hyphen and underscore: whoever means
 * to keep a field from a host compares so. */
bool bt_http_name_is_like(struct bt_http_slice name, const char *text);

int bt_hex_value(char digit); /* -1: none */

#endif
