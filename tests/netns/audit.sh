#!/bin/bash
# The audit log as an administrator meets it: lines on disk, the ring going round, the chain verified and broken, a full
# disk, several engines, the status socket and socket activation with both sockets. Everything in namespaces of its own.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/helper.bash
. "$SOURCE/tests/lib/helper.bash"
namespace_enter

LINE=384

configure() {
    printf '%s\n' 'user_uid: 900' "socket_group: $GROUP" 'slots: 8' 'slots_per_uid: 4' 'requests_per_second: 10000' \
        'requests_burst: 10000' "$@" >helper.conf
}

# starts NAME OPTION...: not by check, whose command runs in a subshell
starts() {
    local name=$1
    HELPER_OPTIONS=("${@:2}")
    helper_start
    equal "$name" 0 $?
}

audit() { "$HELPER" audit --config /tmp/helper.conf "$@"; }
# said EVENT STATUS: how many lines of the log say so
said() { audit --lines 100000 | grep -c "\"event\":\"$1\",\"status\":\"$2\""; }
leases() { helper_client lease agent 0 | grep -q "^lease "; }
lease_and_release() { helper_client lease agent 0 >/dev/null; }
said_times() { [ "$(said "$1" "$2")" = "$3" ]; }

# ---- lines ------------------------------------------------------------------------------------------------------
configure 'audit_folder: /tmp/audit' 'audit_lines: 8'
starts "the helper starts with an audit log"
equal "its folder is root's alone" "0 0 700" "$(stat -c '%u %g %a' audit)"
equal "so are its eight segments, whole from the start" "8 0 0 600 $((8 * LINE))" \
    "$(stat -c '%u %g %a %s' audit/audit.* | sort | uniq -c | sed 's/^ *//')"
lease_and_release
check "a client that leases and ends: one LEASE" eventually said_times LEASE OK 1
check "and one EOF" eventually said_times EOF OK 1
helper_client release >/dev/null
check "a refusal" eventually said_times RELEASE STATE 1
printf 'import os, socket\nos.setgid(%s)\nos.setuid(%s)\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n%s' "$GROUP" "$ALICE" \
    's.connect("/run/berth/helper.sock")
s.send(b"\",\"event\":\"LEASE\"}\n" + bytes(494))
s.recv(1)
' >rubbish.py
/usr/bin/python3 rubbish.py
check "a malformed frame" eventually said_times FRAME MALFORMED 1
equal "nothing of a client's bytes is in the log" 1 "$(said LEASE OK)"
check "each line is JSON" bash -c "'$HELPER' audit --config helper.conf --lines 1000 |
    /usr/bin/python3 -c 'import json, sys; assert len([json.loads(line) for line in sys.stdin]) >= 5'"
check_status "the chain is whole" 0 '^ok: lines 1 to [0-9]+' audit --verify
check_status "a user cannot read it" 1 'Permission denied' setpriv --reuid "$ALICE" --regid "$ALICE" --clear-groups \
    "$HELPER" audit --config /tmp/helper.conf
check "a copy of each line goes to standard error" grep -q '"event":"LEASE"' helper.log
check_status "a second engine does not write into the same log" 1 'another berth-helper writes it' \
    "$HELPER" listen --config /tmp/helper.conf --socket /run/other/helper.sock

# ---- round the ring ---------------------------------------------------------------------------------------------
for _ in $(seq 45); do lease_and_release; done
check "after more lines than the ring has" eventually said_times START OK 0
check_status "the chain is whole, and begins later" 0 '^ok: lines ([2-9][0-9]|[1-9]) to [0-9]+ ' audit --verify
helper_kill
number=$(audit --lines 1 | sed -E 's/.*"n":([0-9]+).*/\1/')
starts "a killed engine's successor"
equal "goes on with the next number" "$((number + 1))" "$(audit --lines 1 | sed -E 's/.*"n":([0-9]+).*/\1/')"
check_status "and the chain is whole" 0 '^ok:' audit --verify

