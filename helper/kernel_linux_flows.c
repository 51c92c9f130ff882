/* Conntrack entries of a lease, deleted by ctnetlink.
 *
 * Called when a lease ends or is sealed, and again before its slot is given to the next. The marks keep old
 * flows from passing in any case; this keeps the host's conntrack table from holding them, and a gateway's
 * successor in the same slot from being the target of an old translation.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <string.h>

static struct nlmsghdr *flow_message(struct bt_batch *batch, uint16_t type, uint16_t flags)
{
    struct nfgenmsg family = {.nfgen_family = AF_INET, .version = NFNETLINK_V0};
    return bt_message(batch, (uint16_t)(NFNL_SUBSYS_CTNETLINK << 8 | type), flags, &family, sizeof(family));
}

/* One request, however many flows: the kernel walks its table once. */
static int delete_by_mark(struct bt_kernel *kernel, uint32_t mark)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = flow_message(&batch, IPCTNL_MSG_CT_DELETE, NLM_F_ACK);
    mnl_attr_put_u32(message, CTA_MARK, htonl(mark));
    mnl_attr_put_u32(message, CTA_MARK_MASK, 0xffffffff);
    return bt_batch_send_nftables(kernel, &batch);
}

/* ---- flows that others opened towards a server: their mark is the dialler's, which may live on ------ */

/* A gateway may have tens of thousands, and the engine serves nobody meanwhile: a round costs a walk of the
 * kernel through its whole table, so few of them, and one message for all of a round. */
#define FLOWS_PER_ROUND 2048U
#define TUPLE_ROOM 96U /* of IPv4: addresses, protocol, ports or ICMP's three, zone */
#define ROUNDS_MAX 1024U

struct server_flows {
    uint32_t guest; /* network byte order */
    size_t count;
    struct {
        uint16_t length;
        uint8_t tuple[TUPLE_ROOM];
    } found[FLOWS_PER_ROUND];
};

static bool does_answer_from(const struct nlattr *reply, uint32_t guest)
{
    const struct nlattr *ip = reply ? bt_attribute_find(bt_attributes_in(reply), CTA_TUPLE_IP) : NULL;
    return ip && bt_attribute_u32(bt_attribute_find(bt_attributes_in(ip), CTA_IP_V4_SRC), 0) == guest;
}

static int note_flow(const struct nlmsghdr *message, void *context)
{
    struct server_flows *flows = context;
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct nfgenmsg));
    const struct nlattr *original = bt_attribute_find(walk, CTA_TUPLE_ORIG);
    if (!original || flows->count == FLOWS_PER_ROUND ||
        !does_answer_from(bt_attribute_find(walk, CTA_TUPLE_REPLY), flows->guest))
        return 0;
    size_t length = mnl_attr_get_payload_len(original);
    if (length > TUPLE_ROOM)
        return 0;
    memcpy(flows->found[flows->count].tuple, mnl_attr_get_payload(original), length);
    flows->found[flows->count++].length = (uint16_t)length;
    return 0;
}

/* The kernel filters by the source of the answers, so only this server's flows come out. */
static int find_flows(struct bt_kernel *kernel, struct server_flows *flows)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    flows->count = 0;
    struct nlmsghdr *message = flow_message(&batch, IPCTNL_MSG_CT_GET, NLM_F_DUMP);
    struct nlattr *reply = mnl_attr_nest_start(message, CTA_TUPLE_REPLY);
    struct nlattr *ip = mnl_attr_nest_start(message, CTA_TUPLE_IP);
    mnl_attr_put_u32(message, CTA_IP_V4_SRC, flows->guest);
    mnl_attr_nest_end(message, ip);
    mnl_attr_nest_end(message, reply);
    struct nlattr *filter = mnl_attr_nest_start(message, CTA_FILTER);
    mnl_attr_put_u32(message, CTA_FILTER_ORIG_FLAGS, 0);
    mnl_attr_put_u32(message, CTA_FILTER_REPLY_FLAGS, 1); /* the source address */
    mnl_attr_nest_end(message, filter);
    return bt_netlink_query(kernel, kernel->netfilter_fd, &batch, note_flow, flows);
}

/* Whether each of them went is seen by the next round, which finds those that did not. */
static int delete_found(struct bt_kernel *kernel, const struct server_flows *flows)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    for (size_t i = 0; i < flows->count; i++) {
        struct nlmsghdr *message =
            flow_message(&batch, IPCTNL_MSG_CT_DELETE, i + 1 == flows->count ? NLM_F_ACK : 0);
        mnl_attr_put(message, CTA_TUPLE_ORIG | NLA_F_NESTED, flows->found[i].length, flows->found[i].tuple);
    }
    int error = bt_batch_send_nftables(kernel, &batch);
    return error == -ENOENT || error == -EAGAIN || error == -ENOBUFS ? 0 : error;
}

static int delete_towards(struct bt_kernel *kernel, uint32_t guest)
{
    static struct server_flows flows; /* too large for the stack; one kernel instance a process */
    flows.guest = htonl(guest);
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        int error = find_flows(kernel, &flows);
        if (error == -EINTR)
            continue;
        if (error < 0 || flows.count == 0)
            return error;
        error = delete_found(kernel, &flows);
        if (error < 0)
            return error;
    }
    return -ETIMEDOUT;
}

int bt_flows_delete(struct bt_kernel *kernel, const struct bt_lease *lease)
{
    int error = delete_by_mark(kernel, lease->generation);
    /* Within bridges nothing is translated, and flows have the mark of the bridge. */
    if (error < 0 || lease->role == BT_ROLE_AGENT || lease->kind == BT_KIND_BRIDGE)
        return error;
    return delete_towards(kernel, bt_place_of(kernel, lease).guest_address);
}
