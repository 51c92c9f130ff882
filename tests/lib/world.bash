# The test world, for bash scripts that source it: everything real but the internet, and nothing outside is touched.
#
#   world_enter "$@"     first thing in a script: builds images if they are missing, then runs the script again as root of
#                        new namespaces (build/tests/tools/namespace); returns only inside
#                        (WORLD_IMAGES: recipes of the script's own, beside shell; berth is an installation that has those
#                        of tests/lib/recipes, too, where one of them is among these)
#   world_start          inside: network, a small internet, the helper, two users (1000, 1001) with homes and config
#   as USER COMMAND...   runs a command as the user 1000 or 1001 with a clean environment; berth is in PATH
#   berth ARGUMENT...    as the user 1000, without standard input
#   json EXPRESSION      evaluates a Python expression over the document d on standard input
#   guests [NAME]        the virtual machines and containers that are there: all, or an agent's (a container may also be
#                        gateway or orchestrator); fails when there is none
#   helper_rules         the helper's rules but for counters, the order in which sets are listed, and the flows that are
#                        counted: the kernel forgets those in its own time
#   helper_start, helper_kill
#
# With BERTH_TEST_BACKEND=docker in its environment a script gets a world with a container engine of its own, and agents
# of the backend docker; with BERTH_TEST_RUNTIME=runsc the engine has gVisor as well. That takes the machine's own root,
# since an engine needs devices and control groups: there is no user namespace then, all others are new as ever. The
# engine's data lie below /var/tmp/berth-world-docker. docker_start, docker_start_again; DOCKER_PID, DOCKER_LOG,
# DOCKER_OPTIONS; PODMAN_IDLE_SECONDS (0: for ever), until its service ends by itself.
#
# With BERTH_TEST_MACHINE=own the world is in a machine of its own, with control groups of version 2 (machine.bash).
#
# A script that runs on every backend has the line "# variants: qemu runc runsc"; tests/run sets BERTH_TEST_VARIANT, which
# is the same as BERTH_TEST_BACKEND=docker (runc), that with gVisor under every agent (runsc), and that with podman as the
# engine, at Docker's socket (podman: BERTH_TEST_ENGINE). Bottles of such a script end with $WORLD_RESOURCES.
#
# Addresses: the world's own "host" is 198.51.100.2; the internet answers on 203.0.113.10 (web), 203.0.113.53 (DNS) and
# 203.0.113.99 (a public address that no route allows). More names: lines "name address" in $WORLD/internet/names before
# world_start; $WORLD/internet/origin.pem is the certificate and key of all of them. Variables: WORLD (folder for the script's
# own files; internet/requests in it has a JSON line for each request and question that reached the internet).
# shellcheck shell=bash

case "${BERTH_TEST_VARIANT:-}" in
qemu) unset BERTH_TEST_BACKEND BERTH_TEST_RUNTIME ;;
runc) export BERTH_TEST_BACKEND=docker ;;
runsc) export BERTH_TEST_BACKEND=docker BERTH_TEST_RUNTIME=runsc ;;
podman) export BERTH_TEST_BACKEND=docker BERTH_TEST_ENGINE=podman ;;
esac
WORLD_RESOURCES="resources: {memory: 512M, cpus: 1, disk: 4G}"
if [ "${BERTH_TEST_BACKEND:-}" = docker ]; then # whose volumes have no size here
    WORLD_RESOURCES="resources: {memory: 512M, cpus: 1}"
    [ "${BERTH_TEST_VARIANT:-}" != runsc ] || WORLD_RESOURCES+=$'\nisolation: gvisor'
fi

WORLD_SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORLD=/tmp/world
if [ "${BERTH_TEST_MACHINE:-}" = own ]; then
    # shellcheck source=tests/lib/machine.bash
    . "$WORLD_SOURCE/tests/lib/machine.bash"
fi
WORLD_BERTH_ID=900

# world_bin SOURCE RECIPE...: the folder of the berth that has these recipes.
world_bin() {
    local source=$1 recipe
    shift
    for recipe; do
        [ -e "$source/images/recipes/$recipe.yaml" ] || { echo "$source/build/installation/bin" && return; }
    done
    echo "$source/build"
}
# shellcheck disable=SC2086
WORLD_BIN=$(world_bin /opt/source ${WORLD_IMAGES:-})

