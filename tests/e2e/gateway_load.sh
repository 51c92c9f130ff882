#!/usr/bin/env bash
# The gateway in its virtual machine, as it is started for everybody, against 16 agents that take all they can of it:
# connections, answers that are not read, bodies that nobody takes, heads, decoders, HTTP/2 streams whose windows never open.
# Seen from outside: its machine keeps memory to spare, nothing in it dies, each refusal is said and recorded, what is cut never
# looks like an end, and two other agents have all their requests answered.
# The agents are namespaces at leased TAPs: of an agent the gateway sees packets alone. (gateway_memory.sh: the process by itself.)
# BERTH_LOAD_REQUESTS (8): how many the others make.
. "$(dirname "$0")/../lib/helper.bash"
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
mkdir -p "$WORLD/internet"
echo 'hoard.example 203.0.113.22' >"$WORLD/internet/names"
world_start || exit 1
cd "$WORLD" || exit 1
# shellcheck disable=SC2034 # of helper.bash
GROUP=$WORLD_BERTH_ID
hoarder=$WORLD_SOURCE/tests/lib/gateway_hoarder.py
state=/home/1000/.local/state/berth

ip -n internet addr add 203.0.113.22/32 dev lo
ip netns exec internet "$hoarder" host 203.0.113.22 internet/origin.pem >host.out &
check "the host that helps is up" eventually grep -q ready host.out
check "the pair starts" berth up

berth status --json >status.json
orchestrator=$(json 'd["infra"]["orchestrator"]["address"]' <status.json)
keeper=$(json 'd["infra"]["gateway"]["keeper_pid"]' <status.json)
console=$state/env/live/gateway/console.log
patiently() { for _ in $(seq 12); do eventually "$@" && return; done; }
api() { # METHOD PATH [BODY]
    as 1000 curl -s --max-time 20 -X "$1" -H "Authorization: Bearer $(<$state/host.key)" "http://$orchestrator:7400/v1/$2" ${3:+-d "$3"}
}
openssl x509 -in $state/authority.pem -out authority.pem

# ---- agents ---------------------------------------------------------------------------------------------------------------
agent() { # NAME ROUTES: leased, registered, with a network; GATEWAY[NAME] is what it calls its gateway
    ip netns add "$1" && tool "$1" 1000 --guest "/run/netns/$1" lease agent 0 && heard "$1" '^lease ' && guest "$1" "$1" || return
    GATEWAY[$1]=$(fact "$1" host)
    [ "$(api PUT "agents/$(fact "$1" slot)/$(fact "$1" generation)" "{\"name\": \"$1\", \"address\": \"$(fact "$1" guest)\",
        \"gateway_address\": \"${GATEWAY[$1]}\", \"token_sha256\": \"$(printf 'token-%s' "$1" | sha256sum | cut -d' ' -f1)\",
        \"policy\": {\"version\": 1, \"routes\": [$2]}}" | tee answer)" = '{"policy_version":1}' ]
}
declare -A GATEWAY
modes=(slow unframed deaf heads decoders streams)
crowd=$(seq -f crowd%02.0f 10)
for name in "${modes[@]}" $crowd; do
    agent "$name" '{"host": "hoard.example", "dlp": {"outbound": "supervise"}}' || fail "agent $name" "$(cat answer)"
done
for name in good better; do
    agent $name '{"host": "allowed.example"}' || fail "agent $name" "$(cat answer)"
done
fetch() { # AGENT OPTIONS...
    ip netns exec "$1" curl -sS --max-time 300 --cacert authority.pem -x "http://agent:token-$1@${GATEWAY[$1]}:8119" "${@:2}"
}
greeting="This is allowed.example"
for name in good better; do
    equal "all is well: $name" "$greeting" "$(fetch $name https://allowed.example/)"
done
left() { grep -o '[0-9]* of [0-9]* KiB of memory are left' "$console" | tail -1; }
note "at rest: $(left)"

# ---- they take what they can --------------------------------------------------------------------------------------------------
mkfifo go
exec {go}<>go
hoard() { # MODE AGENT CONNECTIONS
    ip netns exec "$2" "$hoarder" "$1" "${GATEWAY[$2]}" hoard.example "$3" authority.pem <go >"hoard.$2" 2>&1 &
}
fetch good https://allowed.example/drip/200 >drip.out &
drip=$!
for name in $crowd; do
    hoard idle "$name" 256
done
for mode in "${modes[@]}"; do
    hoard "$mode" "$mode" "$([ "$mode" = streams ] && echo 6 || echo 250)"
done

was_told() { # AGENT REASON: there is a record of that
    [ "$(api GET "decisions?limit=1000&slot=$(fact "$1" slot)" |
        json "any(r['rule'] == 'too-many' and not r['allowed'] and '$2' in r['reason'] for r in d['decisions'])")" = True ]
}
for mode in slow unframed deaf decoders streams; do
    check "who takes more memory than its share is refused, with a record: $mode" patiently was_told $mode "memory is short"
done
check "who takes connections is, too" patiently was_told slow "of all agents"
note "under load: $(left)"

# ---- and others go on -----------------------------------------------------------------------------------------------------------
head -c 300000 /dev/urandom >upload
digest=$(sha256sum <upload | cut -d' ' -f1)
requests=${BERTH_LOAD_REQUESTS:-8}
answered=0 whole=0
for _ in $(seq "$requests"); do
    said=$(fetch good https://allowed.example/ 2>&1)
    if [ "$said" = "$greeting" ]; then answered=$((answered + 1)); else note "$said"; fi
    said=$(fetch better --data-binary @upload https://allowed.example/upload 2>&1)
    if grep -q "$digest" <<<"$said"; then whole=$((whole + 1)); else note "$said"; fi
done
equal "meanwhile one agent's requests are all answered" "$requests" "$answered"
equal "and another one's uploads arrive whole" "$requests" "$whole"
wait $drip
equal "a download that took its time came to its end" "0 drip 199" "$? $(tail -1 drip.out)"
for name in good better; do
    check "nothing was refused to them: $name" not was_told $name ""
done

# ---- what is seen afterwards -----------------------------------------------------------------------------------------------------
echo >&"$go" # nobody reads it: that wakes all of them
for name in "${modes[@]}" $crowd; do
    is_over() { [ -s "hoard.$name" ]; }
    patiently is_over >/dev/null || fail "the hoarder ends: $name"
    note "$name: $(cat "hoard.$name")"
done
sum() { cat hoard.* | python3 -c 'import json, sys; print(sum(json.loads(line)[sys.argv[1]] for line in sys.stdin))' "$1"; }
equal "no answer that was cut ended as if it were whole" 0 "$(sum ended)"
check "they had thousands of connections" test "$(sum held)" -ge 2000
equal "the gateway is the one that began" "1 $keeper" \
    "$(grep -c 'berth-gateway: ready' $console) $(berth status --json | json 'd["infra"]["gateway"]["keeper_pid"]')"
equal "nothing in its machine ended or was ended for want of memory" "" "$(grep -iE 'ended|killed|out of memory|oom' $console)"
least=$(left)
check "its machine has memory to spare, at the least: $least" test "${least%% *}" -ge $((64 * 1024))
equal "and it serves on" "$greeting" "$(fetch good https://allowed.example/)"
check "down" berth down
[ "$TAP_FAILED" = 0 ] || sed 's/^/# /' $console
finish
