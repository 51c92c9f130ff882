/* What the kernel itself takes for one slot, without the engine and without commands: a TAP, its address, up,
 * and one element of an nftables set, by ioctl and netlink messages made by hand. The least that any program
 * could need; started by tests/bench/helper.sh as root of a namespace, where the table and set named below
 * are.
 *
 *   bench_kernel TABLE SET ROUNDS
 *
 * Prints the medians "kernel_make VALUE us" and "kernel_take_back VALUE us" (element out, down; the device's
 * destruction is not in it, as it is not in the answer to RELEASE).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_tun.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/base.h"

#define ROUNDS_MAX 10000U
#define NAME "bykernel0"
#define ADDRESS 0x0a630001U /* 10.99.0.1 */

/* Netlink messages, one after the other; netlink(7). */
struct buffer {
    size_t length;
    _Alignas(struct nlmsghdr) uint8_t bytes[1024];
};

static double make_samples[ROUNDS_MAX], take_back_samples[ROUNDS_MAX];

static _Noreturn void give_up(const char *what, int error)
{
    (void)fprintf(stderr, "bench_kernel: %s: %s\n", what, strerror(error));
    exit(1);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void add(struct buffer *buffer, const void *data, size_t length)
{
    if (buffer->length + NLMSG_ALIGN(length) > sizeof(buffer->bytes))
        give_up("message", EMSGSIZE);
    memset(buffer->bytes + buffer->length, 0, NLMSG_ALIGN(length));
    memcpy(buffer->bytes + buffer->length, data, length);
    buffer->length += NLMSG_ALIGN(length);
}

static size_t begin_message(struct buffer *buffer, uint16_t type, uint16_t flags, const void *body,
                            size_t length)
{
    struct nlmsghdr header = {.nlmsg_type = type, .nlmsg_flags = flags | NLM_F_REQUEST};
    size_t at = buffer->length;
    add(buffer, &header, sizeof(header));
    add(buffer, body, length);
    return at;
}

static void end_message(struct buffer *buffer, size_t at)
{
    uint32_t length = (uint32_t)(buffer->length - at);
    memcpy(buffer->bytes + at, &length, sizeof(length));
}

static size_t begin_attribute(struct buffer *buffer, uint16_t type, const void *data, size_t length)
{
    struct nlattr header = {.nla_type = type};
    size_t at = buffer->length;
    add(buffer, &header, sizeof(header));
    if (length > 0)
        add(buffer, data, length);
    return at;
}

static void end_attribute(struct buffer *buffer, size_t at, size_t padding)
{
    uint16_t length = (uint16_t)(buffer->length - at - padding);
    memcpy(buffer->bytes + at, &length, sizeof(length));
}

static void add_attribute(struct buffer *buffer, uint16_t type, const void *data, size_t length)
{
    size_t at = begin_attribute(buffer, type, data, length);
    end_attribute(buffer, at, NLMSG_ALIGN(length) - length);
}

static int open_netlink(int family)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, family);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        give_up("netlink socket", errno);
    return fd;
}

/* Sends all and waits for the one acknowledgement that was asked for. */
static void transact(int fd, const struct buffer *buffer, const char *what)
{
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        uint8_t rest[1024];
    } reply;
    if (send(fd, buffer->bytes, buffer->length, 0) < 0)
        give_up(what, errno);
    ssize_t got = recv(fd, &reply, sizeof(reply), 0);
    if (got < (ssize_t)(sizeof(reply.header) + sizeof(reply.error.error)) ||
        reply.header.nlmsg_type != NLMSG_ERROR)
        give_up(what, EPROTO);
    if (reply.error.error != 0)
        give_up(what, -reply.error.error);
}

static int make_tap(void)
{
    struct ifreq interface = {.ifr_name = NAME, .ifr_flags = (short)(IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL)};
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &interface) < 0)
        give_up("TAP", errno);
    return fd;
}

