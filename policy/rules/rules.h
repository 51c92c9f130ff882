/* Egress rules as data: the policy document of one agent, and the functions that decide by it. Used by the
 * gateway to enforce, by the orchestrator to validate, by `berth why` to explain: the same decision
 * everywhere.
 *
 * The document is described in policy/POLICY.md. Hosts match by label: "example.com" exactly,
 * "*.example.com" one label or more but not the apex. Without a port: 80 and 443. An empty list allows
 * nothing.
 *
 * Two questions, in this order. A connection: may this host and port be spoken to at all, and is the TLS that
 * comes passed through or opened (bt_policy_decide_connection)? A request inside an opened connection, or in
 * clear: which route does it fall under (bt_policy_decide)? The first route that matches decides either. All
 * functions are pure and safe for any bytes.
 */
#ifndef BERTH_POLICY_RULES_RULES_H
#define BERTH_POLICY_RULES_RULES_H

#include <jansson.h>

#include "lib/error.h"
#include "policy/rules/dlp.h"
#include "policy/rules/slice.h"

#define BT_HOST_NAME_SIZE 254

struct bt_policy; /* parsed, immutable */

#define BT_POLICY_ROUTES_MAX 1024

/* Validates and takes a document. Unknown keys, another version, a pattern or a value out of form: -EINVAL,
 * the error names the route. The caller owns *ret_policy; the document is only read. */
int bt_policy_parse(const json_t *document, struct bt_policy **ret_policy, struct bt_error *error);
struct bt_policy *bt_policy_free(struct bt_policy *policy);

/* Makes the one canonical form of a host name that is matched and then dialled: lower case LDH labels
 * (A-labels as they come), one trailing dot dropped, 1..253 bytes, labels 1..63, no NUL, no underscore, not
 * all-numeric last label (so no address in any spelling). length counts bytes, so an embedded NUL is seen.
 * -EINVAL otherwise. */
int bt_host_canonical(const char *host, size_t length, char ret_host[BT_HOST_NAME_SIZE]) BT_MUST_CHECK;

/* Whether text that has no canonical form is so because it is an address in some spelling (for the message).
 */
bool bt_host_is_literal(const char *host, size_t length);

/* Validates a route's host pattern ("*.example.com:8443"); the reason goes to error. */
int bt_host_pattern_check(const char *pattern, struct bt_error *error);

/* How a credential is written into a request. */
enum bt_auth_scheme {
    BT_AUTH_NONE,
    BT_AUTH_BEARER, /* Authorization: Bearer <credential> (RFC 6750) */
    BT_AUTH_BASIC,  /* Authorization: Basic base64(<credential>), the credential is "user:password" (RFC 7617)
                     */
    BT_AUTH_HEADER, /* <header>: <credential> */
};

/* What is recorded. Refusals and what a filter found always are. */
enum bt_log_level {
    BT_LOG_REFUSALS,    /* 0 */
    BT_LOG_CONNECTIONS, /* 1, the default: one record a connection, none for each request in it */
    BT_LOG_REQUESTS,    /* 2: every request, with its method and path (without the query) */
};

#define BT_CREDENTIAL_NAME_SIZE 32
#define BT_CREDENTIAL_VALUE_MAX 4000 /* bytes */
/* Of one agent: how many, and how many bytes together. */
#define BT_CREDENTIALS_MAX 16
#define BT_CREDENTIALS_BYTES_MAX 4000
#define BT_CANARY_MAX 128         /* bytes */
#define BT_IDENTITY_TOKEN_MAX 128 /* bytes */
#define BT_AUTH_HEADER_SIZE 64

struct bt_verdict {
    bool is_allowed;
    bool is_intercepted;     /* TLS is opened; false: passed through by its SNI */
    bool may_be_private;     /* answers in private ranges are acceptable for this route */
    bool strips_credentials; /* fields that bt_policy_is_credential_field names are the agent's own: remove */
    enum bt_auth_scheme auth; /* BT_AUTH_NONE: nothing is injected */
    /* Lower case; "authorization" for bearer and basic. What the agent sends in it is removed; it is also
     * there, with BT_AUTH_NONE, where the route has a credential that is not injected. */
    char auth_header[BT_AUTH_HEADER_SIZE];
    char credential[BT_CREDENTIAL_NAME_SIZE]; /* its name, not its value */
    struct bt_dlp dlp;
    enum bt_log_level log;
    char rule[96];    /* id of what decided: "route:3", "default-deny", "ip-literal", ... */
    char reason[160]; /* a sentence for the user; never holds anything of the request but host and method */
    char hint[200];
    char granted_by[96]; /* who granted the deciding route; empty when refused */
};

