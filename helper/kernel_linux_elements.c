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

/* The words of a key are registers of four bytes, as many as the set's layout has. */
static struct bt_element element_of(enum bt_set set, const uint32_t *key)
{
    struct bt_element element = {.set = set, .key_length = bt_set_layouts[set].key_length};
    memcpy(element.key, key, element.key_length);
    return element;
}

void bt_element_interface(enum bt_set set, int ifindex, struct bt_element *ret_element)
{
    uint32_t key = (uint32_t)ifindex;
    *ret_element = element_of(set, &key);
}

static void visit_key(const struct bt_element_visitor *visitor, enum bt_set set, const uint32_t *key)
{
    struct bt_element element = element_of(set, key);
    visitor->visit(visitor->context, &element);
}

static void visit_map(const struct bt_element_visitor *visitor, enum bt_set set, const uint32_t *key,
                      uint32_t value)
{
    struct bt_element element = element_of(set, key);
    memcpy(element.data, &value, sizeof(value));
    element.data_length = sizeof(value);
    visitor->visit(visitor->context, &element);
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
    const uint32_t key = STATE_KEY;
    *ret_element = element_of(BT_SET_STATE, &key);
    ret_element->userdata_length = STATE_LENGTH + 2;
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

static void visit_number(const struct bt_element_visitor *visitor, enum bt_set set, uint32_t number)
{
    visit_key(visitor, set, &number);
}

static void visit_port(const struct bt_element_visitor *visitor, uint8_t protocol, uint16_t port)
{
    uint16_t network_order = htons(port);
    uint32_t key[2] = {0};
    memcpy(&key[0], &protocol, sizeof(protocol));
    memcpy(&key[1], &network_order, sizeof(network_order));
    visit_key(visitor, BT_SET_GATEWAY_PORTS, key);
}

static void constant_elements(const struct bt_kernel *kernel, const struct bt_element_visitor *visitor)
{
    static const uint16_t tcp_ports[] = {BT_GATEWAY_PORT_PROXY, BT_GATEWAY_PORT_HTTPS,
                                         BT_GATEWAY_PORT_HTTP,  BT_GATEWAY_PORT_GIT,
                                         BT_GATEWAY_PORT_DNS,   BT_GATEWAY_PORT_APPROVALS};
    struct bt_element state;
    bt_state_element(kernel->high_water, &state);
    visitor->visit(visitor->context, &state);
    for (size_t i = 0; i < kernel->borrowed_count; i++)
        visit_number(visitor, BT_SET_BORROWED, (uint32_t)kernel->borrowed[i]);
    for (size_t i = 0; i < kernel->config.resolver_count; i++)
        visit_number(visitor, BT_SET_RESOLVERS, htonl(kernel->config.resolvers[i]));
    for (size_t i = 0; i < BT_ARRAY_LENGTH(tcp_ports); i++)
        visit_port(visitor, IPPROTO_TCP, tcp_ports[i]);
    visit_port(visitor, IPPROTO_UDP, BT_GATEWAY_PORT_DNS);
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

static void visit_source(const struct bt_element_visitor *visitor, uint32_t ifindex, const uint8_t mac[6],
                         uint32_t address)
{
    uint32_t key[4] = {ifindex, 0, 0, htonl(address)};
    memcpy(&key[1], mac, 6);
    visit_key(visitor, BT_SET_SOURCES, key);
}

static void authority_elements(const struct bt_kernel *kernel, const struct bt_lease *lease,
                               const struct bt_element_visitor *visitor)
{
    if (lease->is_sealed)
        return;
    struct bt_place place = bt_place_of(kernel, lease);
    const uint32_t flow[] = {ifindex_of(kernel, lease), lease->generation};
    const uint32_t owner[] = {flow[0], lease->uid};
    visit_source(visitor, flow[0], place.guest_mac, place.guest_address);
    if (place.gateway_address != 0 && place.gateway_address != place.guest_address)
        visit_source(visitor, flow[0], place.gateway_mac, place.gateway_address);
    visit_map(visitor, BT_SET_GENERATIONS, flow, lease->generation);
    visit_key(visitor, BT_SET_LIVE, flow);
    visit_key(visitor, BT_SET_OWNERS, owner);
    if (lease->role == BT_ROLE_GATEWAY)
        visit_key(visitor, BT_SET_UPLINKS, flow);
}

static void visit_record(const struct bt_kernel *kernel, const struct bt_lease *lease, enum bt_set set,
                         uint64_t deadline_ms, const struct bt_element_visitor *visitor)
{
    struct bt_element element;
    bt_element_interface(set, kernel->slots[lease->slot].ifindex, &element);
    record_write(lease, deadline_ms, &element);
    visitor->visit(visitor->context, &element);
}

void bt_lease_elements(const struct bt_kernel *kernel, const struct bt_lease *lease, unsigned parts,
                       const struct bt_element_visitor *visitor)
{
    uint32_t ifindex = ifindex_of(kernel, lease);
    if (parts & BT_PART_AUTHORITY)
        authority_elements(kernel, lease, visitor);
    if (parts & BT_PART_ACCOUNT) {
        visit_key(visitor, BT_SET_ACCEPTED, &ifindex);
        visit_key(visitor, BT_SET_REFUSED, &ifindex);
    }
    if (parts & BT_PART_RECORD)
        visit_record(kernel, lease, BT_SET_LEASES, 0, visitor);
    if (parts & BT_PART_RESERVED)
        visit_record(kernel, lease, BT_SET_RESERVED, kernel->reserved_deadline_ms, visitor);
}

/* Within the agent's bridge the gateway's container is at one address, within the orchestrator's bridge the
 * orchestrator is: who dials it has the other address of that bridge. */
static void visit_bridge(const struct bt_kernel *kernel, const struct bt_lease *dialler,
                         const struct bt_lease *server, const struct bt_element_visitor *visitor)
{
    bool is_agent = dialler->role == BT_ROLE_AGENT;
    const struct bt_lease *bridge = is_agent ? dialler : server;
    struct bt_place place = bt_place_of(kernel, bridge);
    uint32_t ifindex = ifindex_of(kernel, bridge);
    const uint32_t key[] = {ifindex, ifindex, bridge->generation,
                            htonl(is_agent ? place.gateway_address : place.guest_address)};
    visit_key(visitor, is_agent ? BT_SET_AGENT_BRIDGES : BT_SET_CONTROL_BRIDGES, key);
}

/* dialler reaches server through the ports of its own host address. */
static void visit_taps(const struct bt_kernel *kernel, const struct bt_lease *dialler,
                       const struct bt_lease *server, const struct bt_element_visitor *visitor)
{
    bool is_agent = dialler->role == BT_ROLE_AGENT;
    enum bt_set pairs = is_agent ? BT_SET_AGENT_PAIRS : BT_SET_GATEWAY_PAIRS;
    uint32_t from = ifindex_of(kernel, dialler), to = ifindex_of(kernel, server);
    const uint32_t dialled[] = {from, htonl(bt_place_of(kernel, dialler).host_address)};
    const uint32_t there[] = {from, to, dialler->generation}, back[] = {to, from, dialler->generation};
    visit_map(visitor, is_agent ? BT_SET_GATEWAYS : BT_SET_ORCHESTRATORS, dialled,
              htonl(bt_place_of(kernel, server).guest_address));
    visit_key(visitor, pairs, there);
    visit_key(visitor, pairs, back);
}

static void link_elements(const struct bt_kernel *kernel, const struct bt_lease *dialler,
                          const struct bt_lease *server, const struct bt_element_visitor *visitor)
{
    if (is_bridge(dialler))
        visit_bridge(kernel, dialler, server, visitor);
    else
        visit_taps(kernel, dialler, server, visitor);
}

/* Microvms and containers of one user and environment are two families. */
static bool is_family(const struct bt_lease *one, const struct bt_lease *other)
{
    return one->uid == other->uid && one->environment == other->environment && one->slot != other->slot &&
           is_bridge(one) == is_bridge(other) && !one->is_sealed && !other->is_sealed;
}

static bool is_server_of(const struct bt_lease *server, const struct bt_lease *dialler)
{
    return (dialler->role == BT_ROLE_AGENT && server->role == BT_ROLE_GATEWAY) ||
           (dialler->role == BT_ROLE_GATEWAY && server->role == BT_ROLE_ORCHESTRATOR);
}

/* The link that the lease dials itself: to the first server, should there be two against the engine's rule.
 */
static void dialled_elements(const struct bt_kernel *kernel, struct bt_lease_table table,
                             const struct bt_lease *lease, const struct bt_element_visitor *visitor)
{
    for (size_t i = 0; i < table.count; i++) {
        if (is_server_of(&table.leases[i], lease) && is_family(lease, &table.leases[i])) {
            link_elements(kernel, lease, &table.leases[i], visitor);
            return;
        }
    }
}

void bt_lease_links(const struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease,
                    const struct bt_element_visitor *visitor)
{
    dialled_elements(kernel, table, lease, visitor);
    for (size_t i = 0; i < table.count; i++) {
        if (is_server_of(lease, &table.leases[i]) && is_family(lease, &table.leases[i]))
            link_elements(kernel, &table.leases[i], lease, visitor);
    }
}

void bt_all_elements(const struct bt_kernel *kernel, struct bt_lease_table live,
                     const struct bt_element_visitor *visitor)
{
    constant_elements(kernel, visitor);
    for (size_t i = 0; i < live.count; i++) {
        bt_lease_elements(kernel, &live.leases[i], BT_PART_AUTHORITY | BT_PART_ACCOUNT | BT_PART_RECORD,
                          visitor);
        dialled_elements(kernel, live, &live.leases[i], visitor); /* each link once */
    }
    for (uint16_t slot = 0; slot < kernel->config.pool.slots; slot++) {
        if (kernel->slots[slot].state == BT_SLOT_RESERVED)
            bt_lease_elements(kernel, &kernel->slots[slot].lease, BT_PART_ACCOUNT | BT_PART_RESERVED,
                              visitor);
    }
}
