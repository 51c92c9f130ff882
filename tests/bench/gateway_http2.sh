#!/bin/bash
# HTTP/2 through the gateway against mitmproxy, and against HTTP/1.1, with the same client (h2load) and the same origin (nginx),
# in one run and in namespaces. h2load knows no proxies: the gateway is asked on port 443, mitmproxy in its reverse mode.
#
#   tests/bench/gateway_http2.sh        BENCH_SECONDS (3): how long each figure is measured
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
nginx=$(command -v nginx || echo "$PWD/build/unpacked/usr/sbin/nginx")
for program in "$nginx" h2load; do
    command -v "$program" >/dev/null || {
        echo "bench: $program is missing: run ./install-packages"
        exit 0
    }
done
gateway_world_enter "$@"
GATEWAY_WORLD_PROGRAMS=${GATEWAY_WORLD_PROGRAMS:-$PWD/build}
names=$(mktemp)
echo "origin.example 203.0.113.20" >"$names"
gateway_world_start --names "$names"
rm "$names"
seconds=${BENCH_SECONDS:-3}

in_agent internet ip addr add 203.0.113.20/32 dev lo
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=bench CA' -keyout ca.key -out bench-ca.pem \
    -addext basicConstraints=critical,CA:TRUE 2>/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=origin' -keyout key.pem -out request.pem 2>/dev/null
openssl x509 -req -in request.pem -CA bench-ca.pem -CAkey ca.key -CAcreateserial -days 30 -out cert.pem \
    -extfile <(echo "subjectAltName=DNS:origin.example") 2>/dev/null
cat bench-ca.pem >>ca.pem
mkdir nginx files
head -c 1024 /dev/zero >files/1k
head -c 102400 /dev/zero >files/100k
cat >nginx/nginx.conf <<END
daemon off; user root; worker_processes 1; pid nginx/pid; error_log nginx/error.log;
events { worker_connections 4096; }
http {
    access_log off; sendfile on; tcp_nodelay on; keepalive_requests 100000000; keepalive_timeout 600;
    client_body_temp_path nginx/b; proxy_temp_path nginx/p; fastcgi_temp_path nginx/f; uwsgi_temp_path nginx/u; scgi_temp_path nginx/s;
    server { listen 203.0.113.20:443 ssl http2 backlog=4096; root files; ssl_certificate $work/cert.pem; ssl_certificate_key $work/key.pem; }
}
END
in_agent internet "$nginx" -p "$work" -c nginx/nginx.conf 2>nginx/start.log &
echo "203.0.113.20 origin.example" >hosts # for mitmproxy, which runs where the gateway does
mount --bind hosts /etc/hosts
kill -TERM "$gateway"
wait "$gateway"
gateway_start gateway.json
register bench 3 11 token-one '{"host": "origin.example", "dlp": {"outbound": "off", "inbound": "off"}}' >/dev/null
eventually in_agent one bash -c '</dev/tcp/10.243.0.6/443' 2>/dev/null
eventually in_agent internet bash -c '</dev/tcp/203.0.113.20/443' 2>/dev/null

ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat" 2>/dev/null || echo 0; }
# measure NAME PID WHERE CONNECTIONS STREAMS URL [ARGUMENT...]: one line of figures
measure() {
    local name=$1 pid=$2 where=$3 connections=$4 streams=$5 url=$6 before said
    shift 6
    before=$(ticks "$pid")
    said=$(in_agent "$where" timeout $((seconds + 20)) h2load -D "$seconds" -c "$connections" -m "$streams" "$@" "$url" 2>&1)
    awk -v name="$name" -v streams="$streams" -v connections="$connections" -v ticks=$(($(ticks "$pid") - before)) \
        -v hertz="$(getconf CLK_TCK)" '
        /^finished in/ { rate = $4 }
        /^requests:/ { done = $8; failed = $10 + $12 }
        /^traffic:/ { match($0, /\([0-9]+\)/); bytes = substr($0, RSTART + 1, RLENGTH - 2) }
        /^time for request:/ { mean = $6 }
        END { printf "%-34s %3d x %-3d %9.0f %9.1f %9s %9.0f %7d\n", name, connections, streams, rate,
              bytes / 1e6 / '"$seconds"', mean, (done > 0 ? ticks * 1e6 / hertz / done : 0), failed }' <<<"$said"
    last=$(awk '/^finished in/ { printf "%d", $4 }' <<<"$said")
}
printf '%-34s %9s %9s %9s %9s %9s %7s\n' "" "conn x str" "req/s" "MB/s" "mean" "CPU us" "failed"
direct=https://203.0.113.20
through=https://origin.example
for size in 1k 100k; do
    measure "direct, HTTP/2, $size" $$ internet 4 25 "$direct/$size"
    measure "gateway, HTTP/2, $size" "$gateway" one 4 25 "$through/$size"
    ours=$last
    measure "gateway, HTTP/2, one stream, $size" "$gateway" one 1 1 "$through/$size"
    measure "gateway, HTTP/1.1 of agents, $size" "$gateway" one 16 1 "$through/$size" --h1
    command -v mitmdump >/dev/null || continue
    mkdir -p mitm
    cat authority.key authority.pem >mitm/mitmproxy-ca.pem
    mitmdump -q --set confdir=$work/mitm --mode reverse:https://origin.example --listen-host 10.243.0.6 -p 8081 \
        --set ssl_verify_upstream_trusted_ca=$work/ca.pem >mitm.log 2>&1 &
    mitm=$!
    eventually in_agent one bash -c '</dev/tcp/10.243.0.6/8081' 2>/dev/null
    measure "mitmproxy, HTTP/2, $size" $mitm one 4 25 "https://10.243.0.6:8081/$size"
    theirs=$last
    kill -TERM $mitm
    wait $mitm
    [ "${theirs:-0}" -gt 0 ] && echo "  ratio $((ours / theirs))"
done
echo "memory of the gateway: $(awk '/^Rss/ { sum += $2 } END { printf "%.1f", sum / 1024 }' "/proc/$gateway/smaps_rollup") MiB"
kill -TERM "$gateway" "$orchestrator"
exit 0
