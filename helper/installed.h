/* Where the installation puts things: the paths that are compiled in.
 *
 * Used by the engine's start, where no option says otherwise, by the administrator's commands, and by the
 * setuid starter, which takes no path from anybody. ipc/client has the socket's path for clients.
 */
#ifndef BERTH_HELPER_INSTALLED_H
#define BERTH_HELPER_INSTALLED_H

#define BT_INSTALLED_HELPER "/usr/local/sbin/berth-helper"
#define BT_INSTALLED_STARTER "/usr/local/libexec/berth/berth-helper-start"
#define BT_INSTALLED_RUN "/run/berth"
#define BT_INSTALLED_SOCKET BT_INSTALLED_RUN "/helper.sock"
#define BT_INSTALLED_LOCK BT_INSTALLED_RUN "/helper.lock"
#define BT_INSTALLED_STATUS_RUN "/run/berth-status"
#define BT_INSTALLED_STATUS_SOCKET BT_INSTALLED_STATUS_RUN "/helper.sock"
#define BT_INSTALLED_STATUS_LOCK BT_INSTALLED_STATUS_RUN "/helper.lock"

#endif
