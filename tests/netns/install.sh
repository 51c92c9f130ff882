#!/bin/bash
# install, status, check, upgrade and uninstall as an administrator does them, on a root of the test's own: programs are
# bound in, /etc, /run, /var and /usr/local are new, network and users are a namespace's. The machine stays untouched.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ "${BERTH_WORLD:-}" != inside ]; then
    exec env BERTH_WORLD=inside "$SOURCE/build/tests/tools/namespace" --bind "$SOURCE" source \
        bash /opt/source/tests/netns/install.sh
fi
# shellcheck source=tests/lib/tap.bash
. "$SOURCE/tests/lib/tap.bash"

ALICE=1000 BOB=1001
HELPER=/usr/local/sbin/berth-helper
declare -A TOOL_PID TOOL_FD

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
TOOL=/opt/source/build/tests/tools/helper_tool
cd /tmp || exit 1
ip link set lo up

not() { ! "$@"; }
eventually() {
    local try
    for try in $(seq 150); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.02
    done
    echo "not in $try tries: $*"
    return 1
}
# Everything that an installation could leave: files and accounts, rules, interfaces.
state() {
    (cd / && find etc run var -not -path 'run/netns*' -not -path 'run/systemd*' -not -path 'run/mount*' -printf '%y %m %U %G %p\n' | grep -vE '/(\.pwd\.lock|[a-z]*-)$' | sort)
    cat /etc/passwd /etc/group
    nft list ruleset
    ip -o link show | sed -E 's/^[0-9]+: ([^:@]*).*/\1/'
}
tool() {
    local name=$1 uid=$2 input_fd
    shift 2
    mkfifo "$name.in"
    : >"$name.out"
    "$TOOL" --user "$uid" --group "$uid" --group "$GROUP" "$@" <"$name.in" >>"$name.out" 2>&1 &
    TOOL_PID[$name]=$!
    exec {input_fd}>"$name.in"
    TOOL_FD[$name]=$input_fd
}
tell() {
    : >"$1.out"
    echo "$2" >&"${TOOL_FD[$1]}"
}
heard() { eventually grep -qE "$2" "$1.out"; }
fact() { grep -oE "\b$2=[^ ]+" "$1.out" | head -1 | cut -d= -f2; }
end_tool() {
    kill "${TOOL_PID[$1]}" 2>/dev/null
    wait "${TOOL_PID[$1]}" 2>/dev/null
    rm -f "$1.in" "$1.out"
}
guest() {
    ip -n "$2" link set lo up
    ip -n "$2" link set eth0 address "$(fact "$1" guest_mac)" up
    ip -n "$2" addr add "$(fact "$1" guest)/31" dev eth0
    ip -n "$2" route add default via "$(fact "$1" host)"
}

# ---- what is refused before anything is changed -----------------------------------------------------------------
state >untouched
check_status "a user may not install" 1 'must be run by root' \
    setpriv --reuid $ALICE --regid $ALICE --clear-groups $HELPER install
