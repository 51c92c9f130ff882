/* Out by the network: sockets of every kind, to every place, and what might change the network itself. */
#include "tests/attack/hostile/hostile.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define AT_ONCE 256U
#define WAIT_MS 250
#define ANSWER_MS 3000
#define WAIT_OF_MANY_MS 30 /* for each AT_ONCE of a long list */
#define NO_WORD "-"

/* How many of many came to what. */
struct tally {
    unsigned connected, silent, count;
    unsigned errors[256]; /* by errno */
    unsigned first;       /* port that was connected to */
};

static void count_error(struct tally *tally, int code)
{
    tally->count++;
    tally->errors[code >= 0 && code < 256 ? code : 0]++;
}

static void tell(const struct tally *tally)
{
    (void)printf("%s", tally->connected > 0 ? "connected" : tally->silent > 0 ? "silent" : "refused");
    if (tally->connected > 0)
        (void)printf(" first:%u of:%u", tally->first, tally->connected);
    if (tally->silent > 0)
        (void)printf(" unanswered:%u", tally->silent);
    for (int code = 0; code < 256; code++)
        if (tally->errors[code] > 0)
            (void)printf(" %s:%u", strerrorname_np(code), tally->errors[code]);
}

/* "1.2.3.4" or "fe80::1%eth0". Returns the length, 0 when it is none. */
static socklen_t address_of(const char *text, unsigned port, struct sockaddr_storage *ret)
{
    struct sockaddr_in *four = (struct sockaddr_in *)ret;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret;
    char copy[64];
    memset(ret, 0, sizeof(*ret));
    (void)snprintf(copy, sizeof(copy), "%s", text);
    char *scope = strchr(copy, '%');
    if (scope != NULL)
        *scope++ = '\0';
    if (inet_pton(AF_INET, copy, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return sizeof(*four);
    }
    if (inet_pton(AF_INET6, copy, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        six->sin6_scope_id = scope == NULL ? 0 : if_nametoindex(scope);
        return sizeof(*six);
    }
    return 0;
}

/* Bound to an interface, a socket needs no route: what it is told to reach is asked for by ARP. */
static int open_socket(const char *address, int type, const char *device)
{
    struct sockaddr_storage to;
    if (address_of(address, 1, &to) == 0) {
        errno = EINVAL;
        return -1;
    }
    int fd = socket(to.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on));
    if (strcmp(device, NO_WORD) != 0 &&
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device) + 1) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static bool next_port(const char **list, unsigned *port, unsigned *last)
{
    char *end;
    if (*port != 0 && *port < *last) {
        (*port)++;
        return true;
    }
    if (**list == '\0')
        return false;
    *port = *last = (unsigned)strtoul(*list, &end, 10);
    if (*end == '-')
        *last = (unsigned)strtoul(end + 1, &end, 10);
    *list = *end == ',' ? end + 1 : end;
    return *port != 0;
}

struct pending {
    int fd;
    unsigned port;
};

/* Waits for connections that are under way. */
static void settle(struct pending *pending, unsigned *count, int left, struct tally *tally)
{
    for (unsigned i = 0; i < *count; i++) {
        struct pollfd writable = {pending[i].fd, POLLOUT, 0};
        int code = 0;
        socklen_t length = sizeof(code);
        int is_ready = poll(&writable, 1, left);
        (void)getsockopt(pending[i].fd, SOL_SOCKET, SO_ERROR, &code, &length);
        if (is_ready <= 0) {
            left = 0;
            tally->silent++;
        } else if (code != 0) {
            count_error(tally, code);
        } else {
            tally->first = tally->connected++ == 0 ? pending[i].port : tally->first;
        }
        (void)close(pending[i].fd);
    }
    *count = 0;
}

/* tcp ADDRESS PORTS [DEVICE] */
static void try_tcp(char **words)
{
    struct pending pending[AT_ONCE];
    struct tally tally = {0};
    struct sockaddr_storage to;
    const char *ports = words[1];
    unsigned port = 0, last = 0, count = 0;
    while (next_port(&ports, &port, &last)) {
        int fd = open_socket(words[0], SOCK_STREAM, word_or(words, 2, NO_WORD));
        socklen_t length = address_of(words[0], port, &to);
        if (fd >= 0 && (connect(fd, (struct sockaddr *)&to, length) == 0 || errno == EINPROGRESS)) {
            pending[count++] = (struct pending){fd, port};
        } else {
            count_error(&tally, errno);
            if (fd >= 0)
                (void)close(fd);
        }
        if (count == AT_ONCE)
            settle(pending, &count, WAIT_OF_MANY_MS, &tally);
    }
    settle(pending, &count, WAIT_MS, &tally);
    tell(&tally);
}

/* udp ADDRESS PORTS TEXT [DEVICE]: an answer of anybody, or an error that one is told later, is looked for.
 */
static void try_udp(char **words)
{
    struct tally tally = {0};
    struct sockaddr_storage to;
    const char *ports = words[1];
    unsigned port = 0, last = 0, sent = 0;
    char answer[512];
    int fd = open_socket(words[0], SOCK_DGRAM, word_or(words, 3, NO_WORD));
    if (fd < 0) {
        refused();
        return;
    }
    while (next_port(&ports, &port, &last)) {
        socklen_t length = address_of(words[0], port, &to);
        if (sendto(fd, words[2], strlen(words[2]), 0, (struct sockaddr *)&to, length) < 0)
            count_error(&tally, errno);
        else
            sent++;
    }
    struct pollfd readable = {fd, POLLIN, 0};
    ssize_t got = sent > 0 && poll(&readable, 1, WAIT_MS) > 0 ? recv(fd, answer, sizeof(answer), 0) : -1;
    tally.connected = got >= 0 ? 1 : 0;
    tally.silent = got >= 0 ? 0 : sent;
    tell(&tally);
}

/* from SOURCE ADDRESS PORT TEXT: as if it had another address. */
static void try_from(char **words)
{
    struct sockaddr_storage source, to;
    int on = 1;
    int fd = open_socket(words[1], SOCK_DGRAM, NO_WORD);
    socklen_t source_length = address_of(words[0], 0, &source);
    socklen_t length = address_of(words[1], (unsigned)number_of(words[2]), &to);
    (void)setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&source, source_length) < 0)
        refused();
    else
        outcome(sendto(fd, words[3], strlen(words[3]), 0, (struct sockaddr *)&to, length), "sent");
}

