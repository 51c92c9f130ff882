#!/bin/bash
# install, status, check and uninstall on a host without systemd, and what install refuses, on a root of the test's own:
# programs are bound in, /etc, /run, /var and /usr/local are new, network and users are a namespace's. The machine stays
# untouched. (host_*.serial.sh have a host with systemd, Docker and other firewalls.)
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/helper.bash
. "$SOURCE/tests/lib/helper.bash"
namespace_enter

# ---- a root of our own ------------------------------------------------------------------------------------------
# The real one belongs to a root that this namespace does not know; `check` would be right to refuse it.
build_root() {
    local root=$1 folder
    mkdir -p "$root"
    mount -t tmpfs -o mode=755 root "$root"
    mkdir -p "$root"/{etc,run,proc,sys,dev,opt/source,var/log,home,usr/local/sbin,usr/local/bin}
    mkdir -m 1777 "$root/tmp"
    for folder in bin sbin lib share; do
        mkdir "$root/usr/$folder"
        mount --rbind "/usr/$folder" "$root/usr/$folder"
    done
    for folder in bin sbin lib lib64; do
        [ -L "/$folder" ] && ln -s "$(readlink "/$folder")" "$root/$folder"
    done
    [ -d /usr/lib64 ] && mkdir "$root/usr/lib64" && mount --rbind /usr/lib64 "$root/usr/lib64"
    for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder"; done
    mount --rbind /opt/source "$root/opt/source"
    cp -r /etc/alternatives /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/login.defs "$root/etc/" 2>/dev/null
    mkdir -p "$root"/etc/{default,systemd/system,tmpfiles.d}
    printf '%s\n' root:x:0:0:root:/root:/bin/bash alice:x:1000:1000::/home/alice:/bin/bash \
        bob:x:1001:1001::/home/bob:/bin/bash >"$root/etc/passwd"
    printf '%s\n' root:x:0: nogroup:x:65534: alice:x:1000: bob:x:1001: >"$root/etc/group"
    printf '%s\n' 'root:*:19000:0:99999:7:::' >"$root/etc/shadow"
    printf '%s\n' 'root:*::' >"$root/etc/gshadow"
    chmod 640 "$root/etc/shadow" "$root/etc/gshadow"
    install -m 755 "${WORLD_HELPER:-/opt/source/build/berth-helper}" "$root/usr/local/sbin/berth-helper"
}
if [ "${BERTH_ROOT_READY:-}" != yes ]; then
    build_root /tmp/root || exit 1
    export BERTH_ROOT_READY=yes
    exec chroot /tmp/root bash /opt/source/tests/netns/install.sh
fi
HELPER=/usr/local/sbin/berth-helper
cd /tmp || exit 1
ip link set lo up

# Everything that an installation could leave: files and accounts, rules, interfaces.
state() {
    (cd / && find etc run var -not -path 'run/netns*' -not -path 'run/systemd*' -not -path 'run/mount*' -printf '%y %m %U %G %p\n' | grep -vE '/(\.pwd\.lock|[a-z]*-)$' | sort)
    cat /etc/passwd /etc/group
    nft list ruleset
    ip -o link show | sed -E 's/^[0-9]+: ([^:@]*).*/\1/'
}
# ---- what is refused before anything is changed -----------------------------------------------------------------
state >untouched
check_status "a user may not install" 1 'must be run by root' \
    setpriv --reuid "$ALICE" --regid "$ALICE" --clear-groups "$HELPER" install
