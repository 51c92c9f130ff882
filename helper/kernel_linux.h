/* What the files kernel_linux*.c share: the one kernel instance, netlink batches and the layout of table inet
 * berth.
 *
 * Only helper/kernel_linux*.c and the commands of helper/admin*.c that look at the kernel or clean it include
 * it. Nothing here allocates, prints, or takes a name from a client. Elements are keyed by interface *index*:
 * an index is never given to another device while it matters, so a device that somebody makes anew under the
 * same name has no rights.
 */
#ifndef BERTH_HELPER_KERNEL_LINUX_H
#define BERTH_HELPER_KERNEL_LINUX_H

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>

#include "helper/kernel.h"

#define BT_TABLE_NAME "berth"
#define BT_TAP_PREFIX "berth" /* of bridges, too */
#define BT_BRIDGE_PREFIX "berthd"

/* Device groups (ip link: group N) let one request delete all dead devices, at the price of one. */
#define BT_GROUP_LIVE 0x62740001U
#define BT_GROUP_DEAD 0x6274dead

/* One transaction must fit in one message of a socket whose buffer an unprivileged namespace may not enlarge
 * beyond net.core.wmem_max (212992 by default, which the kernel doubles). */
#define BT_BATCH_SIZE (400U * 1024U)
#define BT_RECEIVE_SIZE (64U * 1024U)
#define BT_UPLINKS_MAX 16U

/* Sets and maps of the table, in the order in which they are made. See kernel_linux_table.c for what each is
 * for. */
enum bt_set {
    BT_SET_SOURCES,         /* interface . MAC . address: who may send at all */
    BT_SET_GENERATIONS,     /* interface -> generation: the mark of a new flow */
    BT_SET_LIVE,            /* interface . generation */
    BT_SET_OWNERS,          /* interface . uid: whose sockets may reach the guest */
    BT_SET_AGENT_PAIRS,     /* in . out . generation, both directions: agent and its gateway */
    BT_SET_GATEWAY_PAIRS,   /* the same for gateway and orchestrator */
    BT_SET_AGENT_BRIDGES,   /* in . out . generation . gateway's address: within an agent's bridge */
    BT_SET_CONTROL_BRIDGES, /* the same with an orchestrator's address, within its bridge */
    BT_SET_UPLINKS,         /* interface . generation: gateways, which may reach the outside */
    BT_SET_GATEWAYS,        /* interface . host address -> gateway's guest address */
    BT_SET_ORCHESTRATORS,   /* interface . host address -> orchestrator's guest address */
    BT_SET_ACCEPTED,        /* interface, counter */
    BT_SET_REFUSED,         /* interface, counter and rate limit */
    BT_SET_LEASES,          /* interface, user data: the live leases, for a restart */
    BT_SET_RESERVED,        /* interface, user data: leases that wait for adoption */
    BT_SET_STATE,           /* one element, user data: version and highest generation */
    BT_SET_BORROWED,        /* interface: forwards only since we asked for it, so only for us */
    BT_SET_RESOLVERS,       /* address: private addresses that a gateway may dial anyway */
    BT_SET_GATEWAY_PORTS,   /* protocol . port: what a gateway serves */
    BT_SET_COUNTED,         /* sets above are written by us; the two below by packets */
    BT_SET_AGENT_FLOWS = BT_SET_COUNTED,
    BT_SET_GATEWAY_FLOWS,
    BT_SET_MAX
};

/* Whose elements a set has. */
enum bt_set_kind {
    BT_SET_OF_AUTHORITY, /* of one lease */
    BT_SET_OF_LINKS,     /* between two leases */
    BT_SET_OF_ACCOUNT,   /* counters of one lease, which outlive a restart */
    BT_SET_OF_TABLE,     /* of no lease */
    BT_SET_OF_PACKETS    /* of flows */
};

struct bt_set_layout {
    const char *name;
    enum bt_set_kind kind;
    uint32_t key_type; /* nft's data types, six bits each, so that `nft list` prints the elements */
    uint32_t key_length;
    uint32_t data_type; /* 0: a set; else a map, whose values have four bytes */
};
extern const struct bt_set_layout bt_set_layouts[BT_SET_MAX];

#define BT_KEY_MAX 16U
#define BT_USERDATA_SIZE 32U

/* An element as it is written and as it is read back. */
struct bt_element {
    enum bt_set set;
    uint32_t key_length;
    uint32_t data_length; /* 0: none */
    uint32_t userdata_length;
    uint8_t key[BT_KEY_MAX];
    uint8_t data[4];
    uint8_t userdata[BT_USERDATA_SIZE];
    struct bt_counter {
        uint64_t packets, bytes;
    } counter; /* only when read back */
};

