#!/bin/bash
# install, upgrade and uninstall on a host with a real systemd: its sockets start the helper, with the hardening of the unit
# in force; leases outlive restarts; everything that was made goes.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/host.bash
. "$SOURCE/tests/lib/host.bash"
host_enter
host_network
host_users
systemctl start nftables.service
host_state >before

as() { setpriv --reuid "$1" --regid "$1" --init-groups "${@:2}"; }

# ---- install ----------------------------------------------------------------------------------------------------------
check_status "install --dry-run" 0 'would enable and restart: the units' "$HELPER" install --dry-run
host_state >after
check "changes nothing" diff before after
check_status "install" 0 '^installed' "$HELPER" install
if ! systemctl is-active --quiet berth-helper.service; then
    journalctl -u berth-helper.service --no-pager -o cat | tail -20 | sed 's/^/# /'
    finish
    exit
fi
usermod -aG berth alice
usermod -aG berth bob
GROUP=$(getent group berth | cut -d: -f3)
for unit in berth-helper.socket berth-helper-status.socket berth-helper.service; do
    check "$unit is active" systemctl is-active --quiet $unit
done
for unit in berth-helper.socket berth-helper-status.socket berth-helper.service berth-firewall.service; do
    check "$unit is enabled" systemctl is-enabled --quiet $unit
done
equal "no unit has failed" "" "$(systemctl list-units --failed --plain --no-legend)"
equal "systemd finds nothing wrong with the units" "" \
    "$(systemd-analyze verify --man=no /etc/systemd/system/berth-* 2>&1 | grep berth)"
host_state >installed
check_status "install again: the accounts are found" 0 '^found: group berth' "$HELPER" install
check_status "and the units, and the program" 0 '^found: enabled units, and the installed helper running' "$HELPER" install
host_state >after
check "nothing is changed by it" diff installed after
pid() { systemctl show -P MainPID berth-helper.service; }
first=$(pid)
"$HELPER" install >/dev/null
equal "nor is the helper restarted" "$first" "$(pid)"

# ---- the sockets ------------------------------------------------------------------------------------------------------
equal "the socket" "socket 660 root berth" "$(stat -c '%F %a %U %G' /run/berth/helper.sock)"
equal "its folder" "750 root berth" "$(stat -c '%a %U %G' /run/berth)"
equal "the status socket" "666 root" "$(stat -c '%a %U' /run/berth-status/helper.sock)"
systemctl stop berth-helper.service
check "the service is stopped" not systemctl is-active --quiet berth-helper.service
check_status "a user of the group leases: systemd starts the helper for it" 0 '^lease slot=0 ' as alice "$TOOL" lease agent 0
check "it runs again" systemctl is-active --quiet berth-helper.service
check_status "a user outside the group is refused" 2 'error connect EACCES' setpriv --reuid 1234 --regid 1234 --clear-groups "$TOOL" lease agent 0
check_status "but gets the state" 0 'rules: as they should be' setpriv --reuid 1234 --regid 1234 --clear-groups "$HELPER" status
check_status "status, by root" 0 'helper: answers on /run/berth/helper.sock' "$HELPER" status
check_status "check" 0 '^ok: [0-9]+ paths' "$HELPER" check

# ---- the hardening is in force ------------------------------------------------------------------------------------------
status_of() { awk -v field="$1:" '$1 == field { print $2 }' "/proc/$(pid)/status"; }
ns() { [ "$(readlink "/proc/$(pid)/ns/$1")" != "$(readlink "/proc/self/ns/$1")" ]; }
equal "it is _berth" "$(id -u _berth)" "$(status_of Uid)"
equal "with CAP_NET_ADMIN alone" 0000000000001000 "$(status_of CapEff)"
equal "which it cannot widen" 0000000000000000 "$(status_of CapBnd)"
equal "no new privileges" 1 "$(status_of NoNewPrivs)"
equal "a filter of its own above those of the unit" 2 "$(status_of Seccomp)"
check "several filters" test "$(status_of Seccomp_filters)" -gt 1
check "mounts of its own" ns mnt
check "where nothing can be written but the log" not nsenter --target "$(pid)" --mount touch /etc/berth/written
check "nor /usr" not nsenter --target "$(pid)" --mount touch /usr/local/sbin/written
check "the log can" nsenter --target "$(pid)" --mount touch /var/log/berth/written
rm -f /var/log/berth/written
check "no home is seen" not nsenter --target "$(pid)" --mount ls /home/alice
check "no /proc/sys can be written" not nsenter --target "$(pid)" --mount sh -c 'echo 0 >/proc/sys/net/ipv4/ip_forward'
check "no core dumps" grep -qE 'Max core file size +0 +0' "/proc/$(pid)/limits"
exposure=$(systemd-analyze security --no-pager berth-helper.service | tail -1)
note "systemd-analyze security: ${exposure#* }"
check "systemd-analyze rates it OK" grep -qE ' OK' <<<"$exposure"

