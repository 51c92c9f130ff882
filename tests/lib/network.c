/* A test's own network. See network.h. */
#include "tests/lib/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ipc/base/base.h"

static void give_up(const char *what)
{
    (void)fprintf(stderr, "# %s: %s\n", what, strerror(errno));
    exit(1);
}

static void write_map(const char *path, const char *text)
{
    bt_auto_fd map_fd = open(path, O_WRONLY | O_CLOEXEC);
    if (map_fd < 0 || write(map_fd, text, strlen(text)) != (ssize_t)strlen(text))
        give_up(path);
}

void network_enter(void)
{
    char map[64];
    unsigned uid = geteuid();
    unsigned gid = getegid();
    if (unshare(uid == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) < 0)
        give_up("cannot make a network namespace");
    if (uid == 0)
        return;
    write_map("/proc/self/setgroups", "deny");
    (void)snprintf(map, sizeof(map), "0 %u 1\n", uid);
    write_map("/proc/self/uid_map", map);
    (void)snprintf(map, sizeof(map), "0 %u 1\n", gid);
    write_map("/proc/self/gid_map", map);
}

void network_address(struct sockaddr *ret_address, uint32_t address, uint16_t port)
{
    struct sockaddr_in internet = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(address), .sin_port = htons(port)};
    memcpy(ret_address, &internet, sizeof(internet));
}

static void request(int socket_fd, unsigned long operation, void *argument, const char *what)
{
    if (ioctl(socket_fd, operation, argument) < 0)
        give_up(what);
}

int network_make_tap(uint32_t host, uint32_t guest, const uint8_t guest_mac[6], int *ret_tap_fd)
{
    struct ifreq interface = {.ifr_name = "berth0", .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    struct arpreq neighbour = {.arp_flags = ATF_COM | ATF_PERM, .arp_dev = "berth0"};
    bt_auto_fd socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bt_auto_fd tap_fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (tap_fd < 0 || ioctl(tap_fd, TUNSETIFF, &interface) < 0)
        return -errno;
    network_address(&interface.ifr_addr, host, 0);
    request(socket_fd, SIOCSIFADDR, &interface, "address of the TAP");
    network_address(&interface.ifr_netmask, 0xfffffffe, 0);
    request(socket_fd, SIOCSIFNETMASK, &interface, "prefix of the TAP");
    interface.ifr_flags = IFF_UP;
    request(socket_fd, SIOCSIFFLAGS, &interface, "state of the TAP");
    network_address(&neighbour.arp_pa, guest, 0);
    neighbour.arp_ha.sa_family = ARPHRD_ETHER;
    memcpy(neighbour.arp_ha.sa_data, guest_mac, 6);
    request(socket_fd, SIOCSARP, &neighbour, "neighbour of the TAP");
    *ret_tap_fd = bt_fd_take(&tap_fd);
    return 0;
}
