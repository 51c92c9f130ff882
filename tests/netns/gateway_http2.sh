#!/bin/bash
# HTTP/2 through the gateway: real clients and origins on either side (curl, nghttp, h2load; nginx, nghttpd, gRPC), and peers
# that say what none of these would (tests/lib/http2_peer). What was reached is asserted from what the origins received.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
nginx=$(command -v nginx || echo "$PWD/build/unpacked/usr/sbin/nginx")
for program in "$nginx" nghttp nghttpd h2load; do
    command -v "$program" >/dev/null || {
        echo "1..0 # SKIP $program is missing: run ./install-packages"
        exit 0
    }
done
gateway_world_enter "$@"
names=$(mktemp)
cat >"$names" <<END
nginx.example 203.0.113.20
nghttpd.example 203.0.113.21
grpc.example 203.0.113.22
odd.example 203.0.113.23
socket.example 203.0.113.24
END
gateway_world_start --names "$names"
rm "$names"
peer=$root/tests/lib/http2_peer

# ---- origins: a certificate for all of them, from an authority that the gateway trusts, too ---------------------------------
for last in 20 21 22 23 24; do
    in_agent internet ip addr add 203.0.113.$last/32 dev lo
done
mkdir origins nginx
chmod 755 origins
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=berth test origins' \
    -keyout origins/ca.key -out origins/ca.pem -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign \
    2>/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=origin' -keyout origins/key.pem \
    -out origins/request.pem 2>/dev/null
openssl x509 -req -in origins/request.pem -CA origins/ca.pem -CAkey origins/ca.key -CAcreateserial -days 30 -out origins/cert.pem \
    -extfile <(echo "subjectAltName=DNS:nginx.example,DNS:nghttpd.example,DNS:grpc.example,DNS:odd.example,DNS:socket.example") \
    2>/dev/null
cat origins/ca.pem >>ca.pem
head -c 3000000 /dev/urandom >www/big
head -c 1024 /dev/urandom >www/small
big=$(sha256sum <www/big)
cat >nginx/nginx.conf <<END
daemon off; user root; worker_processes 1; pid nginx/pid; error_log nginx/error.log;
events { worker_connections 1024; }
http {
    log_format line '\$connection \$server_protocol \$request_method \$uri \$status te=\$http_te';
    access_log nginx/access.log line;
    client_body_temp_path nginx/body; proxy_temp_path nginx/proxy; fastcgi_temp_path nginx/f; uwsgi_temp_path nginx/u; scgi_temp_path nginx/s;
    client_max_body_size 0; http2_max_concurrent_streams 128; keepalive_requests 100000;
    server {
        listen 203.0.113.20:443 ssl http2;
        ssl_certificate $work/origins/cert.pem; ssl_certificate_key $work/origins/key.pem;
        root $work/www;
        location /none { return 204; }
        location /upload { dav_methods PUT; root $work/nginx; }
    }
}
END
in_agent internet "$nginx" -p "$work" -c nginx/nginx.conf 2>nginx/start.log &
in_agent internet nghttpd -a 203.0.113.21 -d www --echo-upload 443 origins/key.pem origins/cert.pem >nghttpd.log 2>&1 &
in_agent internet "$peer" grpc 203.0.113.22 origins/cert.pem origins/key.pem >grpc.out 2>&1 &
in_agent internet "$peer" origin 203.0.113.23 origins/cert.pem origins/key.pem odd.log >odd.out 2>&1 &
in_agent internet "$peer" sockets 203.0.113.24 origins/cert.pem origins/key.pem socket.log >socket.out 2>&1 &
kill -TERM "$gateway"
wait "$gateway"
gateway_start gateway.json
check "a gateway that trusts them" eventually in_agent one bash -c '</dev/tcp/10.243.0.6/8119' 2>/dev/null
register first 3 11 token-one '{"host": "allowed.example"}, {"host": "nginx.example"}, {"host": "nghttpd.example"},
    {"host": "grpc.example"}, {"host": "odd.example"}, {"host": "socket.example"}' >/dev/null
fetch() { in_agent one curl -s --max-time 20 --cacert authority.pem "$@"; }
for name in grpc odd socket; do
    check "the $name origin is there" eventually grep -q ready $name.out
done

versions() { fetch -x "$proxy" -o /dev/null -w '%{http_version} %{http_code}' "$@"; }
odd_requests() { grep -c '"event": "request"' odd.log; }

