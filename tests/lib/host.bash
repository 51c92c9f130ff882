# A Debian host of the test's own, for bash scripts that source this (helper.bash comes with it): systemd is its process
# 1, and Docker, firewalld, ufw and nftables are there as Debian has them, installed and not started. Network, processes,
# mounts and files are a container's (systemd-nspawn); the machine stays untouched.
#
#   host_enter           first thing in a script: makes the host's files if they are missing (this needs the network and is
#                        kept in build/hosts), boots the host, runs the script in it; returns only inside, in /root
#   host_network         uplink eth0 198.51.100.2, and behind it somebody who answers on 203.0.113.10, port 8119
#   host_users           accounts alice and bob (1000, 1001); not yet in the group berth
#   host_agents USER...  a gateway, an agent and a gateway in a bridge (what a container has) for each, with leases and guests
#   host_talk USER...    from now on the agent talks to its gateway (talks alice-agent), and both gateways to the uplink
#                        (talks alice-gateway, alice-egress); host_works USER: do all of them get answers?
#   host_adopted USER... has each of their slots been adopted since the last time?
#   host_pause SINCE USER...   the longest pause of their traffic since then, in milliseconds
#   host_agents_end USER...
#   host_state           what an installation could change, to be compared
#
# Only root can boot it: tests of others are skipped, which continuous integration counts as a failure.
# shellcheck shell=bash

# shellcheck source=tests/lib/helper.bash
. "$(dirname "${BASH_SOURCE[0]}")/helper.bash"

# shellcheck source=tests/lib/host_image.bash
. "$(dirname "${BASH_SOURCE[0]}")/host_image.bash"

# Groups of processes for the container, where no systemd runs that would make one.
host_cgroups() {
    local folder path
    [ -d /run/systemd/system ] && return
    while IFS=: read -r _ name path; do
        case $name in
        name=systemd) folder=/sys/fs/cgroup/systemd ;;
        "") folder=/sys/fs/cgroup$([ -d /sys/fs/cgroup/unified ] && echo /unified) ;;
        *) continue ;;
        esac
        [ -w "$folder$path/cgroup.procs" ] && echo "${folder}${path%/}"
    done </proc/self/cgroup
}

host_boot() {
    local work=$1 image=$2 script=$3 cgroups cgroup keep=() container status
    mount -t tmpfs -o mode=755 host "$work" || return
    mkdir "$work/stage" "$work/dev" "$work/units"
    mknod -m 666 "$work/dev/tun" c 10 200 # the machine's may be root's alone
    touch "$work/output"
    make -s -C "$HELPER_SOURCE" install DESTDIR="$work/stage" >/dev/null || return
    cat >"$work/units/berth-test.service" <<-UNIT
	[Unit]
	After=multi-user.target dbus.service
	SuccessAction=exit-force
	FailureAction=exit-force
	[Service]
	Type=oneshot
	WorkingDirectory=/root
	Environment=BERTH_HOST=inside HOME=/root CI=${CI:-}
	ExecStart=/bin/bash /opt/source/$script
	StandardOutput=append:/opt/output
	StandardError=inherit
	TimeoutStartSec=infinity
	UNIT
    mapfile -t cgroups < <(host_cgroups)
    [ -d /run/systemd/system ] || keep=(--keep-unit)
    for cgroup in "${cgroups[@]}"; do
        mkdir "$cgroup/berth-host.$$" && echo $BASHPID >"$cgroup/berth-host.$$/cgroup.procs"
    done
    systemd-nspawn --quiet --register=no "${keep[@]}" --directory="$image" --volatile=overlay --private-network \
        --system-call-filter="landlock_create_ruleset landlock_add_rule landlock_restrict_self" --hostname=berth-host --resolv-conf=off --timezone=off --console=pipe --tmpfs=/var/lib/docker \
        --bind="$work/dev/tun:/dev/net/tun" --bind-ro="$HELPER_SOURCE:/opt/source:norbind" --bind-ro="$work/stage:/opt/stage" \
        --bind="$work/output:/opt/output" --bind-ro="$work/units/berth-test.service:/etc/systemd/system/berth-test.service" \
        --boot systemd.unit=multi-user.target systemd.wants=berth-test.service systemd.show_status=0 </dev/null >"$work/console" 2>&1 &
    container=$!
    tail --quiet --lines=+1 --sleep-interval=0.2 --follow --pid=$container "$work/output"
    wait $container
    status=$?
    [ $status = 0 ] || sed 's/^/# /' "$work/console" | tail -20
    for cgroup in "${cgroups[@]}"; do
        echo $BASHPID >"$cgroup/cgroup.procs"
        find "$cgroup/berth-host.$$" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    return $status
}

