#!/bin/bash
# Hosts whose firewalld or ufw refuses what is forwarded: status names it, install opens it for berth's interfaces, reloads and
# new starts of theirs while agents work change nothing, uninstall leaves them as they were.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/host.bash
. "$SOURCE/tests/lib/host.bash"
host_enter
host_network
host_users

rules() {
    host_state | grep -v '/run/firewalld/'
    ufw show added
    grep -c berth /etc/ufw/*.rules
}
healthy() { check_status "$1: status finds no chain that drops us" 0 'no chain drops what the helper lets through' "$HELPER" status; }
works() { check "$1: alice's agent and gateway work on" host_works alice; }
# These let pass what passed before, so only a new connection shows what they do now.
talk_anew() {
    talk_stop
    talk_serve internet
    talk_serve alice-gateway
    host_talk alice
}
# is_needed CHAIN: our accept taken away by hand, and put back by the unit
is_needed() {
    "$HELPER" firewall --remove >/dev/null
    check_status "without our accept status names the chain again" 1 "the chain .$1. drops" "$HELPER" status
    talk_anew
    sleep 1
    equal "and the gateway reaches nothing" 0 "$(grep -c '^[0-9]' alice-gateway.talk)"
    systemctl start berth-firewall.service
    talk_anew
    works "the unit puts it back"
}
install_here() {
    check_status "status names the chain that drops us" 1 "the chain .$1. drops" "$HELPER" status
    check_status "install opens it" 0 "$2" "$HELPER" install
    healthy "install"
    usermod -aG berth alice
    host_agents alice
    talk_anew
    works "install"
}
uninstall_here() {
    "$HELPER" uninstall >said 2>&1
    equal "uninstall" 0 $?
    for said; do check "uninstall says: $said" grep -q "$said" said; done
    ! grep -q 'firewall-cmd --reload' said || firewall-cmd --reload
    host_agents_end alice
    rm -rf /var/log/berth
    equal "no rule of ours is left" "" "$(nft list ruleset | grep berth)"
    rules >after
    check "the host is as it was before" diff before after
}

# ---- firewalld -----------------------------------------------------------------------------------------------------------
# It says that it is ready before its rules are there, and starts our unit.
unit_has_ended() { [ "$(systemctl show -P ActiveState berth-firewall.service)" != activating ]; }
started() {
    systemctl "$1" firewalld.service && eventually nft list chain inet firewalld filter_FORWARD &&
        eventually unit_has_ended
}
check "firewalld starts" started start
rules >before
install_here 'inet firewalld filter_FORWARD' '^added: firewall-cmd --zone=trusted --add-interface=berth\+'
since=$(date +%s%3N)
check "firewall-cmd --reload" firewall-cmd --reload
works "reload"
healthy "reload"
equal "reload: the interfaces are in our own zone now" berth "$(firewall-cmd --get-zone-of-interface=berth+)"
talk_anew
works "reload, new connections"
check "systemctl restart firewalld" started restart
healthy "restart"
talk_anew
works "restart"
note "longest pause of the traffic: $(host_pause "$since" alice) ms"
systemctl stop firewalld.service
works "stopped"
check "and started by hand" started start
healthy "started by hand"
works "started by hand"
check_status "install again finds it" 0 '^found: firewall-cmd --zone=berth' "$HELPER" install
is_needed 'inet firewalld filter_FORWARD'
uninstall_here '^removed: firewall-cmd --zone=berth' '^kept: the empty chains of firewalld'
systemctl stop firewalld.service

# ---- ufw -------------------------------------------------------------------------------------------------------------------
ufw --force enable >/dev/null
rules >before
install_here 'ip filter FORWARD' '^added: ufw route allow in on berth\+'
since=$(date +%s%3N)
check "ufw reload" ufw reload
works "reload"
healthy "reload"
talk_anew
works "reload, new connections"
check "ufw disable" ufw disable
works "disabled"
check "ufw enable" ufw --force enable
healthy "enabled"
works "enabled"
note "longest pause of the traffic: $(host_pause "$since" alice) ms"
check_status "install again finds it" 0 '^found: ufw route allow in on berth' "$HELPER" install
is_needed 'ip filter FORWARD'
uninstall_here '^removed: ufw route allow in on berth+'
[ "$TAP_FAILED" = 0 ] || journalctl --no-pager -u berth-helper.service -u berth-firewall.service | tail -40 | sed 's/^/# /'
finish