/* routed VIA ADDRESS PORT TEXT: the sender names the way (loose source routing). */
static void try_routed(char **words)
{
    struct sockaddr_storage via, to;
    unsigned char option[8] = {131, 7, 4};
    int fd = open_socket(words[0], SOCK_DGRAM, NO_WORD);
    socklen_t length = address_of(words[0], (unsigned)number_of(words[2]), &via);
    (void)address_of(words[1], 0, &to);
    memcpy(option + 3, &((struct sockaddr_in *)&to)->sin_addr, 4);
    if (setsockopt(fd, IPPROTO_IP, IP_OPTIONS, option, sizeof(option)) < 0)
        refused();
    else
        outcome(sendto(fd, words[3], strlen(words[3]), 0, (struct sockaddr *)&via, length), "sent");
}

static size_t put_question(unsigned char *message, const char *name, unsigned type)
{
    static const unsigned char header[12] = {0x12, 0x34, 1, 0, 0, 1};
    size_t used = sizeof(header);
    memcpy(message, header, sizeof(header));
    for (const char *label = name; *label != '\0';) {
        size_t length = strcspn(label, ".");
        message[used++] = (unsigned char)length;
        memcpy(message + used, label, length);
        used += length;
        label += label[length] == '.' ? length + 1 : length;
    }
    const unsigned char end[5] = {0, (unsigned char)(type >> 8), (unsigned char)type, 0, 1};
    memcpy(message + used, end, sizeof(end));
    return used + sizeof(end);
}

