#!/usr/bin/env bash
# One agent's whole life on each backend: launch, work, probe, policy, changes out and applied, end.
# variants: qemu runc runsc podman
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

project=/home/1000/project
mkdir -p "$project/sub"
printf 'one\n' >"$project/file.txt"
printf 'build\n' >"$project/.gitignore"
printf 'left out\n' >"$project/build"
head -c 4096 /dev/urandom >"$project/sub/binary"
chown -R 1000:1000 "$project"
as 1000 git -C "$project" init -q
as 1000 git -C "$project" add -A
as 1000 git -C "$project" -c user.name=U -c user.email=u@allowed.example commit -qm first
printf 'not committed\n' >"$project/sub/untracked with space"
chown 1000:1000 "$project/sub/untracked with space"

check_status "nothing runs at first" 0 "" berth list
check "the infra pair starts" berth up
check "and is adopted, not started again" berth up

# ---- a command in the foreground: streams, exit status, files ----
berth spawn dev --name one --workspace "$project" -- \
    sh -c 'cat file.txt; ls -A; id -un; pwd; echo problem >&2; echo two >> file.txt; rm sub/binary; head -c 1000 /dev/urandom > "new file"; exit 3' \
    >"$WORLD/out" 2>"$WORLD/err"
equal "the agent's failure is status 3" 3 $?
check "its standard output is stdout" grep -qx one "$WORLD/out"
check "its standard error is stderr" grep -qx problem "$WORLD/err"
check "nothing of stderr is on stdout" sh -c "! grep -q problem $WORLD/out"
check "it works as the user agent" grep -qx agent "$WORLD/out"
check "in /workspace" grep -qx /workspace "$WORLD/out"
check "what git ignores stayed outside" sh -c "! grep -qx build $WORLD/out"
equal "list says how it ended" "exited 3" \
    "$(berth list --json | json '"%s %d" % (d["agents"][0]["status"], d["agents"][0]["exit_status"])')"
berth diff one >"$WORLD/patch"
check "the patch has the change" grep -q '^+two' "$WORLD/patch"
check "the patch has the new file, binary" grep -q 'GIT binary patch' "$WORLD/patch"
check "the patch has the deletion" grep -q 'deleted file' "$WORLD/patch"
check "and nothing that was there before" sh -c "! grep -q 'untracked with space' $WORLD/patch"
printf 'zero\none\n' >"$project/file.txt"
check "apply merges with what changed on the host" as 1000 env -C "$project" berth apply one --yes
equal "three ways" "zero one two" "$(tr '\n' ' ' <"$project/file.txt" | sed 's/ $//')"
check "the new file is there" test -s "$project/new file"
check "the deleted one is gone" test ! -e "$project/sub/binary"
check "removed with its disks" berth rm one --yes
check "its folder is gone" test ! -e /home/1000/.local/state/berth/env/live/agents/one

berth spawn dev --name idle --workspace "$project" -- true >/dev/null 2>"$WORLD/err"
equal "an agent that changes nothing" 0 $?
check "is told as such" grep -q "without changes" "$WORLD/err"
check_status "and has no patch" 0 "no changes" berth diff idle
berth rm idle --yes >/dev/null

# ---- an agent in the background ----
sed -i 's/^probe:/&\n  repeat: off/' /home/1000/.config/berth/config.yaml # of the host-wide checks, not of the slot's own
berth spawn dev --name two --background --json >"$WORLD/spawn.json"
equal "an agent in the background" 0 $?
equal "proved to be closed in, whatever the configuration says" True \
    "$(json 'd["probe"]["passed"] and not d["probe"]["host_wide"] and len(d["probe"]["checks"])>=5' <"$WORLD/spawn.json")"
equal "it runs" running "$(berth list --json | json 'd["agents"][0]["status"]')"
check_status "its name is taken" 1 "taken|exists|already" berth spawn dev --name two --background
equal "exec passes the status" 9 "$(berth exec two -- sh -c 'exit 9'; echo $?)"
equal "exec passes words as they are" 'a b|$HOME|*' "$(berth exec two -- printf '%s|%s|%s' 'a b' '$HOME' '*')"
equal "standard input goes in" 5 "$(printf 12345 | as 1000 berth exec two -- wc -c)"
check "ls and stat of the image work" berth exec two -- sh -c 'ls -la / && stat / /workspace'
state=/home/1000/.local/state/berth
secrets="$(cat $state/host.key) $(cat $state/env/live/gateway.secret) $(json 'd["token"]' <$state/env/live/agents/two/secrets.json)"
equal "there are three secrets to look for" 3 "$(wc -w <<<"$secrets")"
tr ' ' '\n' <<<"$secrets" >"$WORLD/secrets" # grep takes them from a file: its own command line is looked at too
chmod 600 "$WORLD/secrets"
check "they are in no command line" sh -c "! cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -F -f $WORLD/secrets"
hosts_own() { # the environments of processes that are not in a container
    local process
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/ns/pid")" = "$(readlink /proc/self/ns/pid)" ] && cat "$process/environ" 2>/dev/null
    done | tr '\0' '\n'
}
hosts_own >"$WORLD/environments"
check "in no environment of a process on the host" not grep -F -f "$WORLD/secrets" "$WORLD/environments"
check "in no log" sh -c "! grep -rF -f $WORLD/secrets $state --include=*.log --include=*.jsonl"