# ---- both legs independently ----------------------------------------------------------------------------------------
equal "curl speaks HTTP/2 to the gateway" "2 200" "$(versions --http2 https://nginx.example/small)"
check "and nginx was spoken to in HTTP/2" eventually grep -q 'HTTP/2.0 GET /small 200 te=trailers' nginx/access.log
equal "HTTP/1.1 from the agent" "1.1 200" "$(versions --http1.1 https://nginx.example/small)"
nginx_served_twice() { [ "$(grep -c 'HTTP/2.0 GET /small' nginx/access.log)" = 2 ]; }
check "is HTTP/2 upstream, too" eventually nginx_served_twice
equal "HTTP/2 from the agent to a host with HTTP/1.1" "2 200" "$(versions --http2 https://allowed.example/hello)"
equal "HTTP/1.1 on both" "1.1 200" "$(versions --http1.1 https://allowed.example/hello)"
equal "a large download, HTTP/2 to HTTP/2" "$big" "$(fetch -x "$proxy" --http2 https://nghttpd.example/big | sha256sum)"
equal "a large download, HTTP/1.1 to HTTP/2" "$big" "$(fetch -x "$proxy" --http1.1 https://nginx.example/big | sha256sum)"
equal "a large upload and its echo, HTTP/2 to HTTP/2" "$big" \
    "$(fetch -x "$proxy" --http2 --data-binary @www/big https://nghttpd.example/echo | sha256sum)"
equal "a large upload and its echo, HTTP/1.1 to HTTP/2" "$big" \
    "$(fetch -x "$proxy" --http1.1 --data-binary @www/big https://nghttpd.example/echo | sha256sum)"
equal "an upload without a length, HTTP/1.1 to HTTP/2" "$big" \
    "$(fetch -x "$proxy" --http1.1 -H 'Transfer-Encoding: chunked' --data-binary @www/big https://nghttpd.example/echo | sha256sum)"
equal "a large upload, HTTP/2 to HTTP/1.1" "$(printf '%s' "${big%% *}")" \
    "$(fetch -x "$proxy" --http2 --data-binary @www/big https://allowed.example/upload | json 'd["sha256"]')"
