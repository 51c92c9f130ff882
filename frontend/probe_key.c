/* What the host-wide checks of the probe depend on, and whether they must run again.
 *
 * Used by the keeper before bt_probe_run(). Reads /proc and the interface list; sends nothing.
 */
#include "frontend/probe_run.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define INTERFACE_PREFIX "berth"
#define FACTS_MAX (1U << 20)

int bt_probe_primary_address(uint32_t *ret_address)
{
    /* Connecting a datagram socket only asks the routing table. */
    const struct sockaddr_in anywhere = {.sin_family = AF_INET,
                                         .sin_port = htons(443),
                                         .sin_addr.s_addr = htonl(BT_PROBE_PUBLIC_ADDRESS_DEFAULT)};
    struct sockaddr_in own = {0};
    socklen_t length = sizeof(own);
    bt_auto_fd fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&anywhere, sizeof(anywhere)) < 0 ||
        getsockname(fd, (struct sockaddr *)&own, &length) < 0)
        return -errno;
    *ret_address = ntohl(own.sin_addr.s_addr);
    return 0;
}

static int compare_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* One line of /proc/net/route: interface, destination, gateway, five numbers that change or do not matter
 * (flags, use counts, metric), mask. */
static void add_route(struct bt_list *facts, char *line)
{
    const char *fields[8] = {NULL};
    size_t count = 0;
    for (char *rest = line, *field; count < BT_ARRAY_LENGTH(fields) && (field = strsep(&rest, " \t\n"));) {
        if (*field)
            fields[count++] = field;
    }
    if (count == BT_ARRAY_LENGTH(fields) &&
        strncmp(fields[0], INTERFACE_PREFIX, strlen(INTERFACE_PREFIX)) != 0)
        bt_list_add_format(facts, "route %s %s %s %s", fields[0], fields[1], fields[2], fields[7]);
}

static int add_routes(struct bt_list *facts)
{
    char line[256];
    FILE *file = fopen("/proc/net/route", "re");
    if (!file)
        return -errno;
    while (fgets(line, sizeof(line), file))
        add_route(facts, line);
    (void)fclose(file);
    return 0;
}

static int add_addresses(struct bt_list *facts)
{
    struct ifaddrs *addresses = NULL;
    if (getifaddrs(&addresses) < 0)
        return -errno;
    for (const struct ifaddrs *at = addresses; at; at = at->ifa_next) {
        char text[INET6_ADDRSTRLEN] = "";
        if (!at->ifa_addr || strncmp(at->ifa_name, INTERFACE_PREFIX, strlen(INTERFACE_PREFIX)) == 0)
            continue;
        const void *bytes = NULL;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        if (at->ifa_addr->sa_family == AF_INET) {
            memcpy(&v4, at->ifa_addr, sizeof(v4));
            bytes = &v4.sin_addr;
        } else if (at->ifa_addr->sa_family == AF_INET6) {
            memcpy(&v6, at->ifa_addr, sizeof(v6));
            bytes = &v6.sin6_addr;
        }
        if (bytes && inet_ntop(at->ifa_addr->sa_family, bytes, text, sizeof(text)))
            bt_list_add_format(facts, "address %s %s", at->ifa_name, text);
    }
    freeifaddrs(addresses);
    return 0;
}

int bt_probe_key(uint64_t rules_epoch, char ret_key[BT_DIGEST_TEXT_SIZE], struct bt_error *error)
{
    bt_auto_list facts = {0};
    bt_auto_buffer text = {.limit = FACTS_MAX};
    /* A file of /proc: its size is 0, so it is read by hand. */
    char boot_id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    int result = file && fgets(boot_id, sizeof(boot_id), file) ? 0 : -EIO;
    if (file)
        (void)fclose(file);
    if (result == 0)
        result = add_routes(&facts);
    if (result == 0)
        result = add_addresses(&facts);
    if (result == 0) {
        if (facts.count > 0)
            qsort(facts.items, facts.count, sizeof(facts.items[0]), compare_text);
        result =
            bt_buffer_add_format(&text, "boot %s\nrules %llu\n", boot_id, (unsigned long long)rules_epoch);
    }
    for (size_t i = 0; result == 0 && i < facts.count; i++)
        result = bt_buffer_add_format(&text, "%s\n", facts.items[i]);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL,
                       "cannot read the routes and addresses of this host: %s", strerror(-result));
    bt_digest_bytes(text.data, text.length, ret_key);
    return 0;
}

bool bt_probe_is_needed(enum bt_probe_repeat repeat, const char *const *passed_keys, size_t count,
                        const char *key)
{
    if (repeat == BT_PROBE_OFF)
        return false;
    for (size_t i = 0; i < count && repeat == BT_PROBE_ONCE; i++) {
        if (strcmp(passed_keys[i], key) == 0)
            return false;
    }
    return true;
}
