#!/bin/bash
# The helper as it is run: its rights after the start, two users, quotas, kill -9 and adoption, drift, hostile clients.
# Everything in namespaces of its own.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/helper.bash
. "$SOURCE/tests/lib/helper.bash"
namespace_enter

SOCKET=/run/berth/helper.sock
UID_HELPER=900

cat >helper.conf <<END
user_uid: $UID_HELPER
socket_group: $GROUP
slots: 8
slots_per_uid: 3
requests_per_second: 1000
requests_burst: 1000
audit_folder: /tmp/audit
audit_lines: 64
END

status_is() { # PID FIELD VALUE
    [ "$(awk -v field="$2:" '$1 == field { $1 = ""; sub(/^ /, ""); print }' "/proc/$1/status")" = "$3" ]
}

# ---- start and rights -------------------------------------------------------------------------------------------
export BERTH_NOWHERE=somewhere
helper_start
equal "the helper starts in a user namespace" 0 $?
unset BERTH_NOWHERE
equal "the socket's owner and mode" "0 $GROUP 660" "$(stat -c '%u %g %a' $SOCKET)"
equal "its directory's owner and mode" "0 $GROUP 750" "$(stat -c '%u %g %a' /run/berth)"
check "uid" status_is "$HELPER_PID" Uid "$UID_HELPER $UID_HELPER $UID_HELPER $UID_HELPER"
check "gid" status_is "$HELPER_PID" Gid "$UID_HELPER $UID_HELPER $UID_HELPER $UID_HELPER"
check "no supplementary groups" status_is "$HELPER_PID" Groups ""
for set in CapInh CapBnd CapAmb; do
    check "$set is empty" status_is "$HELPER_PID" $set 0000000000000000
done
check "CapPrm is CAP_NET_ADMIN alone" status_is "$HELPER_PID" CapPrm 0000000000001000
check "CapEff is CAP_NET_ADMIN alone" status_is "$HELPER_PID" CapEff 0000000000001000
check "no new privileges" status_is "$HELPER_PID" NoNewPrivs 1
check "a system call filter" status_is "$HELPER_PID" Seccomp 2
equal "not dumpable: /proc belongs to root" 0 "$(stat -c %u "/proc/$HELPER_PID/mem")"
same_uid=(setpriv --reuid "$UID_HELPER" --regid "$UID_HELPER" --clear-groups)
check "its own uid cannot read its memory" not "${same_uid[@]}" cat "/proc/$HELPER_PID/maps"
check "its own uid cannot see its descriptors" not "${same_uid[@]}" ls "/proc/$HELPER_PID/fd"
check "there was an environment" test "$(wc -c <"/proc/$HELPER_PID/environ")" -gt 23
equal "of which nothing is left" "" "$(tr -d '\0' <"/proc/$HELPER_PID/environ")"
check "no core dumps" grep -qE '^Max core file size +0 +0' "/proc/$HELPER_PID/limits"

# ---- who may connect ---------------------------------------------------------------------------------------------
check_status "a user outside the group is refused" 2 'error connect EACCES' "$TOOL" --user "$ALICE" --group "$ALICE" status
check_status "a second helper on the socket is refused" 1 'another berth-helper has it' \
    "$HELPER" listen --config /tmp/helper.conf
check "and the first one still serves" helper_is_healthy
check_status "an unmapped uid's stand-in is refused" 2 'error connect EPERM' \
    timeout 5 "$TOOL" --user 65534 --group "$GROUP" status