# world_images RECIPE...: outside, builds what is missing (this needs the network; everything later does not), and prints
# the folder in which the world's users will find these images: a tree of hard links (or copies, on another file system),
# since the user's own cache is closed to others. Each world has one of its own, named after its process; those of worlds
# that have ended go.
world_images() {
    local shared="$WORLD_SOURCE/build/images/$$" document folder bin
    bin=$(world_bin "$WORLD_SOURCE" "$@")
    [ "$bin" = "$WORLD_SOURCE/build" ] || world_installation || return
    document=$("$bin/berth" image build --quiet --json kernel infra "$@") || return
    for folder in "$WORLD_SOURCE"/build/images/*; do
        [ -d "$folder" ] && ! kill -0 "${folder##*/}" 2>/dev/null && rm -rf "$folder"
    done
    rm -rf "$shared"
    mkdir -p "$shared"
    while read -r folder; do
        cp -rl "$folder" "$shared/" 2>/dev/null ||
            { rm -rf "${shared:?}/${folder##*/}" && cp -r --sparse=always "$folder" "$shared/"; } || return
    done < <(python3 -c 'import json, os, sys
for image in json.load(sys.stdin)["images"]: print(os.path.dirname(image["path"]))' <<<"$document")
    echo "$shared"
}

# An installation of what was built last, with recipes of an administrator's own.
world_installation() {
    make --no-print-directory -s -C "$WORLD_SOURCE" -o all install DESTDIR= PREFIX="$WORLD_SOURCE/build/installation" >&2 &&
        cp "$WORLD_SOURCE"/tests/lib/recipes/* "$WORLD_SOURCE/build/installation/share/berth/recipes/"
}

world_enter() {
    [ "${BERTH_WORLD:-}" = inside ] && return
    [ "${BERTH_TEST_MACHINE:-}" != own ] || machine_enter "$@"
    local script images
    script=$(realpath --relative-to="$WORLD_SOURCE" "$0")
    # shellcheck disable=SC2086
    images=${BERTH_WORLD_IMAGES:-$(world_images shell ${WORLD_IMAGES:-})} || exit
    [ "${BERTH_TEST_BACKEND:-}" = docker ] && world_enter_docker "$script" "$images" "$@"
    exec env BERTH_WORLD=inside HOME=/root "$WORLD_SOURCE/build/tests/tools/namespace" --bind "$WORLD_SOURCE" source \
        --bind "$images" images bash "/opt/source/$script" "$@"
}

world_enter_docker() {
    local script=$1 images=$2 data="/var/tmp/berth-world-docker/$$" folder
    shift 2
    if [ "$(id -u)" -ne 0 ] || ! command -v dockerd >/dev/null; then
        echo "1..0 # skip impossible: a container engine needs root and the package docker.io"
        exit 0
    fi
    if [ "${BERTH_TEST_ENGINE:-}" = podman ] && ! command -v podman >/dev/null; then
        echo "1..0 # skip impossible: podman is the packages podman and netavark"
        exit 0
    fi
    if [ "${BERTH_TEST_RUNTIME:-}" = runsc ] && ! command -v runsc >/dev/null; then
        echo "1..0 # skip impossible: gVisor is the package runsc"
        exit 0
    fi
    for folder in /var/tmp/berth-world-docker/*; do
        [ -d "$folder" ] && ! kill -0 "${folder##*/}" 2>/dev/null && rm -rf "$folder"
    done
    mkdir -p "$data"
    # shellcheck disable=SC2064
    trap "rm -rf '$data'; rmdir --ignore-fail-on-non-empty '${data%/*}'" EXIT
    env BERTH_WORLD=inside HOME=/root "$WORLD_SOURCE/build/tests/tools/namespace" --host-ids \
        --bind "$WORLD_SOURCE" source --bind "$images" images --bind-writable "$data" docker \
        bash "/opt/source/$script" "$@"
    exit
}