/* A group of netlink messages sent at once. first_sequence..sequence are its numbers. */
struct bt_batch {
    uint8_t *buffer;
    size_t size;
    uint32_t first_sequence, sequence;
    struct nlmsghdr *last; /* takes attributes until the next one is begun; NULL: the batch is empty */
    bool has_open_list;    /* the last one is a list of elements, and takes more of them */
    struct nlattr *open_list;
    enum bt_set open_set;
    bool is_full; /* will not be sent */
};

enum bt_slot_state {
    BT_SLOT_CLEAN,    /* nothing in the kernel */
    BT_SLOT_LIVE,     /* elements in force (or sealed) */
    BT_SLOT_RESERVED, /* element in `reserved` only */
    BT_SLOT_DEAD,     /* no elements; device of the dead group, or flows, may still be there */
    BT_SLOT_STUCK     /* the kernel refused to take the elements out, or the link down; collect tries again */
};

struct bt_slot {
    enum bt_slot_state state;
    int ifindex;
    bool is_down;   /* the link was set down by us: for drift; a bridge also while reserved or sealed */
    bool has_flows; /* dead, and its conntrack entries are not deleted yet */
    struct bt_lease lease;
};

struct bt_kernel {
    struct bt_kernel_config config;
    int netfilter_fd, netfilter_events_fd, route_fd, route_events_fd;
    uint32_t netfilter_port, sequence;
    uint32_t high_water; /* generations up to this one may have been handed out */
    uint64_t reserved_deadline_ms;
    bool is_provisioned, has_ipv6;
    bool is_outdated; /* the rules in force are of another configuration */
    struct bt_slot slots[BT_POOL_SLOTS_MAX];
    int borrowed[BT_UPLINKS_MAX]; /* uplinks that did not forward before */
    size_t borrowed_count;
    uint8_t batch_buffer[BT_BATCH_SIZE];
    uint8_t receive_buffer[BT_RECEIVE_SIZE];
    uint8_t event_buffer[BT_RECEIVE_SIZE]; /* its own: looking at an event may ask and answer */
};

/* The leases that are in force according to the slots: one static table, valid until the next call. */
struct bt_lease_table bt_slots_live(const struct bt_kernel *kernel);

/* ---- kernel_linux_netlink.c ------------------------------------------------------------------------------
 */

/* A bound, close-on-exec netlink socket; groups is the legacy bit mask of multicast groups. ret_port: NULL,
 * or where the kernel's answers are sent. */
int bt_netlink_open(int protocol, uint32_t groups, int *ret_fd, uint32_t *ret_port) BT_MUST_CHECK;

/* Starts an empty batch in the kernel's own buffer: one at a time. */
void bt_batch_start(struct bt_kernel *kernel, struct bt_batch *batch);
/* Appends a message with its family header, for attributes. Always there: a batch that is full says so when
 * it is sent. */
struct nlmsghdr *bt_message(struct bt_batch *batch, uint16_t type, uint16_t flags, const void *family,
                            size_t family_length);
size_t bt_batch_used(const struct bt_batch *batch);

/* Sends and waits for the answers. -EAGAIN: it cannot be told whether the kernel acted (read back). */
int bt_batch_send_nftables(struct bt_kernel *kernel, struct bt_batch *batch) BT_MUST_CHECK;
/* Route messages are not a transaction: all are tried, the first error is returned. */
int bt_batch_send_route(struct bt_kernel *kernel, struct bt_batch *batch) BT_MUST_CHECK;

/* Sends the last message of the batch (a dump or a single get) and calls visit for every message of the
 * answer, until it returns non-zero. */
typedef int (*bt_netlink_visit)(const struct nlmsghdr *message, void *context);
int bt_netlink_query(struct bt_kernel *kernel, int fd, const struct bt_batch *batch, bt_netlink_visit visit,
                     void *context) BT_MUST_CHECK;

/* Does a whole message stand at the start of what is left? (libmnl alone takes a length of 2^31 and more for
 * a negative one.) */
bool bt_message_is_whole(const struct nlmsghdr *message, int left);

/* Walks attributes; a length that does not fit ends the walk. (libmnl's own loops do not compile with
 * -Wconversion.) */
