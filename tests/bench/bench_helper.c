/* Measures the helper through ipc/client, as a keeper uses it. Started by tests/bench/helper.sh, in
 * namespaces.
 *
 *   bench_helper pairs ROUNDS          LEASE and RELEASE, to the reply
 *   bench_helper again ROUNDS          how long after RELEASE no slot is dead any more
 *   bench_helper fill COUNT            leases COUNT slots, then gives all back by closing
 *   bench_helper hold COUNT            the same, but keeps them until standard input ends
 *   bench_helper watch                 LEASE and RELEASE until standard input ends; tells the 99th percentile
 *   bench_helper hostile COUNT SECONDS at least COUNT connections, and so long, that say nothing, rubbish, or
 * too much bench_helper packets ADDRESS N...  sends from a gateway to ADDRESS, and from an agent to its
 * gateway, with N slots
 *
 * Each prints lines "NAME VALUE UNIT". Times are wall-clock; the packets' are the CPU time of the sending
 * thread, in which the kernel does all the work of a packet, so that other programs of the machine hardly
 * disturb them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "ipc/client/helper_client.h"
#include "ipc/wire/frame.h"

#define ROUNDS_MAX 100000U
#define BURSTS 31U
#define PACKETS_A_BURST 4000U
#define PAYLOAD 64U

static double samples[ROUNDS_MAX];

struct holder {
    struct bt_helper helper;
    struct bt_helper_lease lease;
    int tap_fd;
};

static struct holder holders[BT_POOL_SLOTS_MAX];
static unsigned held;

static _Noreturn void give_up(const char *what, int error)
{
    (void)fprintf(stderr, "bench_helper: %s: %s\n", what, strerror(error < 0 ? -error : error));
    exit(1);
}

static double now_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static unsigned number(const char *text, unsigned maximum)
{
    uint64_t value;
    if (bt_number_parse(text, strlen(text), 1, maximum, &value) < 0) {
        (void)fprintf(stderr, "bench_helper: not a number from 1 to %u: %s\n", maximum, text);
        exit(64);
    }
    return (unsigned)value;
}

static int compare(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return difference < 0 ? -1 : difference > 0;
}

static void print_percentiles(const char *name, double *values, size_t count)
{
    if (count == 0)
        give_up(name, ENODATA);
    qsort(values, count, sizeof(*values), compare);
    printf("%s_median %.1f us\n%s_p99 %.1f us\n%s_max %.1f us\n%s_count %zu rounds\n", name,
           values[count / 2], name, values[count * 99 / 100], name, values[count - 1], name, count);
}

static void take(struct holder *holder, enum bt_role role)
{
    int error = bt_helper_connect(BT_HELPER_SOCKET_DEFAULT, &holder->helper);
    if (error == 0)
        error =
            bt_helper_lease(&holder->helper, BT_KIND_TAP_FD, role, 0, -1, &holder->lease, &holder->tap_fd);
    if (error < 0)
        give_up("lease", error);
}

/* The first is a gateway, the others are its agents. */
static void hold_until(unsigned count)
{
    for (; held < count; held++)
        take(&holders[held], held == 0 ? BT_ROLE_GATEWAY : BT_ROLE_AGENT);
}

/* Connections first: whoever closes the last descriptor of a TAP waits for its destruction. */
static void give_back_all(void)
{
    for (unsigned i = 0; i < held; i++)
        bt_helper_close(&holders[i].helper);
}

static void close_all(void)
{
    for (unsigned i = 0; i < held; i++)
        bt_fd_close(&holders[i].tap_fd);
    held = 0;
}

static void connect_once(struct bt_helper *helper)
{
    int error = bt_helper_connect(BT_HELPER_SOCKET_DEFAULT, helper);
    if (error < 0)
        give_up("connect", error);
}

static double lease_once(struct bt_helper *helper, int *ret_tap_fd)
{
    struct bt_helper_lease lease;
    double began = now_us(CLOCK_MONOTONIC);
    int error = bt_helper_lease(helper, BT_KIND_TAP_FD, BT_ROLE_AGENT, 0, -1, &lease, ret_tap_fd);
    double ended = now_us(CLOCK_MONOTONIC);
    if (error < 0)
        give_up("lease", error);
    return ended - began;
}

static double release_once(struct bt_helper *helper)
{
    double began = now_us(CLOCK_MONOTONIC);
    int error = bt_helper_release(helper);
    if (error < 0)
        give_up("release", error);
    return now_us(CLOCK_MONOTONIC) - began;
}

/* The owner's descriptor is closed after the answer, as a VMM's ends: destroying the device is paid there, or
 * by the helper for a group of them. */
