#!/usr/bin/env bash
# The command line without any agent: documents, exit statuses, first use, plans, completion. Nothing is started.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/lib/tap.bash

folder=$(mktemp -d "${TMPDIR:-/tmp}/berth-cli.XXXXXX")
trap 'rm -rf "$folder"' EXIT
berth=${BERTH_PROGRAM:-$PWD/build/berth}
cd "$folder" || exit 1
mkdir -p home/.config/berth/agents home/.config/berth/bottles project/.berth/agents
berth() { # a clean environment: what the developer has set up does not count
    env -i PATH="$PATH" HOME="$folder/home" "$berth" "$@"
}
# one_document NAME STATUS COMMAND...: with --json, one document on stdout and nothing else, and this exit status
one_document() {
    local name=$1 wanted=$2 status
    shift 2
    "$@" >out 2>err </dev/null
    status=$?
    if [ "$status" != "$wanted" ]; then
        fail "$name" "status $status instead of $wanted of: $*" "$(cat out err)"
    elif ! python3 -c 'import json; json.load(open("out"))' 2>parse; then
        fail "$name" "not one JSON document: $*" "$(cat out)"
    elif [ "$wanted" != 0 ] && ! grep -q '^berth' err; then
        fail "$name" "nothing on stderr: $*" "$(cat err)"
    else
        pass "$name"
    fi
}
json() { python3 -c 'import json,sys; d=json.load(open("out")); print(eval(sys.argv[1]))' "$1"; }

# ---- documents and exit statuses ----
one_document "version" 0 berth version --json
one_document "list without anything" 0 berth list --json
one_document "status without anything" 0 berth status --json
one_document "audit without anything" 0 berth audit --json
one_document "image list" 0 berth image list --json
one_document "cleanup of nothing" 0 berth cleanup bots --json
one_document "an unknown command" 64 berth lst --json
one_document "an unknown option" 64 berth list --jsno --json
equal "the error says what to do" True "$(json '"--json" in d["error"]["hint"] and d["error"]["status"] == 64')"
one_document "too many operands" 64 berth list x --json
check_status "options before the command" 64 "options come after the command" berth --json list
check_status "another command's options without --" 64 "come after --" berth exec nobody ls -la
for command in list cleanup diff exec attach cp down up doctor status; do
    check_status "$command with wrong operands" 64 "operand|missing|too many" berth "$command" a b c d
done
check_status "cleanup of nothing named" 64 "operand is missing" berth cleanup
for command in status stop rm diff apply probe exec peek resume; do
    rest=()
    [ "$command" = exec ] && rest=(-- true)
    one_document "$command of no such agent" 4 berth "$command" --json nobody "${rest[@]}"
    one_document "$command --latest without any" 4 berth "$command" --json --latest "${rest[@]}"
done
one_document "cp of no such agent" 4 berth cp --json nobody:/x .
one_document "cp between two guests" 64 berth cp --json a:/x b:/y
one_document "attach without a terminal" 64 berth attach --json nobody
one_document "up without a helper" 2 env -i PATH="$PATH" HOME="$folder/home" "$berth" up --json
check_status "a launch without a helper says so before it builds anything" 2 "cannot reach berth-helper" \
    env -i PATH="$PATH" HOME="$folder/home" "$berth" spawn shell -- true
equal "and leaves nothing" "" "$(ls home/.local/share/berth/images home/.local/state/berth/env/live/agents 2>/dev/null)"
{ printf -- '---\nharness: shell\n---\n' && head -c 140000 /dev/zero | tr '\0' a; } >home/.config/berth/agents/long.md
check_status "a prompt that no program can be given" 64 "the prompt is longer than 131071 bytes" berth spawn long
rm home/.config/berth/agents/long.md
check_status "help goes to stdout" 0 "^usage: berth spawn" berth spawn --help
check_status "no command" 64 "usage: berth" berth
check_status "a full disk behind stdout is an error" 1 "cannot write" sh -c "env -i HOME=$folder/home $berth version >/dev/full"
check "a reader that goes away is none" sh -c "env -i HOME=$folder/home $berth --help | head -1 >/dev/null"
check "closed standard descriptors are survived" sh -c "env -i HOME=$folder/home $berth version <&- >&- 2>&-; test \$? -le 1"
check_status "a relative home" 1 "HOME" env -i HOME=x "$berth" list
check_status "no HOME: that of the user database" 0 "nothing was started" env -i "PATH=$PATH" "$berth" spawn shell --dry-run
check_status "a home that cannot be written: what to do" 1 "set HOME, XDG_STATE_HOME" \
    env -i HOME=/proc/nobody "$berth" list
