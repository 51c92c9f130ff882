/* The parts of the helper for macOS that run anywhere, for tests that start them.
 *
 *   macos_tool plist GID      the property list
 *   macos_tool apply          the process that runs pfctl: orders come on descriptor 3, a stream socket
 *   macos_tool prepare        what that one does first
 *
 * The pool is 1024 slots at the default addresses. Exit status: the errno, or 0.
 */
#include <stdio.h>
#include <string.h>

#include "helper/macos/apply.h"
#include "helper/macos/plist.h"

static const struct bt_kernel_config config = {.pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT,
                                                        .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT,
                                                        .slots = BT_POOL_SLOTS_MAX},
                                               .deny_private_uplink = true,
                                               .resolvers = {0x0a000035},
                                               .resolver_count = 1};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "plist") == 0) {
        static char text[BT_PLIST_SIZE];
        uint64_t gid;
        if (bt_number_parse(argv[2], strlen(argv[2]), 0, UINT32_MAX, &gid) < 0)
            return 64;
        bt_plist_encode((uint32_t)gid, text);
        return fputs(text, stdout) < 0 ? 1 : 0;
    }
    if (argc == 2 && strcmp(argv[1], "apply") == 0)
        return -bt_apply_serve(&config, 3);
    if (argc == 2 && strcmp(argv[1], "prepare") == 0)
        return -bt_apply_prepare();
    return 64;
}