# The engine's control groups are the machine's: below one of its own, removed at the end.
docker_start() {
    local try
    DOCKER_LOG=/opt/docker/log
    DOCKER_CGROUP=${DOCKER_CGROUP:-/berth-world-$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')}
    echo '{}' >/opt/docker/daemon.json
    if [ "${BERTH_TEST_RUNTIME:-}" = runsc ]; then
        cat >/opt/docker/daemon.json <<'END'
{"runtimes": {"runsc": {"path": "/usr/bin/runsc",
  "runtimeArgs": ["--platform=ptrace", "--network=host", "--ignore-cgroups"]}}}
END
    fi
    if [ "${BERTH_TEST_ENGINE:-}" = podman ]; then
        podman_settings
        # conmon writes a file where it was started when a container's memory is short.
        (cd /opt/docker && exec podman system service --time="${PODMAN_IDLE_SECONDS:-0}" unix:///run/docker.sock \
            >>"$DOCKER_LOG" 2>&1) &
    else
        # shellcheck disable=SC2086
        dockerd ${DOCKER_OPTIONS:-} --config-file /opt/docker/daemon.json --data-root /opt/docker/data --exec-root /run/docker \
            --pidfile /run/docker.pid --group "$WORLD_BERTH_ID" --cgroup-parent "$DOCKER_CGROUP" \
            -H unix:///run/docker.sock >>"$DOCKER_LOG" 2>&1 &
    fi
    DOCKER_PID=$!
    trap docker_end EXIT
    for try in $(seq 300); do
        curl -sf --unix-socket /run/docker.sock http://localhost/_ping >/dev/null &&
            chgrp "$WORLD_BERTH_ID" /run/docker.sock && chmod 660 /run/docker.sock && return
        kill -0 "$DOCKER_PID" 2>/dev/null || break
        sleep 0.1
    done
    echo "the container engine did not start ($try tries):" >&2
    tail -20 "$DOCKER_LOG" >&2
    return 1
}

# podman with nothing of the machine's own settings, images or networks.
podman_settings() {
    export CONTAINERS_CONF=/opt/docker/containers.conf CONTAINERS_STORAGE_CONF=/opt/docker/storage.conf
    cat >$CONTAINERS_CONF <<'END'
[network]
network_backend = "netavark"
network_config_dir = "/opt/docker/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "/run/libpod"
END
    cat >$CONTAINERS_STORAGE_CONF <<'END'
[storage]
driver = "overlay"
graphroot = "/opt/docker/data"
runroot = "/run/containers"
END
}

# An engine that was killed comes again. Not in a subshell: the engine would end with that.
docker_start_again() {
    wait "$DOCKER_PID" 2>/dev/null
    rm -f /run/docker.pid
    docker_start
}

# Containers end at once: to an engine's own end they would give ten seconds each time.
docker_end() {
    local folder container
    for container in $(curl -s --max-time 5 --unix-socket /run/docker.sock http://localhost/containers/json |
        json '" ".join(c["Id"] for c in d)' 2>/dev/null); do
        curl -s --max-time 5 -X POST --unix-socket /run/docker.sock -o /dev/null "http://localhost/containers/$container/kill"
    done
    kill "$DOCKER_PID" 2>/dev/null && wait "$DOCKER_PID" 2>/dev/null
    rm -rf /opt/docker/* 2>/dev/null
    for folder in /sys/fs/cgroup/*"$DOCKER_CGROUP" "/sys/fs/cgroup$DOCKER_CGROUP" /sys/fs/cgroup/*/libpod_parent; do
        [ -d "$folder" ] && find "$folder" -depth -type d -exec rmdir {} \; 2>/dev/null
    done
    return 0
}

as() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$user" --groups "$user,$WORLD_BERTH_ID" --bounding-set=-all --inh-caps=-all \
        env -i HOME="/home/$user" USER="user$user" PATH="$WORLD_BIN:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" \
        LANG=C.UTF-8 TERM="${TERM:-dumb}" XDG_RUNTIME_DIR="/run/user/$user" NO_COLOR=1 "$@"
}