check "help keeps names and their explanations apart" sh -c \
    "! env -i HOME=$folder/home $berth spawn --help | grep -E '^ +(-., )?--[a-z-]+( [A-Z,]+)? [a-z]'"

# ---- first use, plans ----
before=$(find home/.local | sort)
one_document "the built-in shell" 0 berth spawn shell --dry-run --json
equal "reaches nothing" "True []" "$(json 'str(d["dry_run"]) + " " + str(d["plan"]["policy"]["routes"])')"
check_status "and says so" 0 "nothing is allowed" berth spawn shell --dry-run
cat >home/.config/berth/bottles/dev.yaml <<'END'
egress:
  routes:
    - host: "*.allowed.example"
    - host: git.example:8443
env:
  SECRET: hunter2
END
printf -- '---\nharness: shell\nbottle: dev\n---\nGo.\n' >home/.config/berth/agents/dev.md
printf -- '---\nharness: shell\nbottle: dev\n---\nObey me.\n' >project/.berth/agents/theirs.md
printf 'egress:\n  allow: ["a.allowed.example"]\n' >project/.berth/policy.yaml
one_document "a plan" 0 berth spawn dev --dry-run --json
equal "with who granted what" "bottle dev" "$(json 'd["plan"]["routes"][0]["granted_by"]')"
equal "names of variables, not values" "['SECRET']" "$(json 'd["plan"]["environment"]')"
check "no value anywhere" sh -c '! grep -q hunter2 out'
one_document "a project narrows" 0 berth spawn dev --workspace project --dry-run --json
equal "to what both allow" "['a.allowed.example']" "$(json '[r["host"] for r in d["plan"]["routes"]]')"
check_status "a project's agent must be confirmed" 1 "--yes" berth spawn theirs --workspace project --background
check_status "its plan may be looked at" 0 "project policy" berth spawn theirs --workspace project --dry-run
equal "plans left nothing behind" "$before" "$(find home/.local | sort)"

# ---- why ----
check_status "why, for nobody in particular, says for whom" 0 "built-in agent shell; --manifest or --agent" berth why a.example
one_document "why, allowed" 0 berth why x.allowed.example --manifest dev --json
equal "by whom" "True bottle dev" "$(json 'str(d["allowed"]) + " " + d["granted_by"]')"
one_document "why, the apex" 0 berth why allowed.example --manifest dev --json
equal "is not covered" False "$(json 'd["allowed"]')"
one_document "why, another port" 0 berth why git.example --manifest dev --json
equal "is refused" False "$(json 'd["allowed"]')"
one_document "why, a whole address" 0 berth why https://git.example:8443/x?y --manifest dev --json
equal "is understood" "True git.example 8443" "$(json '"%s %s %d" % (d["allowed"], d["host"], d["port"])')"
one_document "why, an address of numbers" 0 berth why 0x7f.1 --manifest dev --json
equal "is refused too" False "$(json 'd["allowed"]')"

# ---- state ----
mkdir -p home/.local/state/berth/env/live/agents/orphan
printf 'diff --git a/x b/x\n' >home/.local/state/berth/env/live/agents/orphan/patch
one_document "cleanup finds a folder without a row" 0 berth cleanup bots --json
equal "keeps its work" 1 "$(json 'len(d["kept"])')"
check "and removes it" test ! -e home/.local/state/berth/env/live/agents/orphan
check_status "kept work is not thrown away unasked" 1 "--yes" berth cleanup workspaces
check "but when told to" berth cleanup workspaces --yes
equal "then it is gone" "" "$(ls home/.local/state/berth/kept)"
check_status "the trail has it" 0 "cleanup" berth audit
printf 'gatway: {}\n' >home/.config/berth/config.yaml
check_status "a wrong config.yaml stops a launch" 1 "config.yaml:1:1: unknown key 'gatway'; did you mean 'gateway'" berth spawn dev
check_status "but not the look at what runs" 0 "config.yaml:1:1: .*default settings" berth list
check_status "and doctor names it" 2 "fail +config.yaml" berth doctor
rm home/.config/berth/config.yaml

