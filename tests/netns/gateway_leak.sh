#!/bin/bash
# Whether the gateway keeps anything of what is over: requests of every kind and end, over HTTP/2, HTTP/1.1 and in clear, those
# that are refused, blocked, reset by their host, and WebSockets; resident memory and descriptors stay from half of them on.
# BERTH_LEAK_REQUESTS (100000): how many.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
for program in nghttpd h2load; do
    command -v $program >/dev/null || {
        echo "1..0 # SKIP $program is missing: run ./install-packages"
        exit 0
    }
done
gateway_world_enter "$@"
GATEWAY_WORLD_PROGRAMS=$PWD/build # a sanitiser keeps what was freed
names=$(mktemp)
printf 'nghttpd.example 203.0.113.21\nodd.example 203.0.113.22\n' >"$names"
gateway_world_start --names "$names"
rm "$names"

for address in 203.0.113.21 203.0.113.22; do in_agent internet ip addr add $address/32 dev lo; done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=nghttpd.example' -keyout origin.key \
    -out origin.pem -addext subjectAltName=DNS:nghttpd.example 2>/dev/null
cat origin.pem >>ca.pem
head -c 256 /dev/urandom >www/small
in_agent internet nghttpd -a 203.0.113.21 -d www 443 origin.key origin.pem >nghttpd.log 2>&1 &
in_agent internet "$root/tests/lib/odd_origin" 203.0.113.22 80 /dev/null >odd.out &
check "the host in clear is up" eventually grep -q ready odd.out
kill -TERM "$gateway"
wait "$gateway"
gateway_start gateway.json
check "a gateway that trusts the hosts" eventually in_agent one bash -c '</dev/tcp/10.243.0.6/443' 2>/dev/null
register first 3 11 token-one '{"host": "nghttpd.example", "paths": ["/small"]}, {"host": "odd.example"}, {"host": "allowed.example"}' \
    '"canary": "'"$(openssl rand -hex 20)"'", "credential_key": "'"$(openssl rand -hex 32)"'"' >/dev/null
is_there() { in_agent one curl -sf -o /dev/null --cacert authority.pem https://nghttpd.example/small; }
check "the host answers through it" eventually is_there

# Each on a TLS connection of its own: one message, its echo, and every other one without a farewell.
cat >websockets.py <<'END'
import socket, ssl, sys
context = ssl.create_default_context(cafile="authority.pem")
echoed = 0
for number in range(int(sys.argv[1])):
    stream = context.wrap_socket(socket.create_connection(("10.243.0.6", 443), 60), server_hostname="allowed.example")
    stream.sendall(b"GET /websocket HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                   b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head:
        head += stream.recv(4096)
    stream.sendall(b"\x81\x84" + bytes(4) + b"ping")
    echo = b""
    while len(echo) < 6:
        echo += stream.recv(4096)
    echoed += echo == b"\x81\x04ping"
    if number % 2:
        stream.close()
    else:
        stream.unwrap()
print(echoed)
END

requests=${BERTH_LEAK_REQUESTS:-100000}
token=ghp"_$(openssl rand -hex 18)"
descriptors() { find "/proc/$gateway/fd" -mindepth 1 | wc -l; }
load() { # STATUS COUNT h2load's OPTIONS...: how many were answered with it
    in_agent one timeout 1000 h2load -n "$2" -c 8 "${@:3}" 2>&1 | sed -n "s/^status codes:.* \([0-9]*\) $1.*/\1/p"
}
share() { echo $((requests * $1 / 1000)); } # of a tenth, in per cent
tenth() {
    equal "over HTTP/2 ($1)" "$(share 60)" "$(load 2xx "$(share 60)" -m 10 https://nghttpd.example/small)"
    equal "over HTTP/1.1 ($1)" "$(share 10)" "$(load 2xx "$(share 10)" --h1 https://nghttpd.example/small)"
    equal "in clear ($1)" "$(share 10)" "$(load 2xx "$(share 10)" --h1 http://odd.example/keep/64)"
    equal "refused ($1)" "$(share 8)" "$(load 4xx "$(share 8)" -m 10 https://nghttpd.example/other)"
    equal "blocked for what is in them ($1)" "$(share 8)" \
        "$(load 4xx "$(share 8)" -m 10 -H "x-note: $token" https://nghttpd.example/small)"
    equal "reset by their host ($1)" "$(share 3)" "$(load 5xx "$(share 3)" --h1 http://odd.example/reset)"
    equal "WebSockets ($1)" "$(share 1)" "$(in_agent one python3 websockets.py "$(share 1)")"
    note "resident after $1 tenths of $requests requests: $(resident VmRSS) KiB, $(descriptors) descriptors"
}
for number in 1 2 3 4 5; do tenth $number; done
before=$(resident VmRSS)
open=$(descriptors)
for number in 6 7 8 9 10; do tenth $number; done
check "memory stays (at most 2 MiB more)" test $(($(resident VmRSS) - before)) -le 2048
check "and so do descriptors" test $(($(descriptors) - open)) -le 16

gateway_world_end >end.log
equal "both programs end clean, without a word" "0 " "$? $(cat end.log)"
finish