/* Reads what comes until that many bytes are there, for as long as anything comes. */
static size_t hear(int fd, unsigned char *data, size_t size, size_t wanted)
{
    struct pollfd readable = {fd, POLLIN, 0};
    size_t length = 0;
    while (length < wanted && poll(&readable, 1, ANSWER_MS) > 0) {
        ssize_t got = recv(fd, data + length, size - length, 0);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    return length;
}

/* dns SERVER NAME TYPE udp|tcp */
static void try_dns(char **words)
{
    unsigned char message[600], answer[2048];
    struct sockaddr_storage to;
    bool is_tcp = strcmp(words[3], "tcp") == 0;
    size_t length = put_question(message + 2, words[1], (unsigned)number_of(words[2]));
    size_t skipped = is_tcp ? 2 : 0;
    message[0] = (unsigned char)(length >> 8);
    message[1] = (unsigned char)length;
    int fd = open_socket(words[0], is_tcp ? SOCK_STREAM : SOCK_DGRAM, NO_WORD);
    struct pollfd writable = {fd, POLLOUT, 0};
    socklen_t size = address_of(words[0], 53, &to);
    if (connect(fd, (struct sockaddr *)&to, size) < 0 && errno != EINPROGRESS) {
        refused();
        return;
    }
    (void)poll(&writable, 1, ANSWER_MS);
    if (send(fd, message + 2 - skipped, length + skipped, 0) < 0)
        refused();
    else if (hear(fd, answer, sizeof(answer), 12 + skipped) >= 12 + skipped)
        (void)printf("answered rcode:%d answers:%d", answer[skipped + 3] & 15, answer[skipped + 7]);
    else
        (void)printf("silent");
}

/* socket FAMILY TYPE PROTOCOL */
static void try_socket(char **words)
{
    outcome(socket((int)number_of(words[0]), (int)number_of(words[1]), (int)number_of(words[2])), "opened");
}

/* pair FAMILY TYPE */
static void try_pair(char **words)
{
    int ends[2];
    outcome(socketpair((int)number_of(words[0]), (int)number_of(words[1]), 0, ends), "opened");
}

/* option LEVEL NAME NUMBER, on a socket of UDP */
static void try_option(char **words)
{
    int value = (int)number_of(words[2]);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    outcome(setsockopt(fd, (int)number_of(words[0]), (int)number_of(words[1]), &value, sizeof(value)), "set");
}

/* unix PATH: "@" in front means the abstract name. */
static void try_unix(char **words)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(words[0]);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    memcpy(to.sun_path, words[0], length < sizeof(to.sun_path) ? length : sizeof(to.sun_path) - 1);
    if (to.sun_path[0] == '@')
        to.sun_path[0] = '\0';
    outcome(connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
            "connected");
}

/* One request to the kernel's routing tables, and its answer. */
static void ask_netlink(struct nlmsghdr *message)
{
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        char rest[2048];
    } answer;
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct timeval limit = {3, 0};
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    message->nlmsg_flags = (uint16_t)(message->nlmsg_flags | NLM_F_REQUEST | NLM_F_ACK);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (sendto(fd, message, message->nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof(kernel)) < 0 ||
        recv(fd, &answer, sizeof(answer), 0) < 0) {
        refused();
        return;
    }
    errno = answer.header.nlmsg_type == NLMSG_ERROR ? -answer.error.error : 0;
    outcome(errno == 0 ? 0 : -1, "changed");
}

struct request {
    struct nlmsghdr header;
    union {
        struct ifaddrmsg address;
        struct rtmsg route;
        struct ifinfomsg link;
        struct ndmsg neighbour;
        char room[256];
    };
};

static void put_attribute(struct request *request, unsigned short type, const void *data, size_t length)
{
    struct rtattr *attribute = (struct rtattr *)((char *)request + NLMSG_ALIGN(request->header.nlmsg_len));
    attribute->rta_type = type;
    attribute->rta_len = (unsigned short)RTA_LENGTH(length);
    memcpy(RTA_DATA(attribute), data, length);
    request->header.nlmsg_len = NLMSG_ALIGN(request->header.nlmsg_len) + RTA_ALIGN(attribute->rta_len);
}

