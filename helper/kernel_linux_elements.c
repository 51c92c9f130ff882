/* Elements of the sets: what one lease has in each of them, and their netlink encoding.
 *
 * On the way of every LEASE and RELEASE: written with libmnl alone, no allocation. Must not look at the
 * kernel.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>

/* ---- encoding ---------------------------------------------------------------------------------------------
 */

/* A list attribute's length is 16 bits; a list is closed well before. */
#define LIST_MAX 32768U

static void open_list(struct bt_batch *batch, uint16_t type, enum bt_set set)
{
    uint16_t flags = type == NFT_MSG_NEWSETELEM ? NLM_F_CREATE | NLM_F_EXCL : 0;
    if (batch->has_open_list && NFNL_MSG_TYPE(batch->last->nlmsg_type) == type && batch->open_set == set &&
        batch->last->nlmsg_len < LIST_MAX)
        return;
    struct nlmsghdr *message = bt_table_message(batch, type, flags);
    mnl_attr_put_strz(message, NFTA_SET_ELEM_LIST_SET, bt_set_layouts[set].name);
    batch->open_list = mnl_attr_nest_start(message, NFTA_SET_ELEM_LIST_ELEMENTS);
    batch->open_set = set;
    batch->has_open_list = true;
}

void bt_element_write(struct bt_batch *batch, uint16_t type, const struct bt_element *element)
{
    bool is_key_only = type != NFT_MSG_NEWSETELEM;
    open_list(batch, type, element->set);
    struct nlattr *nest = mnl_attr_nest_start(batch->last, NFTA_LIST_ELEM);
    bt_put_data(batch->last, NFTA_SET_ELEM_KEY, element->key, element->key_length);
    if (!is_key_only && element->data_length > 0)
        bt_put_data(batch->last, NFTA_SET_ELEM_DATA, element->data, element->data_length);
    if (!is_key_only && element->userdata_length > 0)
        mnl_attr_put(batch->last, NFTA_SET_ELEM_USERDATA, element->userdata_length, element->userdata);
    mnl_attr_nest_end(batch->last, nest);
    mnl_attr_nest_end(batch->last, batch->open_list);
}

void bt_set_flush(struct bt_batch *batch, enum bt_set set)
{
    struct nlmsghdr *message = bt_table_message(batch, NFT_MSG_DELSETELEM, 0);
    mnl_attr_put_strz(message, NFTA_SET_ELEM_LIST_SET, bt_set_layouts[set].name);
}

/* ---- keys ------------------------------------------------------------------------------------------- */

static void key_append(struct bt_element *element, const void *data, uint32_t length)
{
    memcpy(element->key + element->key_length, data, length);
    element->key_length += (length + 3U) & ~3U; /* registers have four bytes */
}

static void key_u32(struct bt_element *element, uint32_t value)
{
    key_append(element, &value, sizeof(value));
}

static void set_data(struct bt_element *element, uint32_t value)
{
    memcpy(element->data, &value, sizeof(value));
    element->data_length = sizeof(value);
}

void bt_element_address(enum bt_set set, uint32_t address, struct bt_element *ret_element)
{
    *ret_element = (struct bt_element){.set = set};
    key_u32(ret_element, htonl(address));
}

void bt_element_interface(enum bt_set set, int ifindex, struct bt_element *ret_element)
{
    *ret_element = (struct bt_element){.set = set};
    key_u32(ret_element, (uint32_t)ifindex);
}

/* ---- user data: one TLV as nft uses them, of a type that nft does not know and passes over ---------- */

#define RECORD_TYPE 200U
/* Raised with the meaning of a record, or of an element that a record is written back to. A new version keeps
 * reading the one before it (an upgrade finds what its predecessor wrote) for one release; OLDEST says so. */
#define RECORD_VERSION 1U
#define RECORD_VERSION_OLDEST 1U
#define RECORD_LENGTH 26U