struct bt_attributes {
    const uint8_t *at;
    size_t left;
};
struct bt_attributes bt_attributes_in(const struct nlattr *nest);
/* header_length: of the family header in front of the attributes. */
struct bt_attributes bt_attributes_of(const struct nlmsghdr *message, size_t header_length);
bool bt_attribute_next(struct bt_attributes *walk, const struct nlattr **ret_attribute);
const struct nlattr *bt_attribute_find(struct bt_attributes walk, uint16_t type);
/* The attribute's value when it has exactly this length, else fallback. */
uint32_t bt_attribute_u32(const struct nlattr *attribute, uint32_t fallback);

/* ---- kernel_linux_table.c --------------------------------------------------------------------------------
 */

/* Appends the table, its sets, chains and rules (no elements). */
void bt_table_encode(struct bt_kernel *kernel, struct bt_batch *batch);
/* Appends the deletion of the table, whether it exists or not. */
void bt_table_encode_removal(struct bt_batch *batch);
/* 0: sets, chains and rules in the kernel are exactly those that bt_table_encode makes. -ENOENT, -EUCLEAN. */
int bt_table_compare(struct bt_kernel *kernel) BT_MUST_CHECK;
/* Appends all rules, in the order of their chains. kernel_linux_rules.c. */
void bt_rules_encode(const struct bt_kernel *kernel, struct bt_batch *batch);
/* Appends a message of nftables about our table, whose name is the first attribute. */
struct nlmsghdr *bt_table_message(struct bt_batch *batch, uint16_t type, uint16_t flags);
/* Appends a number as nftables has them. */
void bt_put_be32(struct nlmsghdr *message, uint16_t attribute, uint32_t value);
/* Appends bytes as nftables has them: keys, data, what a rule compares with. */
void bt_put_data(struct nlmsghdr *message, uint16_t attribute, const void *data, uint32_t length);
/* Starts and ends a transaction around what the others append. */
void bt_transaction_start(struct bt_kernel *kernel, struct bt_batch *batch);
int bt_transaction_commit(struct bt_kernel *kernel, struct bt_batch *batch) BT_MUST_CHECK;

/* ---- kernel_linux_elements.c -----------------------------------------------------------------------------
 */

/* Appends one element to a message of that type (NFT_MSG_NEWSETELEM, DELSETELEM or GETSETELEM), or to the
 * last message when that is a list of the same. */
void bt_element_write(struct bt_batch *batch, uint16_t type, const struct bt_element *element);
/* Appends the removal of all elements. */
void bt_set_flush(struct bt_batch *batch, enum bt_set set);

/* Which of a lease's elements. */
#define BT_PART_AUTHORITY 1U /* everything that permits anything */
#define BT_PART_ACCOUNT 2U   /* its counters */
#define BT_PART_RECORD 4U    /* its line in `leases` */
#define BT_PART_RESERVED 8U  /* its line in `reserved` */

typedef void (*bt_element_visit)(void *context, const struct bt_element *element);
struct bt_element_visitor {
    bt_element_visit visit;
    void *context;
};

/* Visits each element that the lease owns by itself. */
void bt_lease_elements(const struct bt_kernel *kernel, const struct bt_lease *lease, unsigned parts,
                       const struct bt_element_visitor *visitor);
/* Visits each element that links the lease with its gateway, orchestrator or agents among table. Sealed
 * leases have no links; leases of the same slot are passed over. */
void bt_lease_links(const struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease,
                    const struct bt_element_visitor *visitor);
/* Visits everything that must be in the table: of no lease, of those that are live, of reserved slots. */
void bt_all_elements(const struct bt_kernel *kernel, struct bt_lease_table live,
                     const struct bt_element_visitor *visitor);
/* The element of `state`. */
void bt_state_element(uint32_t high_water, struct bt_element *ret_element);
/* -EBADMSG: not ours. -EPROTONOSUPPORT: of a version that this build does not read. */
int bt_state_read(const struct bt_element *element, uint32_t *ret_high_water) BT_MUST_CHECK;
int bt_record_read(const struct bt_element *element, struct bt_lease *ret_lease, int *ret_ifindex,
                   uint64_t *ret_deadline_ms) BT_MUST_CHECK;
void bt_element_interface(enum bt_set set, int ifindex, struct bt_element *ret_element);

/* ---- kernel_linux_readback.c -----------------------------------------------------------------------------
 */

/* Calls visit for every element of a set in the kernel. -ENOENT: no such set. */
int bt_set_dump(struct bt_kernel *kernel, enum bt_set set, bt_element_visit visit,
                void *context) BT_MUST_CHECK;
/* Reads one element by the key in it. -ENOENT. */
int bt_element_get(struct bt_kernel *kernel, struct bt_element *element) BT_MUST_CHECK;
/* Compares the elements in the kernel with what the slots of the kernel instance say. 0 or -EUCLEAN. */
int bt_elements_compare(struct bt_kernel *kernel, struct bt_lease_table live) BT_MUST_CHECK;

