#!/bin/bash
# The helper's figures: its verbs against `ip` and `nft` commands doing the same in the same run, the price of a packet
# with many slots, what a flood of hostile connections costs another user, and its memory. In namespaces of its own.
# bench_helper.c does the measuring; a figure that is missed fails nothing here.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ "${BERTH_WORLD:-}" != inside ]; then
    exec env BERTH_WORLD=inside "$SOURCE/build/tests/tools/namespace" --bind "$SOURCE" source \
        bash /opt/source/tests/bench/helper.sh "$@"
fi

UID_HELPER=900 GID_CLIENTS=901 ALICE=1000 BOB=1001
WORLD_ADDRESS=203.0.113.10
BENCH=$SOURCE/build/bench/bench_helper
cd /tmp || exit 1
declare -A FIGURES

fail() {
    echo "bench: $1" >&2
    [ -f helper.log ] && tail -n 20 helper.log >&2
    exit 1
}

as() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$user" --groups $GID_CLIENTS "$@"
}

# measure USER ARGUMENT...: runs bench_helper, keeps what it prints in FIGURES
measure() {
    local user=$1 said name value _
    shift
    said=$(as "$user" "$BENCH" "$@") || fail "bench_helper $* failed"
    while read -r name value _; do
        FIGURES[$name]=$value
    done <<<"$said"
}

calculate() { # EXPRESSION FORMAT
    awk "BEGIN { printf \"$2\", $1 }"
}

figure() { # TEXT VALUE
    printf '  %-64s %s\n' "$1" "$2"
}

helper_start() {
    local try
    ulimit -n 4096
    mkdir -p /tmp/audit && chmod 755 /tmp/audit
    cat >helper.conf <<END2
user_uid: $UID_HELPER
user_gid: $UID_HELPER
socket_group: $GID_CLIENTS
slots: 1024
slots_per_uid: 1024
requests_per_second: 1000000
requests_burst: 1000000
audit_folder: /tmp/audit
END2
    "$SOURCE/build/berth-helper" listen --config /tmp/helper.conf 2>helper.log &
    HELPER_PID=$!
    for try in $(seq 200); do
        grep -q ready helper.log && return
        kill -0 $HELPER_PID 2>/dev/null || break
        sleep 0.05
    done
    fail "the helper did not start ($try tries)"
}

# An uplink with a world behind it that counts what arrives and throws away the datagrams.
world_start() {
    ip link set lo up
    mkdir -p /run/netns
    ip netns add world
    ip link add uplink type veth peer name uplink netns world
    ip addr add 198.51.100.2/24 dev uplink
    ip link set uplink up
    ip -n world addr add 198.51.100.1/24 dev uplink
    ip -n world addr add "$WORLD_ADDRESS/32" dev lo
    ip -n world link set lo up
    ip -n world link set uplink up
    ip route add default via 198.51.100.1
    ip netns exec world nft -f - <<'END2'
table inet sink {
    chain sink {
        type filter hook prerouting priority -300;
        udp dport 9 counter drop
    }
}
END2
}

# ---- by commands -------------------------------------------------------------------------------------------------

# make_by_commands NUMBER / remove_by_commands NUMBER: what a shell script would do for one slot
make_by_commands() {
    local name=byhand$1
    ip tuntap add mode tap name "$name" &&
        ip addr add "10.99.$(($1 / 100)).$(($1 % 100 * 2))/31" dev "$name" &&
        ip link set "$name" up &&
        nft add element inet byhand slots "{ $name }"
}

remove_by_commands() {
    nft delete element inet byhand slots "{ byhand$1 }" && ip link del "byhand$1"
}

now_us() {
    echo "${EPOCHREALTIME/./}"
}

median() {
    sort -n | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'
}

