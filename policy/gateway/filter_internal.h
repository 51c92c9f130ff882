/* Between filter.c (settings, findings, verdicts), filter_head.c and filter_body.c. */
#ifndef BERTH_POLICY_GATEWAY_FILTER_INTERNAL_H
#define BERTH_POLICY_GATEWAY_FILTER_INTERNAL_H

#include "lib/memory.h"
#include "policy/gateway/dlp_view.h"
#include "policy/gateway/entropy.h"
#include "policy/gateway/filter.h"
#include "policy/gateway/inflate.h"
#include "policy/gateway/websocket_frames.h"

#define BT_FILTER_FINDINGS_MAX 16

enum bt_filter_body {
    BT_FILTER_BODY_OPEN,      /* nothing is looked for */
    BT_FILTER_BODY_PLAIN,     /* what is found can be overwritten */
    BT_FILTER_BODY_CODED,     /* a copy is decoded */
    BT_FILTER_BODY_WEBSOCKET, /* frames */
};

struct bt_filter {
    bool is_request;
    struct bt_filter_settings settings;
    /* These stop nothing any more: allowed, only recorded, or (of what can be overwritten) overwritten. */
    struct bt_finds passed, passed_hidden;
    struct bt_finds asked;
    struct bt_matches *matches; /* of a request whose owner is asked; else NULL */
    bool is_blocked, is_asking;
    bool is_head_allowed;    /* by its owner, as it is */
    bool are_trailers_asked; /* the owner is asked about them: when they come again he said yes */
    struct bt_filter_finding findings[BT_FILTER_FINDINGS_MAX];
    size_t finding_count, finding_taken;
    struct bt_buffer text; /* what slices of a changed head point into */

    enum bt_filter_body body;
    struct bt_scanner *scanner;
    struct bt_view *views[BT_VIEWS];
    struct bt_inflate *inflate;
    struct bt_websocket websocket;
    struct bt_entropy entropy;
    struct bt_scanner *control; /* payloads of WebSocket control frames */
    /* The same messages (0) and control frames (1) one directly behind the other: what is cut in two by the
     * end of one is found at the end of the next. */
    struct bt_scanner *joined[2];
    struct evbuffer *waiting; /* may pass once nothing in a copy or a view is the beginning of a match */
    struct evbuffer *rest;    /* while somebody is asked: not looked at yet */
};

/* filter.c */
/* What a scanner of this filter looks for; the kinds of the verdict's direction. */
struct bt_scanner_settings bt_filter_scanner_settings(const struct bt_filter *filter, bool can_mask);
/* What is like a key by its looks alone is only warned of, once. */
void bt_filter_look_at_randomness(struct bt_filter *filter, const void *data, size_t length);
/* Holds new finds against the settings: records them, and says what becomes of the message. can_mask: they
 * were overwritten where settings ask for it. */
enum bt_filter_verdict bt_filter_judge(struct bt_filter *filter, struct bt_finds finds, bool can_mask);
/* A body that cannot be looked into. */
enum bt_filter_verdict bt_filter_judge_unreadable(struct bt_filter *filter, const char *reason);

/* Whether nothing, something asked about or something blocked was found so far. */
enum bt_filter_verdict bt_filter_verdict_of(const struct bt_filter *filter);

/* filter_head.c */
enum bt_filter_verdict bt_filter_trailers(struct bt_filter *filter, struct bt_message *trailers);

/* filter_body.c */
enum bt_filter_verdict bt_filter_body_start(struct bt_filter *filter, const struct bt_message *head);
void bt_filter_body_clear(struct bt_filter *filter);

#endif
