# The orchestrator and the gateway in a network namespace of their own, two agents and a small internet in theirs: for bash
# scripts of tests/netns that source it from the top of the tree.
#
#   gateway_enter "$@"   runs the script again as root of new namespaces; returns only inside
#   gateway_world        the network, the internet (tests/lib/test_internet), the authority; sets $work, where it leaves the
#                        script, $root, $client
#   gateway_up           orchestrator and gateway, and two registered agents: one (10.243.0.7, routes $routes, token-one)
#                        and two (10.243.0.9, token-two); sets $proxy
#   in_agent one|two|internet COMMAND...     fetch, status: curl as agent one
#   api METHOD PATH [BODY], json EXPRESSION, register NAME SLOT GENERATION TOKEN ROUTES, reached TEXT
#
# GATEWAY_BIN: the folder of the programs (build/san).
# shellcheck shell=bash disable=SC2034 # variables are for the scripts

# shellcheck source=tests/lib/tap.bash
. tests/lib/tap.bash

gateway_enter() {
    if [ "${GATEWAY_TEST:-}" != inside ]; then
        namespaces=(--net --mount --pid --fork --kill-child --mount-proc)
        [ "$(id -u)" = 0 ] || namespaces+=(--user --map-auto --map-root-user)
        unshare "${namespaces[@]}" true || {
            echo "1..0 # SKIP no namespaces with mapped ids here (root, or user namespaces and an /etc/subuid entry)"
            exit 0
        }
        exec env GATEWAY_TEST=inside unshare "${namespaces[@]}" bash "$0" "$@"
    fi
}

