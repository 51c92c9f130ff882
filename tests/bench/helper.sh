#!/bin/bash
# The helper's figures: its verbs against `ip` and `nft` commands doing the same in the same run, the price of a packet
# with many slots, what a flood of hostile connections costs another user, and its memory. In namespaces of its own.
# bench_helper.c does the measuring; a figure that is missed fails nothing here.
#
#   tests/bench/helper.sh [verbs] [packets] [throughput] [flood]     without an argument: all
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
    for round in $(seq 64); do
        began=$(now_us)
        make_by_commands 0 || fail "commands"
        middle=$(now_us)
        remove_by_commands 0 || fail "commands"
        echo "$((middle - began)) $(($(now_us) - began))"
    done >commands
    FIGURES[commands_make]=$(cut -d' ' -f1 commands | median)
    FIGURES[commands_pair]=$(cut -d' ' -f2 commands | median)
}

# 512 slots by a loop, as a script would; a loop that is not through after a minute is cut off, and says so.
MANY=512
loop_by_commands() {
    local round made=0 began middle
    began=$(now_us)
    for round in $(seq $MANY); do
        make_by_commands "$round" || fail "commands"
        made=$round
        [ $(($(now_us) - began)) -lt 60000000 ] || break
    done
    middle=$(now_us)
    for round in $(seq "$made"); do remove_by_commands "$round" || fail "commands"; done
    FIGURES[loop_count]=$made
    FIGURES[loop_make]=$(calculate "($middle - $began) / 1000" %.0f)
    FIGURES[loop_remove]=$(calculate "($(now_us) - $middle) / 1000" %.0f)
}

# The same in one run of ip and one of nft, and deleted as one group: the best that the commands can do.
batch_by_commands() {
    local round began middle
    for round in $(seq $MANY); do
        echo "tuntap add mode tap name byhand$round"
        echo "addr add 10.99.$((round / 100)).$((round % 100 * 2))/31 dev byhand$round"
        echo "link set byhand$round group 99 up"
    done >batch.ip
    seq -f 'byhand%.0f' -s , $MANY | sed 's/.*/add element inet byhand slots { & }/' >batch.nft
    began=$(now_us)
    { ip -batch batch.ip && nft -f batch.nft; } || fail "commands"
    middle=$(now_us)
    { nft flush set inet byhand slots && ip link del group 99; } || fail "commands"
    FIGURES[batch_make]=$(calculate "($middle - $began) / 1000" %.0f)
    FIGURES[batch_remove]=$(calculate "($(now_us) - $middle) / 1000" %.0f)
}

# What no program can go below: the kernel's own work for one slot, as root, without engine and commands.
by_kernel() {
    local said name value _
    said=$("$SOURCE/build/bench/bench_kernel" byhand slots 500) || fail "bench_kernel failed"
    while read -r name value _; do FIGURES[$name]=$value; done <<<"$said"
}

verbs() {
    local count
    nft 'add table inet byhand; add set inet byhand slots { type ifname; }' || fail "nft"
    by_kernel
    measure $ALICE pairs 2000
    by_commands
    measure $ALICE again 50
    echo "LEASE and RELEASE of a TAP slot, to the reply (2000 rounds)"
    figure "LEASE, median" "${FIGURES[lease_median]} us (99 %: ${FIGURES[lease_p99]})"
    figure "RELEASE, median" "${FIGURES[release_median]} us (99 %: ${FIGURES[release_p99]})"
    figure "both, median (goal: at most 1000 us)" "${FIGURES[pair_median]} us (99 %: ${FIGURES[pair_p99]})"
    figure "the kernel alone: TAP, address, up, one nft element; median of 500" "${FIGURES[kernel_make]} us"
    figure "the kernel alone: element out, link down" "${FIGURES[kernel_take_back]} us"
    figure "ratio: LEASE / the kernel alone (aim: 2)" "$(calculate "${FIGURES[lease_median]} / ${FIGURES[kernel_make]}" %.2f)"
    figure "ratio: both / the kernel alone" \
        "$(calculate "${FIGURES[pair_median]} / (${FIGURES[kernel_make]} + ${FIGURES[kernel_take_back]})" %.2f)"
    figure "by ip and nft commands: made and removed, median of 64" "${FIGURES[commands_pair]} us (made: ${FIGURES[commands_make]})"
    figure "ratio, made: commands / LEASE" "$(calculate "${FIGURES[commands_make]} / ${FIGURES[lease_median]}" %.1f)"
    figure "ratio, made and removed (expected: at least 20)" \
        "$(calculate "${FIGURES[commands_pair]} / ${FIGURES[pair_median]}" %.1f)"
    figure "the TAP's last close, by its owner, median" "${FIGURES[close_median]} us"
    figure "from RELEASE until the slot is leasable again, median of 50" \
        "$(calculate "${FIGURES[leasable_again_median]} / 1000" %.1f) ms"
    many
    nft delete table inet byhand
}

