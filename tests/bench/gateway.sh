#!/bin/bash
# The gateway's figures against other proxies that open TLS (squid with ssl-bump, mitmproxy) and one that does not
# (tinyproxy), all from Debian, with the same client (bench_proxy.c) and the same origin (nginx), in one run and in namespaces.
#
#   tests/bench/gateway.sh [gateway] [filtered] [workers] [direct] [tinyproxy] [squid] [mitmproxy] [agents]
#
# Without an argument: all that are installed. filtered: the gateway with what it looks for switched on (blocked outwards,
# warned of inwards); workers: with a process for each of two processors; agents: not speed, but the memory of the gateway with 512
# agents and 1000 intercepted connections of theirs, each with its own secrets to look for.
# BENCH_SECONDS (3): how long each figure is measured.
# shellcheck disable=SC2086,SC2317 # no blanks in the paths of the test world; start_* are called by their targets' names
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
[ $# -gt 0 ] || set -- gateway filtered workers direct tinyproxy squid mitmproxy agents
targets=("$@")
GATEWAY_WORLD_PROGRAMS=${GATEWAY_WORLD_PROGRAMS:-$PWD/build}
set --
gateway_world_start "$@"
bench=$root/build/bench/bench_proxy
seconds=${BENCH_SECONDS:-3}
export BENCH_ADDRESS=203.0.113.10
ulimit -Sn "$(ulimit -Hn)" # a thousand connections and more
nginx=$(command -v nginx || echo "$root/build/unpacked/usr/sbin/nginx")
for program in "$bench" "$nginx"; do
    [ -x "$program" ] || {
        echo "bench: $program is missing; install-packages check has nginx, make bench builds the rest" >&2
        exit 1
    }
done

# ---- the origin --------------------------------------------------------------------------------------------------------
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=bench CA' -keyout bench-ca.key \
    -out bench-ca.pem -addext basicConstraints=critical,CA:TRUE 2>/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=allowed.example -keyout nginx.key -out nginx.csr 2>/dev/null
printf 'subjectAltName=DNS:allowed.example\n' >extensions
openssl x509 -req -in nginx.csr -CA bench-ca.pem -CAkey bench-ca.key -CAcreateserial -days 3 -extfile extensions -out nginx.pem 2>/dev/null
cat ca.pem bench-ca.pem >trust.pem
mkdir -p bench-files
head -c 1024 /dev/zero >bench-files/1k
head -c 102400 /dev/zero >bench-files/100k
head -c 10485760 /dev/zero >bench-files/10m
cat >nginx.conf <<END
worker_processes 1;
daemon off;
pid $work/nginx.pid;
error_log $work/nginx.err;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path $work/nginx.b; proxy_temp_path $work/nginx.p; fastcgi_temp_path $work/nginx.f;
    uwsgi_temp_path $work/nginx.u; scgi_temp_path $work/nginx.s;
    sendfile on; tcp_nodelay on; keepalive_requests 100000000; keepalive_timeout 600;
    server { listen 203.0.113.10:8443 ssl backlog=4096; root $work/bench-files;
             ssl_certificate $work/nginx.pem; ssl_certificate_key $work/nginx.key; }
}
END
chmod -R a+rX . bench-files
in_agent internet "$nginx" -c $work/nginx.conf -e $work/nginx.err &
echo "203.0.113.10 allowed.example" >hosts
mount --bind hosts /etc/hosts
answers() { # ADDRESS PORT: does somebody listen?
    (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null
}
eventually answers 203.0.113.10 8443 || {
    cat nginx.err
    exit 1
}

# ---- the proxies: each sets pids ("name:pid..."), the address for clients, the token and what clients trust ------------------
generation=10
start_gateway_with() { # WORKERS OUTBOUND INBOUND
    kill -TERM "$gateway" 2>/dev/null
    wait "$gateway"
    GATEWAY_WORKERS=$1 gateway_config null | sed "s#$work/ca.pem#$work/trust.pem#" >gateway.json
    gateway_start gateway.json
    generation=$((generation + 1))
    register bench 3 $generation token-one \
        "{\"host\": \"allowed.example:8443\", \"dlp\": {\"outbound\": \"$2\", \"inbound\": \"$3\"}}" >/dev/null
    proxy=10.243.0.6:8119 token=token-one trust=authority.pem
    eventually answers 10.243.0.6 8119
    pids="$gateway $(cat "/proc/$gateway/task/$gateway/children")"
}
start_gateway() { start_gateway_with 1 off off; }
start_filtered() { start_gateway_with 1 block warn; }
start_workers() { start_gateway_with 2 off off; }
start_direct() { pids=$$ proxy=- token=- trust=bench-ca.pem from=internet; }
start_tinyproxy() {
    printf 'Port 8888\nListen 10.243.0.6\nTimeout 600\nMaxClients 1000\nConnectPort 8443\nLogLevel Critical\n' >tinyproxy.conf
    tinyproxy -d -c tinyproxy.conf >/dev/null 2>&1 &
    pids=$! proxy=10.243.0.6:8888 token=- trust=bench-ca.pem
    eventually answers 10.243.0.6 8888
}
start_squid() {
    /usr/lib/squid/security_file_certgen -c -s $work/ssl_db -M 16MB >/dev/null 2>&1
    chown -R proxy:proxy ssl_db
    cat authority.key authority.pem >squid-ca.pem
    chmod 644 squid-ca.pem
    mkdir -p squid-logs && chown proxy:proxy squid-logs
    cat >squid.conf <<END
http_port 10.243.0.6:3128 ssl-bump cert=$work/squid-ca.pem generate-host-certificates=on dynamic_cert_mem_cache_size=16MB tls-dh=prime256v1
sslcrtd_program /usr/lib/squid/security_file_certgen -s $work/ssl_db -M 16MB
sslcrtd_children 4 startup=4
acl step1 at_step SslBump1
ssl_bump peek step1
ssl_bump bump all
tls_outgoing_options cafile=$work/trust.pem
http_access allow all
cache deny all
cache_mem 8 MB
access_log none
cache_log $work/squid-logs/cache.log
pid_filename none
coredump_dir $work
workers 1
visible_hostname bench
END
    squid -N -f squid.conf >squid.out 2>&1 &
    pids=$! proxy=10.243.0.6:3128 token=- trust=authority.pem
    eventually answers 10.243.0.6 3128 || {
        tail -n 5 squid.out squid-logs/cache.log
        return 1
    }
}
start_mitmproxy() {
    mkdir -p mitm
    cat authority.key authority.pem >mitm/mitmproxy-ca.pem
    mitmdump -q --set confdir=$work/mitm --listen-host 10.243.0.6 -p 8081 \
        --set ssl_verify_upstream_trusted_ca=$work/trust.pem >mitm.log 2>&1 &
    pids=$! proxy=10.243.0.6:8081 token=- trust=authority.pem
    eventually answers 10.243.0.6 8081
}

# ---- measuring -------------------------------------------------------------------------------------------------------------
declare -A figures
cpu_ticks() { # of the processes in $pids
    local pid sum=0 used
    for pid in $pids; do
        used=$(awk '{ print $14 + $15 }' "/proc/$pid/stat" 2>/dev/null || echo 0)
        sum=$((sum + used))
    done
    echo $sum
}
memory_kib() { # proportional: what several processes share counts once
    local pid
    for pid in $pids; do cat "/proc/$pid/smaps_rollup" 2>/dev/null; done | awk '/^Pss:/ { sum += $2 } END { print sum + 0 }'
}
measure() { # PREFIX MODE CONNECTIONS PATH
    local before after name value
    before=$(cpu_ticks)
    while read -r name value; do
        figures[$1.$name]=$value
    done < <(in_agent "$from" "$bench" "$2" "$seconds" "$3" $trust "$proxy" "$token" allowed.example 8443 "$4")
    after=$(cpu_ticks)
    figures[$1.cpu_us]=$(awk "BEGIN { n = ${figures[$1.requests_per_second]:-0} * $seconds
        printf \"%.0f\", (n > 0) ? ($after - $before) * 1e6 / $(getconf CLK_TCK) / n : 0 }")
}
measure_memory() { # CONNECTIONS
    in_agent "$from" "$bench" hold 4 "$1" $trust "$proxy" "$token" allowed.example 8443 /1k >/dev/null &
    local holder=$! most=0 now
    for _ in 1 2 3; do
        sleep 1.2
        now=$(memory_kib)
        [ "$now" -gt "$most" ] && most=$now
    done
    wait $holder
    figures[memory]=$most
}

# Agents of slots 512 to 1023, all behind the link of the first one. Each of their connections has answered a request and stays.
cat >hold.py <<'END'
import base64, socket, ssl, sys
context = ssl.create_default_context(cafile="authority.pem")
credentials = base64.b64encode(b"agent:token-of-all").decode()
held = []
for number in range(int(sys.argv[1])):
    address = int(sys.argv[2]) + 2 * (number % 512)
    source = f"10.243.{address // 256}.{address % 256}"
    stream = socket.create_connection(("10.243.0.6", 8119), 30, (source, 0))
    stream.sendall(f"CONNECT allowed.example:8443 HTTP/1.1\r\nHost: allowed.example:8443\r\n"
                   f"Proxy-Authorization: Basic {credentials}\r\n\r\n".encode())
    assert stream.recv(4096).startswith(b"HTTP/1.1 200"), source
    stream = context.wrap_socket(stream, server_hostname="allowed.example")
    stream.sendall(b"GET /1k HTTP/1.1\r\nHost: allowed.example:8443\r\n\r\n")
    answer = b""
    while len(answer.partition(b"\r\n\r\n")[2]) < 1024:
        answer += stream.recv(4096)
    held.append(stream)
print("held", len(held), flush=True)
sys.stdin.readline()
END
measure_agents() {
    local agents=512 connections=1000 first=1025 slot address idle
    start_gateway_with 1 block warn
    idle=$(memory_kib)
    ip route add 10.243.4.0/22 via 10.243.0.7
    for slot in $(seq 512 $((511 + agents))); do
        address="10.243.$(((2 * slot + 1) / 256)).$(((2 * slot + 1) % 256))"
        in_agent one ip addr add "$address/32" dev lo
        [ "$slot" = 512 ] || echo next
        echo "url = http://127.0.0.1:7400/v1/agents/$slot/1"
        printf 'data = "%s"\n' "$(sed 's/"/\\"/g' <<END
{"name": "agent-$slot", "address": "$address", "gateway_address": "10.243.0.6", "token_sha256": "$(digest token-of-all)", "policy": {"version": 1, "routes": [{"host": "allowed.example:8443"}]}, "canary": "$(openssl rand -hex 20)", "credential_key": "$(openssl rand -hex 32)"}
END
        )"
        printf 'request = PUT\noutput = /dev/null\nheader = "Authorization: Bearer %s"\n' "$host_key"
    done >registrations
    curl -s -K registrations
    mkfifo hold.go
    in_agent one python3 hold.py $connections $first <hold.go >held &
    exec {hold}>hold.go
    for _ in $(seq 60); do eventually grep -q held held && break; done
    printf 'memory: %.1f MiB at rest, %.1f MiB with %d agents and %d connections (goal: at most 100)\n' \
        "$(awk "BEGIN { print $idle / 1024 }")" "$(awk "BEGIN { print $(memory_kib) / 1024 }")" \
        "$(api GET agents | json 'sum(a["name"].startswith("agent-") for a in d["agents"])')" "$(sed -n 's/held //p' held)"
    exec {hold}>&-
    kill -TERM $pids
}