# ---- what it may reach ----
check "an allowed host over HTTPS" berth exec two -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check "an allowed host over HTTP" berth exec two -- curl -sSf --max-time 30 -o /dev/null http://allowed.example/
check "git clone over HTTPS" berth exec two -- git clone -q https://git.allowed.example/sample.git /tmp/sample
body=$(berth exec two -- curl -sS --max-time 30 http://blocked.example/)
equal "a refusal is JSON that explains itself" True \
    "$(json 'all(k in d for k in ("error","host","reason","rule","hint")) and d["host"]=="blocked.example"' <<<"$body")"
check_status "https to it as well" 56 "403" berth exec two -- curl -sS --max-time 30 https://blocked.example/
check_status "without the token: 407" 56 "407" berth exec two -- sh -c \
    'curl -sS --max-time 30 --proxy "$(echo $https_proxy | sed "s/agent:[^@]*@//")" https://allowed.example/'
check_status "an address instead of a name" 56 "403" berth exec two -- curl -sSk --max-time 30 https://203.0.113.10/
check_status "SNI that differs from CONNECT" 0 "sni-mismatch" berth exec two -- curl -sSk --max-time 30 \
    --connect-to blocked.example:443:allowed.example:443 https://blocked.example/
check "transparently, without the proxy's variables" berth exec two -- env -u https_proxy -u HTTPS_PROXY \
    curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check_status "why says who granted it" 0 "bottle dev" berth why allowed.example --agent two
check_status "and what is refused" 0 "refused|not allowed|denied" berth why blocked.example --agent two

# ---- the probe ----
berth probe two --json >"$WORLD/probe.json"
equal "the probe passes again" 0 $?
equal "with evidence for every check" True "$(json 'd["passed"] and len(d["checks"])>=10' <"$WORLD/probe.json")"

# ---- copies ----
mkdir -p "$WORLD/tree/a"
printf 'x\n' >"$WORLD/tree/a/b"
chmod -R a+rX "$WORLD/tree"
check "a tree goes in" berth cp "$WORLD/tree" two:/home/agent/tree
equal "and belongs to the agent" agent "$(berth exec two -- find /home/agent/tree/a/b -printf %u)"
check "into a folder that is there, under its name" berth cp two:/etc/hostname /home/1000/
equal "which is the name there" two "$(cat /home/1000/hostname)"
check "into the workspace" berth cp "$WORLD/tree/a/b" two:
equal "under its name too" x "$(berth exec two -- cat /workspace/b)"
check "and out of it into the folder one stands in" as 1000 env -C /home/1000 berth cp two:b .
equal "as it was" x "$(cat /home/1000/b)"
berth exec two -- rm /workspace/b
check "and comes out" berth cp two:/home/agent/tree /home/1000/tree
check "as it was" diff -r "$WORLD/tree" /home/1000/tree

# ---- a repository cloned inside ----
berth spawn dev --name three --repo https://git.allowed.example/sample.git -- sh -c 'echo more >> README; git log --oneline | head -1' >"$WORLD/out" 2>"$WORLD/err"
status=$?
if [ $status = 0 ]; then pass "an agent on a clone"; else fail "an agent on a clone" "status $status" "$(cat "$WORLD/err")"; fi
check "sees its history" grep -q . "$WORLD/out"
berth diff three >"$WORLD/patch3"
check "the clone's patch" grep -q '^+more' "$WORLD/patch3"
check_status "credentials in the address are refused" 64 "user|credential|password" \
    berth spawn dev --repo https://me:secret@git.allowed.example/x.git --background

check "stop" berth stop two
equal "list says so" stopped "$(berth list --json | json '[a["status"] for a in d["agents"] if a["name"]=="two"][0]')"
check_status "exec on a stopped one is no target" 4 "" berth exec two -- true
berth rm two --yes >/dev/null && berth rm three --yes >/dev/null
check "down" berth down
for _ in $(seq 40); do # TAPs and bridges: the helper deletes what is dead in groups, a moment later
    [ "$(ip -o link | grep -c berth)" != 0 ] || break
    sleep 0.05
done
equal "no TAP is left" "" "$(ip -o link | grep -o 'berth[0-9]*' || true)"
equal "no VMM is left" "" "$(pgrep -f qemu-system || true)"
finish