equal "HEAD" "2 200 0" "$(fetch -x "$proxy" --http2 -I -o /dev/null -w '%{http_version} %{http_code} %{size_download}' https://nginx.example/small)"
equal "204" "2 204" "$(versions --http2 https://nginx.example/none)"
etag=$(fetch -x "$proxy" -I https://nginx.example/small | tr -d '\r' | sed -n 's/^etag: //p')
equal "304" "2 304" "$(versions --http2 -H "If-None-Match: $etag" https://nginx.example/small)"
equal "404" "2 404" "$(versions --http2 https://nginx.example/missing)"
equal "a host that is not allowed" "000" "$(fetch -x "$proxy" --http2 -o /dev/null -w '%{http_code}' https://blocked.example/)"
equal "transparent, on port 443" "2 200" "$(fetch --http2 -o /dev/null -w '%{http_version} %{http_code}' https://nginx.example/small)"
refusal=$(fetch --http2 --resolve blocked.example:443:10.243.0.6 https://blocked.example/x)
equal "a refusal inside HTTP/2 is JSON" default-deny "$(json 'd["rule"]' <<<"$refusal")"

# ---- many streams ---------------------------------------------------------------------------------------------------
before=$(cut -d' ' -f1 nginx/access.log | sort -u | wc -l)
equal "100 requests at once on one connection" 100 "$(in_agent one "$peer" ask "$proxy" odd.example authority.pem parallel 100)"
load() { in_agent one timeout 60 h2load -n "$1" -c "$2" -m "$3" https://nginx.example/small 2>&1; }
said=$(load 2000 1 100)
check "h2load: 2000 requests, 100 at once" grep -q '2000 succeeded, 0 failed, 0 errored' <<<"$said"
note "$(grep finished <<<"$said")"
after=$(cut -d' ' -f1 nginx/access.log | sort -u | wc -l)
check "they shared upstream connections ($((after - before)) new ones)" test $((after - before)) -le 2
said=$(load 500 10 10)
check "h2load: 10 connections of 10 streams" grep -q '500 succeeded, 0 failed' <<<"$said"
check "nghttp: resources in parallel" in_agent one timeout 20 nghttp -n --no-verify-peer https://nginx.example/small https://nginx.example/big
ask() { in_agent one "$peer" ask "$proxy" odd.example authority.pem "$@" 2>&1; }
equal "a stream that is not read holds up no other" "65535 50
200" "$(ask slow)"
check "its end reaches the origin" eventually grep -q '"event": "reset", "path": "/endless"' odd.log

# ---- gRPC -----------------------------------------------------------------------------------------------------------
said=$(in_agent one env https_proxy="$proxy" timeout 60 "$peer" grpc-client grpc.example authority.pem 2>&1)
equal "gRPC: unary, error with trailers, stream, 3 MiB" "unary HELLO one
error FAILED_PRECONDITION as you asked asked
stream 200
big True" "$said"

# ---- messages -------------------------------------------------------------------------------------------------------
equal "trailers of a response" '200 - 4 {"x-sum": "4", "grpc-status": "0"}' "$(ask get /trailers)"
equal "trailers of a request" 200 "$(ask trailers)"
check "reach the origin" grep -q '"event": "trailers", "headers": \[\["x-sum", "4"\]\]' odd.log
equal "interim responses" '200 103 2 null' "$(ask get /interim)"
equal "an answer before the end of the request" "413 True" "$(ask early)"
check "a stream that the origin resets is reset" grep -q 'reset 2' <<<"$(ask get /reset)"
equal "a refused stream is tried again" '200' "$(ask get /refuse-a | cut -d' ' -f1)"
equal "and one that a GOAWAY left out" '200' "$(ask get /goaway-a | cut -d' ' -f1)"
equal "an origin that vanishes" '502' "$(ask get /vanish | cut -d' ' -f1)"
check "a body shorter than its length is no success" grep -q 'reset 2' <<<"$(ask get /short)"
for lie in crlf chunked switch; do
    equal "a malformed response ($lie)" 502 "$(ask get /$lie | cut -d' ' -f1)"
done
check "HTTP/1.1: a reset is no success" not fetch -x "$proxy" --http1.1 -o /dev/null https://odd.example/reset
equal "HTTP/1.1: trailers" "x-sum: 4" "$(in_agent one curl -s -i --raw --max-time 10 --cacert authority.pem -x "$proxy" --http1.1 \
    https://odd.example/trailers | tr -d '\r' | grep x-sum)"

# ---- lies -----------------------------------------------------------------------------------------------------------
odd_before=$(odd_requests)
ask lies >lies.out
fine='fine authority-upper authority-dot host-same host-only te-trailers'
# What names a host that is not the connection's is refused in words, since the client may simply be wrong.
misdirected='authority-other authority-port authority-list authority-ip'
while read -r name result; do
    case " $fine " in *" $name "*) wanted=200 ;; *)
        case " $misdirected " in
        *" $name "*) wanted='(421|403|none reset 1)' ;;
        *) wanted='none reset 1' ;;
        esac
        ;;
    esac
    check "lies: $name: $result" grep -qxE "$wanted" <<<"$result"
done <lies.out
equal "every lie was told" 55 "$(wc -l <lies.out)"
equal "and the origin heard of no other" 6 $(($(odd_requests) - odd_before))
not_reached() { not grep -qE 'blocked|evil' odd.log internet.log; }
check "nor did anybody else" not_reached

# ---- WebSocket ------------------------------------------------------------------------------------------------------
sockets() { in_agent one "$peer" ask "$proxy" socket.example authority.pem socket "$@" 2>&1; }
equal "a WebSocket from HTTP/2 to HTTP/1.1" "socket 200
echo True
echo True" "$(sockets)"
equal "a refused one" "socket 403" "$(sockets /refuse)"

# ---- floods, and a change of policy -----------------------------------------------------------------------------------
equal "PINGs without end" "goaway 11" "$(ask flood ping)"
equal "requests that are taken back at once" "goaway 11" "$(ask flood reset)"
equal "an origin that floods" '502' "$(ask get /flood | cut -d' ' -f1)"
equal "others do not notice" "2 200" "$(versions --http2 https://nginx.example/small)"
ask cut >cut.out &
cutting=$!
check "a stream runs" eventually grep -q runs cut.out
register first 3 11 token-one '{"host": "nginx.example"}' >/dev/null
wait $cutting
equal "a stream whose host is no longer allowed is cut" "cut 200 reset 8" "$(tail -n 1 cut.out)"

gateway_world_end >end.out
equal "gateway and orchestrator end in order and without a word" "0 " "$? $(cat end.out)"
finish
