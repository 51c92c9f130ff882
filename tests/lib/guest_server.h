/* A real SSH server standing in for a guest: dropbear on loopback in namespaces of the test's own, with
 * berth-init at the path where a guest has it. For tests of vm/guest_link and of what is built on it.
 */
#ifndef BERTH_TESTS_LIB_GUEST_SERVER_H
#define BERTH_TESTS_LIB_GUEST_SERVER_H

#include <sys/types.h>

#include "vm/guest_link.h"

struct guest_server {
    pid_t pid; /* of dropbear; 0 = not running */
    struct bt_guest_keys keys;
    struct bt_guest_address address; /* port 22 */
    const char *network; /* name of a network namespace (ip-netns(8)) that it runs in; NULL = the test's */
};

/* Called first in main(): executes the program again inside new network, mount and process namespaces (and a
 * user namespace with mapped ids when it is not root), where it is root, loopback is up, /run, /root and /tmp
 * are its own. Returns there. Ends the program with a message when namespaces cannot be had. */
void guest_server_enter_namespaces(void);

/* A file of the build, found from the place of the test program: "berth-init", "berth-probe". */
char *guest_server_build_path(const char *name);

/* Makes keys, starts dropbear on address (host byte order), in the network namespace named or, with NULL, in
 * the test's own. Ends the test program on failure. */
void guest_server_start(struct guest_server *server, uint32_t address, const char *network);
/* Runs text by /bin/sh: for setting up a test and comparing files. Returns the exit status. */
int guest_server_shell(const char *text);
/* Starts dropbear again with the keys it had. */
void guest_server_restart(struct guest_server *server);
void guest_server_stop(struct guest_server *server); /* the connections of others live on */
void guest_server_free(struct guest_server *server);

#endif
