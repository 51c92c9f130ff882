/* launchd's property list, see plist.h.
 *
 * Used by install on macOS and by tests. The only value is a number; everything else is constant.
 */
#include "helper/macos/plist.h"

#include <string.h>

#include "helper/installed.h"

#define SOCKET(key, path, mode)                                                                              \
    "      <key>" key "</key>\n"                                                                             \
    "      <dict>\n"                                                                                         \
    "        <key>SockFamily</key><string>Unix</string>\n"                                                   \
    "        <key>SockType</key><string>stream</string>\n"                                                   \
    "        <key>SockPathName</key><string>" path "</string>\n"                                             \
    "        <key>SockPathOwner</key><integer>0</integer>\n"                                                 \
    "        <key>SockPathMode</key><integer>" mode "</integer>\n"                                           \
    "        <key>SockPathGroup</key><integer>"

/* Modes are decimal there: 432 is 0660, 438 is 0666, 63 is 077. */
static const char before_group[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" "
    "\"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n"
    "<!-- Written by berth-helper install. -->\n"
    "<plist version=\"1.0\">\n"
    "  <dict>\n"
    "    <key>Label</key><string>berth-helper</string>\n"
    "    <key>ProgramArguments</key>\n"
    "    <array><string>" BT_INSTALLED_HELPER "</string><string>listen</string></array>\n"
    "    <key>RunAtLoad</key><true/>\n"
    "    <key>KeepAlive</key><true/>\n"
    "    <key>ThrottleInterval</key><integer>1</integer>\n"
    "    <key>WorkingDirectory</key><string>/</string>\n"
    "    <key>Umask</key><integer>63</integer>\n"
    "    <key>StandardErrorPath</key><string>/var/log/berth-helper.log</string>\n"
    "    <key>HardResourceLimits</key>\n"
    "    <dict><key>Core</key><integer>0</integer><key>NumberOfFiles</key><integer>2048</integer></dict>\n"
    "    <key>SoftResourceLimits</key>\n"
    "    <dict><key>Core</key><integer>0</integer><key>NumberOfFiles</key><integer>2048</integer></dict>\n"
    "    <key>Sockets</key>\n"
    "    <dict>\n" SOCKET(BT_PLIST_SOCKET_KEY, BT_PLIST_SOCKET, "432");

static const char between_groups[] =
    "</integer>\n"
    "      </dict>\n" SOCKET(BT_PLIST_STATUS_SOCKET_KEY, BT_PLIST_STATUS_SOCKET, "438") "0</integer>\n"
                                                                                        "      </dict>\n"
                                                                                        "    </dict>\n"
                                                                                        "  </dict>\n"
                                                                                        "</plist>\n";

_Static_assert(sizeof(before_group) + sizeof(between_groups) + 10 <= BT_PLIST_SIZE,
               "a list and a number fit");

void bt_plist_encode(uint32_t socket_gid, char ret_text[BT_PLIST_SIZE])
{
    char digits[10];
    size_t count = 0, length = sizeof(before_group) - 1;
    memcpy(ret_text, before_group, length);
    do {
        digits[count++] = (char)('0' + socket_gid % 10);
        socket_gid /= 10;
    } while (socket_gid > 0);
    while (count > 0)
        ret_text[length++] = digits[--count];
    memcpy(ret_text + length, between_groups, sizeof(between_groups));
}
