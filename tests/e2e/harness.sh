#!/usr/bin/env bash
# The real harnesses at work: each edits a file on the order of a provider that the test plays, with a key that it never has.
export BERTH_TEST_BACKEND=${BERTH_TEST_BACKEND-docker}
export WORLD_IMAGES="claude codex pi"
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

berth() { as 1000 berth "$@" </dev/null; }
log=$WORLD/internet/requests
project=/home/1000/project
mkdir -p "$project"
chown 1000:1000 "$project"
as 1000 git -C "$project" init -q

# What the provider noted of a harness, by its User-Agent: an expression over the list m.
models() {
    python3 - "$1" "$2" "$log" <<'EOF'
import json, sys
m = [e for e in map(json.loads, open(sys.argv[3])) if e["event"] == "model" and (e["agent"] or "").startswith(sys.argv[1])]
print(eval(sys.argv[2]))
EOF
}

check_status "without a key nothing is started" 1 "berth credential set anthropic" berth spawn claude --prompt Go --background
for provider in anthropic openai; do
    key=value-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
    declare "key_$provider=$key"
    printf '%s\n' "$key" | as 1000 berth credential set "$provider" >/dev/null
done

harness() { # NAME AGENT-HEADER PROVIDER HOST
    local name=$1 header=$2 host=$4 key
    key=$(eval echo "\$key_$3")
    printf 'first\n' >"$project/file.txt"
    chown 1000:1000 "$project/file.txt"
    berth spawn "$name" --name "$name" --workspace "$project" --prompt "Change the file" >"$WORLD/out" 2>"$WORLD/err"
    equal "$name works on its prompt" 0 $?
    check "$name says what the model said" grep -q "The file is changed" "$WORLD/out" || note "$(tail -20 "$WORLD/out" "$WORLD/err")"
    equal "$name: nobody but the provider was asked, with the user's key each time" "True" \
        "$(models "$header" "len(m) >= 2 and all(e['credential'] == '$key' and e['host'] == '$host' for e in m)")"
    equal "$name: what its tool said came to the provider" True "$(models "$header" "'2 file.txt' in (m[-1]['tool_result'] or '')")"
    check "$name: the change comes home" as 1000 env -C "$project" berth apply "$name" --yes
    equal "$name: as the model wanted it" "first changed by the agent" "$(tr '\n' ' ' <"$project/file.txt" | sed 's/ $//')"
}

harness claude claude-cli anthropic api.anthropic.com
harness codex codex_exec openai api.openai.com
harness pi pi/ anthropic api.anthropic.com
finish
