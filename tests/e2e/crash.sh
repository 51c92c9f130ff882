#!/usr/bin/env bash
# kill -9 of each process: the way out closes at once, list tells the truth, cleanup leaves nothing; a helper's death
# changes nothing, and its successor is adopted within a second.
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

agent() { # agent NAME KEY
    berth list --json | json "[a for a in d['agents'] if a['name']=='$1'][0]['$2']"
}
vmm_of() { # the VMM below a keeper
    pgrep -P "$1" qemu-system
}
wait_until() { # wait_until SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}
gone() { ! kill -0 "$1" 2>/dev/null; }

check "an agent runs" berth spawn dev --name victim --background
interface=$(berth status victim --json | json 'd["agents"][0]["interface"]')

# ---- helper ----
rules=$(nft -s list table inet berth | sha256sum)
berth exec victim -- sh -c 'curl -sS --max-time 60 -o /dev/null -w "%{http_code}" https://allowed.example/drip/80' >"$WORLD/slow" 2>&1 &
slow=$!
sleep 1
helper_kill
check "without a helper the rules are as they were" test "$rules" = "$(nft -s list table inet berth | sha256sum)"
check "and the agent works on" berth exec victim -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check_status "nothing new is granted" 2 "helper" berth spawn dev --name other --background
started=$(date +%s%N)
check "the helper starts again" helper_start
adopted() { as 1000 berth status --json </dev/null | json 'd["helper"]["live"] if d["helper"]["reserved"] == 0 else -1' | grep -qx 3; }
check "and everything is adopted" wait_until 5 adopted
echo "# helper's start to all three leases adopted: $((($(date +%s%N) - started) / 1000000)) ms"
check "the agent works on" wait_until 20 berth exec victim -- curl -sSf --max-time 5 -o /dev/null https://allowed.example/
wait $slow
equal "a request that was under way ended well" 200 "$(cat "$WORLD/slow")"
equal "list says it runs" running "$(agent victim status)"
check "a new one is granted again" berth spawn dev --name other --background
check "and stopped" berth stop other

# ---- VMM ----
vmm=$(vmm_of "$(agent victim keeper_pid)")
kill -KILL "$vmm"
check "a killed VMM takes the TAP along" wait_until 2 sh -c "! ip link show $interface"
check "and the keeper ends" wait_until 10 gone "$(agent victim keeper_pid)"
equal "list says it failed" failed "$(agent victim status)"
check "cleanup" berth cleanup bots --yes
equal "leaves no agent" 0 "$(berth list --json | json 'len(d["agents"])')"

# ---- keeper ----
check "another agent runs" berth spawn dev --name victim --background
interface=$(berth status victim --json | json 'd["agents"][0]["interface"]')
keeper=$(agent victim keeper_pid)
vmm=$(vmm_of "$keeper")
kill -KILL "$keeper"
check "a killed keeper takes the VMM along" wait_until 2 gone "$vmm"
check "and the TAP" wait_until 2 sh -c "! ip link show $interface"
equal "list says it is lost" lost "$(agent victim status)"
check "cleanup" berth cleanup bots --yes
equal "leaves no agent" 0 "$(berth list --json | json 'len(d["agents"])')"
check "and no folder" test -z "$(ls /home/1000/.local/state/berth/env/live/agents)"

# ---- gateway ----
check "another agent runs" berth spawn dev --name victim --background
gateway=$(berth status --json | json 'd["infra"]["gateway"]["keeper_pid"]')
# seen from inside, all the while: can the gateway's port be reached?
berth exec victim -- bash -c 'host=$(sed -n "s/^nameserver //p" /etc/resolv.conf)
for i in $(seq 200); do
    if timeout 1 bash -c "exec 3<>/dev/tcp/$host/8119" 2>/dev/null; then echo open; else echo closed; fi
    sleep 0.05
done' >"$WORLD/reach" 2>/dev/null &
watcher=$!
wait_until 20 grep -q open "$WORLD/reach"
kill -KILL "$(vmm_of "$gateway")"
check "a killed gateway closes the way out" wait_until 3 grep -q closed "$WORLD/reach"
check "a new gateway is started for it" wait_until 90 berth exec victim -- curl -sSf --max-time 5 -o /dev/null https://allowed.example/
kill "$watcher" 2>/dev/null
wait "$watcher" 2>/dev/null
check "it is another one" test "$gateway" != "$(berth status --json | json 'd["infra"]["gateway"]["keeper_pid"]')"

# ---- orchestrator ----
orchestrator=$(berth status --json | json 'd["infra"]["orchestrator"]["keeper_pid"]')
# Each worker of the gateway knows whom it has served itself.
check "every worker of the gateway knows the agent" berth exec victim -- bash -c \
    'for i in $(seq 16); do curl -sSf --max-time 30 -o /dev/null https://allowed.example/ || exit 1; done'
kill -KILL "$orchestrator"
check "known agents go on meanwhile" berth exec victim -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check "a new orchestrator knows the agent" wait_until 40 sh -c "kill -0 $orchestrator 2>/dev/null && exit 1; true"
check "and the agent reaches out through it" wait_until 60 berth exec victim -- curl -sSf --max-time 5 -o /dev/null https://allowed.example/

check "the end" berth stop victim
check "cleanup" berth cleanup bots --yes
check "down" berth down
for _ in $(seq 40); do # the helper deletes dead devices in groups, a moment later
    [ "$(ip -o link | grep -c 'berth[0-9]')" != 0 ] || break
    sleep 0.05
done
equal "no TAP is left" "" "$(ip -o link | grep -o 'berth[0-9]*' || true)"
equal "no VMM is left" "" "$(pgrep -f qemu-system || true)"
equal "no control socket is left" "" "$(ls /run/user/1000/berth 2>/dev/null)"
finish
