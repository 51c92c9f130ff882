#!/bin/bash
# The orchestrator and the gateway, sanitised, in a network namespace of their own: real curl, git and TLS from two agents'
# namespaces through the gateway to a small internet; what was reached is asserted from what the internet received.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
gateway_world_start "$@"

# ---- what this script adds to the world -----------------------------------------------------------------------------
git init -q --bare www/repo.git
git init -q source
git -C source -c user.name=t -c user.email=t@t.example commit -q --allow-empty -m first
git -C source push -q ../www/repo.git HEAD:refs/heads/main
git -C www/repo.git symbolic-ref HEAD refs/heads/main
in_agent internet python3 -c '
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "8"); self.end_headers(); self.wfile.write(b"private\n")
    def log_message(self, *_): pass
http.server.HTTPServer(("10.1.2.3", 80), H).serve_forever()' &
routes='{"host": "allowed.example"}, {"host": "*.allowed.example", "granted_by": "bottle dev"},
  {"host": "loopback.example"}, {"host": "metadata.example"}, {"host": "slot.example"}, {"host": "mixed.example"},
  {"host": "rebind.example"}, {"host": "private.example"}, {"host": "nowhere.example"}, {"host": "silent.example"}'
equal "registration" '{"policy_version":1}' "$(register first 3 11 token-one "$routes")"
register second 4 12 token-two '{"host": "other.example"}, {"host": "private.example", "private": true}' >/dev/null
fetch() { in_agent one curl -s --max-time 10 --cacert authority.pem "$@"; }
reached() { grep -c "\"event\": \"request\".*$1" internet.log; }

# Two clients of the second agent that take their time; their ends are looked at below.
in_agent two python3 -c '
import socket, time
s = socket.create_connection(("10.243.0.8", 8119), 5)
s.settimeout(1)
started = time.time()
try:
    for byte in b"GET http://other.example/" + b"a" * 60:
        s.sendall(bytes([byte]))
        try:
            if not s.recv(1):
                break
        except socket.timeout:
            pass
except OSError:
    pass
print(round(time.time() - started))' >slow.out &
slow=$!
mkfifo quiet.go
in_agent two python3 -c '
import base64, socket, ssl, time
s = socket.create_connection(("10.243.0.8", 8119), 5)
s.sendall(b"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: Basic " +
          base64.b64encode(b"agent:token-two") + b"\r\n\r\n")
assert b" 200 " in s.recv(4096)
s = ssl.create_default_context(cafile="authority.pem").wrap_socket(s, server_hostname="other.example")
started = time.time()
open("quiet.go").read()
s.sendall(b"GET /hello HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n")
print(s.recv(4096).split(b" ")[1].decode(), time.time() - started > 25)' >quiet.out &
quiet=$!

# ---- what is allowed --------------------------------------------------------------------------------------------------
equal "HTTPS by CONNECT" 'hello from the internet' "$(fetch -x $proxy https://allowed.example/hello)"
equal "HTTP in absolute-form" 'hello from the internet' "$(fetch -x $proxy http://www.allowed.example/hello)"
equal "HTTP by CONNECT" 'hello from the internet' "$(fetch -p -x $proxy http://allowed.example/hello)"
check "git clone over HTTPS, the token asked for by 407" \
    in_agent one git -c http.proxy=$proxy -c http.sslCAInfo=$work/authority.pem clone -q https://git.allowed.example/repo.git clone
equal "the clone has the commit" first "$(git -C clone log -1 --format=%s 2>&1)"
equal "a chunked upload" '{"bytes": 300000, "sha256": "'"$(head -c 300000 /dev/zero | sha256sum | cut -d' ' -f1)"'"}' \
    "$(head -c 300000 /dev/zero | fetch -x $proxy -X POST -T - http://allowed.example/upload)"
equal "an upload with Expect" '{"bytes": 2000000, "sha256": "'"$(head -c 2000000 /dev/zero | sha256sum | cut -d' ' -f1)"'"}' \
    "$(head -c 2000000 /dev/zero >zeros; fetch -x $proxy -H 'Expect: 100-continue' --data-binary @zeros http://allowed.example/upload)"
