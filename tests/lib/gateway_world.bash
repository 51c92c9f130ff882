# A gateway and an orchestrator, sanitised, in a network namespace of their own, with two agents' namespaces and a small
# internet around them: what tests of the gateway source. Prints nothing but skips.
#
#   gateway_world_enter "$@"      first thing in a script, at the root of the tree: runs it again inside the namespaces
#   gateway_world_start           network, internet, orchestrator and gateway; the variables below are set then
#   in_agent one|two|internet COMMAND...
#   api METHOD PATH [BODY]        a call of the host to the orchestrator
#   register NAME SLOT GENERATION TOKEN ROUTES
#   json EXPRESSION               of the document `d` on standard input
#   fetch CURL-ARGUMENT...        agent one's curl, by $proxy (with its token), trusting the berth authority
#   status CURL-ARGUMENT...       the statuses of that request and of its CONNECT; ends: curl's own status
#   rule                          by which the gateway refused: of its answer on standard input; rule_of CURL-ARGUMENT...
#   decision RULE ALLOWED         how many records say so (ALLOWED: True, False); records RULE ALLOWED COUNT: so many at least?
#   resident FIELD                of /proc/PID/status of the gateway (VmRSS, VmHWM...), in KiB
#   GATEWAY_WORKERS, GATEWAY_MEMORY (bytes): of the gateways that gateway_config describes from then on
#   gateway_world_end             ends both; fails when one of them did not end clean or said something
#
# TAP (tap.bash) comes with it. Agents: one (10.243.0.7, slot 3, its gateway at 10.243.0.6), two (10.243.0.9, slot 4, 10.243.0.8).
# Internet: see tests/lib/test_internet; www/ is what it serves, internet.log what it received, ca.pem its authority.
# The berth authority that agents trust is authority.pem. The working folder is $work.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # variables for those who source this; pids set by namespace_start

# shellcheck source=tests/lib/tap.bash
. "$(dirname "${BASH_SOURCE[0]}")/tap.bash"

gateway_world_enter() {
    [ "${GATEWAY_WORLD:-}" != inside ] || return 0
    local namespaces=(--net --mount --pid --fork --kill-child --mount-proc)
    [ "$(id -u)" = 0 ] || namespaces+=(--user --map-auto --map-root-user)
    unshare "${namespaces[@]}" true || {
        echo "1..0 # SKIP no namespaces with mapped ids here (root, or user namespaces and an /etc/subuid entry)"
        exit 0
    }
    exec env GATEWAY_WORLD=inside unshare "${namespaces[@]}" bash "$0" "$@"
}

# The gateway's namespace is this one; each agent and the internet have theirs. An agent has no route but its link to the
# gateway, so what the internet sees of it came through the gateway.
namespace_start() { # NAME ADDRESS-HERE ADDRESS-THERE
    mkfifo "$1.go"
    unshare --net --mount bash -c "read -r _ <$1.go; exec sleep infinity" &
    local pid=$!
    printf -v "$1" %s $pid
    ip link add "$1" type veth peer name inner
    for _ in $(seq 100); do
        [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ] && break
        sleep 0.02
    done
    ip link set inner netns $pid
    ip addr add "$2/31" dev "$1"
    ip link set "$1" up
    nsenter --net=/proc/$pid/ns/net sh -c "ip link set lo up; ip addr add $3/31 dev inner; ip link set inner up"
    echo "nameserver $2" >"$1.resolv"
    nsenter --mount=/proc/$pid/ns/mnt mount --bind "$work/$1.resolv" /etc/resolv.conf
    echo >"$1.go"
}

in_agent() {
    local pid=${!1}
    shift
    nsenter --net=/proc/"$pid"/ns/net --mount=/proc/"$pid"/ns/mnt --wd="$work" "$@"
}

digest() { printf %s "$1" | sha256sum | cut -d' ' -f1; }

api() {
    curl -s --max-time 5 -X "$1" -H "Authorization: Bearer $host_key" "http://127.0.0.1:7400/v1/$2" ${3:+-d "$3"}
}

json() { python3 -c "import json, sys; d = json.load(sys.stdin); print($1)" 2>&1; }

register() {
    api PUT "agents/$2/$3" "{\"name\": \"$1\", \"address\": \"10.243.0.$((2 * $2 + 1))\",
        \"gateway_address\": \"10.243.0.$((2 * $2))\", \"token_sha256\": \"$(digest "$4")\",
        \"policy\": {\"version\": 1, \"routes\": [$5]}${6:+, $6}}"
}