# ---- at work, restarts, upgrade -----------------------------------------------------------------------------------------
host_agents alice bob
host_talk alice bob
check "the agent and the gateways of alice work" host_works alice
check "and of bob" host_works bob
check_status "all of them hold their slots" 0 'slots: 6 live' "$HELPER" status
adopted() {
    local user
    check "$1: all six slots are adopted" host_adopted alice bob
    for user in alice bob; do check "$1: $user works on" host_works $user; done
    note "$1: longest pause of the traffic: $(host_pause "$since" alice bob) ms"
}
since=$(date +%s%3N)
systemctl restart berth-helper.service
adopted "systemctl restart"
since=$(date +%s%3N)
kill -9 "$(pid)"
adopted "kill -9"
install -m 755 /opt/stage$HELPER $HELPER.new && mv $HELPER.new $HELPER
since=$(date +%s%3N)
old=$(pid)
check_status "upgrade: install after the program was exchanged" 0 '^enabled and restarted' "$HELPER" install
check "another process serves" not test "$old" = "$(pid)"
adopted "upgrade"
check_status "install once more restarts nothing" 0 '^found: enabled units' "$HELPER" install
sed -i 's/^#slots_per_uid:.*/slots_per_uid: 65/' /etc/berth/helper.conf
since=$(date +%s%3N)
check_status "an edited configuration is taken up" 0 '^enabled and restarted' "$HELPER" install
adopted "configuration"
check_status "by the helper" 0 '65 a user' "$HELPER" status
sed -i 's/^slots_per_uid:.*/slots_per_uid: 66/' /etc/berth/helper.conf
systemctl restart berth-helper.service
check_status "a restart right after an edit was enough" 0 '^found: enabled units' "$HELPER" install
check_status "the helper says so" 0 '66 a user' "$HELPER" status

# ---- nftables.service, which begins with `flush ruleset` --------------------------------------------------------------------
# For a moment no rule translates: a connection whose packet came just then may be reset (SECURITY.md has the moment's length).
systemctl restart nftables.service
check "a flushed ruleset: the helper sees it, and repairs" eventually nft list set inet berth live
check_status "status is well again" 0 'rules: as they should be' "$HELPER" status
talk_stop
talk_serve internet
for user in alice bob; do talk_serve $user-gateway; done
host_talk alice bob
for user in alice bob; do check "$user works" host_works $user; done
check "it was said in the journal" bash -c 'journalctl -u berth-helper.service | grep -q "right again"'

# ---- audit --------------------------------------------------------------------------------------------------------------
check_status "the log of all those helpers is one chain" 0 '^ok: lines 1 to' "$HELPER" audit --verify
"$HELPER" audit --lines 100000 >audit.lines
journalctl -u berth-helper.service -o cat | sed -n 's/^berth-helper: {/{/p' >journal.lines
equal "the journal has a copy of each line" "" "$(grep -vxFf journal.lines audit.lines | head -3)"
check "leases are in it" grep -q '"event":"LEASE","status":"OK"' journal.lines

# ---- uninstall ------------------------------------------------------------------------------------------------------------
host_state >working
check_status "uninstall --dry-run" 0 'would stop and disable: the units' "$HELPER" uninstall --dry-run
host_state >after
check "changes nothing" diff working after
check_status "uninstall, while agents hold slots" 0 '^uninstalled' "$HELPER" uninstall
host_agents_end alice bob
equal "no table is left" "" "$(nft list ruleset | grep berth)"
equal "no interface" "" "$(ip -o link show | grep berth)"
equal "no account" "" "$(grep -h berth /etc/passwd /etc/group /etc/shadow /etc/gshadow)"
equal "no unit" "" "$(systemctl list-unit-files --no-legend 'berth*' | grep -v berth-test)"
equal "no file but the configuration, which was edited" "/etc/berth
/etc/berth/helper.conf" "$(find /etc /run -name '*berth*' -not -name 'berth-test*' -not -path '/run/systemd/*' -o -path '*/berth/*' | sort)"
rm -r /etc/berth /var/log/berth
host_state >after
check "the host is as it was before" diff before after
[ "$TAP_FAILED" = 0 ] || journalctl -u berth-helper.service --no-pager | tail -40 | sed 's/^/# /'
finish
