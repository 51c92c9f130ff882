/* "berth-init address": the addresses of a container's interfaces, by their MACs. See
 * vm/container_protocol.h.
 *
 * The one program with capabilities in a container, for the moment it takes; beside it may run a gateway that
 * an agent has taken over. So it trusts nothing that it finds there, and all but one capability go first.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/capability.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vm/container_protocol.h"
#include "vm/init/init.h"

static int fail(const char *what, const char *name)
{
    bt_init_say("cannot %s%s: %s", what, name, strerror(errno));
    return -1;
}

static int keep_one_capability(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {
        {.effective = 1U << CAP_NET_ADMIN, .permitted = 1U << CAP_NET_ADMIN}};
    return syscall(SYS_capset, &header, data) == 0 ? 0 : fail("give up capabilities", "");
}

static void set_address(struct sockaddr *ret_address, uint32_t address)
{
    struct sockaddr_in internet = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    memcpy(ret_address, &internet, sizeof(internet));
}

/* 0: the interface is none of berth's networks. */
static uint32_t address_of(int socket_fd, const char *name)
{
    struct ifreq interface = {0};
    (void)snprintf(interface.ifr_name, sizeof(interface.ifr_name), "%s", name);
    if (ioctl(socket_fd, SIOCGIFHWADDR, &interface) < 0 || interface.ifr_hwaddr.sa_family != ARPHRD_ETHER)
        return 0;
    uint8_t mac[6];
    memcpy(mac, interface.ifr_hwaddr.sa_data, sizeof(mac));
    if (mac[0] != BT_CONTAINER_MAC_FIRST || mac[1] != BT_CONTAINER_MAC_SECOND)
        return 0;
    return (uint32_t)mac[2] << 24 | (uint32_t)mac[3] << 16 | (uint32_t)mac[4] << 8 | mac[5];
}

/* An address that is there already stays as it is, and so do its connections. */
static int give(int socket_fd, const char *name, uint32_t address)
{
    struct ifreq interface = {0};
    (void)snprintf(interface.ifr_name, sizeof(interface.ifr_name), "%s", name);
    set_address(&interface.ifr_addr, address);
    if (ioctl(socket_fd, SIOCSIFADDR, &interface) < 0)
        return fail("set the address of ", name);
    set_address(&interface.ifr_netmask, UINT32_MAX << (32 - BT_CONTAINER_PREFIX_LENGTH));
    if (ioctl(socket_fd, SIOCSIFNETMASK, &interface) < 0)
        return fail("set the prefix of ", name);
    return 0;
}

static int set_router(int socket_fd, const char *router)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    struct in_addr address;
    if (inet_pton(AF_INET, router, &address) != 1) {
        errno = EINVAL;
        return fail("read the address ", router);
    }
    set_address(&route.rt_dst, 0);
    set_address(&route.rt_genmask, 0);
    set_address(&route.rt_gateway, ntohl(address.s_addr));
    if (ioctl(socket_fd, SIOCADDRT, &route) < 0 && errno != EEXIST)
        return fail("set the default route to ", router);
    return 0;
}

int bt_init_address(const char *router)
{
    if (keep_one_capability() < 0)
        return 1;
    bt_auto_fd socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct if_nameindex *interfaces = socket_fd < 0 ? NULL : if_nameindex();
    int result = interfaces == NULL ? fail("list the interfaces", "") : 0;
    unsigned count = 0;
    for (size_t i = 0; result == 0 && interfaces[i].if_index != 0; i++) {
        uint32_t address = address_of(socket_fd, interfaces[i].if_name);
        if (address == 0)
            continue;
        result = give(socket_fd, interfaces[i].if_name, address);
        count++;
    }
    if (interfaces != NULL)
        if_freenameindex(interfaces);
    if (result == 0 && count == 0) {
        bt_init_say("no interface has a MAC of berth's");
        result = -1;
    }
    if (result == 0 && router != NULL)
        result = set_router(socket_fd, router);
    return result == 0 ? 0 : 1;
}
