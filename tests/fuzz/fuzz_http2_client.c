/* Frames of an upstream into the HTTP/2 codec. As fuzz_http2_server.c. */
#include "tests/fuzz/http2_owner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char opening[] = "\0\0\6\4\0\0\0\0\0\0\x08\0\0\0\1" /* SETTINGS: ENABLE_CONNECT_PROTOCOL */
                                  "\0\0\0\4\1\0\0\0\0";
    return run(BT_HTTP2_CLIENT, data, size, opening, sizeof(opening) - 1);
}