by_commands() {
    local round began middle
    nft 'add table inet byhand; add set inet byhand slots { type ifname; }' || fail "nft"
    for round in $(seq 64); do
        began=$(now_us)
        make_by_commands 0 || fail "commands"
        middle=$(now_us)
        remove_by_commands 0 || fail "commands"
        echo "$((middle - began)) $(($(now_us) - began))"
    done >commands
    FIGURES[commands_make]=$(cut -d' ' -f1 commands | median)
    FIGURES[commands_pair]=$(cut -d' ' -f2 commands | median)
    began=$(now_us)
    for round in $(seq 64); do make_by_commands "$round" || fail "commands"; done
    middle=$(now_us)
    for round in $(seq 64); do remove_by_commands "$round" || fail "commands"; done
    FIGURES[commands_fill]=$(calculate "($middle - $began) / 1000" %.1f)
    FIGURES[commands_empty]=$(calculate "($(now_us) - $middle) / 1000" %.1f)
    nft delete table inet byhand
}

verbs() {
    local count
    measure $ALICE pairs 2000
    by_commands
    measure $ALICE again 50
    echo "LEASE and RELEASE of a TAP slot, to the reply (2000 rounds)"
    figure "LEASE, median" "${FIGURES[lease_median]} us (99 %: ${FIGURES[lease_p99]})"
    figure "RELEASE, median" "${FIGURES[release_median]} us (99 %: ${FIGURES[release_p99]})"
    figure "both, median (goal: at most 1000 us)" "${FIGURES[pair_median]} us (99 %: ${FIGURES[pair_p99]})"
    figure "by ip and nft commands: made and removed, median of 64" "${FIGURES[commands_pair]} us (made: ${FIGURES[commands_make]})"
    figure "ratio, made: commands / LEASE" "$(calculate "${FIGURES[commands_make]} / ${FIGURES[lease_median]}" %.1f)"
    figure "ratio, made and removed (expected: at least 20)" \
        "$(calculate "${FIGURES[commands_pair]} / ${FIGURES[pair_median]}" %.1f)"
    figure "the TAP's last close, by its owner, median" "${FIGURES[close_median]} us"
    figure "from RELEASE until the slot is leasable again, median of 50" \
        "$(calculate "${FIGURES[leasable_again_median]} / 1000" %.1f) ms"
    echo "Many slots"
    for count in 64 256 1024; do
        measure $ALICE fill $count
        figure "$count slots leased / given back / all leasable again" \
            "${FIGURES[fill_${count}_lease]} / ${FIGURES[fill_${count}_give_back]} / ${FIGURES[fill_${count}_leasable_again]} ms"
    done
    figure "64 by commands: made / removed" "${FIGURES[commands_fill]} / ${FIGURES[commands_empty]} ms"
    figure "ratio for 64 (made and removed)" \
        "$(calculate "(${FIGURES[commands_fill]} + ${FIGURES[commands_empty]}) / (${FIGURES[fill_64_lease]} + ${FIGURES[fill_64_leasable_again]})" %.1f)"
}

# ---- packets -----------------------------------------------------------------------------------------------------

packets() {
    local count way first
    measure $ALICE packets "$WORLD_ADDRESS" 1 2 64 256 1024
    echo "A packet through the table, CPU time of the sender (rate against the fewest slots; goal: at least 0.95)"
    for way in gateway_to_world agent_to_gateway; do
        for count in 1 2 64 256 1024; do
            [ -n "${FIGURES[${way}_$count]:-}" ] || continue
            case "$way:$count" in gateway_to_world:1 | agent_to_gateway:2) first=${FIGURES[${way}_$count]} ;; esac
            figure "${way//_/ }, $count slots" "$(calculate "${FIGURES[${way}_$count]}" %.0f) ns  \
$(calculate "1e6 / ${FIGURES[${way}_$count]}" %.0f) thousand/s  ratio $(calculate "$first / ${FIGURES[${way}_$count]}" %.2f)"
        done
    done
}

cat >sink.py <<'END2'
import socket, sys, time
server = socket.create_server((sys.argv[1], 5001))
while True:
    peer, _ = server.accept()
    buffer, total, began = bytearray(1 << 20), 0, time.monotonic()
    while got := peer.recv_into(buffer):
        total += got
    peer.close()
END2
cat >source.py <<'END2'
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5001), timeout=20)
block, total, began = bytes(1 << 20), 0, time.monotonic()
while time.monotonic() - began < float(sys.argv[2]):
    total += peer.send(block)
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
print(f"{total * 8 / (time.monotonic() - began) / 1e6:.0f}")
END2