printf '%-10s %9s %9s %9s %9s %9s %9s %9s %9s %8s %8s\n' "" "1 KiB/s" "CPU us" "100 KiB/s" "CPU us" "new/s" "CPU us" "MB/s" \
    "p50 us" "MiB idle" "MiB 200"
for target in "${targets[@]}"; do
    if [ "$target" = agents ]; then
        measure_agents
        continue
    fi
    case $target in
    tinyproxy | squid) command -v "$target" >/dev/null || { echo "$target is not installed"; continue; } ;;
    mitmproxy) command -v mitmdump >/dev/null || { echo "$target is not installed"; continue; } ;;
    esac
    from=one
    "start_$target" || { echo "$target did not start"; continue; }
    figures=()
    idle=$(memory_kib)
    measure small keep 16 /1k
    measure large keep 16 /100k
    measure new new 8 /1k
    measure bulk bulk 4 /10m
    measure one keep 1 /1k
    measure_memory 200
    printf '%-10s %9s %9s %9s %9s %9s %9s %9.0f %9s %8.1f %8.1f\n' "$target" "${figures[small.requests_per_second]}" \
        "${figures[small.cpu_us]}" "${figures[large.requests_per_second]}" "${figures[large.cpu_us]}" \
        "${figures[new.requests_per_second]}" "${figures[new.cpu_us]}" \
        "$(awk "BEGIN { print ${figures[bulk.bytes_per_second]:-0} / 1e6 }")" "${figures[one.p50_us]}" \
        "$(awk "BEGIN { print $idle / 1024 }")" "$(awk "BEGIN { print ${figures[memory]} / 1024 }")"
    failures=$((${figures[small.failures]:-0} + ${figures[large.failures]:-0} + ${figures[new.failures]:-0} + ${figures[bulk.failures]:-0}))
    [ $failures = 0 ] || echo "  ($failures requests of $target failed)"
    [ "$target" = direct ] || kill -TERM $pids
done
kill -TERM "$orchestrator" 2>/dev/null
kill -TERM "$(cat nginx.pid)" 2>/dev/null
exit 0
