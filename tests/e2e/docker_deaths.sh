#!/usr/bin/env bash
# An engine that dies at each step of a launch and of a stop, and a keeper that does: list tells the truth, cleanup leaves
# nothing. Between berth and the engine stands a socket that kills the engine, or who asks, when a given request comes.
# variants: runc runsc
. "$(dirname "$0")/../lib/docker_world.bash"

check "a socket before the engine's" engine_socket /run/killer.sock
by() { as 1000 env DOCKER_HOST=unix:///run/killer.sock timeout 60 berth "$@" </dev/null; }
is_clean() { berth cleanup bots && [ "$(in_engine)" = "0 0 0" ] && [ "$(listed running)" = 0 ]; }
for step in "POST /volumes/create" "DELETE /containers/" "POST /networks/create" "POST /connect" \
    "POST /containers/create" "POST /attach" "POST /start" "POST /exec"; do
    by up >"$WORLD/up" 2>&1
    order "kill $step engine"
    by spawn dev --name dying --background >"$WORLD/said" 2>&1
    status=$?
    equal "killed at $step of a launch: the launch fails, and that is all" "failed yes 0" \
        "$([ $status != 0 ] && [ $status != 124 ] && echo failed) $([ -e "$WORLD/order" ] || echo yes) $(listed running)"
    [ -e "$WORLD/order" ] && note "$(tail -n 3 "$WORLD/up" "$WORLD/said")"
    docker_start_again
    check "and is cleaned up" is_clean
    rm -f "$WORLD/order"
done
for step in "DELETE /containers/" "DELETE /networks/"; do
    check "an agent" by spawn dev --name dying --background
    order "kill $step engine"
    by stop dying >"$WORLD/said" 2>&1
    equal "killed at $step of a stop: it does not run" "yes 0" "$([ -e "$WORLD/order" ] || echo yes) $(listed running)"
    docker_start_again
    check "and is cleaned up" is_clean
    rm -f "$WORLD/order"
done
# ---- an engine that hears nothing, is killed and comes again, while its agent sends and sends ----
cat >"$WORLD/listener.py" <<'END_OF_LISTENER'
"""Hears datagrams to the host, whatever address and interface they come to, and says whose they are."""
import socket
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("0.0.0.0", 2222))
while True:
    said, peer = listener.recvfrom(64)
    print(said.decode(errors="replace"), peer[0], flush=True)
END_OF_LISTENER
python3 "$WORLD/listener.py" >"$WORLD/heard" &
listener=$!
say_hello() { python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", ("127.0.0.1", 2222))'; }
hears() { say_hello && grep -q hello "$WORLD/heard"; }
check "the host hears datagrams" eventually hears
check "an agent" berth spawn dev --name sender --background
bridge=$(berth status sender --json | json 'd["agents"][0]["interface"]')
router=$(ip -o -4 addr show "$bridge" | sed -n 's|.* inet \([0-9.]*\)/.*|\1|p')
ports=$(cd "/sys/class/net/$bridge/brif" && echo *)
cat >"$WORLD/send.pl" <<'END_OF_SEND'
use Socket;
socket(my $s, PF_INET, SOCK_DGRAM, 0) or die;
while (1) { send($s, "leak", 0, sockaddr_in(2222, inet_aton($ARGV[0]))); select(undef, undef, undef, 0.005) }
END_OF_SEND
berth exec sender -- perl -e "$(cat "$WORLD/send.pl")" "$router" >/dev/null 2>&1 &
# gVisor's processes are not the host's, so this is judged by what comes out of the container: the datagrams that the
# host's kernel was given to send in its network, whatever became of them.
first=$(count /containers/json "[c['Id'] for c in d if c['Labels'].get('berth.name')=='sender'][0]")
first=$(count "/containers/$first/json" 'd["State"]["Pid"]')
its_network=$(readlink "/proc/$first/ns/net")
sent() { awk '/^Udp: [0-9]/ { print $5 + $7 }' "/proc/$first/net/snmp"; }
sends() {
    local before
    before=$(sent) && sleep 0.1 && [ "$(sent)" -gt $((before + 5)) ]
}
in_its_network() {
    local process
    for process in /proc/[0-9]*; do [ "$(readlink "$process/ns/net")" = "$its_network" ] && echo "${process#/proc/}"; done
}
check "which sends to the host" eventually sends
check "and another agent" berth spawn dev --name witness --background
keeper=$(berth list --json | json '[a["keeper_pid"] for a in d["agents"] if a["name"]=="sender"][0]')
kill -STOP "$DOCKER_PID"
kill -KILL "$keeper"
is_gone() { ! test -e "/sys/class/net/$bridge"; }
check "its keeper is killed, the engine hears nothing: the bridge goes" eventually is_gone
check "the agent still runs" sends
up_ports() { for port in $ports; do ip -o link show up dev "${port%@*}" 2>/dev/null; done; }
equal "and none of its lines to the host is up" "" "$(up_ports)"
# The next lease of that slot has its address again.
ip link add stand type bridge && ip addr add "$router/29" dev stand && ip link set stand up
sleep 0.3
check "the agent still sends" sends
ip link del stand
check "by a process that the host sees" [ -n "$(in_its_network)" ]
kill -KILL "$DOCKER_PID"
docker_start_again
taken_away() { grep -q 'a bridge came up without a lease' "$WORLD/helper.log"; }
check "the engine comes again and makes its bridge anew: the helper takes it away" eventually taken_away
check "and it stays away" eventually is_gone
is_ended() { [ -z "$(in_its_network)" ]; }
check "what the engine had left running ends" eventually is_ended
says_why() { berth status witness | grep -q 'the container engine was stopped'; }
check "the agent of a keeper that lives says why it ended" eventually says_why
equal "the other one is lost" 1 "$(listed lost)"
check "the pair is started again" berth up
equal "which leaves no container and no network of it in the engine, and keeps their work" "0 0 6" "$(in_engine)"
for name in sender witness; do
    check "resume $name" berth resume $name --background
    check "stop" berth stop $name
done
check "down" berth down
check "an engine without a lease has no bridge" eventually not compgen -G '/sys/class/net/berthd*'
hears
equal "the host heard no datagram of an agent in all that time" 0 "$(grep -c leak "$WORLD/heard")"
kill "$listener"
wait "$listener" 2>/dev/null
check "and is cleaned up" is_clean

# ---- a keeper that dies: the command that follows it undoes the launch ----
# What it had asked for last may be done only after that; the next who comes removes it.
left_nothing() { berth up && [ "$(in_engine)" = "0 0 0" ]; }
for step in "POST /networks/create" "POST /start"; do
    by up >"$WORLD/up" 2>&1
    order "kill $step caller"
    by spawn dev --name dying --background >"$WORLD/said" 2>&1
    equal "a keeper killed at $step: the launch fails and leaves no agent" "1 yes 0 " \
        "$? $([ -e "$WORLD/order" ] || echo yes) $(berth list --json | json 'len(d["agents"])') $(ls /home/1000/.local/state/berth/env/live/agents)"
    check "and nothing in the engine" eventually left_nothing
    rm -f "$WORLD/order"
done
check "and then all is as ever" berth spawn dev --name after -- true
check "down" berth down
finish
