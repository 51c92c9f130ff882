#!/usr/bin/env bash
# An engine with "live-restore" leaves its containers alone when it is stopped, killed or started again: agents, their
# terminals and their networks go on, and their keepers hold them again. A keeper that dies ends its agent all the same.
# beside the others: most of it is waiting for silence to be long enough.
# variants: runc runsc
export DOCKER_OPTIONS=--live-restore
. "$(dirname "$0")/../lib/docker_world.bash"

container_of() { count /containers/json "[x['Id'] for x in d if x['Labels'].get('berth.name')=='$1'][0]"; }
process_of() { count "/containers/$1/json" 'd["State"]["Pid"]'; }
lives() { kill -0 "$1" 2>/dev/null; }
keeper_of() { berth list --json | json "[a['keeper_pid'] for a in d['agents'] if a['name']=='$1'][0]"; }
equal "the engine says so" True "$(count /info 'd["LiveRestoreEnabled"]')"
check "an agent in its terminal" berth spawn dev --name worker --background
check "and one" berth spawn dev --name witness --background
check "which runs a program" berth steer worker 'i=0; while sleep 0.2; do i=$((i+1)); echo $i >counter; done'
container=$(container_of worker)
process=$(process_of "$container")
counts() { berth exec worker -- cat counter; }
counted() { [ "$(counts)" -gt "${1:-0}" ] 2>/dev/null; }
check "that counts" eventually counted
reaches() { berth exec worker -- curl -sS -o /dev/null -w '%{http_code}' https://allowed.example/ 2>&1; }

for how in TERM KILL; do
    berth exec worker -- sh -c 'echo $$ >exec_pid; exec sleep 1000' >"$WORLD/exec" 2>&1 </dev/null &
    command=$!
    has_command() { berth exec worker -- test -s exec_pid; }
    check "a command runs in it" eventually has_command
    before=$(counts)
    kill -$how "$DOCKER_PID"
    wait "$DOCKER_PID" 2>/dev/null
    wait $command
    equal "SIG$how: the command from the host ends, and says why" 1 \
        "$(grep -c "the container engine was stopped, or is being started again, and the command's streams" "$WORLD/exec")"
    check "the agent does not" lives "$process"
    equal "both are listed as running" 2 "$(listed running)"
    sleep 3
    docker_start_again
    check "the engine has the same container, started once" [ "$(container_of worker) $(process_of "$container")" = "$container $process" ]
    works_again() { berth exec worker -- true; }
    check "commands run in it again" eventually works_again
    check "the program counted on" counted "$((before + 5))"
    old_is_gone() { ! berth exec worker -- sh -c 'kill -0 "$(cat exec_pid)"'; }
    check "the command of before has ended in the agent, too" eventually old_is_gone
    berth exec worker -- rm -f exec_pid
    equal "its terminal is the same" 1 "$(berth peek worker | grep -c 'while sleep')"
    equal "it reaches what its policy allows" "200" "$(reaches)"
    check "and its probe passes" berth probe worker
done

# ---- held again means: closed when the keeper dies ----
kill -KILL "$(keeper_of worker)"
is_ended() { ! lives "$process"; }
began=$(date +%s)
ends_within() { local i; for ((i = 0; i < $1; i++)); do is_ended && return; sleep 1; done; return 1; }
check "its keeper dies: it ends" ends_within 150
note "after $(($(date +%s) - began)) s"
equal "the other one runs" 1 "$(listed running)"
equal "this one is lost" 1 "$(listed lost)"

# ---- neither keeper nor engine: whoever comes next ends it ----
process=$(process_of "$(container_of witness)")
kill -KILL "$DOCKER_PID"
wait "$DOCKER_PID" 2>/dev/null
kill -KILL "$(keeper_of witness)"
docker_start_again
check "killed with the engine, the keeper's agent runs without a network" lives "$process"
check "until somebody comes: up" berth up
check "it is gone" eventually is_ended
check "resume" berth resume witness --background
check "it works" berth exec witness -- true
kill -TERM "$DOCKER_PID"
wait "$DOCKER_PID" 2>/dev/null
export DOCKER_OPTIONS=
docker_start_again
says_why() { berth status witness | grep -q 'the container engine was stopped'; }
check "the engine comes again without that setting: its containers end, and the agent says why" eventually says_why
check "up" berth up
check "resume" berth resume witness --background
check "stop" berth stop witness
check "rm" berth rm worker witness
check "down" berth down
equal "nothing is left" "0 0 0" "$(in_engine)"
finish
