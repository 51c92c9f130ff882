/* Loopback and the one interface of a virtual machine, called once by the boot. The addresses are the host's
 * choice and the host's firewall holds the guest to them; what is set here only makes honest programs work.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vm/init/init.h"

#define INTERFACE "eth0"
#define INTERFACE_WAIT_MS 2000U

static void set_address(struct sockaddr *ret_address, uint32_t address)
{
    struct sockaddr_in internet = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    memcpy(ret_address, &internet, sizeof(internet));
}

static void request(int socket_fd, unsigned long operation, struct ifreq *interface, const char *what)
{
    if (ioctl(socket_fd, operation, interface) < 0)
        bt_init_fatal("cannot set the %s of %s: %s", what, interface->ifr_name, strerror(errno));
}

static void set_up(int socket_fd, const char *name)
{
    struct ifreq interface = {0};
    (void)snprintf(interface.ifr_name, sizeof(interface.ifr_name), "%s", name);
    request(socket_fd, SIOCGIFFLAGS, &interface, "state");
    interface.ifr_flags = (short)(interface.ifr_flags | IFF_UP);
    request(socket_fd, SIOCSIFFLAGS, &interface, "state");
}

static void wait_for_interface(void)
{
    uint64_t deadline_ms = bt_init_now_ms() + INTERFACE_WAIT_MS;
    while (if_nametoindex(INTERFACE) == 0) {
        if (bt_init_now_ms() > deadline_ms)
            bt_init_fatal("this machine has no network interface " INTERFACE);
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

static void add_default_route(int socket_fd, uint32_t gateway)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    set_address(&route.rt_dst, 0);
    set_address(&route.rt_genmask, 0);
    set_address(&route.rt_gateway, gateway);
    if (ioctl(socket_fd, SIOCADDRT, &route) < 0)
        bt_init_fatal("cannot set the default route: %s", strerror(errno));
}

void bt_init_start_network(const struct bt_settings *settings)
{
    bt_auto_fd socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0)
        bt_init_fatal("no network in this kernel: %s", strerror(errno));
    set_up(socket_fd, "lo");
    if (settings->address == 0)
        return;
    wait_for_interface();
    /* Before the interface is up, so that it never has an IPv6 address. A kernel without IPv6 has no such
     * file. */
    (void)bt_init_set_kernel("/proc/sys/net/ipv6/conf/" INTERFACE "/disable_ipv6", "1");
    (void)bt_init_set_kernel("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    struct ifreq interface = {.ifr_name = INTERFACE};
    set_address(&interface.ifr_addr, settings->address);
    request(socket_fd, SIOCSIFADDR, &interface, "address");
    set_address(&interface.ifr_netmask, UINT32_MAX << (32 - settings->prefix_length));
    request(socket_fd, SIOCSIFNETMASK, &interface, "prefix");
    set_up(socket_fd, INTERFACE);
    add_default_route(socket_fd, settings->gateway);
}
