/* A network namespace of the test's own with one TAP, as the helper would make it. For tests that start
 * machines. */
#ifndef BERTH_TESTS_LIB_NETWORK_H
#define BERTH_TESTS_LIB_NETWORK_H

#include <stdint.h>
#include <sys/socket.h>

/* Enters a new network namespace, and a user namespace (as root of it) when this is not root. Ends the
 * program when that cannot be had. */
void network_enter(void);

/* TAP "berth0" with host/31, up, with the guest as a permanent neighbour. Returns 0 or -errno (no
 * /dev/net/tun). */
int network_make_tap(uint32_t host, uint32_t guest, const uint8_t guest_mac[6], int *ret_tap_fd);

void network_address(struct sockaddr *ret_address, uint32_t address, uint16_t port);

#endif
