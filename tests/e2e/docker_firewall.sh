#!/usr/bin/env bash
# Somebody flushes all rules of the host, or loads a firewall anew, while an agent in a container works and tries what it may
# not: the helper notices, closes, repairs; the agent works on, and what it tries gets nowhere from then on. With the bridges of
# the host asking the inet hooks, and without.
. "$(dirname "$0")/../lib/host_image.bash"
if [ "${BERTH_WORLD:-}" != inside ] && [ "$(id -u)" = 0 ]; then # inside is no network
    HOST_FILES=$(host_image) || exit
    export HOST_FILES=${HOST_FILES##*/}
fi
. "$(dirname "$0")/../lib/docker_world.bash"

cat >"$WORLD/judge.py" <<'END_OF_JUDGE'
"""Writes a line for each datagram to port 2222 that leaves by the uplink ("out"), or that the host takes in ("host")."""
import selectors
import socket
import struct
host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
host.bind(("0.0.0.0", 2222))
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("uplink", 3))
chosen = selectors.DefaultSelector()
chosen.register(host, selectors.EVENT_READ)
chosen.register(wire, selectors.EVENT_READ)
while True:
    for key, _ in chosen.select():
        data, sender = key.fileobj.recvfrom(2048)
        if key.fileobj is host:
            print("host", data.decode(errors="replace"), flush=True)
        elif (sender[2] == socket.PACKET_OUTGOING and data[12:14] == b"\x08\x00" and data[23:24] == b"\x11"
              and data[36:38] == struct.pack(">H", 2222)):
            print("out", socket.inet_ntoa(data[26:30]), data[42:].decode(errors="replace"), flush=True)
END_OF_JUDGE
python3 "$WORLD/judge.py" >>"$WORLD/heard" &
judge=$!
send() { python3 -c 'import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", (sys.argv[1], 2222))' "$1"; }
judged() { send 127.0.0.1 && send 203.0.113.99 && grep -q hello "$WORLD/heard" && grep -q out "$WORLD/heard"; }
check "the judge sees what the host takes in and what leaves it" eventually judged