static void record_write(const struct bt_lease *lease, uint64_t deadline_ms, struct bt_element *element)
{
    uint8_t *at = element->userdata;
    at[0] = RECORD_TYPE;
    at[1] = RECORD_LENGTH;
    at[2] = RECORD_VERSION;
    at[3] = lease->kind;
    at[4] = lease->role;
    at[5] = lease->environment;
    at[6] = lease->is_sealed ? 1 : 0;
    at[7] = 0;
    bt_store_u16(at + 8, lease->slot);
    bt_store_u16(at + 10, 0);
    bt_store_u32(at + 12, lease->uid);
    bt_store_u32(at + 16, lease->generation);
    bt_store_u64(at + 20, deadline_ms);
    element->userdata_length = RECORD_LENGTH + 2;
}

int bt_record_read(const struct bt_element *element, struct bt_lease *ret_lease, int *ret_ifindex,
                   uint64_t *ret_deadline_ms)
{
    const uint8_t *at = element->userdata;
    uint32_t ifindex;
    if (element->key_length != sizeof(ifindex) || element->userdata_length != RECORD_LENGTH + 2 ||
        at[0] != RECORD_TYPE || at[1] != RECORD_LENGTH || at[2] < RECORD_VERSION_OLDEST ||
        at[2] > RECORD_VERSION)
        return -EBADMSG;
    struct bt_lease lease = {.slot = bt_load_u16(at + 8),
                             .generation = bt_load_u32(at + 16),
                             .uid = bt_load_u32(at + 12),
                             .kind = at[3],
                             .role = at[4],
                             .environment = at[5],
                             .is_sealed = at[6] != 0};
    if (lease.slot >= BT_POOL_SLOTS_MAX || lease.kind >= BT_KIND_MAX || lease.role >= BT_ROLE_MAX ||
        lease.environment >= BT_ENVIRONMENTS || lease.generation == 0)
        return -EBADMSG;
    memcpy(&ifindex, element->key, sizeof(ifindex));
    *ret_lease = lease;
    *ret_ifindex = (int)ifindex;
    *ret_deadline_ms = bt_load_u64(at + 20);
    return 0;
}

#define STATE_KEY 1U
#define STATE_LENGTH 10U
static const uint8_t state_magic[6] = {'b', 'e', 'r', 't', 'h', RECORD_VERSION};

void bt_state_element(uint32_t high_water, struct bt_element *ret_element)
{
    *ret_element = (struct bt_element){.set = BT_SET_STATE, .userdata_length = STATE_LENGTH + 2};
    key_u32(ret_element, STATE_KEY);
    ret_element->userdata[0] = RECORD_TYPE;
    ret_element->userdata[1] = STATE_LENGTH;
    memcpy(ret_element->userdata + 2, state_magic, sizeof(state_magic));
    bt_store_u32(ret_element->userdata + 8, high_water);
}

int bt_state_read(const struct bt_element *element, uint32_t *ret_high_water)
{
    struct bt_element wanted;
    bt_state_element(0, &wanted);
    if (element->userdata_length < 8 ||
        memcmp(element->userdata + 2, state_magic, sizeof(state_magic) - 1) != 0)
        return -EBADMSG;
    uint8_t version = element->userdata[7];
    if (version < RECORD_VERSION_OLDEST || version > RECORD_VERSION)
        return -EPROTONOSUPPORT;
    if (element->userdata_length != wanted.userdata_length ||
        memcmp(element->userdata, wanted.userdata, 2) != 0)
        return -EBADMSG;
    *ret_high_water = bt_load_u32(element->userdata + 8);
    return 0;
}

/* ---- elements of no lease --------------------------------------------------------------------------- */

static void port_element(uint8_t protocol, uint16_t port, bt_element_visit visit, void *context)
{
    uint16_t network_order = htons(port);
    struct bt_element element = {.set = BT_SET_GATEWAY_PORTS};
    key_append(&element, &protocol, sizeof(protocol));
    key_append(&element, &network_order, sizeof(network_order));
    visit(context, &element);
}

