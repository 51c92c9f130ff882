#!/bin/bash
# Whether a few agents can take the memory of all: three that hoard whatever the gateway keeps (answers that are not read, bodies
# that nobody takes, streams, decoders' windows) against one of 272 MiB, while a fourth goes on. Resident memory stays below the
# process's part, what is cut or turned away is the hoarders' alone, and each is a record. Then one that runs out all the same:
# what was under way is reset, and the next one goes on.
# BERTH_MEMORY_REQUESTS (100): how many the fourth makes.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
GATEWAY_WORLD_PROGRAMS=$PWD/build # what a sanitiser adds is not the product's
GATEWAY_MEMORY=$((272 * 1024 * 1024))
names=$(mktemp)
echo 'hoard.example 203.0.113.22' >"$names"
gateway_world_start --names "$names" --origin-out origin.pem
rm "$names"
hoarder=$root/tests/lib/gateway_hoarder.py

in_agent internet ip addr add 203.0.113.22/32 dev lo
in_agent internet "$hoarder" host 203.0.113.22 origin.pem >host.out &
check "the host that helps is up" eventually grep -q ready host.out
namespace_start three 10.243.0.10 10.243.0.11
namespace_start four 10.243.0.12 10.243.0.13
route='{"host": "hoard.example"}'
register one 3 11 token-one "$route" >/dev/null
register two 4 12 token-two "$route" >/dev/null
register three 5 13 token-three "$route" >/dev/null
register four 6 14 token-four '{"host": "allowed.example"}' >/dev/null

proxy=http://agent:token-four@10.243.0.12:8119
fetch() { in_agent four curl -s --max-time 60 --cacert authority.pem -x $proxy "$@"; }
equal "all is well" 'hello from the internet' "$(fetch https://allowed.example/hello)"
note "resident at rest: $(resident VmRSS) KiB"

mkfifo go
exec {go}<>go
hoard() { # AGENT GATEWAY MODE CONNECTIONS
    in_agent "$1" "$hoarder" "$3" "$2" hoard.example "$4" authority.pem <go >"hoard-$3" &
}
hoard one 10.243.0.6 slow 250
hoard two 10.243.0.8 deaf 250
hoard three 10.243.0.10 streams 5
hoard three 10.243.0.10 decoders 40
refused() { # AGENT: how many records say that it has more than its share
    api GET "decisions?limit=1000&after=$((${2:-0}))" |
        json "sum(r['agent'] == '$1' and 'more than its share' in r['reason'] and not r['allowed'] for r in d['decisions'])"
}
some_refused() { [ "$(refused one)" -gt 0 ] && [ "$(refused two)" -gt 0 ] && [ "$(refused three)" -gt 0 ]; }
check "each hoarder loses connections, with a record" eventually some_refused

gzip -c <"$root/README.md" >body.gz
requests=${BERTH_MEMORY_REQUESTS:-100}
answered=0 packed=0
for _ in $(seq "$requests"); do
    [ "$(fetch https://allowed.example/hello)" != 'hello from the internet' ] || answered=$((answered + 1))
    fetch -o /dev/null -w '%{http_code}\n' -H 'Content-Encoding: gzip' --data-binary @body.gz https://allowed.example/upload |
        grep -qx 200 && packed=$((packed + 1))
done
equal "meanwhile the fourth agent's requests are all answered" "$requests" "$answered"
equal "those with compressed bodies too" "$requests" "$packed"
equal "and none of its connections was refused or cut" 0 "$(refused four)"
check "the gateway is the one that began" kill -0 "$gateway"
check "its resident memory stayed below 64 MiB ($(resident VmHWM) KiB)" test "$(resident VmHWM)" -le $((64 * 1024))
note "records: one $(refused one), two $(refused two), three $(refused three); resident now $(resident VmRSS) KiB"
echo >&"$go" # nobody reads it: that wakes all of them
for mode in slow deaf streams decoders; do
    is_over() { [ -s "hoard-$mode" ]; }
    check "the hoarder ends ($mode)" eventually is_over
    note "$mode: $(cat hoard-$mode)"
done
in_use() { [ "$(resident VmRSS)" -le $((40 * 1024)) ]; }
check "without them it is small again" eventually in_use

# ---- no memory all the same -----------------------------------------------------------------------------------------------------
# Address space for little more than itself, a budget for much more; started anew when it ends, as a guest's init does.
space=$(($(resident VmSize) * 1024 + 24 * 1024 * 1024))
kill -TERM "$gateway"
wait "$gateway"
GATEWAY_MEMORY=$((4096 * 1024 * 1024)) gateway_config null >roomy.json
again() {
    while [ ! -e enough ]; do
        "${unprivileged[@]}" prlimit --as=$space "$bin/berth-gateway" roomy.json 2>>ends
        sleep 0.1
    done 2>/dev/null # what the shell says about a program that aborts
}
register four 6 15 token-four '{"host": "allowed.example"}, {"host": "hoard.example"}' >/dev/null
again &
keeper=$!
check "one with too little memory" eventually fetch -f -o /dev/null https://allowed.example/hello
download() { # NAME OPTIONS...
    in_agent four curl -s -N --max-time 100 --cacert authority.pem -o "$1" "${@:2}"
    echo $? >"$1.status"
}
download known -x $proxy --limit-rate 2M https://hoard.example/ &
download chunked http://10.243.0.12/open -H 'Host: hoard.example' &
download open --http1.0 http://10.243.0.12/open -H 'Host: hoard.example' &
begun() { [ -s known ] && [ -s chunked ] && [ -s open ]; }
check "three downloads begin, one of them ends with its connection" eventually begun
mkfifo go-again
exec {go}<>go-again
in_agent one "$hoarder" slow 10.243.0.6 hoard.example 250 authority.pem <go-again >hoard-again &
ended() { grep -q 'out of memory' ends; }
check "memory runs out" eventually ended
for body in known chunked open; do
    is_over() { [ -s "$body.status" ]; }
    check "the download is over: $body" eventually is_over
    equal "by a reset, which is no success: $body" 56 "$(cat "$body.status")"
done
echo >&"$go"
is_well() { [ "$(fetch https://allowed.example/hello)" = 'hello from the internet' ]; }
check "the next one goes on" eventually is_well
note "what they said: $(sort ends | uniq -c | tr -s ' ' | paste -sd,)"
touch enough
kill -TERM "$(tr -d ' ' <"/proc/$keeper/task/$keeper/children")"
wait $keeper
gateway_start gateway.json
check "with its memory back" eventually is_well

gateway_world_end >end.log
equal "both programs end clean, without a word" "0 " "$? $(cat end.log)"
finish
