/* Between http1_*.c: one connection. */
#ifndef BERTH_POLICY_GATEWAY_HTTP1_INTERNAL_H
#define BERTH_POLICY_GATEWAY_HTTP1_INTERNAL_H

#include "policy/gateway/http1_codec.h"
#include "policy/gateway/http_body.h"

enum bt_receiving {
    BT_RECEIVE_HEAD,
    BT_RECEIVE_BODY,
    BT_RECEIVE_TRAILERS,
    BT_RECEIVE_RAW,  /* another protocol, after 101 */
    BT_RECEIVE_DONE, /* complete */
};

enum bt_sending {
    BT_SEND_HEAD,
    BT_SEND_LENGTH,  /* send_left bytes of a body are missing */
    BT_SEND_CHUNKED, /* chunks, then the last one */
    BT_SEND_CLOSE,   /* the end of the connection ends the body */
    BT_SEND_NOTHING, /* no body may follow, but the end was not said yet */
    BT_SEND_RAW,
    BT_SEND_DONE,
};

struct bt_http1 {
    struct bt_stream stream; /* first: a stream is its connection */
    struct bt_channel *channel;
    struct bt_http1_settings settings;
    const struct bt_http1_events *events;
    void *context;
    bool is_open;      /* the stream is the owner's */
    bool is_failed;    /* on_abort was or will be told; the connection is of no use */
    bool is_closing;   /* no further stream */
    bool is_finished;  /* this direction was ended */
    bool is_reported;  /* on_close was called */
    bool must_close;   /* after this exchange */
    bool is_cut;       /* free resets */
    bool is_head_only; /* the request's method is HEAD */
    bool is_connect;   /* ... is CONNECT */
    bool is_old;       /* ... came in HTTP/1.0 */
    bool is_raw_asked; /* the request wants another protocol: 101 may come */
    enum bt_receiving receiving;
    enum bt_sending sending;
    struct bt_http_body_reader reader;
    uint64_t send_left;
    size_t held;            /* given to the owner, not consumed */
    char websocket_key[28]; /* while is_raw_asked: the client's */
    size_t told;            /* of a head that the owner is being told: still in the input */
    size_t scanned;         /* of a head that is not complete: what was looked at */
    bool *is_freed;         /* of the frame that is in a callback */
};

/* A callback is under way: leave returns false when it freed the connection. */
struct bt_http1_frame {
    bool *outer;
    bool is_freed;
};
static inline void bt_http1_enter(struct bt_http1 *http1, struct bt_http1_frame *frame)
{
    *frame = (struct bt_http1_frame){http1->is_freed, false};
    http1->is_freed = &frame->is_freed;
}
static inline bool bt_http1_leave(struct bt_http1 *http1, const struct bt_http1_frame *frame)
{
    if (!frame->is_freed)
        http1->is_freed = frame->outer;
    else if (frame->outer != NULL)
        *frame->outer = true;
    return !frame->is_freed;
}

/* http1_read.c. Each takes what it can from the input and tells the owner. BT_STEP_AGAIN: there may be more
 * to do; BT_STEP_WAIT: not before something else happens; BT_STEP_GONE: the connection was freed. */
enum bt_step { BT_STEP_AGAIN, BT_STEP_WAIT, BT_STEP_GONE };
enum bt_step bt_http1_read_request(struct bt_http1 *http1);
enum bt_step bt_http1_read_response(struct bt_http1 *http1);
enum bt_step bt_http1_read_body(struct bt_http1 *http1);
enum bt_step bt_http1_read_raw(struct bt_http1 *http1);

/* http1_websocket.c. Keys and what answers them (RFC 6455, 4): never beyond the codec. */
#define BT_WEBSOCKET_KEY_LENGTH 24
#define BT_WEBSOCKET_ACCEPT_SIZE 29
void bt_http1_websocket_key(char ret_key[BT_WEBSOCKET_KEY_LENGTH + 1]);
void bt_http1_websocket_accept(const char *key, char ret_accept[BT_WEBSOCKET_ACCEPT_SIZE]);

/* http1_codec.c. The connection is of no use: tells the owner of the stream. */
enum bt_step bt_http1_fail(struct bt_http1 *http1, enum bt_abort reason);

/* http1_write.c: the operations of a stream. */
int bt_http1_send_head(struct bt_stream *stream, const struct bt_message *head, bool is_end);
size_t bt_http1_room(const struct bt_stream *stream);
int bt_http1_send_data(struct bt_stream *stream, const void *data, size_t length);
int bt_http1_send_end(struct bt_stream *stream, const struct bt_message *trailers);

#endif