# refuse NAME TEXT: install refuses, saying so and naming a free block, and changes nothing
refuse() {
    check_status "$1" 1 "$2" "$HELPER" install
    check_status "$1: proposes a free block" 1 'a free block: set `(tap|bridge)_base: (10|172)\.' "$HELPER" install
}
ip link add docker0 type bridge
ip addr add 10.243.0.1/16 dev docker0
ip link set docker0 up
refuse "Docker's bridge on our block" 'tap_base .* leads to docker0 \(Docker\)'
ip link del docker0
ip link add br-0123456789ab type bridge
ip addr add 10.242.3.1/24 dev br-0123456789ab
refuse "a network of Docker on the block for bridges" 'bridge_base .* leads to br-0123456789ab \(a network of Docker\)'
ip link del br-0123456789ab
ip link add virbr0 type bridge
ip addr add 10.243.1.1/24 dev virbr0
refuse "libvirt's bridge" 'leads to virbr0 \(libvirt\)'
ip link del virbr0
ip tuntap add tun0 mode tun
ip addr add 192.0.2.1/32 dev tun0
ip link set tun0 up
ip route add 10.0.0.0/8 dev tun0 table 51
refuse "a VPN's route in a table of its own" 'leads to tun0 \(a VPN\)'
ip link del tun0
ip link add podman0 type bridge
ip addr add 10.243.0.77/32 dev podman0
ip link set podman0 up
refuse "a single address of podman" 'leads to podman0 \(podman\)'
ip link del podman0
ip route add blackhole 10.243.0.0/24
refuse "a route that leads nowhere" 'tap_base .* leads nowhere'
ip route del blackhole 10.243.0.0/24
ip tuntap add tun0 mode tun
ip link set tun0 up
ip route add 10.0.0.0/8 dev tun0
"$HELPER" install >said 2>&1
equal "both blocks taken: the two that are proposed are different ones" 2 "$(grep -oE 'set .(tap|bridge)_base: [0-9.]+' said | awk '{ print $3 }' | sort -u | wc -l)"
mkdir /etc/berth
grep -oE '(tap|bridge)_base: [0-9.]+' said >/etc/berth/helper.conf
check_status "with those two nothing is in the way" 0 '^free: bridge_base, 172' "$HELPER" install --dry-run
ip link del tun0
printf 'tap_base: 10.242.4.0\n' >/etc/berth/helper.conf
check_status "two blocks of ours that overlap" 1 'tap_base .* overlaps bridge_base of the configuration' "$HELPER" install
check_status "check says so, too" 1 '^BAD configuration: the blocks of tap_base and bridge_base overlap' "$HELPER" check
check_status "and listen serves nobody with them" 1 'the blocks of tap_base and bridge_base overlap' "$HELPER" listen
printf 'slots: 1024\ntap_base: 10.242.32.0\n' >/etc/berth/helper.conf
check_status "two blocks side by side" 0 '^free: tap_base, 10.242.32.0-10.242.39.255' "$HELPER" install --dry-run
printf 'slots: 8\nslotz: 9\n' >/etc/berth/helper.conf
check_status "a wrong configuration: the line is named" 1 'line 2, column 1: ' "$HELPER" install
check_status "and the file" 1 '/etc/berth/helper.conf cannot be used' "$HELPER" install
chmod 666 /etc/berth/helper.conf
check_status "a configuration that others can write" 1 'only root can write' "$HELPER" install
rm -r /etc/berth
chmod 777 /usr/local/sbin
check_status "a program in a folder that others can write" 1 '/usr/local/sbin is writable by others' "$HELPER" install
check_status "check says so, too" 1 '^BAD /usr/local/sbin is writable' "$HELPER" check
chmod 755 /usr/local/sbin
cp "$HELPER" /tmp/elsewhere
check_status "a program that the units do not start" 1 'run .make install. first' /tmp/elsewhere install
rm elsewhere
check_status "install --dry-run" 0 'would write: /etc/systemd/system/berth-helper.service' "$HELPER" install --dry-run
state >after
check "nothing of all that has changed anything" diff untouched after