host_enter() {
    local image script work status
    if [ "${BERTH_HOST:-}" = inside ]; then
        cp -r /opt/stage/. /
        # shellcheck disable=SC2034 # the script's
        HELPER=/usr/local/sbin/berth-helper
        return
    fi
    if [ "$(id -u)" != 0 ]; then
        skip "a host with systemd" "only root can boot it"
        finish
        exit
    fi
    script=$(realpath --relative-to="$HELPER_SOURCE" "$0")
    if [ "${BERTH_HOST:-}" != mounts ]; then
        exec env BERTH_HOST=mounts unshare --mount --propagation private "$0"
    fi
    image=$(host_image) || { echo "Bail out! the files of a Debian host cannot be made"; exit 1; }
    work=$(mktemp -d)
    (host_boot "$work" "$image" "$script")
    status=$?
    umount "$work"
    rmdir "$work"
    exit $status
}

host_network() {
    ip link set lo up
    mkdir -p /run/netns
    ip netns add internet
    ip link add eth0 type veth peer name eth0 netns internet
    ip addr add 198.51.100.2/24 dev eth0
    ip link set eth0 up
    ip -n internet link set lo up
    ip -n internet addr add 198.51.100.1/24 dev eth0
    ip -n internet addr add 203.0.113.10/32 dev lo
    ip -n internet link set eth0 up
    ip route add default via 198.51.100.1
    talk_serve internet
}

host_users() {
    useradd --uid 1000 --create-home --shell /bin/bash alice
    useradd --uid 1001 --create-home --shell /bin/bash bob
}

# Before, the users are in the group berth and the helper runs.
host_agents() {
    local user role name
    # shellcheck disable=SC2034 # helper.bash's
    GROUP=$(getent group berth | cut -d: -f3)
    for user; do
        for role in gateway agent; do
            name=$user-$role
            ip netns add "$name"
            tool "$name" "$(id -u "$user")" --guest "/run/netns/$name" lease "$role" 0
            heard "$name" ^lease >/dev/null
            guest "$name" "$name"
            tell "$name" keep
        done
        talk_serve "$user-gateway"
        name=$user-egress
        ip netns add "$name"
        tool "$name" "$(id -u "$user")" bridge gateway 1
        heard "$name" ^lease >/dev/null
        ip link add "v-$user" type veth peer name eth0 netns "$name"
        ip link set "v-$user" master "$(fact "$name" interface)" up
        guest "$name" "$name" 29
        tell "$name" keep
    done
}

host_talk() {
    local user host
    for user; do
        # `keep` has emptied what the client said; the host's address is in the guest's default route
        host=$(ip -n "$user-agent" route show default | awk '{ print $3 }')
        talk_start "$user-agent" "$user-agent" "$host"
        talk_start "$user-gateway" "$user-gateway" 203.0.113.10
        talk_start "$user-egress" "$user-egress" 203.0.113.10
    done
}

host_works() { talks_on "$1-agent" && talks_on "$1-gateway" && talks_on "$1-egress"; }

host_adopted() {
    local user role
    for user; do
        for role in gateway agent egress; do
            heard "$user-$role" '^kept slot=' || return
            : >"$user-$role.out"
        done
    done
}

host_pause() {
    local since=$1 user names=()
    shift
    for user; do names+=("$user-agent" "$user-gateway" "$user-egress"); done
    talk_pause "$since" "${names[@]}"
}

host_agents_end() {
    local user role
    talk_stop
    for user; do
        ip link del "v-$user"
        for role in gateway agent egress; do
            end_tool "$user-$role"
            ip netns del "$user-$role"
        done
    done
}

# Without what others write as they run, and without the empty tables that iptables leaves when it has looked.
host_state() {
    find /etc /run /usr/local /var/log /lib/systemd -not -path '/run/systemd/*' -not -path '/run/netns*' -not -path '/run/log/*' \
        -not -path '/var/log/journal*' -printf '%y %m %U %G %p %l\n' |
        grep -vE '(/\.pwd\.lock|[a-z]-|/run/(docker|containerd|xtables|utmp|lock|ufw|dbus).*) $' | sort
    cat /etc/passwd /etc/group
    nft -s list ruleset | perl -0pe 's/table \S+ \S+ \{\n\}\n//g'
    ip -o link show | sed -E 's/^[0-9]+: ([^:@]*).*/\1/'
    grep -H . /proc/sys/net/ipv4/conf/{all,default,eth0}/forwarding
}