# A guest with a network stack of its own behind a gateway's slot; its frames are carried by a program, as by a VMM.
throughput() {
    local count holder input_fd round tool tool_fd lease host guest mac
    ip netns add guest
    mkfifo tool.in
    "$SOURCE/build/tests/tools/helper_tool" --user $BOB --group $BOB --group $GID_CLIENTS --guest /run/netns/guest \
        lease gateway 0 <tool.in >tool.out 2>&1 &
    tool=$!
    exec {tool_fd}>tool.in
    for round in $(seq 100); do grep -q ^lease tool.out && break; sleep 0.05; done
    lease=$(grep ^lease tool.out) || fail "no lease for the guest: $(cat tool.out)"
    host=$(grep -oE '\bhost=[^ ]+' <<<"$lease") guest=$(grep -oE '\bguest=[^ ]+' <<<"$lease") mac=$(grep -oE 'guest_mac=[^ ]+' <<<"$lease")
    ip -n guest link set eth0 address "${mac#*=}" up
    ip -n guest addr add "${guest#*=}/31" dev eth0
    ip -n guest route add default via "${host#*=}"
    ip netns exec world python3 sink.py "$WORLD_ADDRESS" &
    sink=$!
    sleep 0.5
    echo "TCP from a guest to the world, best of 5 (its frames pass through a test program; goal: at least 0.95)"
    for count in 1 64 256 1024; do
        if [ "$count" -gt 1 ]; then
            rm -f hold.in hold.out && mkfifo hold.in
            as $ALICE "$BENCH" hold $((count - 1)) <hold.in >hold.out &
            holder=$!
            exec {input_fd}>hold.in
            for round in $(seq 200); do grep -q ^holding hold.out && break; sleep 0.05; done
        fi
        FIGURES[tcp_$count]=$(for round in 1 2 3 4 5; do ip netns exec guest python3 source.py "$WORLD_ADDRESS" 1; done | sort -n | tail -n 1)
        [ -n "${FIGURES[tcp_$count]}" ] || fail "no traffic with $count slots"
        figure "$count slots" "${FIGURES[tcp_$count]} Mbit/s  ratio $(calculate "${FIGURES[tcp_$count]} / ${FIGURES[tcp_1]}" %.2f)"
        if [ "$count" = 1024 ]; then memory "with 1024 slots leased"; fi
        if [ "$count" -gt 1 ]; then
            exec {input_fd}>&-
            wait "$holder"
        fi
    done
    kill "$sink" "$tool"
    wait "$sink" "$tool" 2>/dev/null
    exec {tool_fd}>&-
}

# ---- a flood, memory ---------------------------------------------------------------------------------------------

flood() {
    local input_fd watcher name value _
    rm -f watch.in && mkfifo watch.in
    as $ALICE "$BENCH" watch <watch.in >watch.out &
    watcher=$!
    exec {input_fd}>watch.in
    measure $BOB hostile 10000
    exec {input_fd}>&-
    wait "$watcher" || fail "the other user's leases failed during the flood"
    while read -r name value _; do FIGURES[flood_$name]=$value; done <watch.out
    echo "10 000 hostile connections of one user in $(calculate "${FIGURES[hostile_time]} / 1000" %.1f) s, LEASE of another meanwhile"
    figure "median" "${FIGURES[flood_lease_median]} us"
    figure "99 % (goal: below 50 000 us)" "${FIGURES[flood_lease_p99]} us (of ${FIGURES[flood_lease_count]} leases, longest ${FIGURES[flood_lease_max]})"
}

memory() {
    figure "resident memory of the engine $1" "$(awk '/^(VmRSS|RssAnon):/ { printf "%s %.1f MiB  ", $1, $2 / 1024 } END { print "" }' "/proc/$HELPER_PID/status")"
}

world_start
helper_start
echo "Memory"
memory "at the start"
verbs
packets
throughput
flood
kill -KILL $HELPER_PID
wait $HELPER_PID 2>/dev/null
exit 0
