/* Frames of an agent into the HTTP/2 codec, with an owner that answers, holds, aborts, releases and frees at
 * any moment. Invariants: heads that an HTTP/1.1 leg may carry, callbacks in order and none after the end,
 * bounded held bytes, output and memory (http2_owner.h). */
#include "tests/fuzz/http2_owner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char opening[] = NGHTTP2_CLIENT_MAGIC "\0\0\0\4\0\0\0\0\0"  /* SETTINGS */
                                                       "\0\0\0\4\1\0\0\0\0"; /* their acknowledgement */
    return run(BT_HTTP2_SERVER, data, size, opening, sizeof(opening) - 1);
}
