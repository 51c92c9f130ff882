/* A client of the helper for test scripts: leases or adopts a slot, holds it, and obeys lines on standard
 * input.
 *
 *   helper_tool [--socket PATH] [--user UID] [--group GID]... [--guest NETNS] COMMAND...
 *
 * --user and --group: become that uid (gid UID too unless the first --group says otherwise; the others
 * supplementary) before connecting. --guest: make a TAP (eth0) in that network namespace, up to root before
 * --user, and relay frames between it and the leased TAP: a guest with a real network stack and no VM.
 *
 * Commands, also one a line on standard input:
 *   lease ROLE ENV [SLOT]   named ROLE ENV [SLOT] (a TAP to be opened by its name)
 *   bridge ROLE ENV [SLOT] (for containers)   adopt SLOT GENERATION
 * status   counters   seal   release   reconcile connect   close         keep: from now on connect and adopt
 * again by itself when the engine is gone quit Each prints one line: "WORD key=value..." or "error WORD
 * ENAME". "gone" when the engine has closed the connection. The program ends at "quit" or at the end of
 * standard input; with no lease at the end of its arguments it still waits.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "ipc/client/helper_client.h"
#include "tests/lib/tools/orders.h"

#define GUEST_INTERFACE "eth0"
#define FRAME_MAX 70000
#define GROUPS_MAX 16
#define WORDS_MAX 8
#define KEEP_DEADLINE_MS 30000U
#define KEEP_PAUSE_MS 10

struct tool {
    const char *socket_path;
    struct bt_helper helper;
    struct bt_helper_lease lease;
    bool has_lease, keeps;
    uint64_t gone_ms; /* not 0: the engine is gone, and the slot is to be kept */
    int tap_fd, guest_fd;
    bool is_guest_attached;
};

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

static unsigned number(const char *text)
{
    uint64_t value;
    if (!text || bt_number_parse(text, strlen(text), 0, UINT32_MAX, &value) < 0) {
        fprintf(stderr, "helper_tool: not a number: %s\n", text ? text : "(nothing)");
        exit(64);
    }
    return (unsigned)value;
}