equal "30 MB through a tunnel" 30000000 "$(fetch -x $proxy https://allowed.example/bytes/30000000 | wc -c)"
equal "30 MB of plain HTTP" 30000000 "$(fetch -x $proxy http://allowed.example/bytes/30000000 | wc -c)"
first_drip() { fetch -N -x $proxy http://allowed.example/drip/20 | { read -r line; echo "$line"; }; }
started=$(date +%s%N)
equal "a stream" 'drip 0' "$(first_drip)"
check "its first chunk came at once" test $((($(date +%s%N) - started) / 1000000)) -lt 1500
fetch -x $proxy -H 'Authorization: Basic c2VjcmV0' -H 'Connection: X-Hop' -H 'X-Hop: 1' -H 'session_id: 7' \
    http://allowed.example/echo >echo.json
equal "hop-by-hop fields, proxy credentials and Authorization stay here; others pass" \
    "['accept', 'host', 'session_id', 'user-agent']" \
    "$(json 'sorted(d["headers"])' <echo.json)"

# ---- identity -----------------------------------------------------------------------------------------------------------
equal "no token: 407" '000 407' "$(status -x http://10.243.0.6:8119 https://allowed.example/hello)"
equal "a wrong token: 407" '000 407' "$(status -x http://agent:token-two@10.243.0.6:8119 https://allowed.example/hello)"
equal "another agent's token from the right address of that agent" '000 403' \
    "$(in_agent two curl -s -o /dev/null -w '%{http_code} %{http_connect}' -x http://agent:token-two@10.243.0.8:8119 https://allowed.example/)"
fetch -v --proxy-anyauth -x $proxy https://allowed.example/hello >407.log 2>&1
equal "407 names the scheme, and the connection is used again" 'Basic realm="berth" / hello from the internet / 1' \
    "$(sed -n 's/^< proxy-authenticate: //Ip' 407.log | tr -d '\r') / $(grep hello.from 407.log) / $(grep -c 'Connected to' 407.log)"

# ---- refusals -----------------------------------------------------------------------------------------------------------
before=$(wc -l <internet.log)
equal "a host not listed" '000 403' "$(status -x $proxy https://blocked.example/hello)"
equal "the apex of a wildcard of another" '000 403' "$(status -x $proxy https://example/)"
equal "a port not listed" '000 403' "$(status -x $proxy https://allowed.example:8443/)"
for literal in 203.0.113.10 3405803786 0313.0.0161.012 0xcb00710a '[::1]' '[::ffff:203.0.113.10]' 203.0.113.10. 127.1; do
    printf 'CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\nProxy-Authorization: Basic %s\r\n\r\n' "$literal" "$literal" \
        "$(printf agent:token-one | base64)" >raw
    equal "an address: $literal" 'HTTP/1.1 403 Refused by berth (ip-literal)' \
        "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"
done
fetch -x $proxy http://blocked.example/ >refusal.json
equal "the refusal explains itself" "['error', 'hint', 'host', 'reason', 'rule'] blocked.example default-deny" \
    "$(json '"%s %s %s" % (sorted(d), d["host"], d["rule"])' <refusal.json)"
equal "nothing of these was asked or reached upstream" "$before" "$(wc -l <internet.log)"
for name in private loopback metadata slot mixed; do
    equal "an answer that is not public: $name" '403 200' "$(status -x $proxy https://$name.example/)"
done
equal "a name that does not exist" '502 200' "$(status -x $proxy https://nowhere.example/)"
equal "private: true reaches a private address" private \
    "$(in_agent two curl -s -x http://agent:token-two@10.243.0.8:8119 http://private.example/)"
questions=$(grep -c '"dns", "name": "rebind' internet.log)
equal "rebinding: the checked answer is the one dialled" 'hello from the internet' \
    "$(fetch -x $proxy http://rebind.example/hello)"
equal "after one question" $((questions + 1)) "$(grep -c '"dns", "name": "rebind' internet.log)"
equal "and the next answer is refused" '403 200' "$(status -x $proxy https://rebind.example/hello)"

# ---- fronting -------------------------------------------------------------------------------------------------------------
tls() { in_agent one "$client" tls "$@"; }
equal "SNI = CONNECT" 'ok 200' "$(tls 10.243.0.6 8119 token-one allowed.example:443 allowed.example)"
equal "a ClientHello in pieces of one byte" 'ok 200' "$(tls 10.243.0.6 8119 token-one allowed.example:443 allowed.example split)"
before=$(grep -c '"event": "tls"' internet.log)
equal "SNI of another host" 'ok 421' "$(tls 10.243.0.6 8119 token-one allowed.example:443 blocked.example)"
equal "SNI of another allowed host" 'ok 421' "$(tls 10.243.0.6 8119 token-one allowed.example:443 www.allowed.example)"
equal "no SNI" 'alert tlsv1_alert_access_denied' "$(tls 10.243.0.6 8119 token-one allowed.example:443 -)"
equal "no handshake of these reached the origin" "$before" "$(grep -c '"event": "tls"' internet.log)"
authorization=$(printf agent:token-one | base64)
printf 'GET http://allowed.example/hello HTTP/1.1\r\nHost: blocked.example\r\nProxy-Authorization: Basic %s\r\n\r\n' "$authorization" >raw
equal "Host differs from the target" 'HTTP/1.1 400 Bad request (host-mismatch)' "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"
printf 'CONNECT allowed.example:80 HTTP/1.1\r\nHost: allowed.example\r\nProxy-Authorization: Basic %s\r\n\r\nGET / HTTP/1.1\r\nHost: blocked.example\r\n\r\n' "$authorization" >raw
equal "Host inside a tunnel differs" 'HTTP/1.1 200 Connection established; HTTP/1.1 400 Bad request (host-mismatch)' \
    "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"
printf 'POST http://allowed.example/upload HTTP/1.1\r\nHost: allowed.example\r\nProxy-Authorization: Basic %s\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' "$authorization" >raw
equal "two lengths" 'HTTP/1.1 400 Bad request (bad-request)' "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"
before=$(reached /second)
printf 'GET http://allowed.example/hello HTTP/1.1\r\nHost: allowed.example\r\nProxy-Authorization: Basic %s\r\n\r\nGET http://allowed.example/second HTTP/1.1\r\nHost: allowed.example\r\n\r\n' "$authorization" >raw
equal "a second request behind the first is not passed on" 'HTTP/1.1 200 OK' "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"
equal "not even as bytes" "$before" "$(reached /second)"
printf 'CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example\r\nProxy-Authorization: Basic %s\r\n\r\nSSH-2.0-x\r\n' "$authorization" >raw
equal "neither TLS nor HTTP in a tunnel" 'HTTP/1.1 200 Connection established; HTTP/1.1 400 Bad request (bad-request)' \
    "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"

before=$(wc -l <internet.log)
printf 'connect http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nProxy-Authorization: Basic %s\r\n\r\n' "$authorization" >raw
equal "a CONNECT in small letters" 'HTTP/1.1 400 Bad request (host-mismatch)' "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"
printf 'CONNECT / HTTP/1.1\r\nHost: allowed.example\r\n\r\n' >raw
equal "CONNECT on the transparent port" 'HTTP/1.1 400 Bad request (host-mismatch)' "$(in_agent one "$client" raw 10.243.0.6 80 raw)"
equal "none of it was passed on" "$before" "$(wc -l <internet.log)"

# ---- DNS and the transparent ports ---------------------------------------------------------------------------------------
ask() { in_agent one "$client" dns 10.243.0.6 "$@"; }
before=$(grep -c '"event": "dns"' internet.log)
equal "DNS: an allowed name is the gateway" 'NOERROR 10.243.0.6' "$(ask www.allowed.example)"
equal "DNS: by TCP" 'NOERROR 10.243.0.6' "$(ask ALLOWED.example 1 tcp)"
equal "DNS: AAAA of an allowed name is empty" 'NOERROR' "$(ask allowed.example 28)"
equal "DNS: others are refused" 'REFUSED' "$(ask "$(openssl rand -hex 16).blocked.example")"
equal "DNS: the other agent sees its own gateway address" 'NOERROR 10.243.0.8' \
    "$(in_agent two "$client" dns 10.243.0.8 other.example)"
equal "DNS: nothing of it went upstream" "$before" "$(grep -c '"event": "dns"' internet.log)"
equal "transparent HTTPS" 'hello from the internet' "$(fetch https://allowed.example/hello)"
equal "transparent HTTP" 'hello from the internet' "$(fetch http://allowed.example/hello)"
equal "transparent HTTPS, SNI not allowed" 'ok 403' "$(tls 10.243.0.6 443 - - blocked.example)"
equal "transparent HTTP, Host not allowed" '403 000' "$(status -H 'Host: blocked.example' http://allowed.example/)"

# ---- counters and records --------------------------------------------------------------------------------------------------
sleep 0.4
api GET counters/3 >before.json
ask "$(openssl rand -hex 16).example" >/dev/null
sleep 0.4
api GET counters/3 >after.json
equal "a refused DNS question is counted at once, and none upstream" '1 0 1' \
    "$(python3 -c 'import json; b, a = (json.load(open(n + ".json")) for n in ("before", "after"))
print(*(a[k] - b[k] for k in ("dns_questions", "upstream_questions", "refused")))')"
check "bytes are counted" test "$(json 'd["bytes"] > 60000000' <after.json)" = True
api GET 'decisions?slot=3&generation=11&limit=1000' >decisions.json
equal "records tell kind, host, rule, address, who granted" 'connect git.allowed.example 443 True route:1 203.0.113.10 bottle dev' \
    "$(json 'next("%s %s %s %s %s %s %s" % tuple(r[k] for k in ("kind", "host", "port", "allowed", "rule", "address", "granted_by")) for r in d["decisions"] if r["host"] == "git.allowed.example")' <decisions.json)"
equal "every rule that refused is there" \
    "['bad-request', 'default-deny', 'host-mismatch', 'identity', 'ip-literal', 'port-not-allowed', 'private-answer', 'resolve-failed', 'sni-mismatch', 'sni-missing']" \
    "$(json 'sorted({r["rule"] for r in d["decisions"] if not r["allowed"]})' <decisions.json)"
equal "no record, answer or log holds a token or a secret" '' \
    "$(grep -l -e token-one -e "$secret" -e "$host_key" decisions.json refusal.json gateway.log orchestrator.log internet.log)"

# ---- changes -----------------------------------------------------------------------------------------------------------------
tunnel_lives() { in_agent one curl -s --max-time "$1" --cacert authority.pem -x $proxy https://allowed.example/drip/"$2" 2>&1; }
tunnel_lives 20 100 >tunnel.out &
tunnel=$!
sleep 1
equal "a new policy is a new version" '{"policy_version":2}' "$(register first 3 11 token-one '{"host": "www.allowed.example"}')"
wait $tunnel
check "cuts the tunnels that it no longer allows, with an error" test $? != 0
check "in the middle" test "$(wc -l <tunnel.out)" -gt 5 -a "$(wc -l <tunnel.out)" -lt 99
equal "and is in force" '000 403' "$(status -x $proxy https://allowed.example/hello)"
register first 3 11 token-one "$routes" >/dev/null
sleep 5.2
tunnel_lives 20 100 >tunnel.out &
tunnel=$!
sleep 1
equal "unregistered" '{}' "$(api DELETE agents/3/11)"
wait $tunnel
check "its tunnels are cut" test $? != 0
equal "and its requests refused" '000 403' "$(status -x $proxy https://allowed.example/hello)"
equal "DNS too" 'REFUSED' "$(ask allowed.example)"

# ---- the orchestrator dies -----------------------------------------------------------------------------------------------------
register first 3 13 token-one "$routes" >/dev/null
sleep 0.6
equal "a new lease of the same slot" 'hello from the internet' "$(fetch -x $proxy https://allowed.example/hello)"
kill -KILL $orchestrator
wait $orchestrator 2>/dev/null
sleep 5.5
equal "without an orchestrator a known agent goes on" 'hello from the internet' "$(fetch -x $proxy https://allowed.example/hello)"
equal "with its own token only" '000 503' "$(status -x http://agent:wrong@10.243.0.6:8119 https://allowed.example/)"
equal "an unknown one does not" '503 000' "$(status --interface 10.243.0.7 --connect-timeout 3 -x http://agent:x@10.243.0.6:8119 http://allowed.example/)"
orchestrator_start
sleep 1
check "a restarted orchestrator gets the gateway back" eventually gateway_is_seen
equal "and still knows its agents" "['first', 'second']" "$(api GET agents | json '[a["name"] for a in d["agents"]]')"
equal "and their records" True "$(api GET 'decisions?limit=1000' | json 'len(d["decisions"]) > 50')"
equal "traffic goes on" 'hello from the internet' "$(fetch -x $proxy https://allowed.example/hello)"

# ---- limits --------------------------------------------------------------------------------------------------------------------
many() {
    in_agent one python3 -c '
import select, socket, time
held = [socket.create_connection(("10.243.0.6", 8119), 5) for _ in range(300)]
time.sleep(1)
readable, _, _ = select.select(held, [], [], 0)
print(sum(s.recv(100).startswith(b"HTTP/1.1 503") for s in readable))'
}
in_agent one python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
q = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05noise\x07example\x00\x00\x01\x00\x01"
for _ in range(1500):
    s.sendto(q, ("10.243.0.6", 53))
    s.recv(512)'
equal "behind a flood of refusals" 'hello from the internet' "$(fetch -x $proxy http://deep.www.allowed.example/hello)"
was_reached() { # HOST: by any record of the first agent, page by page
    local after=0 page last
    while page=$(api GET "decisions?limit=1000&after=$after"); do
        [ "$(json 'any(r["host"] == "'"$1"'" and r["allowed"] for r in d["decisions"])' <<<"$page")" = True ] && return
        last=$(json 'd["last"]' <<<"$page")
        [ "$last" -gt "$after" ] || return 1
        after=$last
    done
}
sleep 1
check "what was reached is on record" was_reached deep.www.allowed.example
mkfifo names.go
in_agent one python3 -c '
import socket
held = [socket.create_connection(("10.243.0.6", 53), 5) for _ in range(64)]
print(flush=True)
open("names.go").read()' >names.out &
names=$!
for _ in $(seq 100); do
    [ -s names.out ] && break
    sleep 0.1
done
equal "64 idle DNS connections of one agent: another one is answered on its own" 1 "$(in_agent two python3 -c '
import socket, struct
s = socket.create_connection(("10.243.0.8", 53), 5)
q = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05other\x07example\x00\x00\x01\x00\x01"
s.sendall(struct.pack("!H", len(q)) + q)
print(struct.unpack("!H", s.recv(512)[8:10])[0])' 2>&1 | tail -1)"
echo >names.go
wait $names
equal "300 connections of one agent: 44 are turned away" 44 "$(many)"
equal "and the others are served" 'hello from the internet' \
    "$(sleep 0.3; fetch -x $proxy https://allowed.example/hello)"
printf 'GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nX: %070000d\r\n\r\n' 1 >raw
equal "a head of 70 kB" 'HTTP/1.1 431 Head too large (bad-request)' "$(in_agent one "$client" raw 10.243.0.6 8119 raw)"

equal "those turned away are in the records" True "$(sleep 0.3; api GET 'decisions?slot=3&limit=1000' | json 'any(r["rule"] == "too-many" for r in d["decisions"])')"
wait $slow
check "a head that comes byte by byte is given up after 30 s" test "$(cat slow.out)" -ge 28 -a "$(cat slow.out)" -le 34
all_records() { # a page a line
    local after=0 page
    while page=$(api GET "decisions?limit=1000&after=$after") && [ "$(json 'len(d["decisions"])' <<<"$page")" -gt 0 ]; do
        echo "$page"
        after=$(json 'd["last"]' <<<"$page")
    done
}
given_up() { all_records | grep "within 30 seconds" >/dev/null; }
check "with a record" eventually given_up
echo >quiet.go
wait $quiet
equal "a tunnel that was silent all the while still works" '200 True' "$(cat quiet.out)"

# ---- a parent proxy ------------------------------------------------------------------------------------
kill -TERM $gateway
wait $gateway
equal "the gateway ends clean (no leak, no sanitiser report)" 0 $?
check "and said nothing but that it was ready" test "$(grep -vc ready gateway.log)" = 0
cat >parent.py <<'END'
import socket, sys, threading
log = open("parent.log", "a", buffering=1)
def pipe(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        head += c.recv(65536)
    log.write(head.decode("latin-1").replace("\r\n", "|") + "\n")
    head, _, rest = head.partition(b"\r\n\r\n")
    u = socket.create_connection(("203.0.113.10", 443 if head.startswith(b"CONNECT") else 80))
    if head.startswith(b"CONNECT"):
        c.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    else:
        u.sendall(head.replace(b"http://allowed.example", b"") + b"\r\n\r\n")
    u.sendall(rest)
    threading.Thread(target=pipe, args=(c, u), daemon=True).start()
    pipe(u, c)
s = socket.create_server(("203.0.113.10", 3128))
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
END
in_agent internet python3 parent.py &
for _ in $(seq 100); do
    in_agent internet python3 -c 'import socket; socket.create_connection(("203.0.113.10", 3128))' 2>/dev/null && break
    sleep 0.1
done
gateway_config '"http://user:pass@203.0.113.10:3128"' >parent.json
before=$(grep -c '"event": "dns"' internet.log)
gateway_start parent.json
sleep 1
equal "parent proxy: HTTPS" 'hello from the internet' "$(fetch -x $proxy https://allowed.example/hello)"
equal "parent proxy: HTTP" 'hello from the internet' "$(fetch -x $proxy http://allowed.example/hello)"
equal "it was asked by name, with its credentials" 'CONNECT allowed.example:443 HTTP/1.1|Host: allowed.example:443|Proxy-Authorization: Basic dXNlcjpwYXNz||' \
    "$(head -1 parent.log)"
equal "and no resolver was" "$before" "$(grep -c '"event": "dns"' internet.log)"
equal "the policy holds as ever" '000 403' "$(status -x $proxy https://blocked.example/)"
kill -TERM $gateway
wait $gateway
equal "the gateway ends clean again" 0 $?
kill -TERM $orchestrator
wait $orchestrator
equal "the orchestrator ends clean" 0 $?

# ---- the product's programs give up what they do not need -----------------------------------------------------------------------
"$root/build/berth-orchestrator" orchestrator.json 2>>product.log &
orchestrator=$!
"$root/build/berth-gateway" gateway.json 2>>product.log &
gateway=$!
sleep 1
for pid in $orchestrator $gateway; do
    equal "unprivileged: $(cat "/proc/$pid/comm")" '900 0000000000000000 1 2' \
        "$(awk '/^Uid/ {u = $2} /^CapEff/ {c = $2} /^NoNewPrivs/ {n = $2} /^Seccomp:/ {s = $2} END {print u, c, n, s}' "/proc/$pid/status")"
done
equal "and they work" 'hello from the internet' "$(fetch -x $proxy https://allowed.example/hello)"
kill -TERM $gateway $orchestrator
wait $gateway
status=$?
wait $orchestrator
equal "and end clean, without a word" '0 0 ' "$status $? $(grep -v ': ready$' product.log)"
[ "$TAP_FAILED" = 0 ] || sed "s/^/# /" gateway.log orchestrator.log product.log | tail -40
finish
