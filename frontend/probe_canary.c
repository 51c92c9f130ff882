/* Canaries: listeners on the host that must stay silent while a guest tries to reach them.
 *
 * Used by probe_run.c. Each binds exactly one address and a port of the kernel's choice. The kernel queues
 * what arrives while the probe runs; a few kilobytes suffice, and more is dropped there.
 */
#include "frontend/probe_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COLLECT_MAX 256 /* datagrams and connections looked at */
#define OWN_MS 2000     /* for the canary's own test, on the host itself */

static int listener_open(uint32_t address, int type, int *ret_fd, uint16_t *ret_port)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    socklen_t length = sizeof(name);
    bt_auto_fd fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&name, sizeof(name)) < 0 ||
        (type == SOCK_STREAM && listen(fd, 64) < 0) || getsockname(fd, (struct sockaddr *)&name, &length) < 0)
        return -errno;
    *ret_port = ntohs(name.sin_port);
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

/* Sends a nonce from the host itself and expects it back out of the canary. */
static int prove(int listener_fd, int type, uint32_t address, uint16_t port)
{
    char nonce[BT_PROBE_NONCE_SIZE], got[64];
    const struct sockaddr_in name = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
    struct pollfd ready = {.fd = listener_fd, .events = POLLIN};
    bt_random_hex(nonce, (sizeof(nonce) - 1) / 2);
    bt_auto_fd fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    const struct timeval limit = {.tv_sec = OWN_MS / 1000};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ||
        connect(fd, (const struct sockaddr *)&name, sizeof(name)) < 0 ||
        send(fd, nonce, strlen(nonce), MSG_NOSIGNAL) < 0)
        return -errno;
    if (poll(&ready, 1, OWN_MS) != 1)
        return -ETIMEDOUT;
    bt_auto_fd accepted_fd = type == SOCK_STREAM ? accept4(listener_fd, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (type == SOCK_STREAM && accepted_fd < 0)
        return -errno;
    ssize_t count = recv(type == SOCK_STREAM ? accepted_fd : listener_fd, got, sizeof(got), 0);
    if (count < 0)
        return -errno;
    return (size_t)count == strlen(nonce) && memcmp(got, nonce, (size_t)count) == 0 ? 0 : -EBADMSG;
}

int bt_probe_canary_open(uint32_t address, struct bt_probe_canary *ret_canary, struct bt_error *error)
{
    struct bt_probe_canary canary = {.address = address, .tcp_fd = -1, .udp_fd = -1};
    int result = listener_open(address, SOCK_STREAM, &canary.tcp_fd, &canary.tcp_port);
    if (result == 0)
        result = listener_open(address, SOCK_DGRAM, &canary.udp_fd, &canary.udp_port);
    if (result == 0)
        result = prove(canary.tcp_fd, SOCK_STREAM, address, canary.tcp_port);
    if (result == 0)
        result = prove(canary.udp_fd, SOCK_DGRAM, address, canary.udp_port);
    if (result < 0) {
        char text[BT_IPV4_TEXT_SIZE];
        bt_ipv4_format(address, text);
        bt_probe_canary_close(&canary);
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result,
                       "the host must be able to reach its own address; a firewall of the host may forbid it",
                       "the probe cannot listen on %s of this host: %s", text, strerror(-result));
    }
    *ret_canary = canary;
    return 0;
}

void bt_probe_canary_close(struct bt_probe_canary *canary)
{
    if (canary->address == 0)
        return;
    bt_fd_close(&canary->tcp_fd);
    bt_fd_close(&canary->udp_fd);
    canary->address = 0;
}

/* Marks the item whose nonce is in data. Returns whether there was one. */
static bool mark_nonce(struct bt_probe_items *items, const char *data, size_t length)
{
    for (size_t i = 0; i < items->count; i++) {
        struct bt_probe_item *item = &items->list[i];
        size_t nonce_length = strlen(item->nonce);
        if (nonce_length > 0 && length >= nonce_length && memcmp(data, item->nonce, nonce_length) == 0) {
            item->is_received = true;
            return true;
        }
    }
    return false;
}

static void mark_connection(struct bt_probe_items *items, uint32_t address)
{
    for (size_t i = 0; i < items->count; i++) {
        struct bt_probe_item *item = &items->list[i];
        if (item->is_tcp && item->nonce[0] && item->address == address)
            item->is_received = true;
    }
}

bool bt_probe_canary_collect(struct bt_probe_canary *canary, uint32_t guest_address,
                             struct bt_probe_items *items)
{
    char data[256];
    int datagrams = 0;
    int connections = 0;
    if (canary->address == 0)
        return true;
    for (; datagrams < COLLECT_MAX; datagrams++) {
        ssize_t count = recv(canary->udp_fd, data, sizeof(data), MSG_DONTWAIT);
        if (count < 0)
            break;
        (void)mark_nonce(items, data, (size_t)count);
    }
    for (; connections < COLLECT_MAX; connections++) {
        struct sockaddr_in peer = {0};
        socklen_t length = sizeof(peer);
        bt_auto_fd fd =
            accept4(canary->tcp_fd, (struct sockaddr *)&peer, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        ssize_t count = recv(fd, data, sizeof(data), 0);
        bool is_ours = count > 0 && mark_nonce(items, data, (size_t)count);
        if (!is_ours && ntohl(peer.sin_addr.s_addr) == guest_address)
            mark_connection(items, canary->address);
    }
    return datagrams < COLLECT_MAX && connections < COLLECT_MAX;
}
