/* The isolation probe, seen from the host: plans it, listens for what must not arrive, runs berth-probe in
 * the guest as root and as the agent's user, and judges. Called by the agent's keeper at each launch and for
 * `berth probe`.
 *
 * What must not be believed is the guest's word alone: "blocked" needs evidence that the guest cannot make up
 * (the slot's drop counter, the gateway's count of questions, what the canaries received), and a control that
 * did get through.
 */
#ifndef BERTH_FRONTEND_PROBE_RUN_H
#define BERTH_FRONTEND_PROBE_RUN_H

#include <jansson.h>

#include "frontend/config.h"
#include "lib/error.h"
#include "lib/file.h"
#include "vm/guest_link.h"

#define BT_PROBE_SIBLINGS_MAX 16

/* Where packets to "the internet" are aimed when config.yaml has no probe.public_address: 1.1.1.1. */
#define BT_PROBE_PUBLIC_ADDRESS_DEFAULT 0x01010101U

/* What the gateway has counted for this agent: dns_questions, upstream_questions of GET /v1/counters/{slot}.
 */
struct bt_probe_gateway_counters {
    uint64_t dns_questions;
    uint64_t upstream_questions;
};

struct bt_probe_facts {
    uint32_t guest_address;     /* addresses in host byte order; 0 = there is none, its checks are left out */
    uint32_t slot_host_address; /* the slot's host end */
    uint32_t own_gateway_address; /* where the agent sees its gateway; 0: at the slot's host end */
    bool is_without_route; /* an internal network of a container engine: that there is no way is blocked */
    uint32_t host_primary_address; /* of the host's default route; bt_probe_primary_address() finds it */
    uint32_t orchestrator_address; /* the orchestrator guest's own */
    uint32_t gateway_address;      /* the gateway guest's own */
    uint32_t public_address;
    uint32_t siblings[BT_PROBE_SIBLINGS_MAX]; /* other guests that run now; of more, the first ones */
    size_t sibling_count;
    uint32_t foreign_address; /* a guest address of the pool that is not this one's, as the spoofed source */
    bool has_host_wide;       /* also the checks that do not depend on the slot: see bt_probe_is_needed() */
    /* Packets that the helper's table dropped or refused from this slot so far (COUNTERS). Required. */
    int (*read_drops)(void *context, uint64_t *ret_packets, struct bt_error *error);
    /* What the orchestrator knows of the gateway's counters. May be NULL: then DNS is without evidence. */
    int (*read_gateway)(void *context, struct bt_probe_gateway_counters *ret_counters,
                        struct bt_error *error);
    void *context;
};

/* Runs it all; the link must be free. Takes 1-3 s. *ret_document (owned by the caller):
 * {"passed": bool, "started": "2026-01-31T12:00:00Z", "took_ms": n, "host_wide": bool,
 *  "checks": [{"name", "as": "root"|"agent", "outcome", "verdict", "detail"}]}
 * verdict: "blocked" | "leak" | "no-evidence" | "control-ok" | "control-failed". passed is true when all are
 * blocked or control-ok. Returns 0 whenever there is a document, also one that did not pass; a negative errno
 * when the probe could not be run (which is no proof: the launch must stop as well). */
int bt_probe_run(struct bt_guest_link *link, const struct bt_probe_facts *facts, json_t **ret_document,
                 struct bt_error *error);

/* 0 when the document passed, else -EPERM with an error that names each check that did not. */
int bt_probe_check(const json_t *document, struct bt_error *error);

/* The host's own address towards the default route, without sending anything. -ENETUNREACH when it has none.
 */
int bt_probe_primary_address(uint32_t *ret_address);

/* What the host-wide checks depend on, as a digest: this boot, the helper's rules (rules_epoch: the epoch of
 * its start), the routes and addresses of the host's own interfaces (those of berth come and go, and are left
 * out). */
int bt_probe_key(uint64_t rules_epoch, char ret_key[BT_DIGEST_TEXT_SIZE], struct bt_error *error);

/* Whether to run the host-wide checks. passed_keys: those under which they passed before (the caller keeps
 * the newest eight). BT_PROBE_OFF: never; BT_PROBE_ALWAYS: always. Checks of the slot itself run in any
 * case. */
bool bt_probe_is_needed(enum bt_probe_repeat repeat, const char *const *passed_keys, size_t count,
                        const char *key);

#endif