berth() { as 1000 berth "$@" </dev/null; }
json() { python3 -c 'import json,sys; d=json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }
guests() {
    if [ "${BERTH_TEST_BACKEND:-}" = docker ]; then
        curl -s --unix-socket /run/docker.sock "http://localhost/containers/json?all=1" |
            json '"\n".join(c["Names"][0] for c in d)' | grep "[.]${1:-}${1:+$}"
    else
        pgrep -af qemu-system | grep "/${1:-}${1:+/}"
    fi
}
helper_rules() {
    nft -s list table inet berth | sed '/set [a-z]*_flows {/,/^\t}/d; s/[0-9]* packets//; s/counter//' | tr -s ' ,\n' '\n' | sort
}

world_network() {
    ip link set lo up
    mkdir -p /run/netns
    ip netns add internet
    ip link add uplink type veth peer name uplink netns internet
    ip addr add 198.51.100.2/24 dev uplink
    ip link set uplink up
    ip -n internet link set lo up
    ip -n internet addr add 198.51.100.1/24 dev uplink
    ip -n internet link set uplink up
    local address
    for address in 203.0.113.10 203.0.113.53 203.0.113.99; do
        ip -n internet addr add "$address/32" dev lo
    done
    ip route add default via 198.51.100.1
    # No resolver of the real host may be asked by anything in here.
    echo "nameserver 203.0.113.53" >"$WORLD/resolv.conf"
    mount --bind "$WORLD/resolv.conf" /etc/resolv.conf
}

world_user() {
    local user=$1 home=/home/$1
    mkdir -p "$home/.config/berth/"{bottles,agents} "$home/.local/share/berth/images" "/run/user/$user"
    cat >"$home/.config/berth/config.yaml" <<END
gateway:
  resolvers: [203.0.113.53]
  trust: [$WORLD/internet/ca.pem]
helper:
  socket: /run/berth/helper.sock
probe:
  public_address: 203.0.113.99
END
    cat >"$home/.config/berth/bottles/dev.yaml" <<END
egress:
  routes:
    - host: allowed.example
    - host: git.allowed.example
$WORLD_RESOURCES
END
    printf -- '---\nharness: shell\nbottle: dev\n---\n' >"$home/.config/berth/agents/dev.md"
    [ "${BERTH_TEST_BACKEND:-}" != docker ] || echo "backend: docker" >>"$home/.config/berth/config.yaml"
    chown -R "$user:$user" "$home" "/run/user/$user"
    chmod 700 "$home" "/run/user/$user"
    local image
    for image in /opt/images/*-*; do
        mkdir "$home/.local/share/berth/images/$(basename "$image")"
        mount --bind "$image" "$home/.local/share/berth/images/$(basename "$image")"
    done
}

world_internet() {
    mkdir -p "$WORLD/internet/www" "$WORLD/internet/sample"
    echo "This is allowed.example" >"$WORLD/internet/www/index.html"
    echo "A sample repository" >"$WORLD/internet/sample/README"
    git -C "$WORLD/internet/sample" -c init.defaultBranch=main init -q
    git -C "$WORLD/internet/sample" add -A
    git -C "$WORLD/internet/sample" -c user.name=Sample -c user.email=sample@allowed.example commit -qm "A sample repository"
    git clone -q --bare "$WORLD/internet/sample" "$WORLD/internet/www/sample.git"
    touch "$WORLD/internet/names"
    ip netns exec internet "$WORLD_SOURCE/tests/lib/test_internet" --address 203.0.113.10 --dns 203.0.113.53 \
        --folder "$WORLD/internet/www" --ca-out "$WORLD/internet/ca.pem" --log "$WORLD/internet/requests" \
        --names "$WORLD/internet/names" --origin-out "$WORLD/internet/origin.pem" \
        >"$WORLD/internet/log" 2>&1 &
    local try
    for try in $(seq 100); do
        [ -s "$WORLD/internet/ca.pem" ] && grep -q ready "$WORLD/internet/log" && return
        sleep 0.1
    done
    echo "the test internet did not start ($try tries):" >&2
    cat "$WORLD/internet/log" >&2
    return 1
}

helper_start() {
    mkdir -p /run/berth /etc/berth 2>/dev/null
    "${WORLD_HELPER:-/opt/source/build/berth-helper}" listen --config "$WORLD/helper.conf" \
        >>"$WORLD/helper.log" 2>&1 &
    WORLD_HELPER_PID=$!
    local try
    for try in $(seq 100); do
        [ -S /run/berth/helper.sock ] && as 1000 true && return
        kill -0 "$WORLD_HELPER_PID" 2>/dev/null || break
        sleep 0.05
    done
    echo "the helper did not start ($try tries):" >&2
    cat "$WORLD/helper.log" >&2
    return 1
}

helper_kill() {
    kill -KILL "$WORLD_HELPER_PID"
    wait "$WORLD_HELPER_PID" 2>/dev/null
    return 0
}

world_start() {
    mkdir -p "$WORLD"
    chmod 755 "$WORLD"
    world_network
    world_internet
    world_user 1000
    world_user 1001
    cat >"$WORLD/helper.conf" <<END
user_uid: $WORLD_BERTH_ID
user_gid: $WORLD_BERTH_ID
socket_group: $WORLD_BERTH_ID
audit_folder: $WORLD/audit
END
    [ "${BERTH_TEST_BACKEND:-}" != docker ] || docker_start || return
    helper_start
}