void bt_constant_elements(const struct bt_kernel *kernel, bt_element_visit visit, void *context)
{
    static const uint16_t tcp_ports[] = {BT_GATEWAY_PORT_PROXY, BT_GATEWAY_PORT_HTTPS,
                                         BT_GATEWAY_PORT_HTTP,  BT_GATEWAY_PORT_GIT,
                                         BT_GATEWAY_PORT_DNS,   BT_GATEWAY_PORT_APPROVALS};
    struct bt_element element;
    bt_state_element(kernel->high_water, &element);
    visit(context, &element);
    for (size_t i = 0; i < kernel->uplink_count; i++) {
        if (!kernel->uplinks[i].is_borrowed)
            continue;
        bt_element_interface(BT_SET_BORROWED, kernel->uplinks[i].ifindex, &element);
        visit(context, &element);
    }
    for (size_t i = 0; i < kernel->config.resolver_count; i++) {
        bt_element_address(BT_SET_RESOLVERS, kernel->config.resolvers[i], &element);
        visit(context, &element);
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(tcp_ports); i++)
        port_element(IPPROTO_TCP, tcp_ports[i], visit, context);
    port_element(IPPROTO_UDP, BT_GATEWAY_PORT_DNS, visit, context);
}

/* ---- the elements of a lease ------------------------------------------------------------------------ */

static uint32_t ifindex_of(const struct bt_kernel *kernel, const struct bt_lease *lease)
{
    return (uint32_t)kernel->slots[lease->slot].ifindex;
}

static bool is_bridge(const struct bt_lease *lease)
{
    return lease->kind == BT_KIND_BRIDGE;
}

static void visit_with_number(enum bt_set set, uint32_t ifindex, uint32_t number, bt_element_visit visit,
                              void *context)
{
    struct bt_element element = {.set = set};
    key_u32(&element, ifindex);
    key_u32(&element, number);
    visit(context, &element);
}

static void source_element(uint32_t ifindex, const uint8_t mac[6], uint32_t address, bt_element_visit visit,
                           void *context)
{
    struct bt_element element = {.set = BT_SET_SOURCES};
    key_u32(&element, ifindex);
    key_append(&element, mac, 6);
    key_u32(&element, htonl(address));
    visit(context, &element);
}

static void authority_elements(const struct bt_kernel *kernel, const struct bt_lease *lease,
                               bt_element_visit visit, void *context)
{
    if (lease->is_sealed)
        return;
    uint32_t ifindex = ifindex_of(kernel, lease);
    struct bt_place place = bt_place_of(kernel, lease);
    source_element(ifindex, place.guest_mac, place.guest_address, visit, context);
    if (place.gateway_address != 0 && place.gateway_address != place.guest_address)
        source_element(ifindex, place.gateway_mac, place.gateway_address, visit, context);

    struct bt_element generation = {.set = BT_SET_GENERATIONS};
    key_u32(&generation, ifindex);
    set_data(&generation, lease->generation);
    visit(context, &generation);

    visit_with_number(BT_SET_LIVE, ifindex, lease->generation, visit, context);
    visit_with_number(BT_SET_OWNERS, ifindex, lease->uid, visit, context);
    if (lease->role == BT_ROLE_GATEWAY)
        visit_with_number(BT_SET_UPLINKS, ifindex, lease->generation, visit, context);
}

void bt_lease_elements(const struct bt_kernel *kernel, const struct bt_lease *lease, unsigned parts,
                       bt_element_visit visit, void *context)
{
    struct bt_element element;
    int ifindex = kernel->slots[lease->slot].ifindex;
    if (parts & BT_PART_AUTHORITY)
        authority_elements(kernel, lease, visit, context);
    if (parts & BT_PART_ACCOUNT) {
        bt_element_interface(BT_SET_ACCEPTED, ifindex, &element);
        visit(context, &element);
        bt_element_interface(BT_SET_REFUSED, ifindex, &element);
        visit(context, &element);
    }
    if (parts & BT_PART_RECORD) {
        bt_element_interface(BT_SET_LEASES, ifindex, &element);
        record_write(lease, 0, &element);
        visit(context, &element);
    }
    if (parts & BT_PART_RESERVED) {
        bt_element_interface(BT_SET_RESERVED, ifindex, &element);
        record_write(lease, kernel->reserved_deadline_ms, &element);
        visit(context, &element);
    }
}

static void pair_elements(enum bt_set set, uint32_t one, uint32_t other, uint32_t generation,
                          bt_element_visit visit, void *context)
{
    struct bt_element element = {.set = set};
    key_u32(&element, one);
    key_u32(&element, other);
    key_u32(&element, generation);
    visit(context, &element);
    element.key_length = 0;
    key_u32(&element, other);
    key_u32(&element, one);
    key_u32(&element, generation);
    visit(context, &element);
}

