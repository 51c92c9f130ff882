/* The judgement over a document that a hostile guest wrote: whatever it says, nothing may pass while the drop
 * counter stands still and the gateway counted nothing.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/probe_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bt_probe_items items = {.count = 5};
    const struct bt_probe_evidence nothing = {.has_gateway = true, .slot_host_address = 0x0af30000};
    json_t *document = json_loadb((const char *)data, size, 0, NULL);
    json_t *checks = json_array();
    for (size_t i = 0; i < items.count; i++) {
        memcpy(items.list[i].name, (const char[]){'c', (char)('0' + i), '\0'}, 3);
        items.list[i].rule = (enum bt_probe_rule)i;
        items.list[i].is_tcp = i % 2 == 0;
    }
    if (bt_probe_judge(&items, document, "root", &nothing, checks) || json_array_size(checks) != items.count)
        abort();
    json_decref(checks);
    json_decref(document);
    return 0;
}
