/* WebSocket frames of one direction (RFC 6455, 5), read strictly so that filters see the messages: unmasked,
 * joined from their fragments.
 *
 * Called by filter_body.c. Extensions are not offered upstream (filter.h), so frames with reserved bits are
 * errors. Pure, constant memory; payloads are handed on in pieces as they come.
 */
#ifndef BERTH_POLICY_GATEWAY_WEBSOCKET_FRAMES_H
#define BERTH_POLICY_GATEWAY_WEBSOCKET_FRAMES_H

#include "ipc/base/base.h"

struct bt_websocket_events {
    /* Payload, unmasked; is_control: of a ping, pong or close, which may come between fragments. */
    void (*on_payload)(void *context, const uint8_t *data, size_t length, bool is_control);
    /* A message, or a control frame, is complete. */
    void (*on_end)(void *context, bool is_control);
};

/* Initialise with bt_websocket_start. */
struct bt_websocket {
    bool is_client;     /* frames of a client are masked, those of a server are not */
    bool is_in_message; /* between the fragments of a message */
    bool is_control, is_final, is_closed;
    uint8_t head[14];    /* of the current frame */
    uint8_t head_length; /* bytes of it so far */
    uint8_t head_needed; /* bytes it has, as far as known */
    uint64_t left;       /* payload still to come */
    uint64_t position;   /* in the payload, for the mask */
};

void bt_websocket_start(struct bt_websocket *websocket, bool is_client);

/* Reads a piece. Returns 0 or -EBADMSG (not what RFC 6455 permits; no more may be fed). */
int bt_websocket_feed(struct bt_websocket *websocket, const void *data, size_t length,
                      const struct bt_websocket_events *events, void *context) BT_MUST_CHECK;

#endif
