#!/usr/bin/env bash
# Engines that cannot serve: each says what failed, why and what to do, with its status, and leaves nothing behind. Between
# berth and the engine stands a socket that answers what it is told to, and passes everything else on.
. "$(dirname "$0")/../lib/docker_world.bash"

check "a socket before the engine's" engine_socket /run/liar.sock

at() { as 1000 env DOCKER_HOST="$1" berth "${@:2}" </dev/null; }
tells() { order "answer $1 $2 $3" "$4"; } # METHOD PATH STATUS BODY
bridges() { find /sys/class/net -name 'berthd*' | wc -l; }
is_clean() { # WHAT BRIDGES
    equal "$1: nothing is left behind" "0 0 0, 0 listed, 0 folders, $2 bridges" \
        "$(in_engine), $(berth list --json | json 'len(d["agents"])') listed, $(find /home/1000/.local/state/berth/env/live/agents -mindepth 1 2>/dev/null | wc -l) folders, $(bridges) bridges"
}
# fails WHAT WHY WHAT-TO-DO HOST: a launch ends with status 2 and says both.
fails() {
    local said status
    said=$(at "$4" spawn dev --name failing --background 2>&1)
    status=$?
    equal "$1: status 2" 2 $status
    check "$1: why" grep -qE -- "$2" <(tr '\n' ' ' <<<"$said")
    check "$1: what to do" grep -qE -- "$3" <(tr '\n' ' ' <<<"$said")
    [ "$status" = 2 ] || note "$(tail -n 5 <<<"$said")"
}
liar=unix:///run/liar.sock

# ---- engines that are none, or of a wrong kind ----
fails "missing" "/run/none.sock does not answer: there is no such socket" "systemctl start docker" unix:///run/none.sock
is_clean "missing" 0
python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("/run/dead.sock")'
chmod 666 /run/dead.sock
fails "not running" "dead.sock does not answer: Connection refused" "systemctl start docker" unix:///run/dead.sock
check "a socket that is root's" engine_socket /run/closed.sock
chmod 600 /run/closed.sock
fails "not permitted" "closed.sock does not answer: Permission denied" "group docker" unix:///run/closed.sock
fails "remote, by tcp" "DOCKER_HOST names an engine by tcp" "unset it, or use --backend qemu" tcp://198.51.100.2:2375
fails "remote, by ssh" "DOCKER_HOST names an engine by ssh" "unset it, or use --backend qemu" ssh://me@other.example
is_clean "remote" 0
tells GET /version 200 '{"Version":"19.03.15","ApiVersion":"1.40","MinAPIVersion":"1.12"}'
fails "too old" "version 19.03.15\) is too old: its API is 1.40, 1.41 is needed" "upgrade to Docker 20.10" "$liar"
tells GET /version 200 '<html>hello</html>'
fails "something else" "is no container engine" "set DOCKER_HOST" "$liar"
tells GET /info 200 '{"SecurityOptions":["name=seccomp,profile=builtin","name=rootless"],"OperatingSystem":"Debian"}'
fails "rootless" "is rootless: its networks are in a namespace of their own" "the machine's own engine" "$liar"
tells GET /info 200 '{"SecurityOptions":["name=seccomp"],"OperatingSystem":"Docker Desktop"}'
fails "Docker Desktop" "is Docker Desktop: its networks are in a virtual machine" "the machine's own engine" "$liar"
is_clean "of a wrong kind" 0

# ---- a pool that is somebody else's ----
rm -f "$WORLD/order"
curl -s --unix-socket /run/docker.sock -H 'Content-Type: application/json' -o "$WORLD/made" http://localhost/networks/create \
    -d '{"Name": "squatter", "IPAM": {"Config": [{"Subnet": "10.242.0.0/19"}]}}'
equal "somebody's network has the addresses of the pool" 1 "$(count /networks "len([n for n in d if n['Name']=='squatter'])")"
fails "out of subnets" "cannot make the network|the engine refused" "docker network ls, docker network rm" "$liar"
is_clean "out of subnets" 0
curl -s --unix-socket /run/docker.sock -X DELETE http://localhost/networks/squatter
check "then all is well" at "$liar" up
pair=$(bridges)

# ---- refusals in the middle of a launch ----
refuses() { # WHAT METHOD PATH WORDS HINT
    tells "$2" "$3" 500 "{\"message\":\"$4\"}"
    fails "$1" "refused \(500\): $4" "$5" "$liar"
    rm -f "$WORLD/order"
    is_clean "$1" "$pair"
}
refuses "out of space for a volume" POST /volumes/create "mkdir /var/lib/docker/volumes/x: no space left on device" "docker system df"
refuses "out of space for a container" POST /containers/create "write /var/lib/docker/overlay2/x: no space left on device" "docker system df"
refuses "no free subnet" POST /networks/create "could not find an available, non-overlapping IPv4 address pool among the defaults" "docker network ls"
refuses "out of descriptors" POST /start "open /proc/self/fd: too many open files" "LimitNOFILE"
refuses "a network for a reason of its own" POST /networks/create "the moon is full" "engine's log"
refuses "a connection for a reason of its own" POST /connect "the moon is full" "engine's log"
refuses "a container for a reason of its own" POST /containers/create "the moon is full" "engine's log"
refuses "a start for a reason of its own" POST /start "the moon is full" "engine's log"
check "an agent works all the same" at "$liar" spawn dev --name fine -- true
check "and is removed" berth rm fine --yes

# ---- everybody's rules are gone: berth's are made again, Docker's are not before it is started again ----
as 1000 berth down >"$WORLD/said" 2>&1
nft flush ruleset
has_table() { nft list table inet berth; }
check "the helper makes its table again" eventually has_table
fails "Docker's rules are gone" "iptables|chain" "systemctl restart docker" "$liar"
is_clean "Docker's rules are gone" 0
kill "$DOCKER_PID"
docker_start_again
check "the engine started again: all is well" at "$liar" spawn dev --name fine -- true
check "removed" berth rm fine --yes
check "down" berth down

# ---- a host whose control groups hold no limit: version 2, with the controllers that the first version leaves to it ----
mount -t cgroup2 none /sys/fs/cgroup || exit 1
launch() { as 1000 berth spawn "$@" >"$WORLD/said" 2>&1 </dev/null; }
if ! grep -qE '\<(memory|pids|cpu)\>' /sys/fs/cgroup/cgroup.controllers; then
    kill "$DOCKER_PID"
    docker_start_again
    equal "the engine has control groups of version 2" 2 "$(count /info 'd["CgroupVersion"]')"
    bottle() { printf 'egress:\n  routes:\n    - host: allowed.example\n%s\n' "$2" >"/home/1000/.config/berth/bottles/$1.yaml"; }
    bottle unlimited ""
    check "limits that nobody asked for stop no launch" launch shell --bottles unlimited --name free -- true
    equal "each that does not hold is named" "cpus memory the number of processes" \
        "$(sed -nE "s/^note: the container engine does not limit (.*): its host's control groups do not$/\1/p" "$WORLD/said" | sort | paste -sd' ')"
    for limit in "memory: 512M" "cpus: 1"; do
        bottle limited "resources: {$limit}"
        check_status "one that was asked for is refused: ${limit%:*}" 2 \
            "cannot hold the limit ${limit%:*} of the bottle: its host's control groups do not" berth spawn shell --bottles limited --background
    done
    check "removed" berth rm free --yes
    check "down" berth down
    kill "$DOCKER_PID"
    wait "$DOCKER_PID"
else
    skip "limits that no control group holds" "impossible: version 2 has all controllers on this machine"
fi
umount /sys/fs/cgroup
finish
