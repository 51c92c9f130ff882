#!/usr/bin/env bash
# An agent that ended works again with what it kept; its terminal is looked at and typed into from outside.
# variants: qemu runc runsc podman
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

agent() { # agent EXPRESSION: over the row a of the agent "keep"
    berth list --json | json "[$1 for a in d['agents'] if a['name']=='keep'][0]"
}

project=/home/1000/project
agents=/home/1000/.local/state/berth/env/live/agents
bottle=/home/1000/.config/berth/bottles/dev.yaml
mkdir -p "$project"
printf 'one\n' >"$project/file.txt"
chown -R 1000:1000 "$project"

check "an agent with a terminal" berth spawn dev --name keep --workspace "$project" --background
token=$(json 'd["token"]' <"$agents/keep/secrets.json")
check "leaves something in its home and its workspace" berth exec keep -- \
    sh -c 'echo home > ~/mark; echo two >> file.txt; echo three > new; sync'
check_status "what runs is not resumed" 1 "is running" berth resume keep --background

# ---- its terminal from outside ----
seen() { # seen WORD...: each is a line of what the terminal shows
    local word
    berth peek keep >"$WORLD/screen" || return 1
    for word in "$@"; do grep -qx -- "$word" "$WORLD/screen" || return 1; done
}
check "a text is typed into its terminal" berth steer keep 'echo typed-$((40+2)) "a  b"'
check "and what it shows is seen" eventually seen 'typed-42 a  b'
printf 'printf "%%s\\n" first\nprintf "%%s\\n" second\n' >"$WORLD/lines"
as 1000 berth steer keep - <"$WORLD/lines"
equal "several lines from standard input" 0 $?
check "are typed one after the other" eventually seen first second
berth steer keep 'clear; seq 1 300; echo the-end'
check "a screen is what fits on it" eventually seen the-end 300
check "and no more" not seen 5
equal "the last lines are more than that" "296 297 298 299 300 the-end" \
    "$(berth peek keep --lines 299 | grep -A5 -x 296 | tr '\n' ' ' | sed 's/ $//')"
berth steer keep "clear; printf 'A\\033]0;title\\007B\\033[31mred\\033[2J\\302\\233C\\n'; printf 'still-here\\n'" 2>"$WORLD/err"
check "an agent that sends control sequences" eventually seen still-here
equal "none of them reaches who looks" 0 "$(berth peek keep | LC_ALL=C grep -c '[^[:print:][:space:]]')"
equal "nor in JSON" keep "$(berth peek keep --json | json 'd["name"] if all(c=="\n" or c==" " or c.isprintable() for c in d["text"]) else d')"
check_status "keys are not text" 64 "control character" berth steer keep "$(printf 'a\033[201~b')"
check_status "nor is nothing" 64 "text is missing" berth steer keep
head -c 65537 /dev/zero | tr '\0' x >"$WORLD/long"
as 1000 berth steer keep - <"$WORLD/long" 2>"$WORLD/err"
equal "nor more than is bounded" 64 $?
check "which says the bound" grep -q "longer than 65536" "$WORLD/err"
check_status "lines have a bound" 64 "--lines" berth peek keep --lines 2001
check_status "nobody's terminal" 4 "no agent" berth peek nobody
check_status "nobody's terminal is typed into" 4 "no agent" berth steer nobody x

# ---- stopped, resumed: under the policy of now ----
check "it reaches an allowed host" berth exec keep -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check "stopped" berth stop keep
check_status "what does not run shows nothing" 4 "does not run" berth peek keep
check_status "and takes no text" 4 "does not run" berth steer keep x
cp -p "$bottle" "$WORLD/bottle"
printf 'egress: {routes: [{host: other.example}]}\nresources: {memory: 512M, cpus: 1}\n' >"$bottle"
printf 'host\n' >"$project/file.txt" # a fresh copy would show it
berth resume keep --background --json >"$WORLD/resume.json" 2>"$WORLD/err"
equal "resumed" 0 $?
[ -s "$WORLD/resume.json" ] || note "$(cat "$WORLD/err" "$agents/keep/keeper.log" 2>&1)"
equal "the sandbox was proved again" "True True" \
    "$(json '"%s %s" % (d["probe"]["passed"], "probe" in [s["step"] for s in d["steps"]])' <"$WORLD/resume.json")"
equal "nothing was copied in again" False \
    "$(json '"workspace" in [s["step"] for s in d["steps"]]' <"$WORLD/resume.json")"
equal "home and workspace are as they were left" "home one two three" \
    "$(berth exec keep -- sh -c 'cat ~/mark file.txt new' | tr '\n' ' ' | sed 's/ $//')"
equal "it runs" running "$(agent 'a["status"]')"
check "its token is another one" test "$token" != "$(json 'd["token"]' <"$agents/keep/secrets.json")"
check_status "the policy of now holds" 56 "403" berth exec keep -- curl -sS --max-time 30 https://allowed.example/
check "its terminal is there again" berth steer keep 'echo again-$((1+1))'
check "and shows" eventually seen again-2
cp -p "$WORLD/bottle" "$bottle"

# ---- its keeper killed ----
check "what it wrote last" berth exec keep -- sh -c 'echo four > last; sync'
kill -KILL "$(agent 'a["keeper_pid"]')"
lost() { [ "$(agent 'a["status"]')" = lost ]; }
check "an agent whose keeper was killed is lost" eventually lost
check "resumed all the same, with a command" berth resume keep -- sh -c 'cat last ~/mark > both; exit 0'
berth diff keep >"$WORLD/patch"
check "its changes are told from the first copy on" grep -q '^+two' "$WORLD/patch"
check "those of its second life too" grep -q '^+four' "$WORLD/patch"
check "resumed again it does that again" berth resume keep
check_status "a failure is status 3" 3 "exit status 7" berth resume keep -- sh -c 'exit 7'
check "a script is a prompt of the shell" berth resume keep --prompt 'test -s both'

# ---- refused ----
mv "$project" "$project.away"
check_status "without its workspace on the host" 4 "workspace $project is gone" berth resume keep --background
mv "$project.away" "$project"
check_status "nobody is resumed" 4 "no agent" berth resume nobody
mv "$agents/keep/origin.json" "$WORLD/origin"
check_status "nor what never worked" 4 "nothing of the agent keep is kept" berth resume keep --background
cp -p "$WORLD/origin" "$agents/keep/origin.json"
printf 'egress: [wrong\n' >"$bottle"
check_status "a policy that is wrong stops it before it starts" 1 "dev.yaml" berth resume keep --background
cp -p "$WORLD/bottle" "$bottle"
check "and takes nothing from it" berth resume keep -- test -s both
check "removed with all that it kept" berth rm keep --yes
check "its folder is gone" test ! -e "$agents/keep"
check "down" berth down
finish
