/* WebSocket frames. The first byte says whose they are and how they are cut. Invariants: in one piece or in
 * many the payload is the same; control frames end at once and are short; no payload outside of a frame. */
#include <stdlib.h>

#include "policy/gateway/websocket_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct sum {
    uint64_t hash;
    size_t length, control_length, ends;
};

static void on_payload(void *context, const uint8_t *data, size_t length, bool is_control)
{
    struct sum *sum = context;
    if (is_control)
        sum->control_length += length;
    if (sum->control_length > 125)
        abort();
    for (size_t i = 0; i < length; i++)
        sum->hash = (sum->hash ^ data[i]) * 1099511628211U;
    sum->length += length;
}

static void on_end(void *context, bool is_control)
{
    struct sum *sum = context;
    if (is_control)
        sum->control_length = 0;
    sum->ends++;
}

static int run(bool is_client, const uint8_t *data, size_t size, size_t piece, struct sum *ret_sum)
{
    static const struct bt_websocket_events events = {on_payload, on_end};
    struct bt_websocket websocket;
    int result = 0;
    bt_websocket_start(&websocket, is_client);
    *ret_sum = (struct sum){0};
    for (size_t at = 0; at < size && result == 0; at += piece)
        result =
            bt_websocket_feed(&websocket, data + at, size - at < piece ? size - at : piece, &events, ret_sum);
    if (ret_sum->length > size || ret_sum->ends > size / 2)
        abort();
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sum whole, pieces;
    if (size < 2)
        return 0;
    bool is_client = (data[0] & 1) != 0;
    int whole_result = run(is_client, data + 1, size - 1, size, &whole);
    int pieces_result = run(is_client, data + 1, size - 1, 1 + (data[0] >> 1) % 7, &pieces);
    if (whole_result != pieces_result || whole.hash != pieces.hash || whole.length != pieces.length ||
        whole.ends != pieces.ends)
        abort();
    return 0;
}
