/* The files that `install` writes, as they are.
 *
 * The service's hardening is a second fence around what the helper does by itself (README.md, stages): it
 * starts as root with the four capabilities that the change of account takes, and none else.
 */
#include "helper/admin.h"

static const char tmpfiles[] = "# Written by berth-helper install.\n"
                               "d " BT_INSTALLED_RUN " 0750 root berth -\n"
                               "d " BT_INSTALLED_STATUS_RUN " 0755 root root -\n";

static const char main_socket[] = "# Written by berth-helper install.\n"
                                  "[Unit]\n"
                                  "Description=berth: network slots for sandboxed agents\n"
                                  "Documentation=man:berth-helper(8)\n"
                                  "\n"
                                  "[Socket]\n"
                                  "ListenSequentialPacket=" BT_INSTALLED_SOCKET "\n"
                                  "FileDescriptorName=helper\n"
                                  "SocketUser=root\n"
                                  "SocketGroup=berth\n"
                                  "SocketMode=0660\n"
                                  "Backlog=128\n"
                                  "Service=berth-helper.service\n"
                                  "\n"
                                  "[Install]\n"
                                  "WantedBy=sockets.target\n";

static const char status_socket[] = "# Written by berth-helper install.\n"
                                    "[Unit]\n"
                                    "Description=berth: state of the helper, for everybody\n"
                                    "Documentation=man:berth-helper(8)\n"
                                    "\n"
                                    "[Socket]\n"
                                    "ListenSequentialPacket=" BT_INSTALLED_STATUS_SOCKET "\n"
                                    "FileDescriptorName=status\n"
                                    "SocketUser=root\n"
                                    "SocketMode=0666\n"
                                    "Backlog=32\n"
                                    "Service=berth-helper.service\n"
                                    "\n"
                                    "[Install]\n"
                                    "WantedBy=sockets.target\n";

static const char service[] = "# Written by berth-helper install.\n"
                              "[Unit]\n"
                              "Description=berth: the helper, which owns the network slots\n"
                              "Documentation=man:berth-helper(8)\n"
                              "Requires=berth-helper.socket\n"
                              "After=berth-helper.socket berth-helper-status.socket\n"
                              "Wants=berth-helper-status.socket berth-firewall.service\n"
                              "StartLimitIntervalSec=0\n"
                              "\n"
                              "[Service]\n"
                              "Type=exec\n"
                              "ExecStart=" BT_ADMIN_HELPER " listen\n"
                              "Sockets=berth-helper.socket berth-helper-status.socket\n"
                              "Restart=always\n"
                              "RestartSec=100ms\n"
                              "OOMScoreAdjust=-900\n"
                              "LimitNOFILE=2048\n"
                              "LimitCORE=0\n"
                              "UMask=0077\n"
                              "LogsDirectory=berth\n"
                              "LogsDirectoryMode=0700\n"
                              "CapabilityBoundingSet=CAP_NET_ADMIN CAP_SETUID CAP_SETGID CAP_SETPCAP\n"
                              "NoNewPrivileges=yes\n"
                              "ProtectSystem=strict\n"
                              "ProtectHome=yes\n"
                              "ProtectProc=invisible\n"
                              "ProtectClock=yes\n"
                              "ProtectHostname=yes\n"
                              "ProtectKernelLogs=yes\n"
                              "ProtectKernelModules=yes\n"
                              "ProtectKernelTunables=yes\n"
                              "ProtectControlGroups=yes\n"
                              "PrivateTmp=yes\n"
                              "DevicePolicy=closed\n"
                              "DeviceAllow=/dev/net/tun rw\n"
                              "RestrictAddressFamilies=AF_UNIX AF_NETLINK\n"
                              "RestrictNamespaces=yes\n"
                              "RestrictRealtime=yes\n"
                              "RestrictSUIDSGID=yes\n"
                              "LockPersonality=yes\n"
                              "MemoryDenyWriteExecute=yes\n"
                              "SystemCallArchitectures=native\n"
                              "SystemCallFilter=~@clock @cpu-emulation @debug @module @mount @obsolete\n"
                              "SystemCallFilter=~@raw-io @reboot @swap\n"
                              "IPAddressDeny=any\n"
                              "\n"
                              "[Install]\n"
                              "WantedBy=multi-user.target\n";

/* It does not remain active: each start of one of those services starts it again, behind them. */
static const char firewall[] = "# Written by berth-helper install.\n"
                               "[Unit]\n"
                               "Description=berth: accept in the chains of Docker, ufw and firewalld\n"
                               "Documentation=man:berth-helper(8)\n"
                               "After=docker.service ufw.service firewalld.service\n"
                               "\n"
                               "[Service]\n"
                               "Type=oneshot\n"
                               "ExecStart=" BT_ADMIN_HELPER " firewall\n"
                               "\n"
                               "[Install]\n"
                               "WantedBy=multi-user.target docker.service ufw.service firewalld.service\n";

/* What the accept is for firewalld from its next start or reload on. */
static const char zone[] =
    "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n"
    "<!-- Written by berth-helper install. -->\n"
    "<zone target=\"ACCEPT\">\n"
    "  <short>berth</short>\n"
    "  <description>Interfaces of berth's guests: the nftables table inet berth decides "
    "what they may send.</description>\n"
    "  <interface name=\"berth+\"/>\n"
    "  <forward/>\n"
    "</zone>\n";

const struct bt_admin_file bt_admin_units[] = {
    {"/etc/tmpfiles.d/berth.conf", tmpfiles, NULL},
    {"/etc/systemd/system/berth-helper.socket", main_socket, NULL},
    {"/etc/systemd/system/berth-helper-status.socket", status_socket, NULL},
    {"/etc/systemd/system/berth-helper.service", service, NULL},
    {"/etc/systemd/system/berth-firewall.service", firewall, NULL},
    {"/etc/firewalld/zones/berth.xml", zone, "/etc/firewalld/zones"},
};
const size_t bt_admin_unit_count = BT_ARRAY_LENGTH(bt_admin_units);
