#!/bin/bash
# Whether the gateway keeps memory of what is over: 100 000 requests, allowed and refused, over HTTP/2 and HTTP/1.1, and as
# much resident memory after all of them as after half.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/tap.bash
. tests/lib/tap.bash
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
echo 'nghttpd.example 203.0.113.21' >"$names"
gateway_world_start --names "$names"
rm "$names"

in_agent internet ip addr add 203.0.113.21/32 dev lo
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=nghttpd.example' -keyout origin.key \
    -out origin.pem -addext subjectAltName=DNS:nghttpd.example 2>/dev/null
cat origin.pem >>ca.pem
head -c 256 /dev/urandom >www/small
in_agent internet nghttpd -a 203.0.113.21 -d www 443 origin.key origin.pem >nghttpd.log 2>&1 &
kill -TERM "$gateway"
wait "$gateway"
gateway_start gateway.json
check "a gateway that trusts the host" eventually in_agent one bash -c '</dev/tcp/10.243.0.6/443' 2>/dev/null
register first 3 11 token-one '{"host": "nghttpd.example", "paths": ["/small"]}' \
    '"canary": "'"$(openssl rand -hex 20)"'", "credential_key": "'"$(openssl rand -hex 32)"'"' >/dev/null
is_there() { in_agent one curl -sf -o /dev/null --cacert authority.pem https://nghttpd.example/small; }
check "the host answers through it" eventually is_there

resident() { awk '/^VmRSS/ {print $2}' "/proc/$gateway/status"; } # KiB
load() { # STATUS COUNT h2load's OPTIONS...: how many were answered with it
    in_agent one timeout 200 h2load -n "$2" -c 8 "${@:3}" 2>&1 | sed -n "s/^status codes:.* \([0-9]*\) $1.*/\1/p"
}
half() {
    equal "40 000 requests over HTTP/2 ($1)" 40000 "$(load 2xx 40000 -m 10 https://nghttpd.example/small)"
    equal "5 000 over HTTP/1.1 ($1)" 5000 "$(load 2xx 5000 --h1 https://nghttpd.example/small)"
    equal "5 000 that are refused ($1)" 5000 "$(load 4xx 5000 -m 10 https://nghttpd.example/other)"
}
half "first half"
before=$(resident)
half "second half"
after=$(resident)
note "resident: $before KiB after 50 000 requests, $after KiB after 100 000"
check "memory stays (at most 2 MiB more)" test $((after - before)) -le 2048

gateway_world_end >end.log
equal "both programs end clean, without a word" "0 " "$? $(cat end.log)"
finish