many() {
    local count
    echo "Many slots"
    for count in 64 256 512 1024; do
        measure $ALICE fill $count
        figure "$count slots leased / given back / all leasable again" \
            "${FIGURES[fill_${count}_lease]} / ${FIGURES[fill_${count}_give_back]} / ${FIGURES[fill_${count}_leasable_again]} ms"
    done
    batch_by_commands
    figure "$MANY in one batch of ip and of nft, deleted as a group: made / removed" \
        "${FIGURES[batch_make]} / ${FIGURES[batch_remove]} ms"
    loop_by_commands
    figure "${FIGURES[loop_count]} by a loop of commands: made / removed" "${FIGURES[loop_make]} / ${FIGURES[loop_remove]} ms"
    figure "ratio a slot (made and removed): loop of commands / helper" \
        "$(calculate "(${FIGURES[loop_make]} + ${FIGURES[loop_remove]}) / ${FIGURES[loop_count]} / \
            ((${FIGURES[fill_${MANY}_lease]} + ${FIGURES[fill_${MANY}_leasable_again]}) / $MANY)" %.1f)"
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
print(f"{total * 8 / (time.monotonic() - began) / 1e6:.0f} {total}")
END2

# guest_start: a guest with a network stack of its own behind a gateway's slot; its frames are carried by a program, as by
# a VMM
guest_start() {
    local lease host guest mac try
    ip netns add guest
    mkfifo tool.in
    "$SOURCE/build/tests/tools/helper_tool" --user $BOB --group $BOB --group $GID_CLIENTS --guest /run/netns/guest \
        lease gateway 0 <tool.in >tool.out 2>&1 &
    TOOL_PID=$!
    exec {TOOL_FD}>tool.in
    for try in $(seq 100); do grep -q ^lease tool.out && break; sleep 0.05; done
    lease=$(grep ^lease tool.out) || fail "no lease for the guest in $try tries: $(cat tool.out)"
    host=$(grep -oE '\bhost=[^ ]+' <<<"$lease") guest=$(grep -oE '\bguest=[^ ]+' <<<"$lease")
    mac=$(grep -oE 'guest_mac=[^ ]+' <<<"$lease")
    ip -n guest link set eth0 address "${mac#*=}" up
    ip -n guest addr add "${guest#*=}/31" dev eth0
    ip -n guest route add default via "${host#*=}"
    ip netns exec world python3 sink.py "$WORLD_ADDRESS" &
    SINK_PID=$!
    sleep 0.5
}

# with_slots COUNT COMMAND...: so many slots are leased while it runs, the guest's own among them
with_slots() {
    local count=$1 holder input_fd try
    shift
    [ "$count" -gt 1 ] || { "$@"; return; }
    rm -f hold.in && mkfifo hold.in && : >hold.out
    as $ALICE "$BENCH" hold $((count - 1)) <hold.in >hold.out &
    holder=$!
    exec {input_fd}>hold.in
    for try in $(seq 400); do grep -q ^holding hold.out && break; sleep 0.05; done
    [ -s hold.out ] || fail "$count slots are not leased in $try tries"
    "$@"
    exec {input_fd}>&-
    wait "$holder" || fail "the holder of $count slots failed"
}

# CPU time of the program that carries the guest's frames: the kernel does the guest's side and the forwarding in it, so
# that what else the machine does hardly matters.
# shellcheck disable=SC2317 # transfer calls it
carrier_ns() {
    cut -d' ' -f1 "/proc/$TOOL_PID/schedstat"
}

# shellcheck disable=SC2317 # with_slots calls it
transfer() {
    local began said
    began=$(carrier_ns)
    said=$(ip netns exec guest python3 source.py "$WORLD_ADDRESS" 1) || fail "no traffic with $1 slots"
    echo "${said% *} $(calculate "($(carrier_ns) - $began) * 1024 / ${said#* }" %.1f)" >>"transfer.$1"
}

# Each round has all the counts in turn, up and then down, so that what else the machine does meets all of them.
throughput() {
    local count round rounds=8
    guest_start
    for round in $(seq $rounds); do
        for count in $([ $((round % 2)) = 1 ] && echo 1 64 256 1024 || echo 1024 256 64 1); do
            with_slots "$count" transfer "$count"
        done
    done
    echo "TCP from a guest to the world, $rounds rounds of 1 s (its frames pass through a test program; goal: at least 0.95)"
    for count in 1 64 256 1024; do
        figure "$count slots, median" "$(cut -d' ' -f1 transfer.$count | median) Mbit/s  \
$(cut -d' ' -f2 transfer.$count | median) ns of CPU a KiB, rate by that $(paste -d' ' transfer.1 transfer.$count |
            awk '{ printf "%.3f\n", $2 / $4 }' | median)"
    done
    with_slots 1024 resident >resident.out
    figure "resident memory of the engine with 1024 slots leased" "$(cat resident.out)"
    kill "$SINK_PID" "$TOOL_PID"
    wait "$SINK_PID" "$TOOL_PID" 2>/dev/null
    exec {TOOL_FD}>&-
}

# ---- a flood, memory ---------------------------------------------------------------------------------------------

# leases_while NAME COMMAND...: another user leases and releases as fast as it can; its figures go to FIGURES[NAME_...]
leases_while() {
    local prefix=$1 input_fd watcher name value _
    shift
    rm -f watch.in && mkfifo watch.in
    as $ALICE "$BENCH" watch <watch.in >watch.out &
    watcher=$!
    exec {input_fd}>watch.in
    "$@"
    exec {input_fd}>&-
    wait "$watcher" || fail "the other user's leases failed"
    while read -r name value _; do FIGURES[${prefix}_$name]=$value; done <watch.out
}

flood() {
    leases_while quiet sleep 10
    leases_while flood measure $BOB hostile 10000 10
    echo "LEASE of one user while another makes ${FIGURES[hostile_connections]} hostile connections in 10 s"
    figure "before: median / 99 %" \
        "${FIGURES[quiet_lease_median]} / ${FIGURES[quiet_lease_p99]} us (${FIGURES[quiet_lease_count]} leases)"
    figure "meanwhile: median / 99 % (goal: 99 % below 50 000 us)" \
        "${FIGURES[flood_lease_median]} / ${FIGURES[flood_lease_p99]} us (${FIGURES[flood_lease_count]} leases)"
}

resident() {
    awk '/^(VmRSS|RssAnon):/ { printf "%s %.1f MiB  ", $1, $2 / 1024 } END { print "" }' "/proc/$HELPER_PID/status"
}

[ $# -gt 0 ] || set -- verbs packets throughput flood
world_start
helper_start
figure "resident memory of the engine at the start" "$(resident)"
for part in "$@"; do
    case "$part" in
    verbs) verbs ;;
    packets) packets ;;
    throughput) throughput ;;
    flood) flood ;;
    *) fail "no such part: $part: use verbs, packets, throughput or flood" ;;
    esac
done
kill -KILL $HELPER_PID
wait $HELPER_PID 2>/dev/null
exit 0