static void print_mac(const char *name, const uint8_t mac[6])
{
    printf(" %s=%02x:%02x:%02x:%02x:%02x:%02x", name, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

static void print_lease(const char *word, const struct bt_helper_lease *lease)
{
    static const char *const roles[] = {"agent", "gateway", "orchestrator"};
    char host[BT_IPV4_TEXT_SIZE], guest[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(lease->host_address, host);
    bt_ipv4_format(lease->guest_address, guest);
    printf("%s slot=%u generation=%u interface=%s host=%s guest=%s prefix=%u", word, lease->slot,
           lease->generation, lease->interface_name, host, guest, lease->prefix_length);
    print_mac("host_mac", lease->host_mac);
    print_mac("guest_mac", lease->guest_mac);
    printf(" role=%s environment=%u sealed=%d\n", roles[lease->role], lease->environment, lease->is_sealed);
}

static void outcome(const char *word, int error)
{
    if (error < 0)
        printf("error %s %s\n", word, strerrorname_np(-error));
    else
        printf("%s ok\n", word);
}

/* The relay passes frames as they are, so both TAPs must agree on the header in front of them. */
static void attach_guest(struct tool *tool)
{
    struct ifreq leased = {0}, guest = {0};
    int header_size = 0;
    if (tool->guest_fd < 0 || tool->is_guest_attached)
        return;
    if (ioctl(tool->tap_fd, TUNGETIFF, &leased) < 0)
        die("TUNGETIFF");
    memcpy(guest.ifr_name, GUEST_INTERFACE, sizeof(GUEST_INTERFACE));
    guest.ifr_flags = (short)(IFF_TAP | IFF_NO_PI | (leased.ifr_flags & IFF_VNET_HDR));
    if (ioctl(tool->guest_fd, TUNSETIFF, &guest) < 0)
        die("attaching the guest's TAP");
    if ((leased.ifr_flags & IFF_VNET_HDR) != 0 && (ioctl(tool->tap_fd, TUNGETVNETHDRSZ, &header_size) < 0 ||
                                                   ioctl(tool->guest_fd, TUNSETVNETHDRSZ, &header_size) < 0))
        die("TUNSETVNETHDRSZ");
    tool->is_guest_attached = true;
}

static void do_lease(struct tool *tool, enum bt_kind kind, char **words, int count)
{
    enum bt_role role = BT_ROLE_AGENT;
    if (count > 1 && strcmp(words[1], "gateway") == 0)
        role = BT_ROLE_GATEWAY;
    else if (count > 1 && strcmp(words[1], "orchestrator") == 0)
        role = BT_ROLE_ORCHESTRATOR;
    unsigned environment = count > 2 ? number(words[2]) : 0;
    int hint = count > 3 ? (int)number(words[3]) : -1;
    int tap_fd = -1;
    int error = bt_helper_lease(&tool->helper, kind, role, environment, hint, &tool->lease, &tap_fd);
    if (error < 0) {
        outcome("lease", error);
        return;
    }
    bt_fd_close(&tool->tap_fd);
    tool->tap_fd = tap_fd;
    tool->has_lease = true;
    if (tap_fd >= 0)
        attach_guest(tool);
    print_lease("lease", &tool->lease);
}

static int adopt(struct tool *tool, uint16_t slot, uint32_t generation)
{
    int error = bt_helper_adopt(&tool->helper, slot, generation, &tool->lease);
    if (error == 0)
        tool->has_lease = true;
    return error;
}

static void do_adopt(struct tool *tool, char **words, int count)
{
    int error =
        adopt(tool, (uint16_t)number(count > 1 ? words[1] : NULL), number(count > 2 ? words[2] : NULL));
    if (error < 0)
        outcome("adopt", error);
    else
        print_lease("adopt", &tool->lease);
}

static void do_status(struct tool *tool)
{
    struct bt_helper_status status;
    int error = bt_helper_status(&tool->helper, &status);
    if (error < 0) {
        outcome("status", error);
        return;
    }
    printf("status live=%u reserved=%u dead=%u free=%u healthy=%d slots=%u quota=%u own=", status.live,
           status.reserved, status.dead, status.free, status.is_healthy, tool->helper.pool.slots,
           tool->helper.quota);
    const char *separator = "";
    for (unsigned slot = 0; slot < BT_POOL_SLOTS_MAX; slot++) {
        if ((status.own[slot / 8] & (1U << (slot % 8))) != 0) {
            printf("%s%u", separator, slot);
            separator = ",";
        }
    }
    printf("\n");
}

static void do_counters(struct tool *tool)
{
    struct bt_helper_counters counters;
    int error = bt_helper_counters(&tool->helper, &counters);
    if (error < 0)
        outcome("counters", error);
    else
        printf("counters accepted_packets=%lu accepted_bytes=%lu dropped_packets=%lu dropped_bytes=%lu\n",
               (unsigned long)counters.accepted_packets, (unsigned long)counters.accepted_bytes,
               (unsigned long)counters.dropped_packets, (unsigned long)counters.dropped_bytes);
}

static void do_connect(struct tool *tool)
{
    bt_helper_close(&tool->helper);
    int error = bt_helper_connect(tool->socket_path, &tool->helper);
    if (error < 0) {
        tool->helper.fd = -1;
        outcome("connect", error);
    } else {
        printf("connect ok slots=%u quota=%u epoch=%lu\n", tool->helper.pool.slots, tool->helper.quota,
               (unsigned long)tool->helper.epoch);
    }
}

static void do_release(struct tool *tool)
{
    int error = bt_helper_release(&tool->helper);
    if (error == 0)
        tool->has_lease = false;
    outcome("release", error);
}

static void do_close(struct tool *tool)
{
    bt_helper_close(&tool->helper);
    tool->has_lease = false;
    outcome("close", 0);
}

/* Also when the engine is gone already. */
static void do_keep(struct tool *tool)
{
    tool->keeps = true;
    if (tool->helper.fd < 0 && tool->has_lease && tool->gone_ms == 0)
        tool->gone_ms = now_ms();
    outcome("keep", 0);
}

/* False: the program is to end. */
static bool obey(struct tool *tool, char **words, int count)
{
    const char *word = words[0];
    if (strcmp(word, "quit") == 0)
        return false;
    if (strcmp(word, "lease") == 0)
        do_lease(tool, BT_KIND_TAP_FD, words, count);
    else if (strcmp(word, "named") == 0)
        do_lease(tool, BT_KIND_TAP_NAMED, words, count);
    else if (strcmp(word, "bridge") == 0)
        do_lease(tool, BT_KIND_BRIDGE, words, count);
    else if (strcmp(word, "adopt") == 0)
        do_adopt(tool, words, count);
    else if (strcmp(word, "status") == 0)
        do_status(tool);
    else if (strcmp(word, "counters") == 0)
        do_counters(tool);
    else if (strcmp(word, "seal") == 0)
        outcome("seal", bt_helper_seal(&tool->helper));
    else if (strcmp(word, "release") == 0)
        do_release(tool);
    else if (strcmp(word, "reconcile") == 0)
        outcome("reconcile", bt_helper_reconcile(&tool->helper));
    else if (strcmp(word, "connect") == 0)
        do_connect(tool);
    else if (strcmp(word, "close") == 0)
        do_close(tool);
    else if (strcmp(word, "keep") == 0)
        do_keep(tool);
    else
        printf("error %s EINVAL\n", word);
    fflush(stdout);
    return true;
}

static bool obey_line(void *context, char *line)
{
    struct tool *tool = context;
    char *words[WORDS_MAX];
    char *rest = NULL;
    int count = 0;
    for (char *word = strtok_r(line, " \t\n", &rest); word && count < WORDS_MAX;
         word = strtok_r(NULL, " \t\n", &rest))
        words[count++] = word;
    return count == 0 || obey(tool, words, count);
}

static void handle_engine_gone(struct tool *tool)
{
    bt_helper_close(&tool->helper);
    printf("gone\n");
    fflush(stdout);
    tool->gone_ms = tool->keeps && tool->has_lease ? now_ms() : 0;
}

/* One attempt: the relay goes on between attempts, as a VM does. */
static void try_to_keep(struct tool *tool)
{
    int error = bt_helper_connect(tool->socket_path, &tool->helper);
    if (error < 0 && now_ms() - tool->gone_ms < KEEP_DEADLINE_MS)
        return;
    uint64_t connected_ms = now_ms();
    if (error == 0)
        error = adopt(tool, tool->lease.slot, tool->lease.generation);
    if (error < 0 && error != -ENOENT && now_ms() - tool->gone_ms < KEEP_DEADLINE_MS) {
        bt_helper_close(&tool->helper); /* the engine died again, or is not well yet */
        return;
    }
    if (error < 0)
        outcome("keep", error);
    else
        printf("kept slot=%u generation=%u after_ms=%lu adoption_ms=%lu\n", tool->lease.slot,
               tool->lease.generation, (unsigned long)(now_ms() - tool->gone_ms),
               (unsigned long)(now_ms() - connected_ms));
    fflush(stdout);
    tool->has_lease = error == 0;
    tool->gone_ms = 0;
}

static void relay(int from_fd, int to_fd)
{
    static char frame[FRAME_MAX];
    ssize_t length = read(from_fd, frame, sizeof(frame));
    if (length > 0 && write(to_fd, frame, (size_t)length) < 0)
        return; /* a link that is down: the frame is lost, as on a cable */
}

static void run(struct tool *tool)
{
    for (;;) {
        bool relays = tool->tap_fd >= 0 && tool->guest_fd >= 0;
        struct pollfd items[] = {
            {.fd = STDIN_FILENO, .events = POLLIN},
            {.fd = tool->helper.fd, .events = POLLIN},
            {.fd = relays ? tool->tap_fd : -1, .events = POLLIN},
            {.fd = relays ? tool->guest_fd : -1, .events = POLLIN},
        };
        if (poll(items, BT_ARRAY_LENGTH(items), tool->gone_ms != 0 ? KEEP_PAUSE_MS : -1) < 0)
            die("poll");
        if (tool->gone_ms != 0)
            try_to_keep(tool);
        if ((items[2].revents & POLLIN) != 0)
            relay(tool->tap_fd, tool->guest_fd);
        if ((items[3].revents & POLLIN) != 0)
            relay(tool->guest_fd, tool->tap_fd);
        if (((items[2].revents | items[3].revents) & (POLLERR | POLLHUP)) != 0)
            bt_fd_close(&tool->tap_fd); /* the device was deleted under us */
        if (items[1].revents != 0)
            handle_engine_gone(tool);
        if (items[0].revents != 0 && !orders_read(obey_line, tool))
            return;
    }
}

/* The device is made now, so that a script can configure it; it is attached when the header of the leased TAP
 * is known, which its owner may do without capabilities. */
static void open_guest(struct tool *tool, const char *namespace_path, unsigned owner_uid)
{
    bt_auto_fd own_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    bt_auto_fd namespace_fd = open(namespace_path, O_RDONLY | O_CLOEXEC);
    struct ifreq request = {.ifr_name = GUEST_INTERFACE, .ifr_flags = IFF_TAP | IFF_NO_PI};
    if (own_fd < 0 || namespace_fd < 0 || setns(namespace_fd, CLONE_NEWNET) < 0)
        die(namespace_path);
    bt_auto_fd maker_fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (maker_fd < 0 || ioctl(maker_fd, TUNSETIFF, &request) < 0 ||
        ioctl(maker_fd, TUNSETOWNER, owner_uid) < 0 || ioctl(maker_fd, TUNSETPERSIST, 1) < 0)
        die("making the guest's TAP");
    tool->guest_fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (tool->guest_fd < 0 || setns(own_fd, CLONE_NEWNET) < 0)
        die("the guest's TAP");
}

static void become(uid_t uid, const gid_t *groups, size_t count)
{
    gid_t gid = count > 0 ? groups[0] : (gid_t)uid;
    if (setgroups(count, groups) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
        die("becoming another user");
}

int main(int argc, char **argv)
{
    struct tool tool = {
        .socket_path = BT_HELPER_SOCKET_DEFAULT, .helper = {.fd = -1}, .tap_fd = -1, .guest_fd = -1};
    gid_t groups[GROUPS_MAX];
    size_t group_count = 0;
    const char *guest_path = NULL;
    long uid = -1;
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--socket") == 0)
            tool.socket_path = argv[at + 1];
        else if (strcmp(argv[at], "--user") == 0)
            uid = (long)number(argv[at + 1]);
        else if (strcmp(argv[at], "--group") == 0 && group_count < GROUPS_MAX)
            groups[group_count++] = number(argv[at + 1]);
        else if (strcmp(argv[at], "--guest") == 0)
            guest_path = argv[at + 1];
        else
            return 64;
    }
    if (guest_path)
        open_guest(&tool, guest_path, uid >= 0 ? (unsigned)uid : getuid());
    if (uid >= 0)
        become((uid_t)uid, groups, group_count);
    do_connect(&tool);
    fflush(stdout);
    if (tool.helper.fd < 0)
        return 2;
    if (at < argc && !obey(&tool, argv + at, argc - at))
        return 0;
    run(&tool);
    return 0;
}
