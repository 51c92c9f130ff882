#!/usr/bin/env bash
# A gVisor that cannot serve: the engine's list of runtimes is a promise that is kept only when a container starts.
# (docker_errors.sh has what is the engine's alone: those outcomes do not depend on the runtime.)
export BERTH_TEST_RUNTIME=runsc
. "$(dirname "$0")/../lib/docker_world.bash"

bottle=/home/1000/.config/berth/bottles/gvisor.yaml
printf 'extends: dev\nisolation: gvisor\n' >$bottle
is_clean() { # WHAT
    equal "$1: nothing is left behind" "0 0 0, 0 listed, 0 folders" \
        "$(in_engine), $(berth list --json | json 'len(d["agents"])') listed, $(find /home/1000/.local/state/berth/env/live/agents -mindepth 1 | wc -l) folders"
}
fails() { # WHAT WHY WHAT-TO-DO
    local said status
    said=$(berth spawn shell --bottles gvisor --name failing --background 2>&1)
    status=$?
    equal "$1: status 2" 2 $status
    check "$1: why" grep -qE -- "$2" <(tr '\n' ' ' <<<"$said")
    check "$1: what to do" grep -qE -- "$3" <(tr '\n' ' ' <<<"$said")
    [ "$status" = 2 ] || note "$(tail -n 5 <<<"$said")"
    is_clean "$1"
}
runtimes() { # JSON: what an administrator wrote, read again by the engine
    printf '{"runtimes": %s}' "$1" >/opt/docker/daemon.json
    kill -HUP "$DOCKER_PID"
}
lists() { [ "$(count /info 'd["Runtimes"].get("runsc", {}).get("path", "none")')" = "$1" ]; }

check "an agent in gVisor" berth spawn shell --bottles gvisor --name fine --background
check "which is removed" berth rm --yes fine --force

runtimes '{"runsc": {"path": "/usr/local/bin/removed-runsc"}}'
check "the engine lists one whose program is gone" eventually lists /usr/local/bin/removed-runsc
fails "its program is gone" "removed-runsc: no such file" "docker info says where it is"
printf '#!/bin/sh\nexec /usr/bin/runsc --platform=none-such "$@"\n' >"$WORLD/runsc"
chmod 755 "$WORLD/runsc"
runtimes "{\"runsc\": {\"path\": \"$WORLD/runsc\"}}"
check "the engine lists one that does not work on this machine" eventually lists "$WORLD/runsc"
fails "it does not work here" "unknown platform: none-such" "docker run --runtime tries it alone"
runtimes '{}'
check "the engine lists none" eventually lists none
fails "there is none" "has no runtime runsc" "apt install runsc"
check "down" berth down
finish
