/* Egress rules as data: the policy document of one agent, and the one function that decides. Used by the
 * gateway to enforce, by the orchestrator to validate, by `berth why` to explain: the same decision
 * everywhere.
 *
 * Document (policy/POLICY.md): {"version": 1, "routes": [{"host": "example.com[:port]", "tls": "pass",
 * "private": false, "granted_by": "bottle dev"}]}. Hosts match by label: "example.com" exactly,
 * "*.example.com" one label or more but not the apex. Without a port: 80 and 443. An empty list allows
 * nothing.
 */
#ifndef BERTH_POLICY_RULES_RULES_H
#define BERTH_POLICY_RULES_RULES_H

#include <jansson.h>

#include "lib/error.h"

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

struct bt_verdict {
    bool is_allowed;
    bool may_be_private; /* answers in private ranges are acceptable for this route */
    char rule[96];       /* id of what decided: "route:3", "default-deny", "ip-literal", ... */
    char reason[160];    /* a sentence for the user */
    char hint[200];
    char granted_by[96]; /* who granted the deciding route; empty when refused */
};

/* Decides a host and port. The first route that matches decides. A host that has no canonical form is refused
 * ("ip-literal" for an address in any spelling, else "bad-host"), so the caller may pass what a user typed;
 * who dials afterwards must have made the canonical buffer first and use that one for both. */
void bt_policy_decide(const struct bt_policy *policy, const char *host, uint16_t port,
                      struct bt_verdict *ret_verdict);

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
