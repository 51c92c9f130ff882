/* launchd's property list for the helper on macOS, launchd.plist(5): its sockets, and how it is started.
 *
 * Written by `install` there. Pure; compiled and tested on every system.
 */
#ifndef BERTH_HELPER_MACOS_PLIST_H
#define BERTH_HELPER_MACOS_PLIST_H

#include "ipc/base/base.h"

#define BT_PLIST_PATH "/Library/LaunchDaemons/berth-helper.plist"
#define BT_PLIST_SOCKET                                                                                      \
    "/var/db/berth/helper.sock" /* /var/run is new at each boot, and launchd makes no folder */
#define BT_PLIST_STATUS_SOCKET "/var/db/berth/status.sock"
#define BT_PLIST_SOCKET_KEY "helper" /* for launch_activate_socket(3) */
#define BT_PLIST_STATUS_SOCKET_KEY "status"
#define BT_PLIST_SIZE 4096

/* The whole file, NUL-terminated; socket_gid is the group that may connect. */
void bt_plist_encode(uint32_t socket_gid, char ret_text[BT_PLIST_SIZE]);

#endif
