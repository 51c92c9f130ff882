#!/usr/bin/env bash
# A user's bad days: each a clear message and exit status, nothing left behind, nothing lost.
# variants: qemu runc runsc
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

nothing_left() { # nothing_left WHAT
    local left
    left=$(berth list --json | python3 -c 'import json,sys
for agent in json.load(sys.stdin)["agents"]: print(agent["name"], agent["status"], agent["created"], agent["detail"])')
    equal "$1: no agent is left" "" "$left"
    equal "$1: no folder is left" "" "$(ls /home/1000/.local/state/berth/env/live/agents 2>/dev/null)"
}
config=/home/1000/.config/berth

# ---- manifests ----
printf 'egress:\n  routes: []\n' >$config/bottles/empty.yaml
printf -- '---\nharness: shell\nbottle: empty\n---\n' >$config/agents/empty.md
printf 'egress:\n  routes:\n    - host: allowed.example\n      metods: [GET]\n' >$config/bottles/typo.yaml
printf -- '---\nharness: shell\nbottle: typo\n---\n' >$config/agents/typo.md
printf 'egress: [\n' >$config/bottles/broken.yaml
printf -- '---\nharness: shell\nbottle: broken\n---\n' >$config/agents/broken.md
printf 'egress:\n  routes:\n    - host: allowed.example\n      dlp: {entropy: block}\n' >$config/bottles/later.yaml
printf -- '---\nharness: shell\nbottle: later\n---\n' >$config/agents/later.md
check_status "a misspelt key: file, line, column and the nearest key" 1 'typo\.yaml:4:7: .*methods' berth spawn typo --background
check_status "a broken file: file and line" 1 'broken\.yaml:[0-9]+:[0-9]+: ' berth spawn broken --background
check_status "what a key cannot hold is refused, not ignored" 1 'later\.yaml:4:7: .*"entropy" is not off or warn' berth spawn later --background
check_status "no such agent: the nearest one is named" 4 'dev' berth spawn dve --background
check_status "no such command" 64 'spawn' berth spwan dev
nothing_left "manifests"
cp $config/config.yaml "$WORLD/config.yaml"
printf 'gateway: {resolver: [203.0.113.53]}\n' >>$config/config.yaml
check_status "a wrong config.yaml: file and line" 1 'config\.yaml:[0-9]+:' berth spawn dev --background
check_status "but agents can still be seen and ended" 0 'config\.yaml:[0-9]+:.*default' berth list
cp "$WORLD/config.yaml" $config/config.yaml

# ---- the machine ----
helper_kill
check_status "helper not running" 2 'helper' berth spawn dev --background
nothing_left "helper not running"
helper_start
if [ "${BERTH_TEST_BACKEND:-}" = docker ]; then
    check_status "nothing that runs guests" 2 'nowhere' as 1000 env DOCKER_HOST=unix:///nowhere.sock berth spawn dev --background
else
    mkdir "$WORLD/no-qemu"
    for program in git mmdebstrap tar; do ln -s "$(command -v $program)" "$WORLD/no-qemu/"; done
    check_status "nothing that runs guests" 2 'qemu' as 1000 env PATH="$WORLD/no-qemu" /opt/source/build/berth spawn dev --background
fi
nothing_left "nothing that runs guests"
if [ "${BERTH_TEST_BACKEND:-}" = docker ]; then
    skip "no usable /dev/net/tun" "impossible: containers need none"
    skip "doctor names it" "impossible: containers need none"
else
    mount --bind /dev/null /dev/net/tun
    helper_kill
    helper_start >/dev/null 2>&1
    check_status "no usable /dev/net/tun" 2 'tun' berth spawn dev --background
    check_status "doctor names it" 2 'tun' berth doctor
    umount /dev/net/tun
    helper_kill
    helper_start
fi
nothing_left "no tun"

# ---- the workspace ----
check_status "a workspace that is not there" 1 'no-such-folder' berth spawn dev --workspace /home/1000/no-such-folder --background
mkdir -p /home/1000/closed
printf 'x\n' >/home/1000/closed/readable
printf 'x\n' >/home/1000/closed/secret
chown -R 1000:1000 /home/1000/closed
chown 0:0 /home/1000/closed/secret
chmod 600 /home/1000/closed/secret
check_status "an unreadable file in the workspace is named" 1 'secret' berth spawn dev --workspace /home/1000/closed --background
nothing_left "unreadable workspace"
mkdir /home/1000/odd
printf 'x\n' >/home/1000/odd/"$(printf 'no-\377-utf8')"
chown 1000:1000 /home/1000/odd
chmod 600 /home/1000/odd/no-*
check_status "also when its name is no UTF-8" 1 'no-.-utf8' berth spawn dev --workspace /home/1000/odd --background
nothing_left "unreadable file with an odd name"

check_status "an empty allow list lets nothing out" 0 'no egress|nothing|no route' berth spawn empty --name none --background
check_status "and says so" 56 403 berth exec none -- curl -sS --max-time 30 https://allowed.example/
check_status "the name is taken" 1 'none' berth spawn empty --name none --background
berth stop none >/dev/null && berth rm none --yes >/dev/null

many=/home/1000/many
mkdir -p $many
python3 - $many <<'PY'
import os, sys
for i in range(100):
    os.makedirs(f"{sys.argv[1]}/d{i}")
    for j in range(100):
        with open(f"{sys.argv[1]}/d{i}/f{j}", "w") as file:
            file.write(f"{i} {j}\n")
PY
chown -R 1000:1000 $many
started=$(date +%s%N)
said=$(berth spawn dev --name many --workspace $many -- sh -c 'find . -name "f*" | wc -l; echo changed > d7/f7')
equal "a workspace of 10 000 files" 10000 "$(tail -n 1 <<<"$said")"
echo "# 10 000 files: $((($(date +%s%N) - started) / 1000000)) ms from spawn to the end"
equal "one change comes back" 1 "$(berth diff many | grep -c '^diff --git')"
berth rm many --yes >/dev/null
big=/home/1000/big
mkdir -p $big
truncate -s 2G $big/large
printf 'end' >>$big/large
chown -R 1000:1000 $big
started=$(date +%s%N)
said=$(berth spawn dev --name big --workspace $big -- sh -c 'stat -c %s large; tail -c 3 large; echo; echo y > small')
equal "a workspace with a file of 2 GB" "2147483651 end" "$(tail -n 2 <<<"$said" | tr '\n' ' ' | sed 's/ $//')"
echo "# 2 GB: $((($(date +%s%N) - started) / 1000000)) ms from spawn to the end"
equal "one change comes back" 1 "$(berth diff big | grep -c '^diff --git')"
berth rm big --yes >/dev/null

# ---- a full disk ----
berth down >/dev/null
mkdir /tmp/small
mount -t tmpfs -o size=3m,mode=700,uid=1000,gid=1000 tmpfs /tmp/small
check_status "a full disk" 1 'room for|space left' as 1000 env BERTH_STATE_HOME=/tmp/small/state berth spawn dev --workspace $many --background
equal "a full disk: no agent is left" 0 "$(as 1000 env BERTH_STATE_HOME=/tmp/small/state berth list --json | python3 -c 'import json,sys; print(len(json.load(sys.stdin)["agents"]))')"
as 1000 env BERTH_STATE_HOME=/tmp/small/state berth down --force >/dev/null 2>&1
check "the user's files are what they were" test "$(find $many -type f | wc -l)" = 10000
finish
