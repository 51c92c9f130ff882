/* One check: sends one thing and notes what comes back. Called by the loop in main.c. It must not judge: what
 * an outcome means depends on the counters of the host.
 */
#include "vm/probe/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

const char *bt_probe_outcome_name(enum bt_probe_outcome outcome)
{
    static const char *const names[BT_PROBE_OUTCOME_MAX] = {
        [BT_PROBE_OUTCOME_NONE] = "none",
        [BT_PROBE_OUTCOME_CONNECTED] = "connected",
        [BT_PROBE_OUTCOME_DATA] = "data",
        [BT_PROBE_OUTCOME_RESET] = "reset",
        [BT_PROBE_OUTCOME_PROHIBITED] = "prohibited",
        [BT_PROBE_OUTCOME_UNREACHABLE] = "unreachable",
        [BT_PROBE_OUTCOME_SILENT] = "silent",
        [BT_PROBE_OUTCOME_UNSENDABLE] = "unsendable",
        [BT_PROBE_OUTCOME_SENT] = "sent",
        [BT_PROBE_OUTCOME_REFUSED] = "refused",
        [BT_PROBE_OUTCOME_ANSWERED] = "answered",
    };
    return names[outcome];
}

/* The first packet, and for TCP each time that the kernel sent the SYN again. */
static unsigned packets_sent(const struct bt_probe_check *check)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    if (check->entry->kind != BT_PROBE_TCP ||
        getsockopt(check->fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return 1;
    return 1 + info.tcpi_total_retrans;
}

static void finish(struct bt_probe_check *check, enum bt_probe_outcome outcome, int64_t now_ms)
{
    check->packets = outcome == BT_PROBE_OUTCOME_UNSENDABLE ? 0 : packets_sent(check);
    check->outcome = outcome;
    check->took_ms = now_ms - check->started_ms;
    bt_fd_close(&check->fd);
}

static void note_offender(struct bt_probe_check *check, const void *address)
{
    struct sockaddr_in v4;
    memcpy(&v4, address, sizeof(v4));
    if (v4.sin_family == AF_INET)
        (void)inet_ntop(AF_INET, &v4.sin_addr, check->from, sizeof(check->from));
}

/* Reads the ICMP error that the kernel kept for this socket. Returns false when there is none. */
static bool take_icmp(struct bt_probe_check *check, int64_t now_ms)
{
    union {
        struct cmsghdr align;
        char bytes[256];
    } control;
    char data[64];
    struct iovec vector = {.iov_base = data, .iov_len = sizeof(data)};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    if (recvmsg(check->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
        return false;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        bool is_ipv6 = part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR;
        if (!is_ipv6 && !(part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR))
            continue;
        struct sock_extended_err what;
        memcpy(&what, CMSG_DATA(part), sizeof(what));
        bool is_icmp = what.ee_origin == SO_EE_ORIGIN_ICMP || what.ee_origin == SO_EE_ORIGIN_ICMP6;
        if (!is_icmp)
            continue;
        unsigned type = what.ee_type, code = what.ee_code;
        bool is_prohibited =
            is_ipv6 ? type == ICMP6_DST_UNREACH && code == ICMP6_DST_UNREACH_ADMIN
                    : type == ICMP_DEST_UNREACH &&
                          (code == ICMP_NET_ANO || code == ICMP_HOST_ANO || code == ICMP_PKT_FILTERED);
        bool is_port = is_ipv6 ? type == ICMP6_DST_UNREACH && code == ICMP6_DST_UNREACH_NOPORT
                               : type == ICMP_DEST_UNREACH && code == ICMP_PORT_UNREACH;
        (void)snprintf(check->detail, sizeof(check->detail), "ICMP type %u code %u", type, code);
        note_offender(check, CMSG_DATA(part) + sizeof(what)); /* SO_EE_OFFENDER of ip(7) */
        finish(check,
               is_prohibited ? BT_PROBE_OUTCOME_PROHIBITED
               : is_port     ? BT_PROBE_OUTCOME_RESET
                             : BT_PROBE_OUTCOME_UNREACHABLE,
               now_ms);
        return true;
    }
    return false;
}

/* An error of a socket call for which no ICMP error is kept. */
static void finish_error(struct bt_probe_check *check, int code, int64_t now_ms)
{
    (void)snprintf(check->detail, sizeof(check->detail), "%s", strerror(code));
    if (code == ECONNREFUSED || code == ECONNRESET)
        finish(check, BT_PROBE_OUTCOME_RESET, now_ms);
    else if (code == EHOSTUNREACH || code == ENETUNREACH || code == ETIMEDOUT)
        finish(check, BT_PROBE_OUTCOME_UNREACHABLE, now_ms);
    else
        finish(check, BT_PROBE_OUTCOME_UNSENDABLE, now_ms);
}

/* An error of the call that should have sent the first packet: none has left the guest. */
static void finish_unsendable(struct bt_probe_check *check, int code, int64_t now_ms)
{
    (void)snprintf(check->detail, sizeof(check->detail), "%s", strerror(code));
    finish(check, BT_PROBE_OUTCOME_UNSENDABLE, now_ms);
}

static void send_spoofed(struct bt_probe_check *check, int64_t now_ms)
{
    const struct bt_probe_entry *entry = check->entry;
    uint8_t packet[BT_PROBE_PACKET_MAX];
    int length = bt_probe_udp_packet(entry->source, ntohl(entry->to.v4.sin_addr.s_addr),
                                     ntohs(entry->to.v4.sin_port), entry->text, packet);
    check->fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
    if (length < 0 || check->fd < 0 ||
        sendto(check->fd, packet, (size_t)length, 0, &entry->to.any, sizeof(entry->to.v4)) < 0)
        finish_unsendable(check, errno, now_ms);
    else
        finish(check, BT_PROBE_OUTCOME_SENT, now_ms);
}

/* Sends what a check on a datagram socket sends. */
static int send_datagram(struct bt_probe_check *check)
{
    uint8_t packet[BT_PROBE_PACKET_MAX];
    const char *text = check->entry->text;
    if (check->entry->kind != BT_PROBE_DNS)
        return send(check->fd, text, strlen(text), 0) < 0 ? -errno : 0;
    if (getrandom(&check->dns_id, sizeof(check->dns_id), 0) != sizeof(check->dns_id))
        return -EIO;
    int length = bt_probe_dns_question(text, check->dns_id, packet);
    if (length < 0)
        return length;
    return send(check->fd, packet, (size_t)length, 0) < 0 ? -errno : 0;
}

void bt_probe_check_start(struct bt_probe_check *check, const struct bt_probe_entry *entry, int64_t now_ms)
{
    const int on = 1;
    *check = (struct bt_probe_check){.entry = entry, .fd = -1, .started_ms = now_ms};
    if (entry->kind == BT_PROBE_SPOOF) {
        send_spoofed(check, now_ms);
        return;
    }
    int family = entry->to.any.sa_family;
    int type = entry->kind == BT_PROBE_TCP ? SOCK_STREAM : SOCK_DGRAM;
    socklen_t length = family == AF_INET6 ? sizeof(entry->to.v6) : sizeof(entry->to.v4);
    check->fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (check->fd < 0) {
        finish_unsendable(check, errno, now_ms);
        return;
    }
    if (family == AF_INET6)
        (void)setsockopt(check->fd, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof(on));
    else
        (void)setsockopt(check->fd, IPPROTO_IP, IP_RECVERR, &on, sizeof(on));
    if (connect(check->fd, &entry->to.any, length) < 0 && errno != EINPROGRESS) {
        if (errno == ECONNREFUSED) /* within one machine the answer is there at once */
            finish_error(check, errno, now_ms);
        else
            finish_unsendable(check, errno, now_ms);
        return;
    }
    int result = entry->kind == BT_PROBE_TCP ? 0 : send_datagram(check);
    if (result < 0 && !take_icmp(check, now_ms))
        finish_unsendable(check, -result, now_ms);
}

short bt_probe_check_events(const struct bt_probe_check *check)
{
    return check->entry->kind == BT_PROBE_TCP ? POLLOUT : POLLIN;
}

static void ready_tcp(struct bt_probe_check *check, int64_t now_ms)
{
    int code = 0;
    socklen_t length = sizeof(code);
    if (take_icmp(check, now_ms))
        return;
    if (getsockopt(check->fd, SOL_SOCKET, SO_ERROR, &code, &length) < 0)
        code = errno;
    if (code != 0) {
        finish_error(check, code, now_ms);
        return;
    }
    if (*check->entry->text)
        (void)!send(check->fd, check->entry->text, strlen(check->entry->text), MSG_NOSIGNAL);
    finish(check, BT_PROBE_OUTCOME_CONNECTED, now_ms);
}

static void ready_datagram(struct bt_probe_check *check, int64_t now_ms)
{
    uint8_t packet[BT_PROBE_PACKET_MAX];
    unsigned code, answers;
    if (take_icmp(check, now_ms))
        return;
    ssize_t count = recv(check->fd, packet, sizeof(packet), 0);
    if (count < 0) {
        if (errno != EAGAIN && errno != EINTR)
            finish_error(check, errno, now_ms);
        return;
    }
    if (check->entry->kind != BT_PROBE_DNS) {
        (void)snprintf(check->detail, sizeof(check->detail), "%zd bytes came back", count);
        finish(check, BT_PROBE_OUTCOME_DATA, now_ms);
    } else if (bt_probe_dns_answer(packet, (size_t)count, check->dns_id, &code, &answers) == 0) {
        (void)snprintf(check->detail, sizeof(check->detail), "DNS code %u, %u answers", code, answers);
        finish(check, answers > 0 ? BT_PROBE_OUTCOME_ANSWERED : BT_PROBE_OUTCOME_REFUSED, now_ms);
    }
}

void bt_probe_check_ready(struct bt_probe_check *check, int64_t now_ms)
{
    if (check->entry->kind == BT_PROBE_TCP)
        ready_tcp(check, now_ms);
    else
        ready_datagram(check, now_ms);
}

void bt_probe_check_expire(struct bt_probe_check *check, int64_t now_ms)
{
    finish(check, BT_PROBE_OUTCOME_SILENT, now_ms);
}