# ---- work that was never applied ----
ended() { # ended NAME: an agent that has ended, with a patch
    mkdir -p "home/.local/state/berth/env/live/agents/$1"
    printf 'diff --git a/x b/x\n' >"home/.local/state/berth/env/live/agents/$1/patch"
    python3 - home/.local/state/berth/berth.db "$1" "$folder" <<'END'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("INSERT INTO agents (name, environment, manifest, harness, backend, status, exit_status, slot, generation,"
           " keeper_pid, keeper_start, keeper_boot, folder, workspace, image, detail, created, ended)"
           " VALUES (?, 'live', 'dev', 'shell', 'qemu', 'exited', 0, -1, 0, 0, 0, '', ?, '', '', '', 1, 2)",
           (sys.argv[2], f"{sys.argv[3]}/home/.local/state/berth/env/live/agents/{sys.argv[2]}"))
db.commit()
END
}
ended worked
check_status "rm asks before it throws work away" 1 "--yes" berth rm worked
check "and has not touched it" test -e home/.local/state/berth/env/live/agents/worked/patch
check "told to, it does" berth rm worked --yes
check "its folder is gone" test ! -e home/.local/state/berth/env/live/agents/worked
ended pair-1
ended pair-2
check_status "of several names one is wrong" 4 "no agent 'nobody'" berth rm --yes pair-1 nobody
check_status "then none is removed" 0 pair-1 berth list
check_status "a part of two names is no name, whatever goes first" 4 "several" berth rm --yes pair-1 pair
check_status "and none is removed" 0 pair-1 berth list
check "names may be given twice" berth rm --yes pair-1 pair-1 pair-2
ended kept
check_status "cleanup keeps work" 0 "kept/live-kept-" berth cleanup bots
check "as a patch" sh -c "grep -q '^diff' home/.local/state/berth/kept/live-kept-*.patch"
check_status "and removes the agent" 4 "no agent" berth status kept
ended applied
sha256sum <home/.local/state/berth/env/live/agents/applied/patch | cut -d' ' -f1 | tr -d '\n' \
    >home/.local/state/berth/env/live/agents/applied/applied
check "work that was applied is not asked about" berth rm applied

# ---- a hundred agents ----
python3 - home/.local/state/berth/berth.db $$ <<'END'
import sqlite3, sys, time
pid = int(sys.argv[2])
start = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
db = sqlite3.connect(sys.argv[1])
for i in range(100):
    db.execute("INSERT INTO agents (name, environment, manifest, harness, backend, status, exit_status, slot, generation,"
               " keeper_pid, keeper_start, keeper_boot, folder, workspace, image, detail, created, ended)"
               " VALUES (?, 'live', 'dev', 'shell', 'qemu', 'running', -1, ?, ?, ?, ?, ?, '', '', '', ?, ?, 0)",
               (f"dev-{i}", i, i + 1, pid, start if i else start - 1, boot, "\x1b[2Jboo" if i == 1 else "", int(time.time())))
db.commit()
END
one_document "a list of a hundred" 0 berth list --json
equal "99 run, one is lost" "99 1" \
    "$(json '"%d %d" % (sum(a["status"]=="running" for a in d["agents"]), sum(a["status"]=="lost" for a in d["agents"]))')"
equal "an interface is named" berth7 "$(json '[a["interface"] for a in d["agents"] if a["name"]=="dev-7"][0]')"
berth list >out 2>err
check "what a guest wrote drives no terminal" sh -c "! LC_ALL=C grep -q \$(printf '\\033') out"
took=$(python3 - "$berth" "$folder/home" <<'END'
import subprocess, sys, time
best = 1e9
for _ in range(10):
    before = time.perf_counter()
    subprocess.run([sys.argv[1], "list"], env={"HOME": sys.argv[2]}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    best = min(best, time.perf_counter() - before)
print(f"{best * 1e3:.1f}")
END
)
echo "# berth list with 100 agents, the whole process: $took ms at best of 10"
check "in a moment" python3 -c "import sys; sys.exit(not $took < 100)"

# ---- completion ----
equal "completion of commands" "spawn status steer stop" "$(berth complete s | tr '\n' ' ' | sed 's/ $//')"
equal "of agents" dev-42 "$(berth complete stop dev-42)"
equal "of manifests" dev "$(berth complete spawn d)"
# shellcheck disable=SC2016
equal "through bash" dev-42 "$(env -i PATH="$(dirname "$berth"):$PATH" HOME="$folder/home" BERTH="$berth" bash --norc -c '
    berth() { "$BERTH" "$@"; }
    . "$1"
    COMP_WORDS=(berth stop dev-42) COMP_CWORD=2 COMP_LINE="berth stop dev-42" COMP_POINT=17
    _berth
    echo "${COMPREPLY[@]}"' _ "$OLDPWD/completions/berth.bash")"
finish