# refuse NAME TEXT: install refuses, saying so and naming a free block, and changes nothing
refuse() {
    check_status "$1" 1 "$2" $HELPER install
    check_status "$1: proposes a free block" 1 'a free block: set `(tap|bridge)_base: (10|172)\.' $HELPER install
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
refuse "a route that leads nowhere" 'leads to \?'
ip route del blackhole 10.243.0.0/24
chmod 777 /usr/local/sbin
check_status "a program in a folder that others can write" 1 '/usr/local/sbin is writable by others' $HELPER install
check_status "check says so, too" 1 '^BAD /usr/local/sbin is writable' $HELPER check
chmod 755 /usr/local/sbin
cp $HELPER /tmp/elsewhere
check_status "a program that the units do not start" 1 'run .make install. first' /tmp/elsewhere install
rm elsewhere
check_status "install --dry-run" 0 'would write: /etc/systemd/system/berth-helper.service' $HELPER install --dry-run
state >after
check "nothing of all that has changed anything" diff untouched after

# ---- install, on a host with Docker ------------------------------------------------------------------------------
nft -f - <<'END'
table ip filter {
    chain DOCKER-USER { }
    chain ufw-before-forward { }
    chain FORWARD { type filter hook forward priority filter; policy drop; jump DOCKER-USER; jump ufw-before-forward; }
}
END
state >with_docker
check_status "status says whose chain drops us" 1 'chain .ip filter FORWARD. drops' $HELPER status
check_status "install" 0 '^installed' $HELPER install
check "the group is there" grep -q '^berth:' /etc/group
check "and the user, without a shell" grep -qE '^_berth:.*:/usr/sbin/nologin$' /etc/passwd
GROUP=$(grep '^berth:' /etc/group | cut -d: -f3)
if [ -x /usr/sbin/iptables ]; then
    check "our accept is in DOCKER-USER" bash -c 'nft list chain ip filter DOCKER-USER | grep -q "iifname \"berth\*\".*accept"'
    check "and in the chain of ufw" bash -c 'nft list chain ip filter ufw-before-forward | grep -q "oifname \"berth\*\".*accept"'
    check_status "status finds no chain that drops us any more" 1 '^other firewalls: no chain drops' $HELPER status
    iptables -F DOCKER-USER
    iptables -F ufw-before-forward
    check_status "a reload of Docker has emptied its chain: firewall puts it back" 0 '^added: DOCKER-USER -i' $HELPER firewall
    check_status "once" 0 '^found: DOCKER-USER -i' $HELPER firewall
    equal "and only once" 2 "$(nft list chain ip filter DOCKER-USER | grep -c berth)"
else
    skip "our accept is in DOCKER-USER" "iptables is not installed"
fi
state >installed
check_status "install again" 0 '^found: group berth' $HELPER install
check_status "finds all of it" 0 '^found: /etc/systemd/system/berth-helper.socket' $HELPER install
state >again
check "and changes nothing" diff installed again
echo '# edited' >>/etc/systemd/system/berth-helper.service
echo 'slots_per_uid: 3' >>/etc/berth/helper.conf
check_status "an edited unit is replaced" 0 '^replaced: /etc/systemd/system/berth-helper.service' $HELPER install
check "an edited configuration is kept" grep -q 'slots_per_uid: 3' /etc/berth/helper.conf
if [ -x /usr/bin/systemd-analyze ]; then
    check "systemd finds nothing wrong with the units" bash -c '
        systemd-analyze verify /etc/systemd/system/berth-*.{service,socket} 2>&1 | grep -E "berth-.*(Unknown|Invalid|Failed to parse)" && exit 1; true'
else
    skip "systemd finds nothing wrong with the units" "systemd-analyze is not installed"
fi
equal "the unit leaves the helper these capabilities" "CapabilityBoundingSet=CAP_NET_ADMIN CAP_SETUID CAP_SETGID CAP_SETPCAP" \
    "$(grep ^CapabilityBoundingSet /etc/systemd/system/berth-helper.service)"
check_status "check: all is root's" 0 '^ok: [0-9]+ paths' $HELPER check
chmod g+w /etc/systemd/system/berth-helper.service
check_status "check: a unit that a group can write" 1 '^BAD /etc/systemd/system/berth-helper.service is writable' $HELPER check
chmod 644 /etc/systemd/system/berth-helper.service
chown $ALICE /etc/berth
check_status "check: a folder that is a user's" 1 '^BAD /etc/berth belongs to uid 1000' $HELPER check
chown 0 /etc/berth

# ---- the setuid starter -------------------------------------------------------------------------------------------
STARTER=/usr/local/libexec/berth/berth-helper-start
check_status "the setuid starter is not there: it says how to get it" 1 'make SETUID=1 install' $HELPER install --setuid
install -D -m 755 /opt/source/build/berth-helper-start $STARTER
check_status "install leaves the starter alone unless asked" 0 '^installed' $HELPER install
equal "its mode" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
check_status "a dry run of install --setuid" 0 '^would make: .* setuid' $HELPER install --setuid --dry-run
equal "changes nothing of it" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
chmod g+w /usr/local/libexec
check_status "a folder that others can write gets no setuid program" 1 '^BAD /usr/local/libexec is writable' $HELPER install --setuid
equal "it stays as it is" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
chmod g-w /usr/local/libexec
check_status "install --setuid" 0 '^made: .* setuid, for the group berth' $HELPER install --setuid
equal "root's, for the group alone" "4750 0 $(sed -n 's/^berth:[^:]*:\([0-9]*\):.*/\1/p' /etc/group)" "$(stat -c '%a %u %g' $STARTER)"
check_status "install --setuid again" 0 '^found: .* is setuid' $HELPER install --setuid
check_status "check looks at it too" 0 '^ok: [0-9]+ paths' $HELPER check

# ---- what systemd is told ---------------------------------------------------------------------------------------
# A systemctl of the test's own, which writes down how it was called.
if [ -e /usr/bin/systemctl ] && [ -e /usr/bin/systemd-tmpfiles ]; then
    printf '#!/bin/sh\necho "$0 $*" >>/tmp/systemctl.log\n' >systemctl && chmod 755 systemctl
    mount --bind systemctl /usr/bin/systemctl
    mount --bind systemctl /usr/bin/systemd-tmpfiles
    mkdir -p /run/systemd/system
    check_status "install, where systemd runs" 0 '^enabled and restarted: berth-helper.socket' $HELPER install
    equal "in this order" "/usr/bin/systemd-tmpfiles --create /etc/tmpfiles.d/berth.conf
/usr/bin/systemctl daemon-reload
/usr/bin/systemctl enable --now berth-helper.socket berth-helper-status.socket
/usr/bin/systemctl enable berth-helper.service berth-firewall.service
/usr/bin/systemctl restart berth-firewall.service berth-helper.service" "$(cat systemctl.log)"
    : >systemctl.log
    check_status "a dry run" 0 'would enable and restart' $HELPER install --dry-run
    equal "tells systemd nothing" "" "$(cat systemctl.log)"
    printf '#!/bin/sh\nexit 3\n' >systemctl
    check_status "systemctl fails: so does install" 1 'systemctl daemon-reload failed \(3\)|systemd-tmpfiles --create failed \(3\)' $HELPER install
    rm -r /run/systemd
    umount /usr/bin/systemctl /usr/bin/systemd-tmpfiles
else
    skip "install, where systemd runs" "systemctl is not installed"
fi

# ---- agents of two users at work ----------------------------------------------------------------------------------
# As the socket units do: the listening sockets outlive the engine.
cat >activate.py <<'END'
import os, socket, sys
CAPABILITIES = "-all,+net_admin,+setuid,+setgid,+setpcap"  # CapabilityBoundingSet= of the unit
def listener(path, mode, group, folder_mode):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.chown(os.path.dirname(path), 0, group)
    os.chmod(os.path.dirname(path), folder_mode)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(path)
    os.chown(path, 0, group)
    os.chmod(path, mode)
    made.listen(128)
    return made
group = int(sys.argv[1])
sockets = [listener("/run/berth/helper.sock", 0o660, group, 0o750), listener("/run/berth-status/helper.sock", 0o666, 0, 0o755)]
child = None
def start():
    global child
    def passing():
        high = [os.dup2(one.fileno(), 20 + place) for place, one in enumerate(sockets)]
        for place, fd in enumerate(high):
            os.dup2(fd, 3 + place)
        os.environ["LISTEN_PID"] = str(os.getpid())
    pid = os.fork()
    if pid == 0:
        passing()
        os.execve("/usr/bin/setpriv", ["setpriv", "--no-new-privs", "--bounding-set", CAPABILITIES, "/usr/local/sbin/berth-helper", "listen"],
                  {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "helper:status", "LISTEN_PID": str(os.getpid())})
    return pid
while True:
    child = start()
    with open("/tmp/engine.pid", "w") as file:
        file.write(str(child))
    os.waitpid(child, 0)
END
/usr/bin/python3 activate.py "$GROUP" 2>helper.log &
MANAGER=$!
check "the service manager starts the installed helper, with the unit's capabilities" eventually grep -q ': ready' helper.log
check_status "status, by root" 0 'helper: answers on /run/berth/helper.sock' $HELPER status
check_status "status, by anybody" 0 'rules: as they should be' \
    setpriv --reuid 1234 --regid 1234 --clear-groups $HELPER status
cat >echo.py <<'END'
import socket, threading
server = socket.create_server(("0.0.0.0", 8119))
def serve(peer):
    while data := peer.recv(4096):
        peer.sendall(data)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
END
cat >talk.py <<'END'
import socket, sys, time
for attempt in range(250):  # the other side may still be on its way up
    try:
        peer = socket.create_connection((sys.argv[1], 8119), timeout=30)
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
last = time.monotonic()
while True:
    peer.sendall(b"x\n")
    if not peer.recv(16):
        sys.exit("closed")
    now = time.monotonic()
    print(f"{1000 * (now - last):.0f}", flush=True)
    last = now
    time.sleep(0.02)
END
mkdir -p /run/netns
PROCESSES=()
for user in alice bob; do
    uid=$ALICE
    [ $user = bob ] && uid=$BOB
    for role in gateway agent; do
        ip netns add $user-$role
        tool $user-$role $uid --guest /run/netns/$user-$role lease $role 0
        heard $user-$role ^lease >/dev/null
        guest $user-$role $user-$role
        tell $user-$role keep
    done
    # `keep` has emptied the file; the host's address is in the guest's default route
    ip netns exec $user-gateway /usr/bin/python3 echo.py &
    PROCESSES+=($!)
    host=$(ip -n $user-agent route show default | awk '{ print $3 }')
    sleep 0.3
    ip netns exec $user-agent /usr/bin/python3 talk.py "$host" >$user.talk 2>&1 &
    PROCESSES+=($!)
done
talks() { [ "$(wc -l <"$1.talk")" -gt "${2:-5}" ]; }
check "alice's agent talks to her gateway, on a host whose Docker drops" eventually talks alice
check "bob's too" eventually talks bob

# ---- upgrade while they work ---------------------------------------------------------------------------------------
install -m 755 "${WORLD_HELPER:-/opt/source/build/berth-helper}" $HELPER.new && mv $HELPER.new $HELPER
check_status "install after the program was exchanged" 0 '^installed' $HELPER install
alice_lines=$(wc -l <alice.talk) bob_lines=$(wc -l <bob.talk)
kill -9 "$(cat engine.pid)"
for user in alice bob; do
    for role in gateway agent; do
        check "$user's $role is adopted by the new engine" heard $user-$role '^kept slot='
    done
done
check "alice's connection works on" eventually talks alice $((alice_lines + 40))
check "bob's too" eventually talks bob $((bob_lines + 40))
pause=$(sort -n alice.talk bob.talk | tail -1)
check "traffic paused for less than a second ($pause ms)" test "$pause" -lt 1000
check "the log of both engines is one chain" bash -c "$HELPER audit --verify | grep -q ^ok"

# ---- uninstall -------------------------------------------------------------------------------------------------------
check_status "uninstall --dry-run" 0 'would remove: /etc/systemd/system/berth-helper.service' $HELPER uninstall --dry-run
check "and everything is still there" test -e /etc/systemd/system/berth-helper.service
check_status "uninstall while a helper runs" 1 'a berth-helper runs: end it first' $HELPER uninstall
kill -9 $MANAGER "$(cat engine.pid)"
wait $MANAGER 2>/dev/null
check "agents still hold interfaces" bash -c 'ip -o link show | grep -q berth'
check_status "uninstall" 0 '^uninstalled' $HELPER uninstall
kill "${PROCESSES[@]}" 2>/dev/null
wait "${PROCESSES[@]}" 2>/dev/null
for user in alice bob; do
    for role in gateway agent; do
        end_tool $user-$role
        ip netns del $user-$role
    done
done
equal "no table of ours is left" 0 "$(nft list ruleset | grep -c berth)"
equal "no interface" 0 "$(ip -o link show | grep -c berth)"
equal "no user or group" 0 "$(cat /etc/passwd /etc/group | grep -c berth)"
equal "no file but the edited configuration" "/etc/berth
/etc/berth/helper.conf" "$(find /etc /run -name '*berth*' -o -path '*/berth/*' | sort)"
rm -r /etc/berth /var/log/berth
state >after
check "the host is as it was before" diff with_docker after
equal "the setuid bit is gone" "755 0 0" "$(stat -c '%a %u %g' $STARTER)"
check_status "uninstall again" 0 '^uninstalled' $HELPER uninstall

[ "$TAP_FAILED" = 0 ] || sed 's/^/# /' helper.log | tail -40
finish
