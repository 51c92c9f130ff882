#!/usr/bin/env bash
# The real harnesses with a person at a terminal: asked nothing before the first word, given a prompt, left, looked at and
# typed into from outside, stopped and resumed. In containers; the provider is the one of harness.sh.
# variants: runc runsc
export BERTH_TEST_BACKEND=docker
export WORLD_IMAGES=${WORLD_IMAGES-claude codex pi}
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

log=$WORLD/internet/requests
project=/home/1000/project
mkdir -p "$project"
chown 1000:1000 "$project"
echo "value-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" >"$WORLD/key"
chmod 600 "$WORLD/key"

terminal() { # [WAIT KEYS]... -- BERTH-ARGUMENT...
    local before=()
    while [ "$1" != -- ]; do before+=("$1") && shift; done
    as 1000 env -C /home/1000 python3 /opt/source/tests/lib/terminal.py "${before[@]}" -- berth "${@:2}"
}
# How often the provider was asked something with TEXT by a harness (a part of its User-Agent) that the user's key paid.
asked() { # AGENT-HEADER TEXT
    python3 - "$1" "$2" "$WORLD/key" "$log" <<'END'
import json, sys
agent, text = sys.argv[1:3]
key = open(sys.argv[3]).read().strip()
entries = [e for e in map(json.loads, open(sys.argv[4])) if e["event"] == "model"]
print(sum(agent in (e["agent"] or "") and text in e["asked"] and e["credential"] == key for e in entries))
END
}
was_asked() { [ "$(asked "$@")" != 0 ]; }
shows() { berth peek "$1" | grep -q -- "$2"; }
slowly() { # COMMAND...: within two minutes, as a harness starts and answers
    local try
    for try in $(seq 240); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.5
    done
    echo "not in $try tries: $*"
    return 1
}

# A terminal shows words, between which blanks may be movements of the cursor: only single words are waited for.
harness() { # NAME PROVIDER AGENT-HEADER READY-WORD: which its first screen has, once it listens
    local name=$1 provider=$2 header=$3 ready=$4
    printf 'first\n' >"$project/file.txt"
    chown 1000:1000 "$project/file.txt"
    printf 'extends: %s\nresources: {memory: 1G, cpus: 2}\n%s' "$name" \
        "$([ "${BERTH_TEST_RUNTIME:-}" != runsc ] || echo 'isolation: gvisor')" >/home/1000/.config/berth/bottles/small.yaml
    as 1000 berth credential set "$provider" <"$WORLD/key" >/dev/null
    check_status "$name: without a prompt it needs a terminal" 64 "$name needs a terminal" \
        berth spawn "$name" --bottles small --workspace "$project"
    if terminal "$ready" 'Please-change the file' "Please-change" '\r' "changed." '\x10\x11' -- \
        spawn "$name" --bottles small --name "$name" --workspace "$project" >"$WORLD/out"; then
        pass "$name: starts in a terminal, takes a prompt, answers, and is left"
    else
        fail "$name: starts in a terminal, takes a prompt, answers, and is left" "$(berth peek "$name" 2>&1)" \
            "$(tail -c 2000 "$WORLD/out" | cat -v)"
    fi
    check "$name: as it says" grep -q "$name runs; berth attach $name shows it" "$WORLD/out"
    check "$name: the prompt came to its provider" was_asked "$header" Please-change
    equal "$name: its tool ran" "first changed by the agent" \
        "$(berth exec "$name" -- cat file.txt | tr '\n' ' ' | sed 's/ $//')"
    check "$name: its terminal is seen from outside" shows "$name" changed.
    check "$name: a second prompt is typed into it" berth steer "$name" "And-then rest"
    check "$name: and comes to its provider" slowly was_asked "$header" And-then
    terminal "And-then" '\x02d' -- attach "$name" >"$WORLD/out"
    equal "$name: who comes back sees it, and leaves by tmux's keys" 0 $?
    check "$name: stopped" berth stop "$name"
    check_status "$name: with its changes" 0 '^\+changed by the agent' berth diff "$name"
    check "$name: resumed" berth resume "$name" --background
    terminal "$ready" 'Once-more please' "Once-more" '\r' "changed." '\x10\x11' -- attach "$name" >"$WORLD/out"
    equal "$name: it has its terminal again, and takes a prompt there" 0 $?
    check "$name: which came to its provider" was_asked "$header" Once-more
    check "$name: stopped again" berth stop "$name"
    as 1000 berth credential rm "$provider" >/dev/null
}

for name in $WORLD_IMAGES; do
    case $name in
    claude) harness claude anthropic claude-cli bypass ;;
    codex) harness codex openai codex YOLO ;;
    pi) harness pi anthropic pi/ interrupt ;;
    esac
done
equal "no other host was reached" "" "$(grep '"event": "tls"' "$log" | grep -vE '"api\.(anthropic|openai)\.com"')"
finish