check "an agent" berth spawn dev --name works --background
bridge=$(berth status works --json | json 'd["agents"][0]["interface"]')
router=$(ip -o -4 addr show "$bridge" | sed -n 's|.* inet \([0-9.]*\)/.*|\1|p')
cat >"$WORLD/try.pl" <<'END_OF_TRY'
use Socket;
socket(my $s, PF_INET, SOCK_DGRAM, 0) or die;
while (1) {
    send($s, "leak", 0, sockaddr_in(2222, inet_aton($_))) for ($ARGV[0], "203.0.113.99", "198.51.100.1");
    select(undef, undef, undef, 0.002);
}
END_OF_TRY
berth exec works -- perl -e "$(cat "$WORLD/try.pl")" "$router" >/dev/null 2>&1 &
trier=$!
tried() { berth exec works -- sh -c 'grep -qs sockaddr_i[n] /proc/[0-9]*/cmdline'; }
check "which tries what it may not" eventually tried
arrived() { cat "/sys/class/net/$bridge/statistics/rx_packets"; }
attempts() { local before; before=$(arrived) && sleep 0.2 && [ $(($(arrived) - before)) -gt 10 ]; }
check "and gets as far as its bridge" eventually attempts
reaches() { berth exec works -- curl -sSf --max-time 10 -o /dev/null https://allowed.example/; }
events() { grep -c "$1" "$WORLD/helper.log"; }
is_repaired() { [ "$(events 'are not ours any more')" -gt "$1" ] && [ "$(events 'are not ours any more')" = "$(events 'are right again')" ]; }
is_up() { [ -n "$(ip -o link show up dev "$bridge" 2>/dev/null)" ]; }
leaks() { grep -c "^host leak" "$WORLD/heard"; }

flushed() { # NAME COMMAND...: the rules are gone by that command
    local before seen name=$1
    shift
    before=$(events 'are not ours any more')
    : >"$WORLD/heard"
    check "$name" "$@"
    check "$name: the helper notices, and repairs" eventually is_repaired "$before"
    check "$name: its bridge is up again" eventually is_up
    check "$name: the agent works on" eventually reaches
    check "$name: and tries on" eventually attempts
    seen=$(leaks)
    check "$name: as it does a while later" eventually attempts
    equal "$name: in vain: the host hears nothing, once it is repaired" "$seen" "$(leaks)"
    note "datagrams that the host took in until the helper was told, of 500 a second (SECURITY.md): $seen"
    equal "$name: nothing left the host, not for a moment" 0 "$(grep -c '^out .* leak' "$WORLD/heard")"
    check "$name: doctor says that all is well" grep -q 'helper.*healthy' <(berth doctor 2>&1)
}
reload() { # as firewalld does: all away, then its own (what Docker had made is loaded again)
    iptables-save >"$WORLD/rules" && nft flush ruleset && iptables-restore <"$WORLD/rules"
}
for hooks in 1 0; do
    check "net.bridge.bridge-nf-call-iptables is $hooks" sysctl -qw "net.bridge.bridge-nf-call-iptables=$hooks"
    check "the agent works" eventually reaches
    flushed "all rules flushed (hooks $hooks)" nft flush ruleset
    flushed "a firewall loaded anew (hooks $hooks)" reload
done

# ---- another firewall that drops what is forwarded: not ours to change, but said ----
check "somebody drops what is forwarded" iptables -P FORWARD DROP
iptables -F FORWARD
check "the agent does not get through" not reaches
check_status "the helper's status names the chain" 1 'the chain .ip filter FORWARD. drops' /opt/source/build/berth-helper status
check "and the probe says that nothing answers" not berth probe works
iptables -I FORWARD -i berth+ -j ACCEPT
iptables -I FORWARD -o berth+ -j ACCEPT
check "with an accept for berth+ it does" eventually reaches

iptables -P FORWARD ACCEPT
iptables -F FORWARD

# ---- firewalld: it loads its own table anew, and leaves ours alone ----
host=$WORLD/host
mkdir "$WORLD/layer" "$host"
mount -t tmpfs layer "$WORLD/layer" && mkdir "$WORLD/layer/upper" "$WORLD/layer/work"
check "a root for firewalld" mount -t overlay host -o "lowerdir=/opt/source/build/hosts/$HOST_FILES,upperdir=$WORLD/layer/upper,workdir=$WORLD/layer/work" "$host"
mount -t proc proc "$host/proc"
mount --rbind /dev "$host/dev"
mount -t tmpfs run "$host/run"
mkdir -p "$host/run/dbus" "$host/opt/source"
mount --bind /opt/source "$host/opt/source"
there() { chroot "$host" "$@"; }
there dbus-daemon --system --nofork >"$WORLD/dbus.log" 2>&1 &
bus=$!
check "a bus" eventually test -S "$host/run/dbus/system_bus_socket"
there /usr/sbin/firewalld --nofork --nopid >"$WORLD/firewalld.log" 2>&1 &
firewalld=$!
check "firewalld starts" eventually there firewall-cmd --state
check "and refuses what is forwarded" eventually nft list chain inet firewalld filter_FORWARD
check "the agent does not get through firewalld" not reaches
check "the unit's command opens it" there /opt/source/build/berth-helper firewall
check "the agent works on with firewalld" eventually reaches
# The zone that install writes for its next reload.
check "it is given our zone" there firewall-cmd --permanent --new-zone=berth
check "which accepts" there firewall-cmd --permanent --zone=berth --set-target=ACCEPT
check "our interfaces" there firewall-cmd --permanent --zone=berth --add-interface=berth+
works_all_the_while() { for _ in 1 2 3 4 5 6; do reaches || return; done; }
for option in --reload --complete-reload; do
    before=$(events 'are not ours any more')
    : >"$WORLD/heard"
    works_all_the_while &
    worker=$!
    check "firewall-cmd $option" there firewall-cmd "$option"
    wait "$worker"
    equal "$option: the agent works all the while" 0 "$?"
    check "$option: and on" eventually reaches
    check "$option: and tries on" eventually attempts
    equal "$option: the helper's rules were not touched" "$before" "$(events 'are not ours any more')"
    equal "$option: in vain: nothing left, and the host heard nothing, not for a moment" 0 "$(grep -c leak "$WORLD/heard")"
done
kill "$firewalld" "$bus"
wait "$firewalld" "$bus" 2>/dev/null
check "without firewalld the agent works on" eventually reaches

kill "$trier" "$judge"
check "stop" berth stop works
check "down" berth down
finish
