/* Any 512 bytes as a request and as a reply: refused, or understood in exactly one way.
 *
 * Corpus: one frame of each kind.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t frame[BT_FRAME_SIZE] = {0}, again[BT_FRAME_SIZE];
    struct bt_request request;
    struct bt_reply reply;
    memcpy(frame, data, size < sizeof(frame) ? size : sizeof(frame));
    if (bt_frame_decode_request(frame, &request) == 0) {
        must(bt_frame_encode_request(&request, again) == 0 && memcmp(frame, again, sizeof(frame)) == 0);
        must(request.verb != BT_VERB_LEASE || request.body.lease.slot < BT_POOL_SLOTS_MAX);
        must(request.sequence != 0);
    }
    if (bt_frame_decode_reply(frame, &reply) == 0) {
        must(bt_frame_encode_reply(&reply, again) == 0 && memcmp(frame, again, sizeof(frame)) == 0);
        must(bt_status_errno(reply.status) <= 0);
        if (reply.verb == BT_VERB_LEASE && reply.status == BT_STATUS_OK)
            must(memchr(reply.body.lease.interface_name, '\0', BT_INTERFACE_NAME_SIZE) != NULL);
    }
    return 0;
}