static void add_address(int route_fd, uint32_t index)
{
    struct buffer buffer = {.length = 0};
    struct ifaddrmsg body = {.ifa_family = AF_INET, .ifa_prefixlen = 31, .ifa_index = index};
    const uint8_t address[4] = {ADDRESS >> 24 & 255, ADDRESS >> 16 & 255, ADDRESS >> 8 & 255, ADDRESS & 255};
    size_t at =
        begin_message(&buffer, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &body, sizeof(body));
    add_attribute(&buffer, IFA_LOCAL, address, sizeof(address));
    end_message(&buffer, at);
    transact(route_fd, &buffer, "address");
}

static void set_up(int route_fd, uint32_t index, bool is_up)
{
    struct buffer buffer = {.length = 0};
    struct ifinfomsg body = {.ifi_family = AF_UNSPEC,
                             .ifi_index = (int)index,
                             .ifi_flags = is_up ? IFF_UP : 0,
                             .ifi_change = IFF_UP};
    end_message(&buffer, begin_message(&buffer, RTM_NEWLINK, NLM_F_ACK, &body, sizeof(body)));
    transact(route_fd, &buffer, "link");
}

/* One element whose key is the interface's name, in a transaction of its own. */
static void change_element(int nft_fd, const char *table, const char *set, bool is_new)
{
    struct buffer buffer = {.length = 0};
    const struct nfgenmsg batch = {.res_id = (uint16_t)(NFNL_SUBSYS_NFTABLES << 8)};
    const struct nfgenmsg family = {.nfgen_family = 1 /* NFPROTO_INET */};
    const uint8_t key[IFNAMSIZ] = NAME;
    const uint16_t nested = NLA_F_NESTED;
    uint16_t type =
        (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | (is_new ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM));
    end_message(&buffer, begin_message(&buffer, NFNL_MSG_BATCH_BEGIN, 0, &batch, sizeof(batch)));
    size_t at =
        begin_message(&buffer, type, NLM_F_ACK | (is_new ? NLM_F_CREATE : 0), &family, sizeof(family));
    add_attribute(&buffer, NFTA_SET_ELEM_LIST_TABLE, table, strlen(table) + 1);
    add_attribute(&buffer, NFTA_SET_ELEM_LIST_SET, set, strlen(set) + 1);
    size_t list = begin_attribute(&buffer, NFTA_SET_ELEM_LIST_ELEMENTS | nested, NULL, 0);
    size_t element = begin_attribute(&buffer, NFTA_LIST_ELEM | nested, NULL, 0);
    size_t value = begin_attribute(&buffer, NFTA_SET_ELEM_KEY | nested, NULL, 0);
    add_attribute(&buffer, NFTA_DATA_VALUE, key, sizeof(key));
    end_attribute(&buffer, value, 0);
    end_attribute(&buffer, element, 0);
    end_attribute(&buffer, list, 0);
    end_message(&buffer, at);
    end_message(&buffer, begin_message(&buffer, NFNL_MSG_BATCH_END, 0, &batch, sizeof(batch)));
    transact(nft_fd, &buffer, "element");
}

static int compare(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return difference < 0 ? -1 : difference > 0;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    uint64_t rounds;
    if (argc != 4 || bt_number_parse(argv[3], strlen(argv[3]), 1, ROUNDS_MAX, &rounds) < 0)
        return 64;
    int route_fd = open_netlink(NETLINK_ROUTE), nft_fd = open_netlink(NETLINK_NETFILTER);
    for (size_t i = 0; i < rounds; i++) {
        double began = now_us();
        int tap_fd = make_tap();
        uint32_t index = if_nametoindex(NAME);
        add_address(route_fd, index);
        set_up(route_fd, index, true);
        change_element(nft_fd, argv[1], argv[2], true);
        double made = now_us();
        change_element(nft_fd, argv[1], argv[2], false);
        set_up(route_fd, index, false);
        double taken_back = now_us();
        make_samples[i] = made - began;
        take_back_samples[i] = taken_back - made;
        bt_fd_close(&tap_fd);
    }
    printf("kernel_make %.1f us\nkernel_take_back %.1f us\n", median(make_samples, rounds),
           median(take_back_samples, rounds));
    bt_fd_close(&route_fd);
    bt_fd_close(&nft_fd);
    return 0;
}
