#!/usr/bin/env bash
# The docker backend from one end to the other: an agent in a container of a real engine.
# variants: runc runsc podman
. "$(dirname "$0")/../lib/docker_world.bash"

berth spawn --backend docker dev -- uname -a >"$WORLD/out" 2>"$WORLD/err"
equal "a command in a container" 0 $?
[ -s "$WORLD/out" ] || note "$(cat "$WORLD/err" /home/1000/.local/state/berth/failed-launch.log /home/1000/.local/state/berth/env/live/*/*.log 2>&1)"
check "says what it says" grep -q '^Linux ' "$WORLD/out"
equal "list knows how it ended" 1 "$(berth list | grep -c 'exited (0).* docker')"

state=/home/1000/.local/state/berth
is_podman=$([ "${BERTH_TEST_ENGINE:-}" = podman ] && echo yes)
is_gvisor=$([ "${BERTH_TEST_RUNTIME:-}" = runsc ] && echo yes)
bottles=/home/1000/.config/berth/bottles
sed '/^isolation:/d' $bottles/dev.yaml >$bottles/plain.yaml

# ---- what the engine stores, and what holds a container ----
check "an agent in the background" berth spawn dev --name one --background
id=$(count /containers/json "[c['Id'] for c in d if c['Labels'].get('berth.name')=='one'][0]")
engine "/containers/$id/json" >"$WORLD/inspect"
python3 - "$state" >"$WORLD/secrets" <<'END'
import json, sys
secrets = json.load(open(sys.argv[1] + "/env/live/agents/one/secrets.json"))
print(secrets["token"])
print(open(sys.argv[1] + "/host.key").read().strip())
END
chmod 600 "$WORLD/secrets"
equal "there are two secrets to look for, and something to look in" "2 yes" \
    "$(wc -l <"$WORLD/secrets") $([ -s "$WORLD/inspect" ] && echo yes)"
check "nothing secret is in what it stores" not grep -qF -f "$WORLD/secrets" "$WORLD/inspect"
dropped="['ALL']" # podman names those that it would have given
[ -z "$is_podman" ] || dropped="['AUDIT_WRITE', 'CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID', 'KILL', 'MKNOD', 'NET_BIND_SERVICE', 'NET_RAW', 'SETFCAP', 'SETGID', 'SETPCAP', 'SETUID', 'SYS_CHROOT']"
equal "read-only, without capabilities, on its own network" "True $dropped [] True" \
    "$(python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); h=d["HostConfig"]; print(h["ReadonlyRootfs"], h["CapDrop"], h["Devices"] or [], list(d["NetworkSettings"]["Networks"])[0].startswith("berth-"))' "$WORLD/inspect")"
equal "memory and swap, processes, processors" "536870912 536870912 4096 1000000000" \
    "$(python3 -c 'import json,sys; h=json.load(open(sys.argv[1]))["HostConfig"]; print(h["Memory"], h["MemorySwap"], h["PidsLimit"], h["NanoCpus"])' "$WORLD/inspect")"
check_status "its root cannot be written" 1 "Read-only file system${is_gvisor:+|Permission denied}" berth exec one -- touch /x
equal "and says so" ro "$(berth exec one -- sed -n 's|^[^ ]* / [^ ]* \([^, ]*\).*|\1|p' /proc/mounts)"
check "which is not because nothing can" berth exec one -- touch /tmp/x
equal "nor has anybody a capability" 0000000000000000 \
    "$(berth exec one -- sed -n 's/^CapBnd:\t//p' /proc/self/status)"
if [ "$is_gvisor" ]; then
    skip "its system calls are filtered, and it gets no privilege" "impossible: gVisor answers them itself"
else
    equal "its system calls are filtered, and it gets no privilege" "1 2" \
        "$(berth exec one -- sh -c "sed -n 's/^NoNewPrivs:\t//p; s/^Seccomp:\t//p' /proc/self/status" | paste -sd' ')"
fi
equal "its user is nobody of the host's" "agent 65525 65525 65525" \
    "$(berth exec one -- sh -c 'echo $(id -un) $(id -u) $(stat -c %u /home/agent /workspace)')"
equal "its kernel is the one that its bottle says" "${is_gvisor:-no}" \
    "$(berth exec one -- dmesg 2>/dev/null | grep -q gVisor && echo yes || echo no)"
equal "of the host's names it knows none" "127.0.0.1 localhost" \
    "$(berth exec one -- sh -c 'grep -v "^#" /etc/hosts | grep -vE "::|$(hostname)" | tr -s "\t" " "')"
check "pairs of local sockets work" berth exec one -- perl -e 'socketpair(A,B,1,1,0) or die "$!\n"'
equal "no socket of the engine" "there: /run" "$(berth exec one -- sh -c \
    'echo there: $(for path in /run /run/docker.sock /var/run/docker.sock; do test -e $path && echo $path; done)')"
bridge=$(berth status one --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["agents"][0]["interface"])')
host=$(ip -o -4 addr show "$bridge" | sed -n 's|.* inet \([0-9.]*\)/.*|\1|p')
python3 -m http.server 2222 --bind "$host" --directory "$WORLD/internet/www" >/dev/null 2>&1 &
check "the host serves on its bridge" eventually curl -sSf -o /dev/null "http://$host:2222/"
check_status "where the agent does not reach it" 7 "connect" \
    berth exec one -- curl -sS --noproxy '*' --max-time 5 "http://$host:2222/"

berth exec one -- sleep 12345 >/dev/null 2>&1 &
sleeps() { berth exec one -- sh -c 'grep -qs 1234[5] /proc/[0-9]*/cmdline && echo runs || echo none'; }
is_sleeping() { [ "$(sleeps)" = "$1" ]; }
check "a command runs" eventually is_sleeping runs
pkill -KILL -f '^berth exec one -- sleep 12345'
check "and ends with the host's end of it" eventually is_sleeping none