static void run_pairs(unsigned rounds)
{
    static double releases[ROUNDS_MAX], both[ROUNDS_MAX], closes[ROUNDS_MAX];
    struct bt_helper helper;
    connect_once(&helper);
    for (unsigned i = 0; i < rounds; i++) {
        int tap_fd = -1;
        samples[i] = lease_once(&helper, &tap_fd);
        releases[i] = release_once(&helper);
        both[i] = samples[i] + releases[i];
        double began = now_us(CLOCK_MONOTONIC);
        bt_fd_close(&tap_fd);
        closes[i] = now_us(CLOCK_MONOTONIC) - began;
    }
    bt_helper_close(&helper);
    print_percentiles("close", closes, rounds);
    print_percentiles("lease", samples, rounds);
    print_percentiles("release", releases, rounds);
    print_percentiles("pair", both, rounds);
}

static unsigned count_dead(struct bt_helper *helper)
{
    struct bt_helper_status status;
    int error = bt_helper_status(helper, &status);
    if (error < 0)
        give_up("status", error);
    return status.dead;
}

static double wait_for_dead(struct bt_helper *helper)
{
    double began = now_us(CLOCK_MONOTONIC);
    while (count_dead(helper) > 0)
        usleep(200);
    return now_us(CLOCK_MONOTONIC) - began;
}

static void run_again(unsigned rounds)
{
    struct bt_helper helper;
    connect_once(&helper);
    (void)wait_for_dead(&helper);
    for (unsigned i = 0; i < rounds; i++) {
        int tap_fd = -1;
        (void)lease_once(&helper, &tap_fd);
        (void)release_once(&helper);
        samples[i] = wait_for_dead(&helper);
        bt_fd_close(&tap_fd);
    }
    bt_helper_close(&helper);
    print_percentiles("leasable_again", samples, rounds);
}

static void run_fill(unsigned count)
{
    struct bt_helper helper;
    double began = now_us(CLOCK_MONOTONIC);
    hold_until(count);
    double leased = now_us(CLOCK_MONOTONIC);
    give_back_all();
    connect_once(&helper);
    struct bt_helper_status status;
    int error;
    do {
        error = bt_helper_status(&helper, &status);
    } while (error == 0 && status.live > 0);
    double given_back = now_us(CLOCK_MONOTONIC);
    if (error < 0)
        give_up("status", error);
    (void)wait_for_dead(&helper);
    double leasable = now_us(CLOCK_MONOTONIC);
    bt_helper_close(&helper);
    close_all();
    printf("fill_%u_lease %.1f ms\nfill_%u_give_back %.1f ms\nfill_%u_leasable_again %.1f ms\n", count,
           (leased - began) / 1e3, count, (given_back - leased) / 1e3, count, (leasable - leased) / 1e3);
}

static bool has_input_ended(int timeout_ms)
{
    char byte;
    struct pollfd item = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&item, 1, timeout_ms) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

static void run_hold(unsigned count)
{
    hold_until(count);
    printf("holding %u slots\n", count);
    (void)fflush(stdout);
    while (!has_input_ended(-1))
        continue;
    give_back_all();
    close_all();
}

static void run_watch(void)
{
    struct bt_helper helper;
    size_t count = 0;
    connect_once(&helper);
    while (count < ROUNDS_MAX && !has_input_ended(2)) {
        int tap_fd = -1;
        samples[count++] = lease_once(&helper, &tap_fd);
        (void)release_once(&helper);
        bt_fd_close(&tap_fd);
    }
    bt_helper_close(&helper);
    print_percentiles("lease", samples, count);
}

/* Every fourth of them: silence, rubbish of the right length, of a wrong one, and descriptors. */
static void annoy(int fd, unsigned which)
{
    static uint8_t rubbish[BT_FRAME_SIZE * 2];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(16 * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = rubbish, .iov_len = BT_FRAME_SIZE};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (which % 4 == 0)
        return;
    if (which % 4 == 2)
        part.iov_len = 1 + which % sizeof(rubbish);
    if (which % 4 == 3) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        control.header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(16 * sizeof(int))};
    }
    memset(rubbish, (int)(which & 0xff), sizeof(rubbish));
    if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* refused before a word was said */
}

static void run_hostile(unsigned count, unsigned seconds)
{
    enum { KEPT = 64 };
    int kept[KEPT];
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = BT_HELPER_SOCKET_DEFAULT};
    unsigned refused = 0, made = 0;
    double began = now_us(CLOCK_MONOTONIC);
    for (unsigned i = 0; i < KEPT; i++)
        kept[i] = -1;
    for (; made < count || now_us(CLOCK_MONOTONIC) - began < seconds * 1e6; made++) {
        int *fd = &kept[made % KEPT];
        bt_fd_close(fd);
        *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (*fd < 0 || connect(*fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
            refused++;
        else
            annoy(*fd, made);
    }
    for (unsigned i = 0; i < KEPT; i++)
        bt_fd_close(&kept[i]);
    printf("hostile_connections %u count\nhostile_refused %u count\nhostile_time %.0f ms\n", made, refused,
           (now_us(CLOCK_MONOTONIC) - began) / 1e3);
}

/* ---- packets ------------------------------------------------------------------------------------------- */

struct packet {
    size_t length;
    uint8_t bytes[256];
};

static uint16_t checksum(const uint8_t *header)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < 20; i += 2)
        sum += (uint32_t)header[i] << 8 | header[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t) ~((sum & 0xffff) + (sum >> 16));
}

