/* The request of "berth-init run", parsed: see vm/run_protocol.h. */
#ifndef BERTH_VM_INIT_RUN_REQUEST_H
#define BERTH_VM_INIT_RUN_REQUEST_H

#include "ipc/base/base.h"

#define BT_RUN_HEADER_LENGTH 24U
#define BT_RUN_STRINGS_MAX 16384U /* arguments and environment together */

struct bt_run_request {
    uint32_t uid, gid;
    uint32_t argument_count;
    uint32_t environment_count;
    const char *folder; /* this and the strings below point into the request's body */
    /* argument_count pointers, NULL, environment_count pointers, NULL */
    char *strings[BT_RUN_STRINGS_MAX + 2];
};

/* The first 24 bytes: checks the magic and that the length is possible. *ret_length is the length of the body
 * that follows the header (0..BT_RUN_LENGTH_MAX). Returns 0 or -EINVAL. */
int bt_run_parse_header(const uint8_t header[BT_RUN_HEADER_LENGTH], struct bt_run_request *request,
                        size_t *ret_length);

/* The body: length bytes. It is borrowed by the request. Returns 0 or -EINVAL. */
int bt_run_parse_body(char *body, size_t length, struct bt_run_request *request);

static inline char **bt_run_arguments(struct bt_run_request *request)
{
    return request->strings;
}

static inline char **bt_run_environment(struct bt_run_request *request)
{
    return request->strings + request->argument_count + 1;
}

/* Value of a variable in the request's environment, or NULL. */
const char *bt_run_variable(struct bt_run_request *request, const char *name);

#endif