# ---- leases and quotas --------------------------------------------------------------------------------------------
tool alice1 "$ALICE" lease agent 0
check "alice leases" heard alice1 '^lease slot=0 .* interface=berth0 host=10.243.0.0 guest=10.243.0.1 prefix=31'
check "the interface is up and has the host address" bash -c "ip -4 -o addr show dev berth0 | grep -q '10.243.0.0/31'"
tool bob1 "$BOB" lease agent 0
check "bob leases another slot" heard bob1 '^lease slot=1 '
tool alice2 "$ALICE" lease gateway 0
tool alice3 "$ALICE" lease agent 3
heard alice2 ^lease >/dev/null
heard alice3 ^lease >/dev/null
tool alice4 "$ALICE" lease agent 0
check "alice's quota is 3: the fourth is refused" heard alice4 '^error lease EDQUOT'
end_tool alice3
tell alice4 lease agent 0
check "after one was given back it is granted" heard alice4 '^lease slot='
tell alice4 status
check "alice sees her own slots and the counts" heard alice4 '^status live=4 .* healthy=1 .* own=0,2,[0-9]+$'
end_tool alice4
tool alice5 "$ALICE" lease gateway 0
check "a second gateway of the same environment is refused" heard alice5 '^error lease EEXIST'
tell alice5 lease gateway 15
check "of another environment it is granted" heard alice5 '^lease slot='
tell alice5 reconcile
check "RECONCILE is root's" heard alice5 '^error reconcile EPERM'
end_tool alice5
gone() { ! ip link show berth0 >/dev/null 2>&1; }
kill -9 "${TOOL_PID[alice1]}"
check "kill -9 of a client: its interface goes" eventually gone
end_tool alice1
end_tool alice2
end_tool bob1
check "all given back: no interface is left" eventually helper_has_no_interface

# ---- a TAP by name ---------------------------------------------------------------------------------------------
# What Firecracker does: opens the device by its name, as the lessee's uid and without a capability.
cat >attach.py <<'END'
import fcntl, os, struct, sys, time
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
fd = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", sys.argv[2].encode(), 0x0002 | 0x1000 | 0x4000))
print("attached", flush=True)
time.sleep(float(sys.argv[3]))
END
tool named "$ALICE" named agent 0
check "a TAP to be opened by name" heard named '^lease slot='
named_interface=$(fact named interface)
named_slot=$(fact named slot) named_generation=$(fact named generation)
check "it stays without anybody at it" ip link show "$named_interface"
check "it is the lessee's" bash -c "ip -d tuntap show dev '$named_interface' 2>/dev/null | grep -q 'user $ALICE' ||
    ip -d link show '$named_interface' | grep -q 'user $ALICE'"
check "its owner attaches to it by name" /usr/bin/python3 attach.py "$ALICE" "$named_interface" 0
check_status "nobody else does" 1 'PermissionError' /usr/bin/python3 attach.py "$BOB" "$named_interface" 0
tell named keep
helper_kill
helper_start
check "it is adopted after a restart" heard named "^kept slot=$named_slot generation=$named_generation "
check "and can be attached to again" /usr/bin/python3 attach.py "$ALICE" "$named_interface" 0
/usr/bin/python3 attach.py "$ALICE" "$named_interface" 5 >attached &
ATTACH_PID=$!
check "with its owner at it" eventually grep -q attached attached
tell named release
check "RELEASE" heard named '^release ok'
check "takes the device away from whoever is at it" eventually helper_has_no_interface
kill $ATTACH_PID
wait $ATTACH_PID 2>/dev/null
end_tool named

# ---- traffic through kill -9, restart and adoption --------------------------------------------------------------
for name in agent gateway; do
    ip netns add $name