static void begin(struct request *request, unsigned short type, size_t length)
{
    memset(request, 0, sizeof(*request));
    request->header.nlmsg_type = type;
    request->header.nlmsg_len = (unsigned)NLMSG_LENGTH(length);
    request->header.nlmsg_flags = NLM_F_CREATE;
}

/* address DEVICE ADDRESS: takes it. */
static void try_address(char **words)
{
    struct request request;
    struct in_addr address;
    begin(&request, RTM_NEWADDR, sizeof(request.address));
    request.address.ifa_family = AF_INET;
    request.address.ifa_prefixlen = 32;
    request.address.ifa_index = if_nametoindex(words[0]);
    (void)inet_pton(AF_INET, words[1], &address);
    put_attribute(&request, IFA_LOCAL, &address, 4);
    ask_netlink(&request.header);
}

/* route DEVICE VIA: the way to everywhere. */
static void try_route(char **words)
{
    struct request request;
    struct in_addr via;
    unsigned index = if_nametoindex(words[0]);
    begin(&request, RTM_NEWROUTE, sizeof(request.route));
    request.route.rtm_family = AF_INET;
    request.route.rtm_table = RT_TABLE_MAIN;
    request.route.rtm_protocol = RTPROT_BOOT;
    request.route.rtm_type = RTN_UNICAST;
    (void)inet_pton(AF_INET, words[1], &via);
    put_attribute(&request, RTA_GATEWAY, &via, 4);
    put_attribute(&request, RTA_OIF, &index, sizeof(index));
    ask_netlink(&request.header);
}

/* neighbour DEVICE ADDRESS: says whose it is. */
static void try_neighbour(char **words)
{
    static const unsigned char mac[6] = {2, 0, 0, 0, 0, 1};
    struct request request;
    struct in_addr address;
    begin(&request, RTM_NEWNEIGH, sizeof(request.neighbour));
    request.neighbour.ndm_family = AF_INET;
    request.neighbour.ndm_ifindex = (int)if_nametoindex(words[0]);
    request.neighbour.ndm_state = NUD_PERMANENT;
    (void)inet_pton(AF_INET, words[1], &address);
    put_attribute(&request, NDA_DST, &address, 4);
    put_attribute(&request, NDA_LLADDR, mac, sizeof(mac));
    ask_netlink(&request.header);
}

/* link DEVICE mac|down|namespace: changes its interface, or gives it to process 1. */
static void try_link(char **words)
{
    static const unsigned char mac[6] = {2, 0, 0, 0, 0, 1};
    struct request request;
    int process = 1;
    begin(&request, RTM_NEWLINK, sizeof(request.link));
    request.header.nlmsg_flags = 0;
    request.link.ifi_index = (int)if_nametoindex(words[0]);
    if (strcmp(words[1], "mac") == 0)
        put_attribute(&request, IFLA_ADDRESS, mac, sizeof(mac));
    else if (strcmp(words[1], "down") == 0)
        request.link.ifi_change = IFF_UP;
    else
        put_attribute(&request, IFLA_NET_NS_PID, &process, sizeof(process));
    ask_netlink(&request.header);
}

/* device KIND: a new interface. */
static void try_device(char **words)
{
    struct request request;
    char kind[64];
    struct rtattr *inner = (struct rtattr *)kind;
    size_t length = strlen(words[0]);
    begin(&request, RTM_NEWLINK, sizeof(request.link));
    inner->rta_type = IFLA_INFO_KIND;
    inner->rta_len = (unsigned short)RTA_LENGTH(length);
    memcpy(RTA_DATA(inner), words[0], length);
    put_attribute(&request, IFLA_LINKINFO, kind, inner->rta_len);
    ask_netlink(&request.header);
}

const struct attempt network_attempts[] = {
    {"tcp", try_tcp},   {"udp", try_udp},         {"from", try_from},   {"routed", try_routed},
    {"dns", try_dns},   {"socket", try_socket},   {"pair", try_pair},   {"option", try_option},
    {"unix", try_unix}, {"address", try_address}, {"route", try_route}, {"neighbour", try_neighbour},
    {"link", try_link}, {"device", try_device},   {NULL, NULL},
};
