#!/usr/bin/env bash
# The real harnesses at work: each edits a file on the order of a provider that the test plays, with a key that is nowhere in
# its guest, and reaches nothing else. Without KVM a virtual machine's processors are emulated, which all three bear (qemu's
# processor has AVX2, and 1 GiB is enough): Claude Code, the slowest, takes half a minute to its first question there.
# variants: qemu runc runsc
export WORLD_IMAGES=${WORLD_IMAGES-claude codex pi}
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/engine.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

is_docker() { [ "${BERTH_TEST_BACKEND:-}" = docker ]; }
is_gvisor() { [ "${BERTH_TEST_RUNTIME:-}" = runsc ]; }
state=/home/1000/.local/state/berth
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

# The processes whose memory is the agent's: all of its container, gVisor's kernel and what it runs on, or its virtual
# machine's monitor.
processes() {
    local first keeper process
    if is_gvisor; then
        PYTHONPATH=$WORLD_SOURCE/tests/lib python3 -c 'import sys, host_processes
print(*host_processes.gvisor_processes(sys.argv[1]), sep="\n")' "$(container "$1")"
    elif is_docker; then
        first=$(engine "/containers/$(container "$1")/json" | json 'd["State"]["Pid"]') || return
        for process in /proc/[0-9]*; do
            [ "$(readlink "$process/ns/pid")" = "$(readlink "/proc/$first/ns/pid")" ] && echo "${process#/proc/}"
        done
    else
        keeper=$(berth list --json | json "[a['keeper_pid'] for a in d['agents'] if a['name'] == '$1'][0]")
        pgrep -P "$keeper" qemu
    fi
}
container() { engine /containers/json | json "[c['Id'] for c in d if c['Labels'].get('berth.name') == '$1'][0]"; }

# Files with the text in the agent's disks, and in what is kept of it on the host; a complaint when there are no disks. (What
# gVisor has no file of on the host, /tmp and the like, it has in its memory.)
files_with() { # AGENT FILE-WITH-TEXT
    local process root
    if is_docker; then
        for process in $(processes "$1"); do
            [ -d "/proc/$process/root/home/agent" ] && root=/proc/$process/root && break
        done
        (cd "${root:-/proc/none}" && grep -rlsaF -f "$2" home tmp run etc var workspace berth dev/shm)
        [ -e "${root:-none}/home/agent" ] || echo "the container of $1 is gone"
    fi
    grep -rlsaF -f "$2" "$state/env/live/agents/$1"
}

keys=$WORLD/keys
mkdir -m 700 "$keys"
for provider in anthropic openai; do
    echo "value-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" >"$keys/$provider"
done

# pi's Node is new enough to go by NODE_USE_ENV_PROXY: only what goes to the proxy gets the key, all else the
# provider refuses.
goes_by_proxy_variable() { # FILE-WITH-KEY
    local ask='fetch("https://api.anthropic.com/v1/messages", {method: "POST", body: "{}"}).then(a => console.log(a.status))'
    equal "pi: Node goes to the proxy by NODE_USE_ENV_PROXY" 200 "$(berth exec pi -- node -e "$ask")"
    equal "pi: with the key" "$(cat "$1")" "$(models node "m[-1]['credential']")"
    equal "pi: and only by that" 401 "$(berth exec pi -- env -u NODE_USE_ENV_PROXY node -e "$ask")"
}