/* Within the agent's bridge the gateway's container is at one address, within the orchestrator's bridge the
 * orchestrator is: who dials it has the other address of that bridge. */
static void bridge_element(const struct bt_kernel *kernel, const struct bt_lease *dialler,
                           const struct bt_lease *server, bt_element_visit visit, void *context)
{
    bool is_agent = dialler->role == BT_ROLE_AGENT;
    const struct bt_lease *bridge = is_agent ? dialler : server;
    struct bt_place place = bt_place_of(kernel, bridge);
    struct bt_element element = {.set = is_agent ? BT_SET_AGENT_BRIDGES : BT_SET_CONTROL_BRIDGES};
    key_u32(&element, ifindex_of(kernel, bridge));
    key_u32(&element, ifindex_of(kernel, bridge));
    key_u32(&element, bridge->generation);
    key_u32(&element, htonl(is_agent ? place.gateway_address : place.guest_address));
    visit(context, &element);
}

/* dialler reaches server through the ports of its own host address. */
static void tap_elements(const struct bt_kernel *kernel, const struct bt_lease *dialler,
                         const struct bt_lease *server, bt_element_visit visit, void *context)
{
    bool is_agent = dialler->role == BT_ROLE_AGENT;
    uint32_t from = ifindex_of(kernel, dialler);
    struct bt_element element = {.set = is_agent ? BT_SET_GATEWAYS : BT_SET_ORCHESTRATORS};
    key_u32(&element, from);
    key_u32(&element, htonl(bt_place_of(kernel, dialler).host_address));
    set_data(&element, htonl(bt_place_of(kernel, server).guest_address));
    visit(context, &element);
    pair_elements(is_agent ? BT_SET_AGENT_PAIRS : BT_SET_GATEWAY_PAIRS, from, ifindex_of(kernel, server),
                  dialler->generation, visit, context);
}

static void link_elements(const struct bt_kernel *kernel, const struct bt_lease *dialler,
                          const struct bt_lease *server, bt_element_visit visit, void *context)
{
    if (is_bridge(dialler))
        bridge_element(kernel, dialler, server, visit, context);
    else
        tap_elements(kernel, dialler, server, visit, context);
}

/* Microvms and containers of one user and environment are two families. */
static bool is_family(const struct bt_lease *one, const struct bt_lease *other)
{
    return one->uid == other->uid && one->environment == other->environment && one->slot != other->slot &&
           is_bridge(one) == is_bridge(other) && !one->is_sealed && !other->is_sealed;
}

/* The server of a role for a lease: the first, should there be two against the engine's rule. */
static const struct bt_lease *server_of(struct bt_lease_table table, const struct bt_lease *lease,
                                        enum bt_role role)
{
    for (size_t i = 0; i < table.count; i++) {
        if (table.leases[i].role == role && is_family(lease, &table.leases[i]))
            return table.leases + i;
    }
    return NULL;
}

static void link_diallers(const struct bt_kernel *kernel, struct bt_lease_table table,
                          const struct bt_lease *server, enum bt_role role, bt_element_visit visit,
                          void *context)
{
    for (size_t i = 0; i < table.count; i++) {
        if (table.leases[i].role == role && is_family(server, &table.leases[i]))
            link_elements(kernel, &table.leases[i], server, visit, context);
    }
}

void bt_lease_dials(const struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease,
                    bt_element_visit visit, void *context)
{
    if (lease->is_sealed || lease->role == BT_ROLE_ORCHESTRATOR)
        return;
    enum bt_role role = lease->role == BT_ROLE_AGENT ? BT_ROLE_GATEWAY : BT_ROLE_ORCHESTRATOR;
    const struct bt_lease *server = server_of(table, lease, role);
    if (server)
        link_elements(kernel, lease, server, visit, context);
}

void bt_lease_links(const struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease,
                    bt_element_visit visit, void *context)
{
    if (lease->is_sealed)
        return;
    bt_lease_dials(kernel, table, lease, visit, context);
    if (lease->role == BT_ROLE_GATEWAY)
        link_diallers(kernel, table, lease, BT_ROLE_AGENT, visit, context);
    if (lease->role == BT_ROLE_ORCHESTRATOR)
        link_diallers(kernel, table, lease, BT_ROLE_GATEWAY, visit, context);
}
