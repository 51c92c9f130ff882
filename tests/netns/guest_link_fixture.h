/* What the tests of the guest link share: a real SSH server (dropbear) and the real berth-init, in namespaces
 * of their own, and a link to them. */
#ifndef BERTH_TESTS_NETNS_GUEST_LINK_FIXTURE_H
#define BERTH_TESTS_NETNS_GUEST_LINK_FIXTURE_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/mount.h>

#include "tests/lib/guest_server.h"
#include "vm/guest_link.h"

#define MEGABYTE 1000000ULL

static struct guest_server server;
static const char *const environment[] = {"PATH=/usr/local/sbin:/usr/bin:/bin", "WORD=hello world", NULL};

static inline struct bt_guest_link *link_open(void)
{
    struct bt_guest_link *link = NULL;
    struct bt_error error = {0};
    if (bt_guest_connect(&server.address, 10000, -1, &link, &error) < 0)
        fail_msg("%s", error.message);
    return link;
}

static inline struct bt_guest_command command_of(const char *const *arguments)
{
    return (struct bt_guest_command){.arguments = arguments,
                                     .environment = environment,
                                     .folder = "/",
                                     .uid = 1000,
                                     .gid = 1000,
                                     .input_fd = -1};
}

/* Runs a shell text on this side and expects success. */
static inline void here(const char *text)
{
    int status = guest_server_shell(text);
    if (status != 0)
        fail_msg("status %d of: %s", status, text);
}

/* Called first in main(), which frees the server at its end. */
static inline void fixture_start(void)
{
    /* Of whoever serves connections; a command has neither. */
    (void)signal(SIGHUP, SIG_IGN);
    guest_server_enter_namespaces();
    assert_int_equal(mount("tmpfs", "/usr/local/sbin", "tmpfs", 0, NULL), 0);
    guest_server_start(&server, 0x7f000001, NULL);
}

#endif