# ---- one backend an environment; engines that will not do ----
check_status "another backend in the same environment is refused by name" 2 "docker.*qemu|qemu.*docker" \
    berth spawn shell --bottles plain --backend qemu --background
for case in "tcp://192.0.2.1:2375 tcp" "unix:///nowhere.sock nowhere"; do
    said=$(as 1000 env DOCKER_HOST="${case% *}" berth spawn dev --background 2>&1 </dev/null)
    equal "an engine at ${case% *}" "2 yes" "$? $(grep -q "${case#* }" <<<"$said" && grep -q 'what to do' <<<"$said" && echo yes)"
done
said=$(berth doctor 2>&1)
check "doctor knows the engine" grep -q "container engine answers" <<<"$said"
sed 's/resources: {/resources: {disk: 16G, /' $bottles/dev.yaml >$bottles/sized.yaml
check_status "a size that nobody can hold is refused when it is asked for, be it the default's" 2 "disk" berth spawn shell --bottles sized --background

if [ "$is_gvisor" ]; then
    skip "gVisor is refused where the engine has none" "impossible: this engine has it"
else
    sed '/^resources:/a isolation: gvisor' $bottles/dev.yaml >$bottles/apart.yaml
    check_status "gVisor is refused where the engine has none" 2 "no runtime runsc${is_podman:+|podman, where berth has no gVisor}" berth spawn shell --bottles apart --background
fi
equal "an agent whose bottle asks for none has the machine's kernel" "$(uname -r)" \
    "$(berth spawn shell --bottles plain -- uname -r 2>/dev/null)"

# ---- where nothing better works (no qemu is found), it is still nobody's without a word ----
sed -i '/^backend:/d' /home/1000/.config/berth/config.yaml
bare() { as 1000 env PATH=/opt/source/build berth "$1" -E bare "${@:2}" </dev/null; }
check_status "--yes is no consent to it" 1 "say --backend docker" bare spawn dev --yes --background
check_status "nor is the pair's start" 2 "only the backend docker.*asked for" bare up
at_terminal() { # ANSWER
    as 1000 /usr/bin/python3 /opt/source/tests/lib/terminal.py '[y/N]' "$1\n" \
        -- /usr/bin/env PATH=/opt/source/build berth spawn -E bare dev --yes --name asked -- true
}
check_status "a person who says no" 1 "nothing was done" at_terminal n
check "a person who says yes" at_terminal y
check "has it" grep -q asked <(bare list)
check "rm" bare rm asked --yes
check "down" bare down
echo "backend: docker" >>/home/1000/.config/berth/config.yaml

# ---- however a keeper dies, its container ends ----
agent() { berth list --json | json "[a['$1'] for a in d['agents'] if a['name'] == 'one'][0]"; }
keeper=$(agent keeper_pid)
kill -KILL "$keeper"
gone() { [ "$(count /containers/json "len([c for c in d if c['Labels'].get('berth.name')=='one'])")" = 0 ]; }
check "a killed keeper's container ends" eventually gone
equal "the agent is lost" lost "$(agent status)"
away() { as 1000 env DOCKER_HOST=tcp://192.0.2.1:2375 berth cleanup bots </dev/null; }
check_status "an engine that cannot be asked is no failure of cleanup" 0 "agent one stays until" away
equal "nor is what it may hold forgotten" lost "$(agent status)"
check "cleanup" berth cleanup bots
equal "leaves nothing of it in the engine" "0 0 0" \
    "$(count '/containers/json?all=1' "len([c for c in d if c['Labels'].get('berth.name')=='one'])") $(count /networks "len([n for n in d if (n['Labels'] or {}).get('berth.name')=='one'])") $(count /volumes "len([v for v in d['Volumes'] or [] if (v['Labels'] or {}).get('berth.name')=='one'])")"

# ---- a gateway that dies has a successor on the agents' networks ----
check "another agent" berth spawn dev --name two --background
gateway=$(count /containers/json "[c['Id'] for c in d if c['Labels'].get('berth.role')=='gateway'][0]")
curl -s -X POST --unix-socket /run/docker.sock "http://localhost/containers/$gateway/kill" >/dev/null
reaches() { berth exec two -- curl -sSf --max-time 20 -o /dev/null https://allowed.example/; }
check "the world can be reached again" eventually reaches
check "stop" berth stop two
check "rm" berth rm two --yes
check "down" berth down
# ---- cleanup and a pair that is being started: its container is there a moment before its record ----
owner=$(count /volumes "d['Volumes'][0]['Labels']['berth.owner']")
half="berth-$owner.live.infra.gateway"
curl -s -X POST --unix-socket /run/docker.sock -H 'Content-Type: application/json' -o /dev/null http://localhost/networks/create \
    -d "{\"Name\": \"$half\", \"Internal\": true, \"Labels\": {\"berth.owner\": \"$owner\", \"berth.environment\": \"live\", \"berth.role\": \"gateway\", \"berth.name\": \"gateway\"}}"
halves() { count /networks "len([n for n in d if n['Name'] == '$half'])"; }
exec 9>>"$state/env/live/infra.lock"
flock 9
said=$(as 1000 timeout 3 berth cleanup bots 2>&1 </dev/null)
equal "cleanup waits for whoever starts it" "124 1" "$? $(halves)"
exec 9>&-
check "then" berth cleanup bots
equal "removes what nobody recorded" 0 "$(halves)"
equal "no container, no network, no volume but the registry of each environment" "0 0 2" \
    "$(count '/containers/json?all=1' 'len(d)') $(count /networks "len([n for n in d if n['Labels']])") $(count /volumes "len(d['Volumes'] or [])")"
finish
