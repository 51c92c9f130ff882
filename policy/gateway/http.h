/* HTTP/1.1 message heads (RFC 9112), read strictly: whatever two readers could understand in two ways is an
 * error.
 *
 * Called by http1_codec.c for agents and upstreams, by dial.c for a parent proxy, by control.c for the
 * orchestrator. Pure: no allocation, no I/O.
 */
#ifndef BERTH_POLICY_GATEWAY_HTTP_H
#define BERTH_POLICY_GATEWAY_HTTP_H

#include "policy/rules/rules.h"

#define BT_HTTP_HEAD_MAX (64U * 1024)
#define BT_HTTP_FIELDS_MAX 128

enum bt_http_body { BT_HTTP_BODY_NONE, BT_HTTP_BODY_LENGTH, BT_HTTP_BODY_CHUNKED, BT_HTTP_BODY_UNTIL_CLOSE };

struct bt_http_head {
    struct bt_http_slice method, target; /* requests */
    unsigned status;                     /* responses: 100..599 */
    bool is_old;                         /* HTTP/1.0 */
    struct bt_http_slice reason;         /* responses */
    size_t length;                       /* of the head with its empty line */
    enum bt_http_body body;
    uint64_t body_length; /* BT_HTTP_BODY_LENGTH */
    size_t field_count;
    struct bt_http_field fields[BT_HTTP_FIELDS_MAX];
};

/* Both return 0, -EAGAIN (more bytes are needed), -E2BIG (above BT_HTTP_HEAD_MAX or BT_HTTP_FIELDS_MAX),
 * -EPROTONOSUPPORT (neither HTTP/1.1 nor 1.0) or -EBADMSG. ret_head is written in any case. */
int bt_http_request_parse(const char *data, size_t length, struct bt_http_head *ret_head) BT_MUST_CHECK;
int bt_http_response_parse(const char *data, size_t length, struct bt_http_head *ret_head) BT_MUST_CHECK;

/* The field lines after the last chunk, with the empty line that ends them: fields and length of ret_head. */
int bt_http_trailers_parse(const char *data, size_t length, struct bt_http_head *ret_head) BT_MUST_CHECK;

/* The field of this name, or NULL; *ret_count (may be NULL) is how often it occurs. */
const struct bt_http_field *bt_http_find(const struct bt_http_head *head, const char *name,
                                         size_t *ret_count);

/* Whether some field of this name, a comma-separated list, holds a token (ASCII case ignored). */
bool bt_http_lists(const struct bt_http_head *head, const char *name, struct bt_http_slice token);

/* Writes a name in lower case where it lies: the text that was parsed must be the caller's own to write. */
void bt_http_lower(struct bt_http_slice name);

/* Whether a field ends at this hop (RFC 9110, 7.6.1): Connection and what it names, Proxy-*, Keep-Alive, TE,
 * Trailer, Transfer-Encoding, Upgrade. */
bool bt_http_is_hop_by_hop(const struct bt_http_head *head, struct bt_http_slice name);

/* Splits "host[:port]" into its canonical host and port. Returns 0, -EINVAL (not an authority),
 * -EADDRNOTAVAIL (an address in some spelling). default_port 0: the port must be there. */
int bt_http_authority_parse(struct bt_http_slice authority, uint16_t default_port,
                            char ret_host[BT_HOST_NAME_SIZE], uint16_t *ret_port) BT_MUST_CHECK;

/* Splits an absolute-form target "http://authority/path". Returns 0 or -EINVAL. The path is "/" when absent.
 */
int bt_http_absolute_parse(struct bt_http_slice target, struct bt_http_slice *ret_authority,
                           struct bt_http_slice *ret_path) BT_MUST_CHECK;

/* The token of "Proxy-Authorization: Basic base64(agent:token)". Returns 0, -ENOENT (no such field) or
 * -EINVAL. */
#define BT_HTTP_TOKEN_SIZE 129
int bt_http_proxy_token(const struct bt_http_head *head, char ret_token[BT_HTTP_TOKEN_SIZE]) BT_MUST_CHECK;

#endif
