/* What the gateway looks for in what passes: one filter sees one direction of one exchange, its head, its
 * body in whatever pieces it comes, its end, and writes what may pass.
 *
 * Called by exchange.c between the stream that a message comes from and the one that it goes to. Requests are
 * searched for tokens and for this agent's secrets (policy/rules/detectors, secrets.h); responses are freed
 * of injected credentials and searched for instructions to the agent. Filters do no I/O. Their time is
 * linear in the bytes, their memory bounded: what is held back is the end of what came that may be the
 * beginning of a match, at most BT_FILTER_HELD_MAX bytes.
 *
 * Whatever is overwritten keeps its length, so a content-length stays right and no framing changes. Where
 * overwriting is impossible (a compressed body, a spelling in escapes, a WebSocket message) a find blocks.
 */
#ifndef BERTH_POLICY_GATEWAY_FILTER_H
#define BERTH_POLICY_GATEWAY_FILTER_H

#include <event2/buffer.h>

#include "policy/gateway/stream.h"
#include "policy/rules/dlp.h"

#define BT_FILTER_HELD_MAX (128U * 1024)

struct bt_filter;
struct bt_approved;      /* matches.h */
struct bt_inflate_share; /* of one agent, inflate.h */
struct bt_matches;
struct bt_secrets; /* of one agent, secrets.h */

struct bt_filter_settings {
    struct bt_dlp dlp;
    /* What this agent must not send and must not be shown, or NULL. The filter keeps a reference. */
    struct bt_secrets *secrets;
    /* The client's own Authorization goes to the origin (preserve_auth): a token is expected there, so only
     * the agent's secrets are looked for in that field. */
    bool keeps_authorization;
    /* A credential is injected into this exchange: what comes back must be readable, so accept-encoding
     * becomes identity, and a response in an unknown coding is blocked. */
    bool is_injected;
    /* What this agent's decoders take of the memory for them, or NULL; lives longer than the filter. */
    struct bt_inflate_share *share;
    bool is_websocket; /* the request asks for the protocol "websocket" */
    /* What the owner allowed this agent to send to this host for good, or NULL. Read when a filter is made.
     */
    const struct bt_approved *approved;
    const char *host;
};

enum bt_filter_verdict {
    BT_FILTER_PASS,
    BT_FILTER_BLOCK, /* refuse (nothing was sent yet) or abort with BT_ABORT_POLICY; the filter passes no more
                      */
    BT_FILTER_ASK,   /* requests only: what was given is kept inside until bt_filter_answer */
};

/* Something found. Never what was found, only its kind. */
struct bt_filter_finding {
    enum bt_filter_act {
        BT_FILTER_BLOCKED,
        BT_FILTER_ASKED,
        BT_FILTER_REDACTED, /* in a request */
        BT_FILTER_SCRUBBED, /* an injected credential, in a response */
        BT_FILTER_WARNED,
        BT_FILTER_REMEMBERED, /* in a request: its owner allowed it before */
    } act;
    char rule[64]; /* "dlp:github-token", "dlp:secret", "dlp:canary", "dlp:content-coding", "inbound:..." */
    char reason[160]; /* a sentence for the user */
    char hint[200];   /* what to do, may be empty */
};

/* Reads the detectors that are built in. Once, at the start of the process, before it is confined. Fails with
 * -ENOTSUP and a message when the processor lacks what the matcher needs (SSSE3). */
int bt_filters_start(struct bt_error *error);
void bt_filters_stop(void);

/* A filter of a request, or of its response; NULL when there is nothing to look for. Every function below
 * accepts NULL, which passes everything. */
struct bt_filter *bt_filter_request_new(const struct bt_filter_settings *settings);
struct bt_filter *bt_filter_response_new(const struct bt_filter_settings *settings);
struct bt_filter *bt_filter_free(struct bt_filter *filter); /* returns NULL */

/* The head, as it will be sent but before a credential is injected. May change it: slices then point into the
 * filter, until the next call with this filter. Interim responses (1xx) are heads of their own and may come
 * before; after a 101 of "websocket" the bodies are read as WebSocket frames. On BT_FILTER_ASK the head is
 * kept by the caller; it is given again after the answer, and passes then. */
enum bt_filter_verdict bt_filter_head(struct bt_filter *filter, struct bt_message *head);

/* A piece of the body. What may pass is added to out, before returning; with NULL as filter all of it is. */
enum bt_filter_verdict bt_filter_data(struct bt_filter *filter, const void *data, size_t length,
                                      struct evbuffer *out);

/* The end: gives out what was held. trailers may be NULL and are changed like a head. After BT_FILTER_ASK and
 * a yes it is called again, with the same. */
enum bt_filter_verdict bt_filter_end(struct bt_filter *filter, struct bt_message *trailers,
                                     struct evbuffer *out);

/* Bytes taken and not yet given out. While there are some and the sender is silent (BT_FILTER_PAUSE_MS), the
 * caller calls bt_filter_flush: a peer may be waiting for them. They are out then; a match that they turn out
 * to have begun is still found, and only what follows is overwritten. What was held is looked at on its way
 * out, and may block. Not to be called between BT_FILTER_ASK and its answer, nor after BT_FILTER_BLOCK. */
#define BT_FILTER_PAUSE_MS 250
size_t bt_filter_held(const struct bt_filter *filter);
enum bt_filter_verdict bt_filter_flush(struct bt_filter *filter, struct evbuffer *out);

/* After BT_FILTER_ASK: what is asked about; borrowed until the answer. */
const struct bt_matches *bt_filter_matches(const struct bt_filter *filter);
/* The rule of one of them ("dlp:github-token"), and what it is called ("a GitHub token"). */
struct bt_match;
void bt_filter_name_match(const struct bt_match *match, char ret_rule[64], const char **ret_title);

/* Yes gives out what was kept, and these values pass in the rest of the exchange. The result is that of the
 * call that asked: it may ask again, about other values. No: BT_FILTER_BLOCK. */
enum bt_filter_verdict bt_filter_answer(struct bt_filter *filter, bool is_allowed, struct evbuffer *out);

/* Takes the next finding that has not been taken yet, for the records; false: there is none. After a block or
 * a question the last one says why. At most one of a rule and act is kept for each exchange. */
bool bt_filter_take_finding(struct bt_filter *filter, struct bt_filter_finding *ret_finding);

/* A request's path as a record or a question may show it: without its query, what the filter looks for
 * overwritten, and empty when some of it is there in another spelling. */
#define BT_FILTER_PATH_SIZE 257
void bt_filter_show_path(struct bt_filter *filter, struct bt_http_slice path,
                         char ret_path[BT_FILTER_PATH_SIZE]);

/* The head of a request for a WebSocket, before it is sent: extensions are not offered upstream, so messages
 * come uncompressed. bt_filter_head does this for filters that are not NULL; exchange.c needs it only when it
 * has none and wants the same. */
void bt_filter_strip_websocket_extensions(struct bt_message *head);

/* About how many bytes it takes. */
size_t bt_filter_weight(const struct bt_filter *filter);

#endif
