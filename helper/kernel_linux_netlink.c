/* Netlink sockets and batches: sending a group of messages at once and telling what became of it.
 *
 * Called by the other kernel_linux*.c. The kernel handles a netlink request within sendmsg(2), so every
 * answer is in the socket's queue when it returns: nothing here waits for anybody. Must not allocate.
 */
#include "helper/kernel_linux.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int bt_netlink_open(int protocol, uint32_t groups, int *ret_fd, uint32_t *ret_port)
{
    bt_auto_fd fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
    if (fd < 0)
        return -errno;
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = groups};
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    socklen_t length = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return -errno;

    /* Best effort: a transaction is one message, and must fit; a burst of events should. In a user namespace
     * the FORCE forms are refused and the system's maximum holds, which BT_BATCH_SIZE fits. */
    int wanted = 4 * 1024 * 1024;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof(wanted)) < 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted));
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof(wanted)) < 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof(wanted));
    int on = 1;
    /* Errors then come without a copy of the whole request, which would be as long as the transaction. */
    (void)setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on));
    (void)setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof(on));

    if (ret_port)
        *ret_port = address.nl_pid;
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

uint64_t bt_boottime_ms(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000U + (uint64_t)now.tv_nsec / 1000000U;
}

bool bt_message_is_whole(const struct nlmsghdr *message, int left)
{
    return left >= (int)sizeof(*message) && message->nlmsg_len <= (uint32_t)left &&
           mnl_nlmsg_ok(message, left);
}

struct bt_attributes bt_attributes_in(const struct nlattr *nest)
{
    return (struct bt_attributes){.at = mnl_attr_get_payload(nest), .left = mnl_attr_get_payload_len(nest)};
}

struct bt_attributes bt_attributes_of(const struct nlmsghdr *message, size_t header_length)
{
    size_t offset = (header_length + 3U) & ~(size_t)3U;
    size_t length = message->nlmsg_len > NLMSG_HDRLEN ? message->nlmsg_len - (size_t)NLMSG_HDRLEN : 0;
    const uint8_t *payload = mnl_nlmsg_get_payload(message);
    if (length < offset)
        return (struct bt_attributes){.at = payload, .left = 0};
    return (struct bt_attributes){.at = payload + offset, .left = length - offset};
}

bool bt_attribute_next(struct bt_attributes *walk, const struct nlattr **ret_attribute)
{
    if (walk->left < sizeof(struct nlattr))
        return false;
    const struct nlattr *attribute = (const struct nlattr *)(const void *)walk->at;
    if (attribute->nla_len < sizeof(struct nlattr) || attribute->nla_len > walk->left)
        return false;
    size_t step = ((size_t)attribute->nla_len + 3U) & ~(size_t)3U;
    if (step > walk->left)
        step = walk->left;
    walk->at += step;
    walk->left -= step;
    *ret_attribute = attribute;
    return true;
}

const struct nlattr *bt_attribute_find(struct bt_attributes walk, uint16_t type)
{
    const struct nlattr *attribute;
    while (bt_attribute_next(&walk, &attribute)) {
        if (mnl_attr_get_type(attribute) == type)
            return attribute;
    }
    return NULL;
}

uint32_t bt_attribute_u32(const struct nlattr *attribute, uint32_t fallback)
{
    uint32_t value = fallback;
    if (attribute && mnl_attr_get_payload_len(attribute) == sizeof(value))
        memcpy(&value, mnl_attr_get_payload(attribute), sizeof(value));
    return value;
}

void bt_batch_start(struct bt_kernel *kernel, struct bt_batch *batch)
{
    *batch = (struct bt_batch){
        .buffer = kernel->batch_buffer,
        .size = sizeof(kernel->batch_buffer),
        .first_sequence = kernel->sequence + 1,
        .sequence = kernel->sequence,
    };
}

size_t bt_batch_used(const struct bt_batch *batch)
{
    if (!batch->last)
        return 0;
    return (size_t)((uint8_t *)batch->last - batch->buffer) + NLMSG_ALIGN((size_t)batch->last->nlmsg_len);
}

/* The most that one message needs; a list of elements is closed well before. */
#define MESSAGE_ROOM 40960U

struct nlmsghdr *bt_message(struct bt_batch *batch, uint16_t type, uint16_t flags, const void *family,
                            size_t family_length)
{
    size_t used = bt_batch_used(batch);
    if (used + MESSAGE_ROOM > batch->size) {
        batch->is_full = true; /* it will not be sent, so what is in it may be overwritten */
        used = 0;
    }
    struct nlmsghdr *message = mnl_nlmsg_put_header(batch->buffer + used);
    message->nlmsg_type = type;
    message->nlmsg_flags = NLM_F_REQUEST | flags;
    message->nlmsg_seq = ++batch->sequence;
    memcpy(mnl_nlmsg_put_extra_header(message, family_length), family, family_length);
    batch->last = message;
    batch->has_open_list = false;
    return message;
}

static int send_all(int fd, const void *data, size_t length)
{
    struct sockaddr_nl to = {.nl_family = AF_NETLINK};
    ssize_t sent;
    do {
        sent = sendto(fd, data, length, 0, (const struct sockaddr *)&to, sizeof(to));
    } while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return -errno;
    return (size_t)sent == length ? 0 : -EMSGSIZE;
}

