#!/usr/bin/env bash
# The docker backend from one end to the other: an agent in a container of a real engine.
export BERTH_TEST_BACKEND=docker
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

berth() {
    as 1000 berth "$@" </dev/null
}

berth spawn --backend docker shell -- uname -a >"$WORLD/out" 2>"$WORLD/err"
equal "a command in a container" 0 $?
[ -s "$WORLD/out" ] || note "$(cat "$WORLD/err" /home/1000/.local/state/berth/failed-launch.log /home/1000/.local/state/berth/env/live/*/*.log 2>&1)"
check "says what it says" grep -q '^Linux ' "$WORLD/out"
equal "list knows how it ended" 1 "$(berth list | grep -c 'exited (0).* docker')"
finish
