#!/usr/bin/env bash
# What an agent has at home becomes an image of its user's, which other agents begin with.
# variants: qemu runc runsc
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

state=/home/1000/.local/state/berth
project=/home/1000/project
mkdir -p "$project"
printf 'private work\n' >"$project/file.txt"
chown -R 1000:1000 "$project"
is_docker=$([ "${BERTH_TEST_BACKEND:-qemu}" = docker ] && echo yes)

check "an agent" berth spawn dev --name first --workspace "$project" --background
berth exec first -- sh -c 'printf "kept\n" > ~/mark; mkdir -p ~/.config/tool; printf run > ~/.config/tool/x
    chmod 0750 ~/.config/tool; chmod 0700 ~/.config/tool/x; ln -s /etc/shadow ~/link; ln ~/mark ~/hard
    printf ö > ~/"Grüße $(printf "\351") x"; truncate -s 300M ~/holes; mkfifo ~/fifo; sync'
equal "leaves files of all kinds at home" 0 $?

# ---- refused ----
check_status "nobody is frozen" 4 "no agent" berth freeze nobody
check_status "not under a name of berth's" 64 "is berth's own" berth freeze first shell
check_status "not under a name that is a path" 64 "cannot be the name" berth freeze first ../../x
if [ "$is_docker" ]; then
    skip "a machine that runs" "impossible: a volume can be read while a container runs"
    berth exec first -- sh -c 'printf "before %s" "${HTTPS_PROXY##*agent:}" > ~/leak; sync'
    check_status "not with its token" 1 "holds the token" berth freeze first
    berth exec first -- sh -c 'head -c 65500 /dev/zero > ~/leak; printf "agent:%s" "$(printf %s "${HTTPS_PROXY##*agent:}" | cut -d@ -f1)" | base64 -w0 >> ~/leak; sync'
    check_status "nor as it is sent" 1 "holds the token" berth freeze first
    berth exec first -- rm /home/agent/leak
    equal "nothing is left of these" "" "$(find "$state/frozen" -mindepth 1 ! -name .lock)"
else
    check_status "a machine that runs" 1 "stop it first" berth freeze first
    for case in "not with its token" "nor as it is sent" "nothing is left of these"; do
        skip "$case" "impossible: the token of a machine that has ended is nothing any more"
    done
fi

# ---- frozen: running or not ----
[ "$is_docker" ] || berth stop first
check "frozen" berth freeze first snap
[ "$is_docker" ] && berth stop first
check "frozen when it has ended, under its own name" berth freeze first
check_status "a name is given once" 1 "already" berth freeze first snap
check "unless it is replaced" berth freeze first snap --force
equal "the images are the user's alone" "700 600" \
    "$(stat -c %a "$state/frozen/snap") $(stat -c %a "$state"/frozen/snap/home.*)"
check "holes take no space" test "$(du -sk "$state/frozen/snap" | cut -f1)" -lt 100000
equal "both are listed, with what they were made of" "first shell first snap shell first" \
    "$(berth image list --json | json '" ".join("%s %s %s" % (f["name"], f["recipe"], f["agent"]) for f in d["frozen"])')"
check "people see them too" grep -Eq '^snap .*first' <(berth image list)
token=$(json 'd["token"]' <"$state/env/live/agents/first/secrets.json")
check "the agent's token is in none of it" not grep -rqF "$token" "$state/frozen"
check "nor is its work" not grep -rqa "private work" "$state/frozen"

# ---- others begin with it ----
berth spawn dev --name second --image snap --background >"$WORLD/out" 2>&1
equal "another agent begins with it" 0 $?
note "$(cat "$WORLD/out")"
equal "and has what the first had" "kept run 750 700 /etc/shadow 2 314572800" \
    "$(berth exec second -- sh -c 'cd; echo $(cat mark) $(cat .config/tool/x) $(stat -c %a .config/tool .config/tool/x) \
        $(readlink link) $(stat -c %h hard) $(stat -c %s holes)')"
if [ "${BERTH_TEST_RUNTIME:-}" = runsc ]; then
    skip "its pipe too" "impossible: a pipe in gVisor is its kernel's alone, on no disk, and goes with the container"
else
    check "its pipe too" berth exec second -- test -p /home/agent/fifo
fi
equal "which is its own" "agent" "$(berth exec second -- sh -c 'stat -c %U ~ ~/mark ~/.config ~/link | sort -u')"
equal "names of all bytes too" "ö" "$(berth exec second -- sh -c 'cat ~/"Grüße $(printf "\351") x"')"
equal "its workspace is empty" "" "$(berth exec second -- ls -A /workspace)"
berth exec second -- sh -c 'echo changed > ~/mark; sync'
check "stopped" berth stop second
check "resumed it has what it made of it" berth resume second -- grep -qx changed /home/agent/mark
cat >/home/1000/.config/berth/bottles/frozen.yaml <<'ENDE'
extends: dev
image: snap
ENDE
chown 1000:1000 /home/1000/.config/berth/bottles/frozen.yaml
check "a bottle names it, and it is as it was" berth spawn shell --bottles frozen -- grep -qx kept /home/agent/mark
equal "the plan says so" "snap" "$(berth spawn shell --bottles frozen --dry-run --json | json 'd["plan"]["image"]')"
check "what began with it is frozen like any other" berth freeze second third
check "and begins again" berth spawn dev --image third -- grep -qx changed /home/agent/mark

# ---- not with what it is not for ----
other=$([ "$is_docker" ] && echo qemu || echo docker)
printf '{"recipe": "shell", "backend": "%s", "agent": "x", "frozen_seconds": 1}' "$other" >"$WORLD/record"
cp -a "$state/frozen/third" "$state/frozen/foreign"
cat "$WORLD/record" >"$state/frozen/foreign/frozen.json"
check_status "another backend's image is refused by name" 1 "frozen on the backend $other" \
    berth spawn dev --image foreign --background
printf '{' >"$state/frozen/foreign/frozen.json"
check_status "a damaged one as well" 1 "is damaged" berth spawn dev --image foreign --background
check_status "nor one of berth's own" 64 "no image for agents" berth spawn dev --image infra --background
check_status "nor what nobody made" 4 "nowhere" berth spawn dev --image nowhere --background
equal "another user has none of it" 0 "$(as 1001 berth image list --json </dev/null | json 'len(d["frozen"])')"

# ---- removed ----
check "removed" berth image rm snap foreign third
check_status "removed twice" 4 "no frozen image" berth image rm snap
check_status "nothing begins with it any more" 4 "snap" berth spawn dev --image snap --background
check "its agent goes on" berth resume second -- grep -qx changed /home/agent/mark
check "rm" berth rm first second --yes
check "cleanup" berth cleanup bots
if [ "$is_docker" ]; then
    equal "nothing of it is left in the engine" "0 0" \
        "$(curl -s --unix-socket /run/docker.sock 'http://localhost/containers/json?all=1' | json \
            'len([c for c in d if c["Labels"].get("berth.role") == "agent"])') $(curl -s --unix-socket /run/docker.sock \
            http://localhost/volumes | json 'len([v for v in d["Volumes"] or [] if v["Labels"].get("berth.role") == "agent"])')"
else
    skip "nothing of it is left in the engine" "impossible: there is none"
fi
check "down" berth down
finish