/* Reads one datagram of the kernel. 0 bytes: nothing there. Answers of anybody else are dropped. */
static int receive(struct bt_kernel *kernel, int fd, size_t *ret_length)
{
    for (;;) {
        struct sockaddr_nl from = {0};
        struct iovec part = {.iov_base = kernel->receive_buffer, .iov_len = sizeof(kernel->receive_buffer)};
        struct msghdr message = {
            .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &part, .msg_iovlen = 1};
        ssize_t length = recvmsg(fd, &message, MSG_DONTWAIT);
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            *ret_length = 0;
            return 0;
        }
        if (length < 0)
            return -errno;
        if (from.nl_pid != 0)
            continue;
        if (message.msg_flags & MSG_TRUNC)
            return -EMSGSIZE;
        *ret_length = (size_t)length;
        return 0;
    }
}

static void drain(struct bt_kernel *kernel, int fd)
{
    size_t length = 1;
    int budget = 4096;
    while (budget-- > 0 && length > 0) {
        int error = receive(kernel, fd, &length);
        if (error < 0 && error != -ENOBUFS && error != -EMSGSIZE)
            return;
    }
}

/* What the acknowledgements said so far. */
struct outcome {
    uint32_t first, last;
    uint32_t acknowledged; /* how many zero acknowledgements came */
    int error;             /* the first refusal */
};

static void outcome_add(struct outcome *outcome, const uint8_t *buffer, size_t length)
{
    int left = (int)length;
    const struct nlmsghdr *message = (const struct nlmsghdr *)(const void *)buffer;
    for (; bt_message_is_whole(message, left); message = mnl_nlmsg_next(message, &left)) {
        if (message->nlmsg_type != NLMSG_ERROR || message->nlmsg_len < NLMSG_LENGTH(sizeof(struct nlmsgerr)))
            continue;
        /* Sequences wrap; what counts is the distance from the first. */
        if (message->nlmsg_seq - outcome->first > outcome->last - outcome->first)
            continue;
        const struct nlmsgerr *answer = mnl_nlmsg_get_payload(message);
        if (answer->error < 0 && outcome->error == 0)
            outcome->error = answer->error;
        outcome->acknowledged += answer->error == 0;
    }
}

static int collect_outcome(struct bt_kernel *kernel, int fd, struct outcome *outcome)
{
    bool is_lossy = false;
    for (;;) {
        size_t length = 0;
        int error = receive(kernel, fd, &length);
        if (error == -ENOBUFS || error == -EMSGSIZE) {
            is_lossy = true;
            continue;
        }
        if (error < 0) { /* what was sent may have happened all the same */
            is_lossy = true;
            break;
        }
        if (length == 0)
            break;
        outcome_add(outcome, kernel->receive_buffer, length);
    }
    if (outcome->error < 0)
        return outcome->error;
    return is_lossy ? -EAGAIN : 0;
}

/* A refused commit answers the batch's first message, so errors are taken from the whole range. */
static int send_batch(struct bt_kernel *kernel, int fd, const struct bt_batch *batch, struct outcome *outcome)
{
    *outcome = (struct outcome){.first = batch->first_sequence, .last = batch->sequence};
    kernel->sequence = batch->sequence;
    if (batch->is_full)
        return -EMSGSIZE;
    drain(kernel, fd);
    int error = send_all(fd, batch->buffer, bt_batch_used(batch));
    return error < 0 ? error : collect_outcome(kernel, fd, outcome);
}

int bt_batch_send_nftables(struct bt_kernel *kernel, struct bt_batch *batch)
{
    struct outcome outcome;
    int error = send_batch(kernel, kernel->netfilter_fd, batch, &outcome);
    /* The only acknowledgement asked for is that of the last message within the transaction. */
    return error == 0 && outcome.acknowledged == 0 ? -EAGAIN : error;
}

int bt_batch_send_route(struct bt_kernel *kernel, struct bt_batch *batch)
{
    struct outcome outcome;
    if (!batch->last)
        return 0;
    int error = send_batch(kernel, kernel->route_fd, batch, &outcome);
    return error == 0 && outcome.acknowledged <= outcome.last - outcome.first ? -EAGAIN : error;
}

/* Gives the messages of one datagram to visit. 1: the answer is complete; 0: more to come. */
static int visit_datagram(const uint8_t *buffer, size_t length, uint32_t sequence, bt_netlink_visit visit,
                          void *context)
{
    int left = (int)length;
    const struct nlmsghdr *message = (const struct nlmsghdr *)(const void *)buffer;
    for (; bt_message_is_whole(message, left); message = mnl_nlmsg_next(message, &left)) {
        if (message->nlmsg_seq != sequence)
            continue;
        if (message->nlmsg_flags & NLM_F_DUMP_INTR)
            return -EINTR;
        if (message->nlmsg_type == NLMSG_DONE)
            return 1;
        if (message->nlmsg_type == NLMSG_ERROR) {
            if (message->nlmsg_len < NLMSG_LENGTH(sizeof(struct nlmsgerr)))
                return -EBADMSG;
            const struct nlmsgerr *answer = mnl_nlmsg_get_payload(message);
            return answer->error < 0 ? answer->error : 1;
        }
        int error = visit(message, context);
        if (error < 0)
            return error;
        if (!(message->nlmsg_flags & NLM_F_MULTI))
            return 1;
    }
    return 0;
}

int bt_netlink_query(struct bt_kernel *kernel, int fd, const struct bt_batch *batch, bt_netlink_visit visit,
                     void *context)
{
    uint32_t sequence = batch->sequence;
    int state = 0;
    kernel->sequence = sequence;
    drain(kernel, fd);
    int error = send_all(fd, batch->last, batch->last->nlmsg_len);
    while (error == 0 && state == 0) {
        size_t length = 0;
        error = receive(kernel, fd, &length);
        if (error == 0 && length == 0)
            error = -EAGAIN;
        if (error == 0)
            state = visit_datagram(kernel->receive_buffer, length, sequence, visit, context);
    }
    return state < 0 ? state : error;
}
