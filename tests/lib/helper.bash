# The helper and its clients, for bash test scripts that source this. TAP (tap.bash) comes with it.
#
#   namespace_enter          first thing in a script: runs it again as root of namespaces of its own, the tree in
#                            /opt/source; returns only inside, in /tmp, with the loopback interface up
#   helper_start             `berth-helper listen --config $HELPER_CONFIG`; returns when it says that it is ready.
#                            Not in a subshell (check runs its command in one): HELPER_PID is what the rest works with
#   helper_kill              ends it as a crash would
#   tool NAME UID ARGUMENT.. a client (tools/helper_tool.c) of a user in the group $GROUP; `tell NAME LINE` makes it act,
#                            `heard NAME REGEX` waits for what it says, `fact NAME KEY` is a value of that
#   end_tool NAME            ends the client, and with it its lease
#   guest NAME NETNS [LENGTH] configures eth0 of the client's guest (--guest) as its lease says; prefix length, 31
#   talk_start, talks, talk_pause   a connection between two guests, a line every 20 ms: see there
#   helper_client, helper_is_healthy   a short-lived client of alice; is every rule what it should be?
#
# Variables: HELPER (the program), HELPER_CONFIG, HELPER_OPTIONS, HELPER_LOG, GROUP (may connect), ALICE and BOB (two users).
# shellcheck shell=bash

# shellcheck source=tests/lib/tap.bash
. "$(dirname "${BASH_SOURCE[0]}")/tap.bash"

HELPER_SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
HELPER=${WORLD_HELPER:-$HELPER_SOURCE/build/berth-helper}
HELPER_CONFIG=/tmp/helper.conf
HELPER_OPTIONS=()
HELPER_LOG=/tmp/helper.log
TOOL=$HELPER_SOURCE/build/tests/tools/helper_tool
TALK=$HELPER_SOURCE/tests/lib/talk.py
# The names and numbers that scripts use.
# shellcheck disable=SC2034
GROUP=901 ALICE=1000 BOB=1001
declare -A TOOL_PID TOOL_FD TALK_PID

namespace_enter() {
    local script
    if [ "${BERTH_WORLD:-}" != inside ]; then
        script=$(realpath --relative-to="$HELPER_SOURCE" "$0")
        exec env BERTH_WORLD=inside "$HELPER_SOURCE/build/tests/tools/namespace" --bind "$HELPER_SOURCE" source \
            bash "/opt/source/$script"
    fi
    cd /tmp || exit 1
    ip link set lo up
}

helper_start() {
    local starts try
    touch "$HELPER_LOG"
    starts=$(grep -c ': ready' "$HELPER_LOG")
    "$HELPER" listen --config "$HELPER_CONFIG" "${HELPER_OPTIONS[@]}" 2>>"$HELPER_LOG" &
    HELPER_PID=$!
    for try in $(seq 500); do
        [ "$(grep -c ': ready' "$HELPER_LOG")" -gt "$starts" ] && return 0
        kill -0 $HELPER_PID 2>/dev/null || break
        sleep 0.02
    done
    echo "the helper did not start ($try tries)"
    return 1
}

helper_kill() {
    kill -9 "$HELPER_PID"
    wait "$HELPER_PID" 2>/dev/null
}

tool() {
    local name=$1 uid=$2 input_fd
    shift 2
    mkfifo "$name.in"
    : >"$name.out"
    "$TOOL" --user "$uid" --group "$uid" --group "$GROUP" "$@" <"$name.in" >>"$name.out" 2>&1 &
    TOOL_PID[$name]=$!
    exec {input_fd}>"$name.in"
    TOOL_FD[$name]=$input_fd
}

tell() {
    local name=$1
    shift
    : >"$name.out"
    echo "$*" >&"${TOOL_FD[$name]}"
}

heard() { eventually grep -qE "$2" "$1.out" || { cat "$1.out"; return 1; }; }

fact() { grep -oE "\b$2=[^ ]+" "$1.out" | head -1 | cut -d= -f2; }

end_tool() {
    local name=$1 fd=${TOOL_FD[$1]}
    kill "${TOOL_PID[$name]}" 2>/dev/null # closing its input is not enough: later clients have inherited that
    wait "${TOOL_PID[$name]}" 2>/dev/null
    exec {fd}>&-
    rm -f "$name.in" "$name.out"
}

guest() {
    ip -n "$2" link set lo up
    ip -n "$2" link set eth0 address "$(fact "$1" guest_mac)" up
    ip -n "$2" addr add "$(fact "$1" guest)/${3:-31}" dev eth0
    ip -n "$2" route add default via "$(fact "$1" host)"
}

# talk_serve NETNS: the guest answers on the gateway's port; talk_start NAME NETNS ADDRESS: the guest talks to it, and
# NAME.talk has a line for each answer: when, and how many milliseconds after the one before
talk_serve() {
    ip netns exec "$1" python3 "$TALK" serve &
    TALK_PID[serve-$1]=$!
}

talk_start() {
    ip netns exec "$2" python3 "$TALK" talk "$3" >"$1.talk" 2>&1 &
    TALK_PID[$1]=$!
}

talk_stop() {
    kill "${TALK_PID[@]}" 2>/dev/null
    wait "${TALK_PID[@]}" 2>/dev/null
    TALK_PID=()
}

talk_lines() { wc -l <"$1.talk"; }

# talks NAME [LINES]: has it had more answers than that?
talks() { [ "$(talk_lines "$1")" -gt "${2:-3}" ]; }

# talks_on NAME: waits for five more answers than there are now
talks_on() { eventually talks "$1" $(($(talk_lines "$1") + 5)); }

# talk_pause SINCE NAME...: the longest pause in milliseconds of these since then (`date +%s%3N`)
talk_pause() {
    local since=$1 name
    shift
    for name; do cat "$name.talk"; done |
        awk -v since="$since" '$1 * 1000 >= since - 50 && $2 > longest { longest = $2 } END { print longest + 0 }'
}

helper_client() { "$TOOL" --user "$ALICE" --group "$GROUP" "$@" </dev/null; }
helper_is_healthy() { helper_client status | grep -q 'healthy=1'; }
# To the end: a reader that stops early would end ip, and with pipefail that reads as "none".
helper_has_no_interface() { [ "$(ip -o link show | grep -c berth)" = 0 ]; }
