/* HTTP/1.1 over a unix socket or to an address (libcurl), and connections that become a plain stream of bytes
 * after it.
 *
 * For services of this machine and its guests only: there is no name, no proxy, no redirect and no TLS here.
 */
#ifndef BERTH_LIB_HTTP_H
#define BERTH_LIB_HTTP_H

#include <sys/types.h>

#include "lib/error.h"
#include "lib/memory.h"

struct bt_http_request {
    const char *socket_path; /* or NULL, and */
    const char *origin;      /* "http://192.0.2.1:7400" */
    const char *method;
    const char *path;          /* with its query, percent-encoded by the caller */
    const char *content_type;  /* of the body; NULL = application/json */
    const char *authorization; /* of the field of that name; NULL = none. Copies of it are wiped. */
    const void *body;          /* NULL = none; wiped by nobody: the caller owns it */
    size_t body_length;
    /* A body of unknown length instead, sent in chunks: called until it returns 0 (the end) or a negative
     * errno. */
    ssize_t (*read_body)(void *context, char *ret_data, size_t size);
    /* Takes the body of a success (below 400) in pieces, instead of ret_answer; returns 0 or a negative
     * errno, which ends the exchange. */
    int (*take_body)(void *context, const void *data, size_t length);
    void *context;           /* of both */
    size_t answer_max;       /* bytes; more is -EFBIG. 0 = 16 MiB */
    long timeout_ms;         /* of the whole exchange; 0 = none */
    long connect_timeout_ms; /* 0 = libcurl's */
};

/* One exchange. *ret_status: the HTTP status; ret_answer: its body (the caller frees it). Errors: -ENOENT,
 * -ECONNREFUSED, -EACCES the socket, -ECONNREFUSED the address; -ETIMEDOUT; -EFBIG; what read_body or
 * take_body said; -EIO anything else. error says what failed, without a hint: the caller knows whom it
 * called. */
int bt_http_call(const struct bt_http_request *request, long *ret_status, struct bt_buffer *ret_answer,
                 struct bt_error *error);

/* Asks to turn the connection into a stream ("Connection: Upgrade", "Upgrade: tcp"; method POST, a JSON body
 * or NULL). Status 101 and 200 both mean yes: *ret_fd is then the stream, non-blocking, owned by the caller.
 * Any other status is in *ret_status with its body in ret_answer, and *ret_fd is -1. */
int bt_http_upgrade(const char *socket_path, const char *path, const char *body, int timeout_ms, int *ret_fd,
                    long *ret_status, struct bt_buffer *ret_answer, struct bt_error *error);

#endif
