/* IPv4 ranges that a name may not lead to. Pure arithmetic; must not know about configuration. */
#include "policy/rules/rules.h"

struct range {
    uint32_t base;
    unsigned prefix_length;
    enum bt_address_class class;
};

/* IANA IPv4 special-purpose address registry (RFC 6890). The documentation blocks (RFC 5737) are left public:
 * nothing routes them, and test networks use them. */
static const struct range ranges[] = {
    /* Metadata services outside of 169.254.0.0/16, which stand among private or public addresses: Azure's
     * (docs: "What is IP address 168.63.129.16?") and Alibaba's. First, since the first match counts. */
    {0xa83f8110U, 32, BT_ADDRESS_FORBIDDEN}, /* 168.63.129.16 */
    {0x646464c8U, 32, BT_ADDRESS_FORBIDDEN}, /* 100.100.100.200 */
    {0x00000000U, 8, BT_ADDRESS_FORBIDDEN},  /* 0.0.0.0/8 this network */
    {0x0a000000U, 8, BT_ADDRESS_PRIVATE},    /* 10.0.0.0/8 */
    {0x64400000U, 10, BT_ADDRESS_PRIVATE},   /* 100.64.0.0/10 shared address space */
    {0x7f000000U, 8, BT_ADDRESS_FORBIDDEN},  /* 127.0.0.0/8 loopback */
    {0xa9fe0000U, 16, BT_ADDRESS_FORBIDDEN}, /* 169.254.0.0/16 link-local, metadata services */
    {0xac100000U, 12, BT_ADDRESS_PRIVATE},   /* 172.16.0.0/12 */
    {0xc0000000U, 24, BT_ADDRESS_FORBIDDEN}, /* 192.0.0.0/24 protocol assignments */
    {0xc0586300U, 24, BT_ADDRESS_FORBIDDEN}, /* 192.88.99.0/24 former 6to4 relay */
    {0xc0a80000U, 16, BT_ADDRESS_PRIVATE},   /* 192.168.0.0/16 */
    {0xc6120000U, 15, BT_ADDRESS_FORBIDDEN}, /* 198.18.0.0/15 benchmarking */
    {0xe0000000U, 4, BT_ADDRESS_FORBIDDEN},  /* 224.0.0.0/4 multicast */
    {0xf0000000U, 4, BT_ADDRESS_FORBIDDEN},  /* 240.0.0.0/4 reserved, broadcast */
};

enum bt_address_class bt_address_classify(uint32_t address)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(ranges); i++) {
        uint32_t mask = ~(uint32_t)0 << (32U - ranges[i].prefix_length);
        if ((address & mask) == ranges[i].base)
            return ranges[i].class;
    }
    return BT_ADDRESS_PUBLIC;
}

bool bt_address_is_public(uint32_t address)
{
    return bt_address_classify(address) == BT_ADDRESS_PUBLIC;
}
