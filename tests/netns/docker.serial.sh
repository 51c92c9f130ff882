#!/bin/bash
# Bridge slots with a real Docker engine pointed at them: what Docker does with a bridge that it did not make, and what its
# containers reach. Needs root: an engine does not start in a user namespace without help.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/tap.bash
. "$SOURCE/tests/lib/tap.bash"
if [ "$(id -u)" != 0 ] || ! command -v dockerd >/dev/null; then
    skip "bridges of a Docker engine" "needs root and dockerd"
    finish
    exit
fi
if [ "${DOCKER_TEST:-}" != inside ]; then
    FOLDER=$(mktemp -d)
    trap 'rm -rf "$FOLDER"' EXIT
    DOCKER_TEST=inside FOLDER=$FOLDER unshare --net --mount --pid --fork --mount-proc bash "$0"
    exit
fi
# shellcheck source=tests/lib/helper.bash
. "$SOURCE/tests/lib/helper.bash"
cd "$FOLDER" || exit 1
ip link set lo up
# /sys of this network namespace, with the machine's control groups in it: the engine's are below one of its own.
mkdir cgroup
mount --rbind /sys/fs/cgroup cgroup
mount -t sysfs sysfs /sys
mount --rbind cgroup /sys/fs/cgroup
CONTROL_GROUP=/berth-bridges-$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
mount -t tmpfs tmpfs /run
mount --bind "$FOLDER" /tmp
chmod 711 /tmp
export TMPDIR=/tmp # the one that was given lies below the old /tmp
export DOCKER_HOST=unix:///tmp/engine.sock

printf 'user_uid: 900\nsocket_group: %s\nslots: 8\naudit_folder: none\n' "$GROUP" >"$HELPER_CONFIG"
dockerd --data-root /tmp/data --exec-root /tmp/exec -H $DOCKER_HOST --pidfile /tmp/engine.pid \
    --cgroup-parent "$CONTROL_GROUP" >engine.log 2>&1 &
ENGINE_PID=$!
helper_start
check "Docker starts" eventually docker version
note "Docker $(docker version -f '{{.Server.Version}}'), $(iptables -V)"

# A container of one static program, which serves on standard input and output.
mkdir -p root/bin
cp "$(command -v busybox)" root/bin/
tar -C root -c . | docker import - tiny >/dev/null

at() { # NAME NUMBER: an address of that network
    local host
    host=$(fact "$1" host)
    echo "${host%.*}.$((${host##*.} - 1 + $2))"
}
network() { # NAME [OPTION]
    docker network create -d bridge "${@:2}" --subnet "$(at "$1" 0)/29" --gateway "$(at "$1" 1)" \
        -o com.docker.network.bridge.name="$(fact "$1" interface)" \
        -o com.docker.network.bridge.enable_ip_masquerade=false "$1" >/dev/null
}
container() { # NAME NETWORK NUMBER COMMAND...
    docker run -d --init=false --name "$1" --network "$2" --ip "$(at "$2" "$3")" --cap-drop ALL tiny "${@:4}" >/dev/null
}
says() { # CONTAINER ADDRESS PORT WORD
    SAID=$(docker exec "$1" /bin/busybox sh -c "echo | timeout 3 busybox nc -w 2 $2 $3" 2>&1)
    [ "$SAID" = "$4" ]
}
is_up() { [ -n "$(ip -o link show up dev "$1" 2>/dev/null)" ]; }
serve() { echo "while :; do echo $2 | busybox nc -l -p $1; done"; }

for one in "agent agent" "other agent" "egress gateway" "control orchestrator"; do
    # Not in a subshell: the client is this shell's.
    tool "${one% *}" "$ALICE" bridge "${one#* }" 0
    check "a lease: $one" heard "${one% *}" '^lease slot='
done
BRIDGE=$(fact agent interface)
index=$(cat "/sys/class/net/$BRIDGE/ifindex")
for name in agent other control; do check "a network on it: $name" network $name --internal; done
check "a network on it: egress" network egress
equal "Docker kept the bridge" "$index" "$(cat "/sys/class/net/$BRIDGE/ifindex")"
equal "and its one address" "$(at agent 1)/29" "$(ip -o -4 addr show "$BRIDGE" | awk '{print $4}')"
container gateway egress 2 /bin/busybox sh -c "$(serve 8119 hello) & $(serve 22 shell)"
for name in agent other control; do docker network connect --ip "$(at $name 2)" $name gateway; done
container agent agent 3 /bin/busybox sleep 600
container other other 3 /bin/busybox sh -c "$(serve 8119 sibling)"
container control control 3 /bin/busybox sh -c "$(serve 7400 control)"

check "agent to gateway" eventually says agent "$(at agent 2)" 8119 hello
check "agent to gateway, a port that is none of a gateway's" not says agent "$(at agent 2)" 22 shell
check "agent to its sibling" not says agent "$(at other 3)" 8119 sibling
check "agent to the orchestrator" not says agent "$(at control 3)" 7400 control
check "gateway to orchestrator" eventually says gateway "$(at control 3)" 7400 control
check "gateway to an agent" not says gateway "$(at other 3)" 8119 sibling
busybox nc -ll -p 2222 -e /bin/echo host >/dev/null 2>&1 &
NC_PID=$!
check "a service of the host is there" eventually bash -c "busybox nc -w 1 127.0.0.1 2222 </dev/null | grep -q host"
for name in agent gateway control; do
    check "$name to a service of the host by its bridge" not says $name "$(at agent 1)" 2222 host
done
kill $NC_PID

# ---- the end of things --------------------------------------------------------------------------------------------------
tell agent seal
heard agent '^seal ok'
check "sealed: the bridge is down" not is_up "$BRIDGE"
check "and the gateway is not to be had" not says agent "$(at agent 2)" 8119 hello
kill $ENGINE_PID
wait $ENGINE_PID
dockerd --data-root /tmp/data --exec-root /tmp/exec -H $DOCKER_HOST --pidfile /tmp/engine.pid \
    --cgroup-parent "$CONTROL_GROUP" >>engine.log 2>&1 &
ENGINE_PID=$!
check "Docker starts again" eventually docker version
check "which does not bring the sealed bridge up" eventually not is_up "$BRIDGE"
docker rm -f other >/dev/null
docker network disconnect other gateway
name=$(fact other interface)
docker network rm other >/dev/null
check "Docker does not delete a bridge that it did not make" is_up "$name"
end_tool agent
check "the lease ends: the bridge goes, ports or not" eventually not test -e "/sys/class/net/$BRIDGE"
docker rm -f agent >/dev/null
docker network disconnect -f agent gateway
check "Docker removes the network that had it" docker network rm agent
docker rm -f gateway control >/dev/null
for name in egress control; do check "and the others: $name" docker network rm $name; done
for name in other egress control; do end_tool $name; done
check "nothing of berth is left" eventually helper_has_no_interface
kill $ENGINE_PID
wait $ENGINE_PID
helper_kill
for folder in /sys/fs/cgroup/*"$CONTROL_GROUP" "/sys/fs/cgroup$CONTROL_GROUP"; do
    [ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} \; 2>/dev/null
done
umount -l cgroup
finish
