/* What the files frontend/probe_*.c share: the items of a run, the canaries, the judgement. */
#ifndef BERTH_FRONTEND_PROBE_INTERNAL_H
#define BERTH_FRONTEND_PROBE_INTERNAL_H

#include "frontend/probe_run.h"

#define BT_PROBE_ITEMS_MAX 48
#define BT_PROBE_NONCE_SIZE 33 /* 32 hex digits */

/* How an item is judged. */
enum bt_probe_rule {
    BT_PROBE_RULE_CONTROL, /* must connect */
    BT_PROBE_RULE_BLOCK,   /* must not get there, nor be answered by anybody but the host's firewall */
    BT_PROBE_RULE_IPV6,    /* the same; that the guest cannot even send is fine */
    BT_PROBE_RULE_SPOOF,   /* must not arrive; that the agent's user may not send it is fine */
    BT_PROBE_RULE_NAME,    /* the gateway must answer, with no address, and ask nobody */
};

struct bt_probe_item {
    char name[48];
    enum bt_probe_rule rule;
    bool is_tcp;
    uint32_t address;                /* target; 0 for IPv6 */
    char nonce[BT_PROBE_NONCE_SIZE]; /* empty: sends none */
    char line[256];                  /* of the plan */
    bool is_received;                /* a canary got its nonce, or a connection from the guest */
};

struct bt_probe_items {
    struct bt_probe_item list[BT_PROBE_ITEMS_MAX];
    size_t count;
};

/* ---- canaries (probe_canary.c) ---- */

/* Listeners on one address of the host each, on ports that the kernel chose. */
struct bt_probe_canary {
    uint32_t address; /* 0 = not there */
    int tcp_fd, udp_fd;
    uint16_t tcp_port, udp_port;
};
/* Opens both and proves that they receive, by sending to them from the host itself. */
int bt_probe_canary_open(uint32_t address, struct bt_probe_canary *ret_canary, struct bt_error *error);
void bt_probe_canary_close(struct bt_probe_canary *canary); /* accepts a closed one */
/* Takes what has arrived and marks the items whose nonce it holds; a connection from guest_address without a
 * nonce marks the TCP item of this canary's address. Returns false when so much had arrived that not all of
 * it was looked at: somebody floods the canary, and what it says is no evidence. */
bool bt_probe_canary_collect(struct bt_probe_canary *canary, uint32_t guest_address,
                             struct bt_probe_items *items);

/* ---- plan (probe_plan.c) ---- */

/* Items of one run with new nonces. host may be closed (address 0). */
int bt_probe_items_make(const struct bt_probe_facts *facts, const struct bt_probe_canary *host,
                        const struct bt_probe_canary *slot, struct bt_probe_items *ret_items);
/* The text that berth-probe reads. */
int bt_probe_items_plan(const struct bt_probe_items *items, struct bt_buffer *ret_plan);

/* ---- judgement (probe_judge.c): pure ---- */

struct bt_probe_evidence {
    uint64_t drops_before, drops_after; /* the slot's drop counter around this run */
    bool has_gateway;                   /* the two below are known */
    struct bt_probe_gateway_counters gateway_before, gateway_after;
    uint32_t slot_host_address;
    bool is_without_route; /* see struct bt_probe_facts */
};

/* Judges one run: document is what berth-probe printed (untrusted). Appends to checks; returns whether all is
 * well. */
bool bt_probe_judge(const struct bt_probe_items *items, const json_t *document, const char *as,
                    const struct bt_probe_evidence *evidence, json_t *checks);

#endif
