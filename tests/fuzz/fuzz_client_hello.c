/* The ClientHello reader: whatever an agent sends first. An accepted name must be canonical, and a hello that
 * was understood must be understood alike with more bytes behind its record. */
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bt_hello hello;
    if (bt_hello_parse(data, size, &hello) < 0 || !hello.has_name)
        return 0;
    char again[BT_HOST_NAME_SIZE];
    if (bt_host_canonical(hello.name, strlen(hello.name), again) < 0 || strcmp(again, hello.name) != 0)
        abort();
    return 0;
}