/* ---- kernel_linux_write.c --------------------------------------------------------------------------------
 */

/* Appends the elements of one lease and, if asked, its links: taken out, or put in. */
void bt_lease_write(const struct bt_kernel *kernel, struct bt_batch *batch, struct bt_lease_table table,
                    const struct bt_lease *lease, unsigned parts, bool is_linked, bool is_added);
/* Appends what replaces the highest generation that the kernel remembers. */
void bt_state_write(const struct bt_kernel *kernel, struct bt_batch *batch);
/* Replaces all elements by what the slots say: within batch, and further transactions if one is too small.
 * When is_new, the sets are known to be empty. Commits. */
int bt_elements_rewrite(struct bt_kernel *kernel, struct bt_batch *batch, struct bt_lease_table live,
                        bool is_new) BT_MUST_CHECK;

/* ---- kernel_linux_link.c ---------------------------------------------------------------------------------
 */

/* The network of a lease's slot: all zero for one outside the pool, which the engine hands out to nobody. */
struct bt_place bt_place_of(const struct bt_kernel *kernel, const struct bt_lease *lease);
/* Makes the TAP (*ret_tap_fd) or bridge (*ret_tap_fd -1) of a lease, down, with MAC, address, neighbours and
 * per-interface settings. */
int bt_link_create(struct bt_kernel *kernel, const struct bt_lease *lease, int *ret_tap_fd,
                   int *ret_ifindex) BT_MUST_CHECK;
/* Takes back what bt_link_create made, where closing the TAP does not. */
void bt_link_discard(struct bt_kernel *kernel, const struct bt_lease *lease, int ifindex);
enum bt_link_change {
    BT_LINK_UP, /* with neighbours: a link that was down has lost its permanent ones. A sealed bridge stays
                   down */
    BT_LINK_DOWN,
    BT_LINK_DEAD,    /* down, and to be deleted */
    BT_LINK_SETTINGS /* those of the interface, again */
};
int bt_link_set(struct bt_kernel *kernel, uint16_t slot, enum bt_link_change change) BT_MUST_CHECK;
/* The same with all devices that are leased or reserved, or with the bridges among them: traffic between a
 * bridge's ports does not ask the table on every host. */
int bt_link_set_all(struct bt_kernel *kernel, enum bt_link_change change, bool is_for_bridges) BT_MUST_CHECK;
/* Calls visit with what rtnetlink tells of one interface. */
int bt_link_query(struct bt_kernel *kernel, int ifindex, bt_netlink_visit visit, void *context) BT_MUST_CHECK;
/* Is the device of the lease there, and as it was made? -ENODEV, -EPERM. */
int bt_link_check(struct bt_kernel *kernel, const struct bt_lease *lease, int ifindex) BT_MUST_CHECK;
/* Deletes all devices of the dead group. */
int bt_link_delete_dead(struct bt_kernel *kernel) BT_MUST_CHECK;
/* Is what rtnetlink tells of a device of ours (made by a helper, or a bridge by its name) that no slot knows?
 */
bool bt_link_is_stranger(const struct bt_kernel *kernel, const struct nlmsghdr *message);
/* Down, and into the dead group. 1, or 0: it is not there any more. */
int bt_link_disown(struct bt_kernel *kernel, int ifindex) BT_MUST_CHECK;
/* The same with all strangers that are there. Returns how many, or -errno. */
int bt_link_disown_strangers(struct bt_kernel *kernel) BT_MUST_CHECK;

/* ---- kernel_linux_uplink.c -------------------------------------------------------------------------------
 */

/* Makes the interfaces of the default routes forward. */
int bt_uplinks_refresh(struct bt_kernel *kernel) BT_MUST_CHECK;
/* Lets an interface forward, or not. */
int bt_uplink_set_forwarding(struct bt_kernel *kernel, int ifindex, bool does_forward) BT_MUST_CHECK;
/* The interface is gone, or forwards by somebody else's will. */
int bt_uplink_forget(struct bt_kernel *kernel, int ifindex) BT_MUST_CHECK;

/* ---- kernel_linux_flows.c --------------------------------------------------------------------------------
 */

/* Deletes the conntrack entries that the lease opened, or that lead to its guest. */
int bt_flows_delete(struct bt_kernel *kernel, const struct bt_lease *lease) BT_MUST_CHECK;

/* ---- kernel_linux_events.c -------------------------------------------------------------------------------
 */

int bt_events_open(struct bt_kernel *kernel) BT_MUST_CHECK;

#endif
