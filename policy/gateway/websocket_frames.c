/* See websocket_frames.h. */
#include <errno.h>
#include <string.h>

#include "policy/gateway/websocket_frames.h"

#define CONTINUATION 0U
#define BINARY 2U
#define CLOSE 8U
#define PONG 10U
#define CONTROL_MAX 125U
#define BLOCK 4096U

void bt_websocket_start(struct bt_websocket *websocket, bool is_client)
{
    *websocket = (struct bt_websocket){.is_client = is_client, .head_needed = 2};
}

/* The first two bytes of a frame: what kind it is, and how long its head. */
static int read_start(struct bt_websocket *websocket)
{
    unsigned opcode = websocket->head[0] & 15, length = websocket->head[1] & 127;
    bool is_masked = (websocket->head[1] & 128) != 0;
    websocket->is_final = (websocket->head[0] & 128) != 0;
    websocket->is_control = opcode >= CLOSE;
    if ((websocket->head[0] & 112) != 0 || opcode > PONG || (opcode > BINARY && opcode < CLOSE) ||
        is_masked != websocket->is_client || websocket->is_closed)
        return -EBADMSG;
    if (websocket->is_control) {
        if (!websocket->is_final || length > CONTROL_MAX)
            return -EBADMSG;
        websocket->is_closed = opcode == CLOSE;
    } else if ((opcode == CONTINUATION) != websocket->is_in_message) {
        return -EBADMSG;
    }
    websocket->head_needed = (uint8_t)(2 + (length == 127 ? 8 : length == 126 ? 2 : 0) + (is_masked ? 4 : 0));
    return 0;
}

/* A complete head: the length of its payload, in its shortest form only. */
static int read_length(struct bt_websocket *websocket)
{
    unsigned length = websocket->head[1] & 127;
    websocket->left = length;
    websocket->position = 0;
    if (length < 126)
        return 0;
    size_t bytes = length == 126 ? 2 : 8;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value = value << 8 | websocket->head[2 + i];
    websocket->left = value;
    bool is_shortest = length == 126 ? value > CONTROL_MAX : value > UINT16_MAX;
    return is_shortest && value >> 63 == 0 ? 0 : -EBADMSG;
}

static void hand_on(struct bt_websocket *websocket, const uint8_t *data, size_t length,
                    const struct bt_websocket_events *events, void *context)
{
    uint8_t block[BLOCK];
    const uint8_t *mask = websocket->head + websocket->head_needed - 4;
    if (!websocket->is_client) {
        events->on_payload(context, data, length, websocket->is_control);
        return;
    }
    for (size_t at = 0; at < length;) {
        size_t count = length - at < BLOCK ? length - at : BLOCK;
        for (size_t i = 0; i < count; i++)
            block[i] = data[at + i] ^ mask[(websocket->position + at + i) & 3];
        events->on_payload(context, block, count, websocket->is_control);
        at += count;
    }
}

static void end_frame(struct bt_websocket *websocket, const struct bt_websocket_events *events, void *context)
{
    if (!websocket->is_control)
        websocket->is_in_message = !websocket->is_final;
    websocket->head_length = 0;
    websocket->head_needed = 2;
    if (websocket->is_final)
        events->on_end(context, websocket->is_control);
}

static int read_head(struct bt_websocket *websocket, uint8_t byte)
{
    int result = 0;
    websocket->head[websocket->head_length++] = byte;
    if (websocket->head_length == 2)
        result = read_start(websocket);
    if (result == 0 && websocket->head_length == websocket->head_needed)
        result = read_length(websocket);
    return result;
}

int bt_websocket_feed(struct bt_websocket *websocket, const void *data, size_t length,
                      const struct bt_websocket_events *events, void *context)
{
    const uint8_t *bytes = data;
    int result = 0;
    for (size_t at = 0; at < length && result == 0;) {
        if (websocket->head_length < websocket->head_needed) {
            result = read_head(websocket, bytes[at++]);
        } else {
            size_t count = length - at < websocket->left ? length - at : (size_t)websocket->left;
            hand_on(websocket, bytes + at, count, events, context);
            at += count;
            websocket->left -= count;
            websocket->position += count;
        }
        if (result == 0 && websocket->head_length == websocket->head_needed && websocket->left == 0)
            end_frame(websocket, events, context);
    }
    return result;
}
