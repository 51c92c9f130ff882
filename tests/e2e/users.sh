#!/usr/bin/env bash
# Two agents at once, as two users: neither reaches the other, in a guest or from the host.
# variants: qemu runc runsc
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

for user in 1000 1001; do
    check "user $user has an agent" as $user berth spawn dev --name mine --background
    as $user berth exec mine -- git daemon --port=2222 --base-path=/tmp </dev/null >/dev/null 2>&1 & # somebody to be reached
done
facts() { # facts USER: agent's and gateway's and orchestrator's guest addresses
    as "$1" berth status --json | python3 -c '
import json, sys
d = json.load(sys.stdin)
print(d["agents"][0]["address"], d["infra"]["gateway"]["address"], d["infra"]["orchestrator"]["address"])'
}
read -r agent_a gateway_a orchestrator_a <<<"$(facts 1000)"
read -r agent_b gateway_b orchestrator_b <<<"$(facts 1001)"
equal "six different addresses" 6 "$(printf '%s\n' "$agent_a" "$gateway_a" "$orchestrator_a" "$agent_b" "$gateway_b" \
    "$orchestrator_b" | sort -u | wc -l)"

closed() { # closed NAME COMMAND...: must not connect
    local name=$1
    shift
    if said=$("$@" 2>&1); then fail "$name" "connected: $said"; else pass "$name"; fi
}
dial='exec 3<>/dev/tcp/'
check "user A reaches its own agent from the host" eventually as 1000 timeout 3 bash -c "$dial$agent_a/2222"
check "and root any" eventually timeout 3 bash -c "$dial$agent_b/2222"
for target in "$agent_b/2222 the other agent" "$gateway_b/8119 the other gateway" "$orchestrator_b/7400 the other orchestrator" \
    "$gateway_a/8119 its own gateway by its address" "$orchestrator_a/7400 its own orchestrator"; do
    closed "agent A does not reach ${target#* }" as 1000 berth exec mine -- timeout 3 bash -c "$dial${target%% *}"
done
host_b=$(awk -F. -v OFS=. '{$4 -= 1; print}' <<<"$agent_b")
closed "nor the other slot's gateway ports" as 1000 berth exec mine -- timeout 3 bash -c "$dial$host_b/8119"
for target in "$agent_b/2222 agent" "$gateway_b/8119 gateway" "$orchestrator_b/7400 orchestrator"; do
    closed "user A does not reach the other's ${target#* } from the host" as 1000 timeout 3 bash -c "$dial${target%% *}"
done
check "A reaches what its policy allows" as 1000 berth exec mine -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check "B as well" as 1001 berth exec mine -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check_status "A's token is worth nothing from B's address" 56 407 as 1001 berth exec mine -- \
    curl -sS --max-time 30 --proxy "http://agent:$(python3 -c 'import json; print(json.load(open("/home/1000/.local/state/berth/env/live/agents/mine/secrets.json"))["token"])')@$host_b:8119" https://allowed.example/
for user in 1000 1001; do
    check "the probe of user $user passes with the other there" as $user berth probe mine
    check "user $user stops everything" as $user sh -c 'berth stop mine && berth rm mine --yes && berth down'
done
finish