# ---- whose chains drop ----------------------------------------------------------------------------------------------
# drops NAME RULES / passes NAME RULES: what status says of a base chain with these (a policy among them, or not)
drops() { says_of "$1: drops us" '^other firewalls: the chain .ip x f. drops' "$2"; }
passes() { says_of "$1: does not" '^other firewalls: no chain drops' "$2"; }
says_of() {
    nft -f - <<<"table ip x { chain f { type filter hook $HOOK priority 0; ${3//; /$'\n'}
}
}"
    check_status "$1" 1 "$2" "$HELPER" status
    nft delete table ip x
}
HOOK=forward
drops "a policy" "policy drop; ct state established accept"
drops "a last rule" "iifname lo accept; counter log drop"
drops "a last rule that refuses" "reject with icmp type admin-prohibited"
drops "a policy, and a rule for another interface" "policy drop; iifname \"berthd0\" accept"
drops "a policy, and a rule that drops ours" "policy drop; iifname \"berth*\" drop"
drops "a policy, and a rule that only counts ours" "policy drop; iifname \"berth*\" counter"
drops "a policy, and a rule that leaves ours to it" "policy drop; iifname \"berth*\" return"
drops "a policy, and a rule for all but ours" "policy drop; iifname != \"berth*\" accept"
drops "a policy, and a rule for what goes to ours" "policy drop; oifname \"berth*\" accept"
passes "a policy, and a chain for ours" "policy drop; iifname \"berth*\" jump g; }; chain g {; accept"
passes "a policy, and our accept" "policy drop; iifname \"berth*\" accept; oifname \"berth*\" accept"
passes "a last rule with a condition" "ip saddr 192.0.2.1 drop"
HOOK=input
passes "a chain of another hook" "policy drop"
if [ -x /usr/sbin/iptables-legacy ] && iptables-legacy -P FORWARD DROP 2>/dev/null; then
    legacy='^other firewalls: the chain FORWARD of iptables-legacy'
    check_status "iptables-legacy: drops us" 1 "$legacy" "$HELPER" status
    for rule in '-i berth+' '-i berth+ -j DROP' '! -i berth+ -j ACCEPT' '-o berth+ -j ACCEPT' '-i berth+ -j RETURN'; do
        # shellcheck disable=SC2086 # the words of a rule
        iptables-legacy -I FORWARD $rule
        check_status "iptables-legacy with the rule $rule: drops us all the same" 1 "$legacy" "$HELPER" status
    done
    iptables-legacy -F FORWARD
    iptables-legacy -I FORWARD -i berth+ -j ACCEPT
    check_status "with our accept it does not" 1 '^other firewalls: no chain drops' "$HELPER" status
    iptables-legacy -F FORWARD
    iptables-legacy -P FORWARD ACCEPT
else
    skip "iptables-legacy: drops us" "impossible: this kernel or machine has none"
fi

# ---- install, on a host with Docker's chain ---------------------------------------------------------------------------
iptables -N DOCKER-USER
iptables -I FORWARD -j DOCKER-USER
iptables -P FORWARD DROP
state >with_docker
check_status "status says whose chain drops us" 1 'chain .ip filter FORWARD. drops' "$HELPER" status
check_status "install" 0 '^installed' "$HELPER" install
check "the group is there" grep -q '^berth:' /etc/group
check "and the user, without a shell" grep -qE '^_berth:.*:/usr/sbin/nologin$' /etc/passwd
GROUP=$(grep '^berth:' /etc/group | cut -d: -f3)
check_status "status finds no chain that drops us any more" 1 '^other firewalls: no chain drops' "$HELPER" status
iptables -F DOCKER-USER
check_status "somebody emptied it: firewall puts our accept back" 0 '^added: iptables DOCKER-USER -i' "$HELPER" firewall
check_status "once" 0 '^found: iptables DOCKER-USER -i' "$HELPER" firewall
equal "and only once" 2 "$(iptables -S DOCKER-USER | grep -c berth)"
state >installed
check_status "install again" 0 '^found: group berth' "$HELPER" install
check_status "finds all of it" 0 '^found: /etc/systemd/system/berth-helper.socket' "$HELPER" install
state >again
check "and changes nothing" diff installed again
echo '# edited' >>/etc/systemd/system/berth-helper.service
echo 'slots_per_uid: 3' >>/etc/berth/helper.conf
check_status "an edited unit is replaced" 0 '^replaced: /etc/systemd/system/berth-helper.service' "$HELPER" install
check "an edited configuration is kept" grep -q 'slots_per_uid: 3' /etc/berth/helper.conf
check_status "check: all is root's" 0 '^ok: [0-9]+ paths' "$HELPER" check
chmod g+w /etc/systemd/system/berth-helper.service
check_status "check: a unit that a group can write" 1 '^BAD /etc/systemd/system/berth-helper.service is writable' "$HELPER" check
chmod 644 /etc/systemd/system/berth-helper.service
chown "$ALICE" /etc/berth
check_status "check: a folder that is a user's" 1 '^BAD /etc/berth belongs to uid 1000' "$HELPER" check
chown 0 /etc/berth