proxy=http://agent:token-one@10.243.0.6:8119
fetch() { in_agent one curl -s --max-time 120 --cacert authority.pem -x "$proxy" "$@"; }
status() { fetch -o /dev/null -w '%{http_code} %{http_connect}' "$@"; }
ends() { fetch -o /dev/null "$@"; echo $?; }
rule() { json 'd.get("rule")' 2>/dev/null; }
rule_of() { fetch "$@" | rule; }
decision() { api GET "decisions?limit=1000" | json "sum(1 for r in d['decisions'] if r['rule'] == '$1' and r['allowed'] == $2)"; }
records() { [ "$(decision "$1" "$2")" -ge "$3" ] 2>/dev/null; }
resident() { awk -v field="$1:" '$1 == field {print $2}' "/proc/$gateway/status"; }

gateway_config() { # PARENT
    cat <<END
{"orchestrator": "127.0.0.1:7400", "secret": "$secret", "resolvers": ["203.0.113.53"], "parent_proxy": $1,
 "authority": "$work/authority.both", "trust": ["$work/ca.pem"],
 "listen": "0.0.0.0", "workers": ${GATEWAY_WORKERS:-1}, "memory": ${GATEWAY_MEMORY:-536870912}, "pool": {"tap": "10.243.0.0/23", "bridge": "10.242.0.0/19"}}
END
}

unprivileged=(setpriv --reuid 900 --regid 900 --clear-groups --inh-caps=-all --bounding-set=-all)

orchestrator_start() {
    "${unprivileged[@]}" "$bin/berth-orchestrator" orchestrator.json 2>>orchestrator.log &
    orchestrator=$!
}

gateway_start() { # CONFIG
    "${unprivileged[@]}" "$bin/berth-gateway" "$1" 2>>gateway.log &
    gateway=$!
}

gateway_is_seen() { [ "$(api GET health | json 'd["gateway_seen"] is not None')" = True ]; }

internet_start() {
    local address
    for address in 203.0.113.10 203.0.113.53 10.1.2.3; do
        in_agent internet ip addr add $address/32 dev lo
    done
    in_agent internet "$root/tests/lib/test_internet" --address 203.0.113.10 --dns 203.0.113.53 --folder www \
        --ca-out ca.pem --log internet.log "$@" >internet.out &
    eventually grep -q ready internet.out
}

make_authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=berth test authority' \
        -keyout authority.key -out authority.pem -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
        -addext keyUsage=critical,keyCertSign 2>/dev/null
    cat authority.key authority.pem >authority.both
    chown 900 authority.both
}

gateway_world_start() {
    root=$PWD
    bin=${GATEWAY_WORLD_PROGRAMS:-$root/build/san}
    client=$root/tests/lib/gateway_client
    work=/run/gateway-test
    export ASAN_OPTIONS=detect_leaks=1 GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 HOME=$work/home
    unset GIT_SSL_CAINFO SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE http_proxy https_proxy HTTP_PROXY HTTPS_PROXY \
        ALL_PROXY all_proxy NO_PROXY no_proxy
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p $work/registry $work/www $work/home
    chown 900:900 $work/registry
    cd $work || exit 1
    ip link set lo up
    echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
    namespace_start one 10.243.0.6 10.243.0.7
    namespace_start two 10.243.0.8 10.243.0.9
    namespace_start internet 198.51.100.2 198.51.100.3
    ip route add default via 198.51.100.3
    echo 'hello from the internet' >www/hello
    internet_start "$@"
    make_authority
    host_key=$(openssl rand -hex 32)
    secret=$(openssl rand -hex 32)
    cat >orchestrator.json <<END
{"listen": "127.0.0.1:7400", "registry": "$work/registry/registry.db",
 "host_key_sha256": "$(digest "$host_key")", "gateway_secret_sha256": "$(digest "$secret")"}
END
    gateway_config null >gateway.json
    orchestrator_start
    gateway_start gateway.json
    eventually gateway_is_seen || {
        sed 's/^/# /' gateway.log orchestrator.log
        exit 1
    }
}

gateway_world_end() {
    local failed=0 program
    kill -TERM "$gateway" "$orchestrator"
    wait "$gateway" || failed=1
    wait "$orchestrator" || failed=1
    for program in gateway orchestrator; do
        # A log without its first word is none: then nobody would see what the program said.
        grep -q "^berth-$program: ready" $program.log || { echo "$program.log is not the log of a start"; failed=1; }
        grep -v "^berth-$program: ready" $program.log && failed=1
    done
    return $failed
}
