#!/usr/bin/env bash
# kill -9 of each process: the way out closes at once, list tells the truth, cleanup leaves nothing; a helper's death
# changes nothing, and its successor is adopted within a second.
# variants: qemu runc runsc
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

agent() { # agent NAME KEY
    berth list --json | json "[a for a in d['agents'] if a['name']=='$1'][0]['$2']"
}
guest_of() { # NAME KEEPER: the process that is the guest for the host: the VMM, or the first one of the container
    if [ "${BERTH_TEST_BACKEND:-}" = docker ]; then
        curl -s --unix-socket /run/docker.sock "http://localhost/containers/$(guests "$1" | tr -d /)/json" | json 'd["State"]["Pid"]'
    else
        pgrep -P "$2" qemu-system
    fi
}
# A TAP goes with its VMM; a bridge stays as long as the keeper's lease, and is closed with it.
closed() { ! ip -o link show "$1" 2>/dev/null | grep -q '[<,]UP[,>]'; }
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
rules=$(helper_rules)
berth exec victim -- sh -c 'curl -sS --max-time 60 -o /dev/null -w "%{http_code}" https://allowed.example/drip/80' >"$WORLD/slow" 2>&1 &
slow=$!
sleep 1
helper_kill
check "without a helper the rules are as they were" test "$rules" = "$(helper_rules)"
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

# ---- guest ----
kill -KILL "$(guest_of victim "$(agent victim keeper_pid)")"
check "a killed guest closes its interface" wait_until 5 closed "$interface"
check "and the keeper ends" wait_until 10 gone "$(agent victim keeper_pid)"
equal "list says it failed" failed "$(agent victim status)"
check "cleanup" berth cleanup bots --yes
equal "leaves no agent" 0 "$(berth list --json | json 'len(d["agents"])')"

# ---- keeper ----
check "another agent runs" berth spawn dev --name victim --background
interface=$(berth status victim --json | json 'd["agents"][0]["interface"]')
keeper=$(agent victim keeper_pid)
guest=$(guest_of victim "$keeper")
kill -KILL "$keeper"
check "a killed keeper closes its guest's interface" wait_until 5 closed "$interface"
check "and takes the guest along" wait_until 5 gone "$guest"
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
kill -KILL "$(guest_of gateway "$gateway")"
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
if [ "${BERTH_TEST_BACKEND:-}" = docker ]; then
    skip "known agents go on meanwhile" "impossible: a gateway in a container is on its orchestrator's network, and starts again with it"
else
    check "known agents go on meanwhile" berth exec victim -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
fi
check "a new orchestrator knows the agent" wait_until 40 sh -c "kill -0 $orchestrator 2>/dev/null && exit 1; true"
check "and the agent reaches out through it" wait_until 60 berth exec victim -- curl -sSf --max-time 5 -o /dev/null https://allowed.example/

check "the end" berth stop victim
check "cleanup" berth cleanup bots --yes
check "down" berth down
no_interface() { ! ip -o link | grep -q 'berthd*[0-9]'; }
check "no interface is left" eventually no_interface # the helper deletes dead devices in groups, a moment later
check "no guest is left" not guests
equal "no control socket is left" "" "$(ls /run/user/1000/berth 2>/dev/null)"
finish
