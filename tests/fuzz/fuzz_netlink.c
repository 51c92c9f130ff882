/* Any bytes as the kernel's answers and events: what reads them stays within the datagram, ends, and does not
 * touch its outputs when it fails.
 *
 * sendto, recvmsg and recvfrom are this file's; the modules under test call them. The bytes behind a datagram
 * are poisoned, so that reading one too far is found though the helper's buffer is larger.
 *
 * Input: one byte that says what is asked, then datagrams {control, length u16, bytes}.
 * Corpus: one good answer of each kind.
 */
#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "helper/kernel_linux.h"

#define ROUTE_FD 1000
#define NETFILTER_FD 1001
#define ROUTE_EVENTS_FD 1002
#define NETFILTER_EVENTS_FD 1003
#define SENT_MAX 64U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The control byte of a datagram. */
enum {
    CONTROL_KIND = 0x07,
    KIND_LOST = 4,    /* the queue overflowed */
    KIND_FOREIGN = 5, /* from another program */
    KIND_TOO_LONG = 6,
    KIND_INTERRUPTED = 7,
    CONTROL_IS_LAST = 0x08,  /* nothing comes after it until something is sent */
    CONTROL_IS_ANSWER = 0x10 /* its messages get the numbers of the requests */
};

static struct {
    const uint8_t *at;
    size_t left;
    bool is_silent;           /* until something is sent */
    uint32_t asked[SENT_MAX]; /* numbers of the requests of the last batch that want an answer */
    size_t asked_count, answered;
} wire;

static struct bt_kernel kernel;

static void must(bool condition)
{
    if (!condition)
        abort();
}

/* ---- the wire ------------------------------------------------------------------------------------------ */

static void note_requests(const uint8_t *data, size_t length)
{
    struct nlmsghdr message;
    uint32_t last = 0;
    wire.asked_count = wire.answered = 0;
    for (size_t at = 0; at + sizeof(message) <= length; at += NLMSG_ALIGN(message.nlmsg_len)) {
        memcpy(&message, data + at, sizeof(message));
        must(message.nlmsg_len >= sizeof(message) && message.nlmsg_len <= length - at);
        last = message.nlmsg_seq;
        if ((message.nlmsg_flags & NLM_F_ACK) != 0 && wire.asked_count < SENT_MAX)
            wire.asked[wire.asked_count++] = message.nlmsg_seq;
    }
    if (wire.asked_count == 0)
        wire.asked[wire.asked_count++] = last;
}

ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to,
               socklen_t to_length)
{
    (void)flags;
    (void)to;
    (void)to_length;
    must(fd == ROUTE_FD || fd == NETFILTER_FD);
    note_requests(data, length);
    wire.is_silent = false;
    return (ssize_t)length;
}

static void number_answers(uint8_t *data, size_t length)
{
    struct nlmsghdr message;
    for (size_t at = 0; at + sizeof(message) <= length; at += NLMSG_ALIGN(message.nlmsg_len)) {
        memcpy(&message, data + at, sizeof(message));
        message.nlmsg_seq = wire.asked[wire.answered % wire.asked_count];
        memcpy(data + at, &message, sizeof(message));
        wire.answered += message.nlmsg_type == NLMSG_ERROR;
        if (message.nlmsg_len < sizeof(message) || message.nlmsg_len > length - at)
            return;
    }
}

static ssize_t fail(int error)
{
    errno = error;
    return -1;
}

/* The next datagram of the input: its length, cut to room. */
static ssize_t receive(uint8_t *buffer, size_t room, struct sockaddr_nl *from, bool *ret_is_cut)
{
    __asan_unpoison_memory_region(buffer, room);
    if (wire.is_silent || wire.left < 3)
        return fail(EAGAIN);
    uint8_t control = wire.at[0];
    size_t length = (size_t)wire.at[1] | (size_t)wire.at[2] << 8;
    wire.at += 3;
    wire.left -= 3;
    if (length > wire.left)
        length = wire.left;
    const uint8_t *data = wire.at;
    wire.at += length;
    wire.left -= length;
    wire.is_silent = (control & CONTROL_IS_LAST) != 0;
    if ((control & CONTROL_KIND) == KIND_LOST || (control & CONTROL_KIND) == KIND_INTERRUPTED)
        return fail((control & CONTROL_KIND) == KIND_LOST ? ENOBUFS : EINTR);
    if (length > room)
        length = room;
    memcpy(buffer, data, length);
    if ((control & CONTROL_IS_ANSWER) != 0 && wire.asked_count > 0)
        number_answers(buffer, length);
    __asan_poison_memory_region(buffer + length, room - length);
    *from = (struct sockaddr_nl){.nl_family = AF_NETLINK, .nl_pid = (control & CONTROL_KIND) == KIND_FOREIGN};
    *ret_is_cut = (control & CONTROL_KIND) == KIND_TOO_LONG;
    return (ssize_t)length;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    struct sockaddr_nl from = {0};
    bool is_cut = false;
    (void)flags;
    must((fd == ROUTE_FD || fd == NETFILTER_FD) && message->msg_iovlen == 1);
    must(message->msg_namelen == sizeof(from));
    ssize_t length = receive(message->msg_iov[0].iov_base, message->msg_iov[0].iov_len, &from, &is_cut);
    memcpy(message->msg_name, &from, sizeof(from));
    message->msg_flags = is_cut ? MSG_TRUNC : 0;
    return length;
}

ssize_t recvfrom(int fd, void *buffer, size_t room, int flags, struct sockaddr *from, socklen_t *from_length)
{
    struct sockaddr_nl sender = {0};
    bool is_cut = false;
    must((fd == ROUTE_EVENTS_FD || fd == NETFILTER_EVENTS_FD) && *from_length == sizeof(sender));
    ssize_t length = receive(buffer, room, &sender, &is_cut);
    memcpy(from, &sender, sizeof(sender));
    return is_cut && (flags & MSG_TRUNC) != 0 ? (ssize_t)room + 1 : length;
}