# ---- somebody edits it ------------------------------------------------------------------------------------------
# edit NUMBER SED: changes the line with that number
edit() {
    local place=$((($1 - 1) % 64))
    local file=audit/audit.$((place / 8)) at=$((place % 8))
    dd if="$file" bs=$LINE skip=$at count=1 status=none | sed "$2" | head -c $LINE |
        dd of="$file" bs=$LINE seek=$at conv=notrunc status=none
    echo "audit.$((place / 8)) line $((at + 1)) "
}
number=$(audit --lines 1 | sed -E 's/.*"n":([0-9]+).*/\1/')
cp -r audit good
edit $((number - 5)) 's/"uid":1000/"uid":1001/' >/dev/null
where=$(edit $((number - 4)) 's/^/&/')
check_status "a changed uid: the line after it does not follow" 1 "^BAD $where.*does not follow" audit --verify
cp good/* audit/
where=$(edit $((number - 7)) 's/^{/ /')
check_status "a line made unreadable is named" 1 "^BAD $where.*not a line" audit --verify
cp good/* audit/
where=$(edit $((number - 6)) 's/"n":[0-9]*,/"n":9999999,/')
check_status "another number is named" 1 "^BAD audit\.[0-7] line" audit --verify
cp good/* audit/
truncate -s $((7 * LINE)) audit/audit.3
check_status "a segment that was cut off is named" 1 'audit.3: its size' audit --verify
cp good/* audit/
check_status "as it was, it is whole" 0 '^ok:' audit --verify
helper_kill

# ---- folders and files that are not root's alone ----------------------------------------------------------------
refuse() { check_status "$1" 1 "$2" timeout 5 "$HELPER" listen --config /tmp/helper.conf; }
chmod 777 audit
refuse "a folder that others can write" 'root alone'
chmod 700 audit
mv audit/audit.5 elsewhere && ln -s /tmp/elsewhere audit/audit.5
refuse "a symbolic link for a segment" 'symbolic link'
rm audit/audit.5 && ln elsewhere audit/audit.5
refuse "a hard link for a segment" 'root alone'
rm audit/audit.5 && mv elsewhere audit/audit.5
configure 'audit_folder: /tmp/audit' 'audit_lines: 9'
refuse "segments of another size" 'set audit_lines back'
configure 'audit_folder: none'
starts "audit_folder: none"
check "is said" grep -q 'no audit log is written' helper.log
check "and leases are given" leases
helper_kill

# ---- a full disk ------------------------------------------------------------------------------------------------
mkdir disk
mount -t tmpfs -o size=2m disk disk
configure 'audit_folder: /tmp/disk/audit'
refuse "no space for the whole ring: no start" 'needs all its space'
configure 'audit_folder: /tmp/disk/audit' 'audit_lines: 64'
starts "a smaller one starts"
head -c 4m /dev/zero >disk/filler 2>/dev/null
check "the disk is full" not bash -c 'echo more >disk/more'
lease_and_release
check "and lines are written all the same" eventually said_times EOF OK 1
# The segments lose their blocks: what a file system without reservations would do.
tool held "$ALICE" lease agent 0
check "a lease from before" heard held '^lease'
rm disk/filler disk/more
for segment in disk/audit/audit.*; do fallocate --punch-hole --offset 4096 --length $((64 * LINE - 4096)) "$segment"; done
head -c 4m /dev/zero >disk/filler 2>/dev/null
for _ in $(seq 12); do helper_client lease agent 0 >>refused 2>&1; done
check "a line that cannot be written: no lease" grep -q 'error lease EIO' refused
check "the administrator is told" grep -q 'audit log cannot be written: there is no space' helper.log
equal "nothing is left of the refused leases" 1 "$(ip -o link show up | grep -c berth)"
tell held seal
check "SEAL acts all the same" heard held '^seal ok'
tell held release
check "RELEASE too" heard held '^release ok'
end_tool held
rm disk/filler
check "with space again" leases
check "the log tells how many lines it misses" bash -c "'$HELPER' audit --config helper.conf --lines 1000 | grep -qE '\"lost\":[1-9]'"
check_status "and its chain is whole" 0 '^ok:' audit --verify
helper_kill
umount disk

# ---- both sockets, passed by a service manager ------------------------------------------------------------------
configure 'audit_folder: none'
cat >activate.py <<'END'
import os, socket, sys
def listener(path, mode, group):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(path)
    os.chown(path, 0, group)
    os.chmod(path, mode)
    made.listen(16)
    return os.dup(made.fileno())
fds = {"helper": listener("/run/passed.sock", 0o660, int(sys.argv[2])), "status": listener("/run/status.sock", 0o666, 0)}
names = sys.argv[3].split(":")
high = [os.dup2(fds[name], 20 + place) for place, name in enumerate(names)]
for place, fd in enumerate(high):
    os.dup2(fd, 3 + place)
    os.set_inheritable(3 + place, True)
os.execve(sys.argv[1], [sys.argv[1], "listen", "--config", "/tmp/helper.conf"],
          {"LISTEN_FDS": str(len(names)), "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": sys.argv[4]})
END
for order in helper:status status:helper; do
    rm -f /run/passed.sock /run/status.sock
    /usr/bin/python3 activate.py "$HELPER" "$GROUP" $order $order 2>>helper.log &
    HELPER_PID=$! # helper_kill ends it
    serves() { "$TOOL" --socket /run/passed.sock --user "$ALICE" --group "$GROUP" lease agent 0 </dev/null | grep -q '^lease '; }
    check "passed as $order: the main socket leases" eventually serves
    stranger() { "$TOOL" --socket /run/status.sock --user 1234 --group 1234 "$@" </dev/null; }
    check "and a user outside the group gets the state" bash -c "'$TOOL' --socket /run/status.sock --user 1234 --group 1234 status </dev/null |
        grep -q healthy=1"
    check_status "but no lease there" 0 'error lease EPERM' stranger lease agent 0
    check_status "and nothing on the main one" 2 'EACCES' "$TOOL" --socket /run/passed.sock --user 1234 --group 1234 status
    cat >flood.py <<'END'
import os, socket
os.setgid(1234)
os.setuid(1234)
held = []
for _ in range(500):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(1)
    try:
        peer.connect("/run/status.sock")
        held.append(peer)
    except OSError:
        pass
print("flooded", flush=True)
import time
time.sleep(1)
END
    /usr/bin/python3 flood.py >flooded &
    FLOOD=$!
    check "while it is flooded" eventually grep -q flooded flooded
    check "the main one leases" serves
    wait $FLOOD
    helper_kill
done
rm -f /run/passed.sock /run/status.sock
check_status "two sockets without names are refused" 1 'LISTEN_FDNAMES' \
    /usr/bin/python3 activate.py "$HELPER" "$GROUP" helper:status ''
rm -f /run/passed.sock /run/status.sock
check_status "a status socket alone is refused" 1 'LISTEN_FDNAMES' \
    /usr/bin/python3 activate.py "$HELPER" "$GROUP" status status

starts "listen makes a status socket, too" --status-socket /run/berth-status/helper.sock
equal "its mode, and its folder's" "0 666 755" \
    "$(stat -c '%u %a' /run/berth-status/helper.sock) $(stat -c %a /run/berth-status)"
check "a stranger gets the state there" bash -c \
    "'$TOOL' --socket /run/berth-status/helper.sock --user 1234 --group 1234 status </dev/null | grep -q healthy=1"
helper_kill

[ "$TAP_FAILED" = 0 ] || sed 's/^/# /' helper.log
finish
