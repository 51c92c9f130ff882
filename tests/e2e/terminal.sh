#!/usr/bin/env bash
# A person at a terminal: work in it, leave it, come back, an exotic or narrow one, ctrl-C and worse at every stage.
# variants: qemu runc runsc
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

terminal() { # terminal [OPTION...] [WAIT KEYS]... -- BERTH-ARGUMENT...
    local before=()
    while [ "$1" != -- ]; do before+=("$1") && shift; done
    as 1000 env -C /home/1000 python3 /opt/source/tests/lib/terminal.py "${before[@]}" -- berth "${@:2}"
}
agent() { # agent NAME: its state, or "none"
    berth list --json | python3 -c 'import json,sys
print(next((a["status"] for a in json.load(sys.stdin)["agents"] if a["name"] == sys.argv[1]), "none"))' "$1"
}
becomes() { # becomes NAME STATE: within half a minute
    local try
    for try in $(seq 60); do
        [ "$(agent "$1")" = "$2" ] && return
        sleep 0.5
    done
    echo "$1 is $(agent "$1") after $try tries, not $2"
    return 1
}
nothing_left() { # nothing_left NAME
    becomes "$1" none && [ ! -e "/home/1000/.local/state/berth/env/live/agents/$1" ] &&
        ! guests "$1" >/dev/null
}
project=/home/1000/project
mkdir $project
echo one >$project/file
chown -R 1000:1000 $project

# ---- given up before anything was made: nothing is left, not even a name ----
terminal "orchestrator and the gateway" '\x03' -- spawn dev --name early --workspace $project >"$WORLD/out"
equal "ctrl-C while the infra pair starts ends the command" 130 $?
check "and nothing is left of the agent" nothing_left early
check "the infra pair can be had" berth up
for delay in 0.05 0.3 1; do
    berth down --force >/dev/null
    as 1000 timeout -s KILL "$delay" berth up </dev/null >"$WORLD/out" 2>&1
    check_status "also when it was killed $delay s after its start" 0 "orchestrator on slot" berth up
done
berth down --force >/dev/null
as 1000 timeout -s KILL 0.5 berth up </dev/null >"$WORLD/out" 2>&1
check "and down ends one that is being started" berth down
check "so that no guest of it is left" not guests
terminal "starting its guest" '\x03' -- spawn dev --name boot --workspace $project >"$WORLD/out"
equal "ctrl-C while it boots ends the command" 130 $?
check "and nothing is left of the agent" nothing_left boot

# ---- the agent's terminal ----
terminal --term xterm-nobody-knows "agent@look" 'echo two >> file\r' "two >> file" '\x02d' -- \
    spawn dev --name look --workspace $project >"$WORLD/out"
equal "a terminal that nobody knows, left by tmux's own keys" 0 $?
check "it says what is tried" grep -q "trying every way out" "$WORLD/out"
check "it says that the agent runs" grep -q "look runs; berth attach look" "$WORLD/out"
equal "and it does" running "$(agent look)"
terminal "agent@look" '\x10\x11' -- attach look >"$WORLD/out"
check "ctrl-p ctrl-q leaves it too" grep -q "left look running" "$WORLD/out"
terminal --hang-up "agent@look" 'tput cols > columns\r' "> columns" '' -- attach look >"$WORLD/out"
equal "a terminal that is closed leaves it as well" running "$(agent look)"
check "the command in it came to its end" berth exec look -- grep -q . columns
# A kernel that answers poll(2) wrongly would have tmux ask for ever.
server_ticks() {
    # shellcheck disable=SC2016 # the guest's shell expands it
    berth exec look -- sh -c 'for p in /proc/[0-9]*; do grep -qs "^tmux: server" $p/comm && sed "s/.*) //" $p/stat; done' |
        awk '{ print $12 + $13 }'
}
ticks=$(server_ticks)
sleep 1
ticks=$(($(server_ticks) - ${ticks:-1000}))
check "a terminal without work takes no processor" grep -qxE "1?[0-9]" <<<"$ticks"
# Does the agent's kernel make a signal of a control character, or is it read as one?
signals=$(berth exec look -- perl -e 'open(my $all, "+<", "/dev/ptmx") or die; ioctl($all, 0x40045431, my $off = pack("i", 0)) or die;
    ioctl($all, 0x80045430, my $number = pack("i", 0)) or die; open(my $one, "+<", "/dev/pts/" . unpack("i", $number)) or die;
    syswrite($all, "\x03x\n"); sysread($one, my $line, 9); print $line eq "x\n" ? "made" : $line eq "\x03x\n" ? "not made" : "?"')
terminal "agent@look" 'exit\r' -- attach look >"$WORLD/out"
check "the end of the terminal is the end of the agent" becomes look exited
check_status "with its changes" 0 '^\+two' berth diff look
terminal "agent@brief" 'exit\r' -- spawn dev --name brief >"$WORLD/out"
equal "exit in the first terminal ends it" 0 $?
equal "at once" exited "$(agent brief)"

# ---- a command in the foreground (exec: a shell may lose a signal that comes while it starts a child) ----
keys="the keys that leave a terminal do not end a command, ctrl-C does"
status="with the status of the signal"
if [ "$signals" = "not made" ]; then
    skip "$keys" "impossible: the terminals of this gVisor make no signal of ctrl-C"
    skip "$status" "impossible: the terminals of this gVisor make no signal of ctrl-C"
else
    terminal "ready" '\x10\x11\r' "^P" '\x03' -- spawn dev --name keys -- sh -c 'echo ready; exec cat -v' >"$WORLD/out"
    equal "$keys" 3 $?
    check "$status" grep -q "exit status 130" "$WORLD/out"
fi
terminal --hang-up "ready" '' -- spawn dev --name cut --workspace $project -- \
    sh -c 'echo three >> file; echo ready; sleep 600' >"$WORLD/out"
check "a command whose terminal is closed ends its agent" becomes cut stopped
check_status "which says why" 0 "was ended, and the command with it" berth status cut
check_status "and kept the changes" 0 '^\+three' berth diff cut

# ---- a narrow terminal ----
terminal --columns 40 -- list >"$WORLD/out"
check "no line of a table is wider than the terminal" sh -c "! tr -d '\\r' <$WORLD/out | grep -E '^.{41}'"
berth down --force >/dev/null
finish