/* ---- what is asked ------------------------------------------------------------------------------------- */

static const struct bt_lease leases[] = {
    {.slot = 0, .generation = 7, .uid = 1000, .role = BT_ROLE_AGENT},
    {.slot = 1, .generation = 8, .uid = 1000, .role = BT_ROLE_GATEWAY},
    {.slot = 2, .generation = 9, .uid = 1001, .role = BT_ROLE_ORCHESTRATOR, .environment = 3},
};

static void start(void)
{
    __asan_unpoison_memory_region(&kernel, sizeof(kernel));
    memset(&kernel, 0,
           offsetof(struct bt_kernel, batch_buffer)); /* the buffers need no clearing, and are large */
    kernel.config = (struct bt_kernel_config){
        .pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT, .slots = 8}, .agent_flows = 512, .gateway_flows = 512};
    kernel.route_fd = ROUTE_FD;
    kernel.netfilter_fd = NETFILTER_FD;
    kernel.route_events_fd = ROUTE_EVENTS_FD;
    kernel.netfilter_events_fd = NETFILTER_EVENTS_FD;
    kernel.netfilter_port = 77;
    kernel.high_water = 300;
    kernel.is_provisioned = true;
    for (int i = 0; i < (int)BT_ARRAY_LENGTH(leases); i++)
        kernel.slots[i] = (struct bt_slot){.state = BT_SLOT_LIVE, .ifindex = 10 + i, .lease = leases[i]};
    kernel.slots[2].state = BT_SLOT_RESERVED;
    kernel.slots[3] = (struct bt_slot){.state = BT_SLOT_DEAD, .ifindex = 13, .has_flows = true};
    kernel.slots[4] = (struct bt_slot){.state = BT_SLOT_STUCK, .ifindex = 14, .lease = leases[0]};
    kernel.slots[4].lease.slot = 4;
    kernel.borrowed[0] = 2;
    kernel.borrowed_count = 1;
}

static void look(void *context, const struct bt_element *element)
{
    struct bt_lease lease = {.generation = 1};
    uint32_t high_water = 0;
    uint64_t deadline_ms;
    int ifindex;
    (void)context;
    must(element->key_length <= BT_KEY_MAX && element->data_length <= sizeof(element->data));
    must(element->userdata_length <= BT_USERDATA_SIZE);
    if (bt_record_read(element, &lease, &ifindex, &deadline_ms) == 0)
        must(lease.slot < BT_POOL_SLOTS_MAX && lease.role < BT_ROLE_MAX && lease.generation != 0);
    else
        must(lease.generation == 1);
    must(bt_state_read(element, &high_water) == 0 || high_water == 0);
}

static int get_element(void)
{
    struct bt_element wanted, element;
    bt_element_interface(BT_SET_ACCEPTED, 10, &wanted);
    element = wanted;
    int error = bt_element_get(&kernel, &element);
    must(element.key_length == wanted.key_length && memcmp(element.key, wanted.key, wanted.key_length) == 0);
    return error;
}

static int get_counters(void)
{
    struct bt_lease_counters counters = {.accepted_packets = 4711};
    int error = bt_kernel_counters(&kernel, &leases[0], &counters);
    must(error == 0 || counters.accepted_packets == 4711);
    return error;
}

static int write_state(void)
{
    struct bt_batch batch;
    bt_transaction_start(&kernel, &batch);
    bt_state_write(&kernel, &batch);
    return bt_transaction_commit(&kernel, &batch);
}

static int handle_events(void)
{
    bool is_drift = false;
    int error = bt_kernel_handle_events(&kernel, &is_drift);
    must(error >= 0 || !is_drift);
    return error < 0 ? error : 0; /* 1: a device was taken away */
}

static int ask(uint8_t what)
{
    struct bt_lease_table live = bt_slots_live(&kernel);
    switch (what % 16) {
    case 0:
        return write_state();
    case 1:
        return bt_link_set(&kernel, 0, BT_LINK_UP);
    case 2:
        return bt_set_dump(&kernel, (enum bt_set)(what % BT_SET_MAX), look, NULL);
    case 3:
        return get_element();
    case 4:
        return bt_elements_compare(&kernel, live);
    case 5:
        return bt_link_check(&kernel, &leases[0], 10);
    case 6:
        return bt_link_delete_dead(&kernel);
    case 7:
        return bt_link_disown_strangers(&kernel) < 0 ? -EIO : 0;
    case 8:
        return bt_uplinks_refresh(&kernel);
    case 9:
        return bt_flows_delete(&kernel, &leases[1]);
    case 10:
        return get_counters();
    case 11:
        return bt_kernel_adopt(&kernel, live, &leases[2]);
    case 12:
        return bt_kernel_release(&kernel, live, &leases[1]);
    case 13:
        return bt_kernel_collect(&kernel) < 0 ? -EIO : 0;
    case 15:
        return bt_table_compare(&kernel);
    default:
        return handle_events();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    start();
    memset(&wire, 0, sizeof(wire));
    wire.at = data + 1;
    wire.left = size - 1;
    wire.is_silent = data[0] % 15 != 14; /* events come unasked */
    int error = ask(data[0]);
    must(error <= 0);
    must(kernel.borrowed_count <= BT_UPLINKS_MAX);
    for (size_t i = 0; i < BT_POOL_SLOTS_MAX; i++)
        must(kernel.slots[i].state <= BT_SLOT_STUCK);
    return 0;
}