# While the harness waits for the model's last word.
looks_as_it_should() { # NAME PROVIDER HOST PROCESS-OF-ITS-COMMAND
    local name=$1 key=$keys/$2 host=$3 work=$4 token=$keys/token
    json 'd["token"]' <"$state/env/live/agents/$name/secrets.json" >"$token"
    cat "$token" "$key" >"$keys/both"
    mapfile -t found < <(processes "$name")
    equal "$name: its own token is in its memory, the key is not" "$(cat "$token")" \
        "$("$WORLD_SOURCE/tests/lib/memory_search.py" "$keys/both" "${found[@]}")"
    berth exec "$name" -- sh -c 'echo "$https_proxy" >~/token; sync'
    check "$name: its own token, put into its home, is found there" grep -qE 'home/agent/token|\.ext4' <<<"$(files_with "$name" "$token")"
    equal "$name: the key is in no file" "" "$(files_with "$name" "$key")"
    {
        for process in "${found[@]}"; do cat "/proc/$process/environ"; done
        berth exec "$name" -- sh -c 'cat /proc/[0-9]*/environ'
    } >"$keys/environment" 2>/dev/null
    equal "$name: nor in an environment, where its token is" "0 yes" \
        "$(grep -caFf "$key" "$keys/environment") $(grep -qaFf "$token" "$keys/environment" && echo yes)"
    check_status "$name: another host is refused" 56 "403" berth exec "$name" -- curl -sS --max-time 60 https://allowed.example/
    equal "$name: so is what else its provider has" path-not-allowed \
        "$(berth exec "$name" -- curl -sS --max-time 60 -d x "https://$host/v1/files" | json 'd["rule"]')"
    [ "$name" != pi ] || goes_by_proxy_variable "$key"
    equal "$name: its kernel is the one that its bottle says" "$(is_gvisor && echo yes || echo no)" \
        "$(berth exec "$name" -- dmesg 2>/dev/null | grep -q gVisor && echo yes || echo no)"
    check "$name was at work all the while" kill -0 "$work"
}

harness() { # NAME AGENT-HEADER PROVIDER HOST
    local name=$1 header=$2 provider=$3 host=$4 hold=$WORLD/internet/hold work
    printf 'extends: %s\nresources: {memory: 1G, cpus: 2%s}\n%s' "$name" "$(is_docker || echo ', disk: 4G')" \
        "$(! is_gvisor || echo 'isolation: gvisor')" >/home/1000/.config/berth/bottles/small.yaml
    check_status "$name: without a key nothing is started" 1 "berth credential set $provider" \
        berth spawn "$name" --bottles small --prompt Go --background
    as 1000 berth credential set "$provider" <"$keys/$provider" >/dev/null
    printf 'first\n' >"$project/file.txt"
    chown 1000:1000 "$project/file.txt"
    touch "$hold"
    berth spawn "$name" --bottles small --name "$name" --workspace "$project" --prompt "Change the file" >"$WORLD/out" 2>"$WORLD/err" &
    work=$!
    until [ "$(models "$header" 'bool(m) and m[-1]["tool_result"] is not None')" = True ]; do
        kill -0 $work 2>/dev/null || break
        sleep 0.2
    done
    if kill -0 $work 2>/dev/null; then
        looks_as_it_should "$name" "$provider" "$host" "$work"
    else
        fail "$name gets to work" "$(tail -20 "$WORLD/out" "$WORLD/err")"
    fi
    rm "$hold"
    if wait "$work"; then
        pass "$name ends well"
    else
        fail "$name ends well" "status $?" "$(tail -n 20 "$WORLD/out" "$WORLD/err")" "$(berth list --json)" \
            "$(berth logs --network "$name" 2>&1 | tail -n 20)"
    fi
    check "$name says what the model said" grep -q "The file is changed" "$WORLD/out"
    equal "$name: nobody but the provider was asked, with the user's key each time" True \
        "$(models "$header" "len(m) >= 2 and all(e['credential'] == '$(cat "$keys/$provider")' and e['host'] == '$host' for e in m)")"
    equal "$name: what its tool said came to the provider" True "$(models "$header" "'2 file.txt' in (m[-1]['tool_result'] or '')")"
    check "$name: the change comes home" as 1000 env -C "$project" berth apply "$name" --yes
    equal "$name: as the model wanted it" "first changed by the agent" "$(tr '\n' ' ' <"$project/file.txt" | sed 's/ $//')"
    as 1000 berth credential rm "$provider" >/dev/null
}

for name in $WORLD_IMAGES; do
    case $name in
    claude) harness claude claude-cli anthropic api.anthropic.com ;;
    codex)
        harness codex codex_exec openai api.openai.com
        equal "codex had a WebSocket" True "$(models codex_exec "all(e['transport'] == 'websocket' for e in m)")"
        touch "$WORLD/internet/no-websocket"
        as 1000 berth credential set openai <"$keys/openai" >/dev/null
        check_status "codex does without one as well" 0 "The file is changed" berth spawn codex --name plain --prompt "Go on"
        equal "by streams" True "$(models codex_exec "m[-1]['transport'] == 'stream' and m[-1]['credential'] == '$(cat "$keys/openai")'")"
        ;;
    pi) harness pi pi/ anthropic api.anthropic.com ;;
    esac
done
finish
