/* Guests without a VMM: a network namespace whose only interface is joined, frame by frame, to a TAP of the
 * helper.
 *
 * Real TCP and UDP stacks run on both ends, in one process: a socket belongs to the namespace it was made in.
 * Used by tests that run inside namespaces of their own; nothing here touches the machine's network.
 */
#ifndef BERTH_TESTS_LIB_FAKE_GUEST_H
#define BERTH_TESTS_LIB_FAKE_GUEST_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define BT_TEST_GUESTS_MAX 32

/* Makes this process root of network and mount namespaces of its own: directly as root, else by executing
 * itself again below unshare(1). Where that cannot be it prints that the tests are skipped, and returns
 * false. */
bool bt_test_enter_namespaces(char **argv);

/* A further network namespace, its loopback up. The caller closes the descriptor; that ends the namespace. */
int bt_test_namespace_create(void);

/* Makes a socket in a namespace (-1: this one) as a uid (its file belongs to that uid, as skuid sees it). */
int bt_test_socket(int namespace_fd, uint32_t uid, int type);

/* Interface settings by ioctl, in a namespace. Addresses in host byte order. */
int bt_test_interface_address(int namespace_fd, const char *name, uint32_t address, unsigned prefix);
int bt_test_interface_up(int namespace_fd, const char *name);
int bt_test_route_default(int namespace_fd, uint32_t gateway);

/* Runs a program with arguments, in a namespace, output to /dev/null. Returns its exit status, or -errno. */
int bt_test_run(int namespace_fd, const char *const argv[]);

/* A guest at the other end of tap_fd, which is borrowed and must outlive bt_test_guest_stop. eth0 has the MAC
 * and the address, its default route is the host's address. Returns the namespace's descriptor or -errno. */
int bt_test_guest_start(int tap_fd, const uint8_t mac[6], uint32_t guest, uint32_t host);
/* Ends the pump of that TAP and the guest's device; closes the namespace. */
void bt_test_guest_stop(int tap_fd, int namespace_fd);

/* Frames that the guests sent (as the host's TAP took them) since the start. */
uint64_t bt_test_guest_frames(void);

/* ---- talking: every wait is bounded ----------------------------------------------------------------- */

/* Listens on TCP or binds UDP. Returns the descriptor or -errno. */
int bt_test_serve(int namespace_fd, int type, uint32_t address, uint16_t port);
/* Connects by TCP within milliseconds: a descriptor, or -errno (-EHOSTUNREACH: refused by ICMP; -ETIMEDOUT).
 */
int bt_test_dial(int namespace_fd, uint32_t uid, uint32_t address, uint16_t port, int wait_ms);
/* UDP socket, bound to source port (0: any) and connected. */
int bt_test_dial_udp(int namespace_fd, uint32_t uid, uint16_t source_port, uint32_t address, uint16_t port);
/* Accepts one connection within milliseconds; who called in *ret_peer. */
int bt_test_accept(int listener_fd, struct sockaddr_in *ret_peer, int wait_ms);
/* Sends text, and tells whether receiver_fd got exactly that within milliseconds (*ret_peer may be NULL). */
bool bt_test_passes(int sender_fd, int receiver_fd, const char *text, struct sockaddr_in *ret_peer,
                    int wait_ms);
/* Did anything (a connection, a datagram, data) come in within milliseconds? */
bool bt_test_is_readable(int fd, int wait_ms);
/* Takes away what lies in the queue. */
void bt_test_drain(int fd);

#endif