done
tool gateway "$ALICE" --guest /run/netns/gateway lease gateway 0
heard gateway ^lease >/dev/null
tool agent "$ALICE" --guest /run/netns/agent lease agent 0
heard agent ^lease >/dev/null
guest gateway gateway
guest agent agent
agent_slot=$(fact agent slot) agent_generation=$(fact agent generation) agent_host=$(fact agent host)
talk_serve gateway
talk_start agent agent "$agent_host"
check "the agent reaches its gateway" eventually talks agent
tell agent counters
check "packets are counted" heard agent 'counters accepted_packets=[1-9]'
tell agent keep
tell gateway keep
rules() { nft -s list table inet berth | sed -E '/elements = /,/}/s/(expires|timeout) [^ ,]+//g'; }
rules >rules.before
helper_kill
sleep 0.3
rules >rules.after
check "kill -9 of the helper: the rules stay exactly as they are" cmp rules.before rules.after
check "and traffic goes on" talks_on agent
check_status "nothing new is granted" 2 'error connect ECONNREFUSED' "$TOOL" --user "$BOB" --group "$GROUP" lease agent 0
restarted=$(date +%s%3N)
helper_start
equal "the helper starts again" 0 $?
check "the agent's slot is adopted" heard agent "^kept slot=$agent_slot generation=$agent_generation "
check "the gateway's slot is adopted" heard gateway '^kept slot='
adopted=$(($(date +%s%3N) - restarted))
note "from the start to the last adoption: $adopted ms"
check "the same connection works on" talks_on agent
silence=$(talk_pause "$restarted" agent)
note "longest pause of the traffic: $silence ms"
tool thief "$BOB" adopt "$agent_slot" "$agent_generation"
check "bob cannot adopt alice's slot" heard thief '^error adopt ENOENT'
tell thief lease agent 0
check "a new lease has a generation of its own" heard thief '^lease '
check "above the old ones" test "$(fact thief generation)" -gt "$agent_generation"
end_tool thief

# ---- drift ------------------------------------------------------------------------------------------------------
nft flush ruleset
tell agent status
check "a flushed table: seen, repaired, healthy" heard agent 'healthy=1'
check "the table is back" eventually nft list set inet berth live
# Between the flush and the engine's answer a packet may meet no address translation: the host then resets that connection.
if talks_on agent >/dev/null; then
    note "the open connection survived the flush"
else
    note "the open connection was reset by the flush"
    talk_stop
    talk_serve gateway
    talk_start agent agent "$agent_host"
fi
check "the agent works on" talks_on agent
check "and it was said" grep -q 'right again' helper.log

# ---- seal ---------------------------------------------------------------------------------------------------------
tell agent seal
check "SEAL" heard agent '^seal ok'
sleep 0.1
lines=$(talk_lines agent)
sleep 0.3
equal "after SEAL nothing passes, established flows included" "$lines" "$(talk_lines agent)"
talk_stop

# ---- hostile clients ----------------------------------------------------------------------------------------------
cat >hostile.py <<'END'
import array, os, socket, sys
def connect():
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(5)
    peer.connect("/run/berth/helper.sock")
    return peer
os.setgroups([int(sys.argv[2])])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
for length in range(0, 601, 7):
    for filling in (b"\0", b"\xff", os.urandom(1)):
        peer = connect()
        try:
            peer.send(filling * length)
            assert peer.recv(1024)[:8] in (b"", b"BHT1\0\0\1\1"), "an answer to rubbish"
        except ConnectionError:
            pass
        peer.close()
