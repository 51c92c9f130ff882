/* The parser of guest.conf against arbitrary bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vm/init/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bt_settings settings;
    unsigned line;
    char *text = malloc(size > 0 ? size : 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    if (bt_settings_parse(text, size, &settings, &line) == 0 && strlen(settings.host_name) > 63)
        abort();
    free(text);
    return 0;
}
