# What of berth is in the engine of a world with BERTH_TEST_BACKEND=docker, for scripts that source it after world.bash.
#
#   engine PATH             what the engine answers to GET
#   count PATH EXPRESSION   a Python expression over that, d
#   engine_post PATH [DOCUMENT]   asks it to do something
#   in_engine               how many containers, networks and volumes of agents there are
#   listed STATE            how many agents berth lists as that
#   engine_socket SOCKET    starts a socket that passes connections on to the engine, but for what $WORLD/order says
#   order LINE...           becomes that file at once (tests/lib/engine_socket.py says what may be in it)
# shellcheck shell=bash

engine() { curl -s --unix-socket /run/docker.sock "http://localhost$1"; }
engine_post() { # PATH [DOCUMENT]
    curl -sf -X POST -H 'Content-Type: application/json' --unix-socket /run/docker.sock -o /dev/null "http://localhost$1" -d "${2:-}"
}
count() { engine "$1" | json "$2"; }
of_agents="(x.get('Labels') or {}).get('berth.role')=='agent'"
in_engine() {
    echo "$(count '/containers/json?all=1' "len([x for x in d if $of_agents])")" \
        "$(count /networks "len([x for x in d if $of_agents])")" \
        "$(count /volumes "len([x for x in d['Volumes'] or [] if $of_agents])")"
}
listed() { berth list --json | json "len([a for a in d['agents'] if a['status']=='$1'])"; }

engine_socket() {
    python3 "$WORLD_SOURCE/tests/lib/engine_socket.py" "$1" /run/docker.sock "$WORLD/order" /run/docker.pid \
        >>"$WORLD/engine_socket.log" 2>&1 &
    eventually curl -sf --unix-socket "$1" -o "$WORLD/ping" http://localhost/_ping
}
order() { printf '%s\n' "$@" >"$WORLD/order.new" && mv "$WORLD/order.new" "$WORLD/order"; }
