#!/usr/bin/env bash
# An engine that dies at each step of a launch and of a stop, and a keeper that does: list tells the truth, cleanup leaves
# nothing. Between berth and the engine stands a socket that kills the engine, or who asks, when a given request comes.
. "$(dirname "$0")/../lib/docker_world.bash"

check "a socket before the engine's" engine_socket /run/killer.sock
by() { as 1000 env DOCKER_HOST=unix:///run/killer.sock timeout 60 berth "$@" </dev/null; }
is_clean() { berth cleanup bots && [ "$(in_engine)" = "0 0 0" ] && [ "$(listed running)" = 0 ]; }
for step in "POST /volumes/create" "DELETE /containers/" "POST /networks/create" "POST /connect" \
    "POST /containers/create" "POST /attach" "POST /start" "POST /exec"; do
    by up >"$WORLD/up" 2>&1
    order "kill $step engine"
    by spawn dev --name dying --background >"$WORLD/said" 2>&1
    status=$?
    equal "killed at $step of a launch: the launch fails, and that is all" "failed yes 0" \
        "$([ $status != 0 ] && [ $status != 124 ] && echo failed) $([ -e "$WORLD/order" ] || echo yes) $(listed running)"
    [ -e "$WORLD/order" ] && note "$(tail -n 3 "$WORLD/up" "$WORLD/said")"
    docker_start_again
    check "and is cleaned up" is_clean
    rm -f "$WORLD/order"
done
for step in "DELETE /containers/" "DELETE /networks/"; do
    check "an agent" by spawn dev --name dying --background
    order "kill $step engine"
    by stop dying >"$WORLD/said" 2>&1
    equal "killed at $step of a stop: it does not run" "yes 0" "$([ -e "$WORLD/order" ] || echo yes) $(listed running)"
    docker_start_again
    check "and is cleaned up" is_clean
    rm -f "$WORLD/order"
done
# ---- a keeper that dies: the command that follows it undoes the launch ----
for step in "POST /networks/create" "POST /start"; do
    by up >"$WORLD/up" 2>&1
    order "kill $step caller"
    by spawn dev --name dying --background >"$WORLD/said" 2>&1
    equal "a keeper killed at $step: the launch fails and leaves nothing" "1 yes 0 0 0 0 " \
        "$? $([ -e "$WORLD/order" ] || echo yes) $(in_engine) $(berth list --json | json 'len(d["agents"])') $(ls /home/1000/.local/state/berth/env/live/agents)"
    rm -f "$WORLD/order"
done
check "and then all is as ever" berth spawn dev --name after -- true
check "down" berth down
finish