static void store_be(uint8_t *at, uint32_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

/* One UDP datagram as the guest of the lease sends it, with the TAP's own header in front. */
static void make_packet(const struct holder *from, uint32_t to, uint16_t port, struct packet *ret_packet)
{
    int header_size = 0;
    struct ifreq interface = {0};
    *ret_packet = (struct packet){.length = 0};
    if (ioctl(from->tap_fd, TUNGETIFF, &interface) < 0)
        give_up("TUNGETIFF", errno);
    if ((interface.ifr_flags & IFF_VNET_HDR) != 0 && ioctl(from->tap_fd, TUNGETVNETHDRSZ, &header_size) < 0)
        give_up("TUNGETVNETHDRSZ", errno);
    uint8_t *frame = ret_packet->bytes + header_size;
    uint8_t *ip = frame + 14, *udp = ip + 20;
    memcpy(frame, from->lease.host_mac, 6);
    memcpy(frame + 6, from->lease.guest_mac, 6);
    store_be(frame + 12, 0x0800, 2);
    ip[0] = 0x45;
    store_be(ip + 2, 20 + 8 + PAYLOAD, 2);
    ip[8] = 64;
    ip[9] = IPPROTO_UDP;
    store_be(ip + 12, from->lease.guest_address, 4);
    store_be(ip + 16, to, 4);
    store_be(ip + 10, checksum(ip), 2);
    store_be(udp, 40000, 2);
    store_be(udp + 2, port, 2);
    store_be(udp + 4, 8 + PAYLOAD, 2);
    ret_packet->length = (size_t)header_size + 14 + 20 + 8 + PAYLOAD;
}

static double send_burst(const struct holder *from, const struct packet *packet)
{
    double began = now_us(CLOCK_THREAD_CPUTIME_ID);
    for (unsigned i = 0; i < PACKETS_A_BURST; i++)
        if (write(from->tap_fd, packet->bytes, packet->length) < 0)
            give_up("sending a frame", errno);
    return (now_us(CLOCK_THREAD_CPUTIME_ID) - began) * 1e3 / PACKETS_A_BURST;
}

static uint64_t count_accepted(struct holder *from)
{
    struct bt_helper_counters counters;
    int error = bt_helper_counters(&from->helper, &counters);
    if (error < 0)
        give_up("counters", error);
    return counters.accepted_packets;
}

/* The lower quartile: what disturbs a burst only ever makes it slower. All of them have to have passed. */
static void measure(const char *name, unsigned slots, struct holder *from, uint32_t to, uint16_t port)
{
    struct packet packet;
    make_packet(from, to, port, &packet);
    (void)send_burst(from, &packet);
    uint64_t before = count_accepted(from);
    for (unsigned i = 0; i < BURSTS; i++)
        samples[i] = send_burst(from, &packet);
    uint64_t accepted = count_accepted(from) - before;
    if (accepted != (uint64_t)BURSTS * PACKETS_A_BURST)
        give_up("packets were dropped", EIO);
    qsort(samples, BURSTS, sizeof(*samples), compare);
    printf("%s_%u %.1f ns\n", name, slots, samples[BURSTS / 4]);
    (void)fflush(stdout);
}

static void run_packets(const char *address, char **counts, int count)
{
    uint32_t world;
    if (bt_ipv4_parse(address, &world) < 0)
        give_up(address, EINVAL);
    for (int i = 0; i < count; i++) {
        unsigned slots = number(counts[i], BT_POOL_SLOTS_MAX);
        hold_until(slots);
        measure("gateway_to_world", slots, &holders[0], world, 9);
        if (slots >= 2)
            measure("agent_to_gateway", slots, &holders[1], holders[1].lease.host_address,
                    BT_GATEWAY_PORT_DNS);
    }
    give_back_all();
    close_all();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (argc == 3 && strcmp(what, "pairs") == 0)
        run_pairs(number(argv[2], ROUNDS_MAX));
    else if (argc == 3 && strcmp(what, "again") == 0)
        run_again(number(argv[2], ROUNDS_MAX));
    else if (argc == 3 && strcmp(what, "fill") == 0)
        run_fill(number(argv[2], BT_POOL_SLOTS_MAX));
    else if (argc == 3 && strcmp(what, "hold") == 0)
        run_hold(number(argv[2], BT_POOL_SLOTS_MAX));
    else if (argc == 2 && strcmp(what, "watch") == 0)
        run_watch();
    else if (argc == 4 && strcmp(what, "hostile") == 0)
        run_hostile(number(argv[2], ROUNDS_MAX), number(argv[3], 60));
    else if (argc > 3 && strcmp(what, "packets") == 0)
        run_packets(argv[2], argv + 3, argc - 3);
    else
        return 64;
    return 0;
}