namespace_start() { # NAME ADDRESS-HERE ADDRESS-THERE
    mkfifo "$1.go"
    unshare --net --mount bash -c "read -r _ <$1.go; exec sleep 600" &
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

# shellcheck disable=SC2154
in_agent() { # one|two|internet COMMAND...
    local pid=${!1}
    shift
    nsenter --net=/proc/"$pid"/ns/net --mount=/proc/"$pid"/ns/mnt --wd="$work" "$@"
}

digest() { printf %s "$1" | sha256sum | cut -d' ' -f1; }

gateway_config() { # PARENT
    cat <<END
{"orchestrator": "127.0.0.1:7400", "secret": "$secret", "resolvers": ["203.0.113.53"], "parent_proxy": $1,
 "authority": "$work/authority.both", "trust": ["$work/ca.pem"],
 "listen": "0.0.0.0", "pool": {"tap": "10.243.0.0/23", "bridge": "10.242.0.0/19"}}
END
}

orchestrator_start() {
    "${unprivileged[@]}" "$bin/berth-orchestrator" orchestrator.json 2>>orchestrator.log &
    orchestrator=$!
}

gateway_start() { # CONFIG
    "${unprivileged[@]}" "$bin/berth-gateway" "$1" 2>>gateway.log &
    gateway=$!
}

api() { # METHOD PATH [BODY]
    curl -s --max-time 5 -X "$1" -H "Authorization: Bearer $host_key" "http://127.0.0.1:7400/v1/$2" ${3:+-d "$3"}
}

json() { python3 -c "import json, sys; d = json.load(sys.stdin); print($1)" 2>&1; }

wait_gateway() {
    for _ in $(seq 100); do
        [ "$(api GET health | json 'd["gateway_seen"] is not None')" = True ] && return
        sleep 0.1
    done
    return 1
}

policy() { # JSON routes
    echo "{\"version\": 1, \"routes\": [$1]}"
}

register() { # NAME SLOT GENERATION TOKEN ROUTES
    api PUT "agents/$2/$3" "{\"name\": \"$1\", \"address\": \"10.243.0.$((2 * $2 + 1))\",
        \"gateway_address\": \"10.243.0.$((2 * $2))\", \"token_sha256\": \"$(digest "$4")\", \"policy\": $(policy "$5")}"
}

fetch() { in_agent one curl -s --max-time 10 --cacert authority.pem "$@"; }

reached() { grep -c "\"event\": \"request\".*$1" internet.log; }

status() { fetch -o /dev/null -w '%{http_code} %{http_connect}' "$@"; }

gateway_world() {
    root=$PWD
    bin=${GATEWAY_BIN:-$root/build/san}
    client=$root/tests/lib/gateway_client
    export ASAN_OPTIONS=detect_leaks=1 GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
    unset GIT_SSL_CAINFO SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy NO_PROXY no_proxy
    work=/run/gateway-test
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p "$work/registry" "$work/www" "$work/home"
    chown 900:900 "$work/registry"
    export HOME=$work/home
    cd "$work" || exit 1
    # ---- the network: the gateway's namespace is this one; each agent and the internet have theirs. An agent has no route but
    # its link to the gateway, so what the internet sees of it came through the gateway. ------------------------------------
    ip link set lo up
    echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
    namespace_start one 10.243.0.6 10.243.0.7
    namespace_start two 10.243.0.8 10.243.0.9
    namespace_start internet 198.51.100.2 198.51.100.3
    ip route add default via 198.51.100.3
    # ---- the internet ----------------------------------------------------------------------------------------------------
    echo 'hello from the internet' >www/hello
    git init -q --bare www/repo.git
    git init -q source
    git -C source -c user.name=t -c user.email=t@t.example commit -q --allow-empty -m first
    git -C source push -q ../www/repo.git HEAD:refs/heads/main
    git -C www/repo.git symbolic-ref HEAD refs/heads/main
    for address in 203.0.113.10 203.0.113.53 10.1.2.3; do
        in_agent internet ip addr add $address/32 dev lo
    done
    in_agent internet "$root/tests/lib/test_internet" --address 203.0.113.10 --dns 203.0.113.53 --folder www --ca-out ca.pem --log internet.log \
        >internet.out &
    in_agent internet python3 -c '
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "8"); self.end_headers(); self.wfile.write(b"private\n")
    def log_message(self, *_): pass
http.server.HTTPServer(("10.1.2.3", 80), H).serve_forever()' &
    for _ in $(seq 100); do
        grep -q ready internet.out && break
        sleep 0.1
    done
    # ---- orchestrator and gateway, as the user they would become ---------------------------------------------------------
    host_key=$(openssl rand -hex 32)
    secret=$(openssl rand -hex 32)
    cat >orchestrator.json <<END
{"listen": "127.0.0.1:7400", "registry": "$work/registry/registry.db",
 "host_key_sha256": "$(digest "$host_key")", "gateway_secret_sha256": "$(digest "$secret")"}
END
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=berth test authority' \
        -keyout authority.key -out authority.pem -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
        -addext keyUsage=critical,keyCertSign 2>/dev/null
    cat authority.key authority.pem >authority.both
    chown 900 authority.both
    gateway_config null >gateway.json
    unprivileged=(setpriv --reuid 900 --regid 900 --clear-groups --inh-caps=-all --bounding-set=-all)
}

gateway_up() {
    gateway_start gateway.json # before the orchestrator: it waits
    orchestrator_start
    check "a gateway started before the orchestrator finds it" wait_gateway || {
        sed 's/^/# /' gateway.log orchestrator.log
        exit 1
    }
    routes='{"host": "allowed.example"}, {"host": "*.allowed.example", "granted_by": "bottle dev"},
      {"host": "loopback.example"}, {"host": "metadata.example"}, {"host": "slot.example"}, {"host": "mixed.example"},
      {"host": "rebind.example"}, {"host": "private.example"}, {"host": "nowhere.example"}, {"host": "silent.example"}'
    equal "registration" '{"policy_version":1}' "$(register first 3 11 token-one "$routes")"
    register second 4 12 token-two '{"host": "other.example"}, {"host": "private.example", "private": true}' >/dev/null
    proxy=http://agent:token-one@10.243.0.6:8119
}