fds = array.array("i", [0] * 253)
for _ in range(200):
    peer = connect()
    try:
        peer.sendmsg([b"\0" * 512], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        assert peer.recv(1024)[:8] in (b"", b"BHT1\0\0\1\1"), "an answer to descriptors"
    except ConnectionError:
        pass
    peer.close()
held = []
for _ in range(300): # never says a word
    try:
        held.append(connect())
    except (ConnectionError, BlockingIOError, TimeoutError):
        pass
END
fds() { find "/proc/$HELPER_PID/fd" -mindepth 1 | wc -l; }
fds_before=$(fds)
check "bob floods it with rubbish, descriptors and silence" timeout 60 python3 hostile.py "$BOB" "$GROUP"
check "the helper is alive" kill -0 "$HELPER_PID"
settled() { [ "$(fds)" -le "$fds_before" ]; }
check "no descriptor is left behind" eventually settled
check "and alice is served" helper_is_healthy

# ---- expiry -------------------------------------------------------------------------------------------------------
kill -9 "$HELPER_PID" "${TOOL_PID[agent]}" "${TOOL_PID[gateway]}"
wait "$HELPER_PID" 2>/dev/null
end_tool agent
end_tool gateway
helper_start
sleep 1
check "a slot whose keeper died with the helper waits" bash -c "'$TOOL' --user $ALICE --group $GROUP status </dev/null | grep -q reserved=2"

# ---- other entrances and refusals, while the deadline passes -------------------------------------------------
check_status "no command: usage" 64 '^usage: berth-helper listen' "$HELPER"
check_status "an unknown command: usage" 64 '^usage: berth-helper listen' "$HELPER" instal
check_status "an option without its value" 64 '^usage:' "$HELPER" listen --socket
check_status "not started by root" 1 'must be started by root' \
    setpriv --reuid "$ALICE" --regid "$ALICE" --clear-groups "$HELPER" listen
printf 'slots: 8\nslotz: 9\n' >wrong.conf
check_status "a wrong configuration names its line and column" 1 'configuration line 2, column 1:' "$HELPER" listen --config /tmp/wrong.conf
cp helper.conf loose.conf && chmod 666 loose.conf
check_status "a configuration that others can write" 1 'nobody else can write' "$HELPER" listen --config /tmp/loose.conf
check_status "no account" 1 'user _berth in /etc/passwd.*user_uid' "$HELPER" listen
mkdir -m 777 open
check_status "a socket folder that others can write" 1 'writable by root alone' \
    "$HELPER" listen --config /tmp/helper.conf --socket /tmp/open/helper.sock
mkdir -m 700 closed
check_status "a socket folder that the group cannot enter" 1 'open to the socket.s group' \
    "$HELPER" listen --config /tmp/helper.conf --socket /tmp/closed/helper.sock

reserved_gone() { "$TOOL" --user "$ALICE" --group "$GROUP" status </dev/null | grep -q 'reserved=0 dead=0 free=8'; }
for try in $(seq 70); do
    reserved_gone && break
    sleep 0.5
done
check "after the deadline it is given back ($((try / 2)) s)" reserved_gone
check "with its interface" eventually helper_has_no_interface
helper_kill

cat >activate.py <<'END'
import os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.umask(0o007)
listener.bind("/run/passed.sock")
os.chown("/run/passed.sock", 0, int(sys.argv[2]))
listener.listen(16)
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
assert all(os.readlink(f"/proc/self/fd/{fd}") == "/dev/null" and os.get_inheritable(fd) for fd in (4, 5))
os.execve(sys.argv[1], [sys.argv[1], "listen", "--config", "/tmp/helper.conf"],
          {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LD_BIND_NOW": "1", "BERTH_NOWHERE": "1"})
END
exec 4</dev/null 5</dev/null
python3 activate.py "$HELPER" "$GROUP" 2>>helper.log &
HELPER_PID=$!
exec 4<&- 5<&-
passed_serves() { helper_client --socket /run/passed.sock status | grep -q healthy=1; }
check "a socket passed by a service manager is served" eventually passed_serves
check "nothing else that was inherited is open" not bash -c "ls -l /proc/$HELPER_PID/fd | grep -qE ' ([3-9]|[0-9]{2,}) -> /dev/null'"
helper_kill

"$HELPER" listen --config /tmp/helper.conf <&- >&- 2>&- &
HELPER_PID=$!
check "it starts with standard descriptors closed" eventually helper_is_healthy
equal "and they are /dev/null" "/dev/null /dev/null /dev/null" "$(readlink /proc/$HELPER_PID/fd/{0,1,2} | paste -sd' ')"
helper_kill
check_status "too few descriptors are refused by name" 1 'too few descriptors' \
    bash -c "ulimit -n 64 && timeout 5 '$HELPER' listen --config /tmp/helper.conf"

[ "$TAP_FAILED" = 0 ] || sed 's/^/# /' helper.log
finish