# ---- the setuid starter -------------------------------------------------------------------------------------------
STARTER=/usr/local/libexec/berth/berth-helper-start
check_status "the setuid starter is not there: it says how to get it" 1 'make SETUID=1 install' "$HELPER" install --setuid
install -D -m 755 /opt/source/build/berth-helper-start $STARTER
check_status "install leaves the starter alone unless asked" 0 '^installed' "$HELPER" install
equal "its mode" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
check_status "a dry run of install --setuid" 0 '^would make: .* setuid' "$HELPER" install --setuid --dry-run
equal "changes nothing of it" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
chmod g+w /usr/local/libexec
check_status "a folder that others can write gets no setuid program" 1 '^BAD /usr/local/libexec is writable' "$HELPER" install --setuid
equal "it stays as it is" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
chmod g-w /usr/local/libexec
check_status "install --setuid" 0 '^made: .* setuid, for the group berth' "$HELPER" install --setuid
equal "root's, for the group alone" "4750 0 $(sed -n 's/^berth:[^:]*:\([0-9]*\):.*/\1/p' /etc/group)" "$(stat -c '%a %u %g' $STARTER)"
check_status "install --setuid again" 0 '^found: .* is setuid' "$HELPER" install --setuid
check_status "check looks at it too" 0 '^ok: [0-9]+ paths' "$HELPER" check

# ---- it runs --------------------------------------------------------------------------------------------------------
HELPER_CONFIG=/etc/berth/helper.conf HELPER_OPTIONS=(--status-socket /run/berth-status/helper.sock)
helper_start
equal "listen, as install says" 0 $?
check_status "status, by root" 0 'helper: answers on /run/berth/helper.sock' "$HELPER" status
check_status "status, by anybody" 0 'rules: as they should be' \
    setpriv --reuid 1234 --regid 1234 --clear-groups "$HELPER" status
tool alice "$ALICE" lease agent 0
check "alice leases" heard alice '^lease slot=0 '

# ---- uninstall -------------------------------------------------------------------------------------------------------
check_status "uninstall --dry-run" 0 'would remove: /etc/systemd/system/berth-helper.service' "$HELPER" uninstall --dry-run
check "and everything is still there" test -e /etc/systemd/system/berth-helper.service
check_status "uninstall while a helper runs" 1 'a berth-helper runs: end it first' "$HELPER" uninstall
helper_kill
check "an agent still holds an interface" bash -c 'ip -o link show | grep -q berth'
check_status "uninstall" 0 '^uninstalled' "$HELPER" uninstall
end_tool alice
equal "no table of ours is left" 0 "$(nft list ruleset | grep -c berth)"
equal "no interface" 0 "$(ip -o link show | grep -c berth)"
equal "no user or group" 0 "$(cat /etc/passwd /etc/group | grep -c berth)"
equal "no file but the edited configuration" "/etc/berth
/etc/berth/helper.conf" "$(find /etc /run -name '*berth*' -o -path '*/berth/*' | sort)"
rm -r /etc/berth /var/log/berth
state >after
check "the host is as it was before" diff with_docker after
equal "the setuid bit is gone" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
check_status "uninstall again" 0 '^uninstalled' "$HELPER" uninstall

[ "$TAP_FAILED" = 0 ] || sed 's/^/# /' helper.log | tail -40
finish