/* One request as it came, before anything was taken out or put in. */
struct bt_policy_request {
    const char *host; /* NUL-terminated */
    uint16_t port;
    struct bt_http_slice method; /* RFC 8441's extended CONNECT counts as GET, which it is in HTTP/1.1 */
    struct bt_http_slice path;   /* target in origin-form, with or without its query */
    const struct bt_http_field *fields; /* names in any case; may be NULL when field_count is 0 */
    size_t field_count;
    bool is_tls;         /* it came inside of intercepted TLS and leaves in verified TLS */
    bool is_transparent; /* it came on port 80 or 443: the source address alone says who asks */
};

/* Decides a request. A host that has no canonical form is refused ("ip-literal" for an address in any
 * spelling, else "bad-host"), so the caller may pass what a user typed; who dials afterwards must have made
 * the canonical buffer first and use that one for both. A route that passes TLS through matches like any
 * other when an earlier one had the connection opened. */
void bt_policy_decide(const struct bt_policy *policy, const struct bt_policy_request *request,
                      struct bt_verdict *ret_verdict);

/* Decides a host and port before any request is known: whether some route names them, and whether the first
 * one that does passes TLS through. Of an intercepted connection each request is decided again, and its own
 * verdict says which addresses it may go to; until then may_be_private is true when any route for this host
 * and port has it. The members auth, dlp, strips_credentials say nothing here. */
void bt_policy_decide_connection(const struct bt_policy *policy, const char *host, uint16_t port,
                                 struct bt_verdict *ret_verdict);

/* Whether a field carries credentials: Authorization, and the fields in which providers take keys
 * (X-Api-Key, Private-Token and their like; policy/POLICY.md lists them). Case is ignored, and
 * an underscore is a hyphen. */
bool bt_policy_is_credential_field(struct bt_http_slice name);

/* 1 to 31 of a-z, 0-9 and '-', which does not come first. */
bool bt_policy_credential_name_is_valid(const char *name);

/* The names of all credentials that the routes of a policy inject, each once: an owned array of strings. */
json_t *bt_policy_credentials(const struct bt_policy *policy);

/* Paths of routes. A pattern is "/v1/messages", that path, or one that ends in a slash and an asterisk:
 * whatever begins with what stands before the asterisk. The query is never looked at.
 *
 * The normal form of a path has its percent-encodings in upper case and holds nothing that two readers could
 * read differently; a path that has none is -EINVAL (policy/POLICY.md lists what that is), one that needs
 * more than size - 1 bytes -ENAMETOOLONG. ret_path is written in any case. */
#define BT_POLICY_PATH_SIZE 4096
int bt_policy_path_normalise(struct bt_http_slice path, char *ret_path, size_t size) BT_MUST_CHECK;
bool bt_policy_path_pattern_is_valid(const char *pattern);
bool bt_policy_path_matches(const char *pattern, const char *path); /* both in normal form */

/* Whether some route names this canonical host, on whatever port: what the gateway's DNS answers. Fills the
 * verdict like bt_policy_decide. */
void bt_policy_decide_name(const struct bt_policy *policy, const char *host, struct bt_verdict *ret_verdict);

/* What may be done with an IPv4 address (host byte order) that a name resolved to. */
enum bt_address_class {
    BT_ADDRESS_PUBLIC,    /* may be dialled */
    BT_ADDRESS_PRIVATE,   /* RFC 1918 and RFC 6598: only for a route with private: true */
    BT_ADDRESS_FORBIDDEN, /* this host, link-local and metadata, multicast, reserved (RFC 6890): never */
};
enum bt_address_class bt_address_classify(uint32_t address);

/* Whether an IPv4 answer may be dialled for a route without private: true. The pool's default blocks lie in
 * RFC 1918; the gateway refuses the configured ones in any case. */
bool bt_address_is_public(uint32_t address);

#endif
