/* The plan parser of berth-probe and its reader of DNS answers: the first byte chooses. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vm/probe/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bt_probe_plan plan;
    unsigned line, code, answers;
    if (size == 0)
        return 0;
    if (data[0] == 'd') {
        (void)bt_probe_dns_answer(data + 1, size - 1, 0x6464, &code, &answers);
        return 0;
    }
    if (bt_probe_plan_parse((const char *)data, size, &plan, &line) < 0)
        return 0;
    for (size_t i = 0; i < plan.count; i++) {
        uint8_t packet[BT_PROBE_PACKET_MAX];
        if (memchr(plan.entries[i].name, '\0', sizeof(plan.entries[i].name)) == NULL ||
            plan.entries[i].deadline_ms <= 0)
            abort();
        if (plan.entries[i].kind == BT_PROBE_DNS)
            (void)bt_probe_dns_question(plan.entries[i].text, 1, packet);
        else
            (void)bt_probe_udp_packet(plan.entries[i].source, 1, 1, plan.entries[i].text, packet);
    }
    return 0;
}
