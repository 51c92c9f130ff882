/* Where the installation puts things: the paths that are compiled in.
 *
 * Used by the administrator's commands and by the setuid starter, which takes no path from anybody.
 */
#ifndef BERTH_HELPER_INSTALLED_H
#define BERTH_HELPER_INSTALLED_H

#define BT_INSTALLED_HELPER "/usr/local/sbin/berth-helper"
#define BT_INSTALLED_STARTER "/usr/local/libexec/berth/berth-helper-start"
#define BT_INSTALLED_SOCKET "/run/berth/helper.sock"
#define BT_INSTALLED_STATUS_SOCKET "/run/berth-status/helper.sock"

#endif
