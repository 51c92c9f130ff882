#!/bin/bash
# What the gateway opens: certificates it shows and certificates it wants, HTTP/1.1 in every form through it, both ways,
# smuggling, and hosts that break off, lie or talk nonsense. Real curl, openssl and Python from an agent's namespace.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
gateway_world_start "$@"

odd=$root/tests/lib/odd_origin
python() { in_agent one python3 "$@"; }

# ---- hosts with certificates of all kinds ------------------------------------------------------------------------------
certificate() { # NAME SUBJECT-ALT-NAME [openssl x509 options]
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf 'basicConstraints=critical,CA:FALSE\nsubjectAltName=DNS:%s\n' "$2" >extensions
    openssl x509 -req -in "$1.csr" -extfile extensions -out "$1.pem" "${@:3}" 2>/dev/null
}
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=odd CA' -keyout odd-ca.key \
    -out odd-ca.pem -addext basicConstraints=critical,CA:TRUE 2>/dev/null
sign=(-CA odd-ca.pem -CAkey odd-ca.key -CAcreateserial)
certificate good allowed.example "${sign[@]}" -days 3
certificate other other.example "${sign[@]}" -days 3
certificate expired allowed.example "${sign[@]}" -days -1
certificate self allowed.example -signkey self.key -days 3
certificate wild '*.allowed.example' "${sign[@]}" -days 3
cat ca.pem odd-ca.pem >trust.pem
sed -i "s#$work/ca.pem#$work/trust.pem#" gateway.json
kill -TERM $gateway
wait $gateway
gateway_start gateway.json
in_agent internet "$odd" 203.0.113.10 8080 odd.log >>odd.out &
port=8443
for kind in good other expired self wild; do
    in_agent internet "$odd" 203.0.113.10 $port odd-tls.log --tls $kind.pem $kind.key >>odd.out &
    port=$((port + 1))
done
odd_is_up() { [ "$(grep -c ready odd.out)" = 6 ]; }
check "the odd hosts are up" eventually odd_is_up

ports=
for port in 9 8080 8443 8444 8445 8446 8447 8448; do
    ports="$ports, {\"host\": \"allowed.example:$port\"}"
done
routes="{\"host\": \"allowed.example\"}, {\"host\": \"www.allowed.example:8447\"},
    {\"host\": \"allowed.example:8449\", \"auth\": {\"scheme\": \"bearer\", \"from\": \"key\"}},
    {\"host\": \"api.allowed.example\", \"methods\": [\"GET\"], \"paths\": [\"/echo\", \"/v1/*\"],
     \"auth\": {\"scheme\": \"bearer\", \"from\": \"key\"}},
    {\"host\": \"other.example\", \"preserve_auth\": true},
    {\"host\": \"git.allowed.example\", \"tls\": \"pass\"}$ports"
seal=$(openssl rand -hex 32)
register_key() { register first 3 11 token-one "$routes" "\"credentials\": {\"key\": \"$1\"}, \"credential_key\": \"$seal\""; }
register_key the-secret-of-the-user >/dev/null

# ---- what an agent is shown ------------------------------------------------------------------------------------------------
equal "HTTPS is opened" 'hello from the internet' "$(fetch https://allowed.example/hello)"
old_proxy() { in_agent one curl -s --max-time 20 --cacert authority.pem --proxy1.0 10.243.0.6:8119 "$@"; }
equal "a tunnel that is asked for in HTTP/1.0 (Python before 3.12)" 'hello from the internet' \
    "$(old_proxy -U agent:token-one https://allowed.example/hello)"
equal "which has the same rules" 403 "$(old_proxy -U agent:token-one -o /dev/null -w '%{http_connect}' https://blocked.example/)"
equal "and the same need of a token" 407 "$(old_proxy -o /dev/null -w '%{http_connect}' https://allowed.example/)"
equal "a request in HTTP/1.0, its answer of unknown length" 10 "$(fetch --http1.0 https://allowed.example/drip/10 | grep -c '^drip [0-9]$')"
equal "the same without TLS" 10 "$(fetch --http1.0 http://allowed.example/drip/10 | grep -c '^drip [0-9]$')"
cat >leaf.py <<'END'
import base64, socket, ssl, sys, time
def connect(name, target, session=None, **options):
    s = socket.create_connection(("10.243.0.6", 8119), 10)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic ".encode() +
              base64.b64encode(b"agent:token-one") + b"\r\n\r\n")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += s.recv(1)
    assert b" 200 " in head, head
    c = options.get("context") or ssl.create_default_context(cafile="authority.pem")
    c.verify_flags |= ssl.VERIFY_X509_STRICT
    if "alpn" in options:
        c.set_alpn_protocols(options["alpn"])
    if "version" in options:
        c.minimum_version = c.maximum_version = options["version"]
    return c.wrap_socket(s, server_hostname=name, session=session)
def talk(s, data, timeout=2):
    s.sendall(data)
    s.settimeout(timeout)
    answer = b""
    try:
        while part := s.recv(65536):
            answer += part
    except (TimeoutError, ssl.SSLError, ConnectionError):
        pass
    return answer
END
cat >shown.py <<'END'
from leaf import *
s = connect("allowed.example", "allowed.example:443")
leaf = s.getpeercert()
span = ssl.cert_time_to_seconds(leaf["notAfter"]) - ssl.cert_time_to_seconds(leaf["notBefore"])
print(leaf["subjectAltName"], span <= 397 * 86400, ssl.cert_time_to_seconds(leaf["notBefore"]) < time.time() - 3600, s.version())
END
equal "the leaf passes strict verification, has the name, and lasts at most 397 days" \
    "(('DNS', 'allowed.example'),) True True TLSv1.3" "$(python shown.py 2>&1 | tail -1)"
python -c 'from leaf import *
open("leaf.der", "wb").write(connect("allowed.example", "allowed.example:443").getpeercert(True))'
openssl x509 -inform der -in leaf.der -noout -text >leaf.txt
for extension in 'Authority Key Identifier' 'Subject Key Identifier' 'Key Usage: critical' 'TLS Web Server Authentication' \
    'Basic Constraints: critical' 'prime256v1'; do
    check "it has: $extension" grep -q "$extension" leaf.txt
done
equal "TLS 1.1 is refused" refused "$(python -W ignore -c 'from leaf import *
c = ssl.create_default_context(cafile="authority.pem"); c.set_ciphers("ALL:@SECLEVEL=0")
try:
    print(connect("allowed.example", "allowed.example:443", context=c, version=ssl.TLSVersion.TLSv1_1).version())
except (ssl.SSLError, ConnectionError):
    print("refused")' 2>&1 | tail -1)"
equal "a protocol that is not ours is refused" refused "$(python -c 'from leaf import *
try:
    print(connect("allowed.example", "allowed.example:443", alpn=["acme-tls/1"]).version())
except (ssl.SSLError, ConnectionError):
    print("refused")' 2>&1 | tail -1)"
equal "a session is resumed" 'False True' "$(python -c 'from leaf import *
c = ssl.create_default_context(cafile="authority.pem")
first = connect("allowed.example", "allowed.example:443", context=c)
talk(first, b"GET /hello HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
second = connect("allowed.example", "allowed.example:443", first.session, context=c)
print(first.session_reused, second.session_reused)' 2>&1 | tail -1)"
equal "tls: pass shows the host's own certificate" 'hello from the internet' \
    "$(in_agent one curl -s --max-time 120 --cacert ca.pem -x $proxy https://git.allowed.example/hello)"

# ---- what a host must show -----------------------------------------------------------------------------------------------------
equal "a good certificate" 404 "$(fetch -o /dev/null -w '%{http_code}' https://allowed.example:8443/)"
equal "a wildcard's" 404 "$(fetch -o /dev/null -w '%{http_code}' https://www.allowed.example:8447/)"
equal "another host's: refused" bad-certificate "$(rule_of https://allowed.example:8444/)"
equal "an expired one: refused" bad-certificate "$(rule_of https://allowed.example:8445/)"
equal "a self-signed one: refused" bad-certificate "$(rule_of https://allowed.example:8446/)"
equal "a wildcard's apex: refused" bad-certificate "$(rule_of https://allowed.example:8447/)"
equal "no TLS where TLS is meant: refused" tls-failed "$(rule_of https://allowed.example:8080/)"
equal "the hosts with bad certificates got no request" 2 "$(grep -vc open odd-tls.log)"

# ---- one connection, many requests -----------------------------------------------------------------------------------------------
before=$(grep -c open odd-tls.log)
fetch -o /dev/null -o /dev/null -o /dev/null -o /dev/null -w '%{num_connects}' https://allowed.example:8443/keep/10 \
    https://allowed.example:8443/keep/1000 https://allowed.example:8443/keep/100000 https://allowed.example:8443/keep/0 >connects
equal "four requests on one connection of the client" 1000 "$(cat connects)"
equal "and on one to the host" $((before + 1)) "$(grep -c open odd-tls.log)"
fetch -o /dev/null https://allowed.example:8443/keep/10
equal "which the next client of the agent uses, too" $((before + 1)) "$(grep -c open odd-tls.log)"
fetch -o /dev/null -o /dev/null -w '%{num_connects}' http://allowed.example:8080/keep/10 http://allowed.example:8080/keep/20 >connects
equal "the same in clear" 10 "$(cat connects)"
cat >pipeline.py <<'END'
from leaf import *
s = connect("allowed.example", "allowed.example:8443")
request = b"GET /keep/%d HTTP/1.1\r\nHost: allowed.example:8443\r\n\r\n"
answer = talk(s, b"".join(request % n for n in (1, 2, 3)) + request[:20] % 4)
print([len(part.split(b"\r\n\r\n")[1]) for part in answer.split(b"HTTP/1.1 200 ")[1:]])
END
equal "pipelined requests are answered in order" '[1, 2, 3]' "$(python pipeline.py 2>&1 | tail -1)"
cat >unread.py <<'END'
import base64, socket, sys
token = base64.b64encode(b"agent:token-one").decode()
request = f"GET {sys.argv[1]} HTTP/1.1\r\nHost: {sys.argv[1].split('/')[2]}\r\nProxy-Authorization: Basic {token}\r\n\r\n".encode() * 100
stream = socket.create_connection(("10.243.0.6", 8119))
stream.settimeout(3)
sent, answers, count = 0, b"", 0
try:
    while sent < 100000:  # about 12 MB, far above what sockets hold
        stream.sendall(request)
        sent += 100
except socket.timeout:
    pass
print("stopped" if sent < 100000 else "taken without end")
stream.settimeout(60)
while count < sent and (part := stream.recv(1 << 20)):
    answers += part
    count += answers.count(b"HTTP/1.1 ")
    answers = answers[-8:]
print("answered" if count >= sent else f"{count} of {sent}")
END
unread() { python unread.py "$1" 2>&1 | tail -2 | xargs; }
equal "requests whose answers nobody reads are not taken without end, and none is forgotten" "stopped answered" \
    "$(unread http://refused.example/)"
equal "the same with answers of a host" "stopped answered" "$(unread http://allowed.example:8080/keep/400)"

# ---- forms of messages -----------------------------------------------------------------------------------------------------------
cat >forms.py <<'END'
import sys
from leaf import *
def ask(data, port=8443):
    s = connect("allowed.example", f"allowed.example:{port}")
    answer = talk(s, data.replace(b"HOST", b"Host: allowed.example:%d" % port), 3)
    return answer.replace(b"\r\n", b"|").decode("latin-1")
print(ask(eval(sys.argv[1])))
END
ask() { python forms.py "$1" 2>&1 | tail -1; }
equal "chunks and trailers, both ways" 'True True True False' "$(ask \
    'b"POST /trailers HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\nX-Up: yes\r\nHost: evil\r\n\r\n"' |
    python3 -c 'import sys; t = sys.stdin.read(); print("11 x-up: yes||" in t, "|x-sum: 1116||" in t, "chunked" in t, "evil" in t)')"
check "a 100 comes from the host" grep -q '^HTTP/1.1 100 .*||HTTP/1.1 200 .*||3 after 100' <<<"$(ask \
    'b"PUT /continue HTTP/1.1\r\nHOST\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"')"
equal "HEAD" 'HTTP/1.1 200 OK|content-length: 0||' "$(ask 'b"HEAD /keep/0 HTTP/1.1\r\nHOST\r\n\r\n"')"
equal "204 has no body and no length" 'HTTP/1.1 204 No Content||' "$(ask 'b"GET /none HTTP/1.1\r\nHOST\r\n\r\n"')"
equal "304 keeps its length and has no body" 'HTTP/1.1 304 Not Modified|etag: "x"|content-length: 77||' \
    "$(ask 'b"GET /unchanged HTTP/1.1\r\nHOST\r\n\r\n"')"
equal "a body until the end of the connection becomes chunks" 'HTTP/1.1 200 OK|transfer-encoding: chunked||d|until the end|0||' \
    "$(ask 'b"GET /until-close HTTP/1.1\r\nHOST\r\n\r\n"')"
check "an answer before the request is complete" grep -q '^HTTP/1.1 413 ' <<<"$(ask \
    'b"POST /early HTTP/1.1\r\nHOST\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 100000')"
cat >websocket.py <<'END'
from leaf import *
s = connect("allowed.example", "allowed.example:8443")
key = base64.b64encode(b"0123456789abcdef")
head = talk(s, b"GET /socket HTTP/1.1\r\nHost: allowed.example:8443\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n", 2).lower()
import hashlib
accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
frame = b"\x81\x85abcd" + bytes(a ^ b for a, b in zip(b"hello", b"abcda"))
echo = talk(s, frame, 2)
s.settimeout(30)
s.unwrap()  # fails without the host's own end
print(head.split(b" ")[1].decode(), accept.lower() in head, echo == frame, "ended")
END
equal "a WebSocket, to its end" '101 True True ended' "$(python websocket.py 2>&1 | tail -1)"
cat >events.py <<'END'
from leaf import *
s = connect("allowed.example", "allowed.example:8443")
s.sendall(b"GET /events HTTP/1.1\r\nHost: allowed.example:8443\r\n\r\n")
times = []
data = b""
while b"data: 2" not in data:
    part = s.recv(4096)
    if not part:
        break
    data += part
    times.append(data.count(b"data: "))
print(sorted(set(times))[-3:])
END
equal "events come one by one" '[1, 2, 3]' "$(python events.py 2>&1 | tail -1)"
equal "a large upload" '{"bytes": 30000000, "sha256": "'"$(head -c 30000000 /dev/zero | sha256sum | cut -d' ' -f1)"'"}' \
    "$(head -c 30000000 /dev/zero >zeros; fetch --data-binary @zeros https://allowed.example/upload)"

# ---- what two readers could read in two ways ---------------------------------------------------------------------------------------
before=$(grep -vc open odd-tls.log)
smuggle() { # NAME BYTES
    equal "refused: $1" 400 "$(ask "$2" | sed -n 's/^HTTP.1.1 \([0-9]*\) .*/\1/p')"
}
smuggle "two lengths" 'b"POST /keep/1 HTTP/1.1\r\nHOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"'
smuggle "a length and chunks" 'b"POST /keep/1 HTTP/1.1\r\nHOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"'
smuggle "two codings" 'b"POST /keep/1 HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"'
smuggle "a coding with a blank" 'b"POST /keep/1 HTTP/1.1\r\nHOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"'
smuggle "a folded field" 'b"GET /keep/1 HTTP/1.1\r\nHOST\r\nX: a\r\n b\r\n\r\n"'
smuggle "bare line feeds" 'b"GET /keep/1 HTTP/1.1\nHOST\n\n"'
smuggle "two hosts" 'b"GET /keep/1 HTTP/1.1\r\nHOST\r\nHost: blocked.example\r\n\r\n"'
smuggle "CONNECT inside" 'b"CONNECT blocked.example:443 HTTP/1.1\r\nHOST\r\n\r\n"'
smuggle "an URL inside" 'b"GET https://blocked.example/ HTTP/1.1\r\nHOST\r\n\r\n"'
equal "none of it reached the host" "$before" "$(grep -vc open odd-tls.log)"
equal "a chunk extension ends the request" 400 "$(ask 'b"POST /keep/1 HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\n\r\n"' |
    sed -n 's/^HTTP.1.1 \([0-9]*\) .*/\1/p')"
equal "another host inside" 421 "$(ask 'b"GET /keep/1 HTTP/1.1\r\nHost: blocked.example\r\n\r\n"' | sed -n 's/^HTTP.1.1 \([0-9]*\) .*/\1/p')"
equal "bytes behind an answer are nobody's answer" 'one odd' "$(fetch https://allowed.example:8443/more) $(fetch https://allowed.example:8443/x)"
equal "also not of the next one that asks" 'k' "$(fetch https://allowed.example:8443/keep/1)"

# ---- hosts that fail ---------------------------------------------------------------------------------------------------------------------
for fault in reset nothing garbage both; do
    equal "a host that answers with $fault" bad-response "$(rule_of https://allowed.example:8443/$fault)"
    equal "the same in clear" bad-response "$(rule_of http://allowed.example:8080/$fault)"
done
for fault in half half-reset half-chunk bad-chunk; do
    check "a host that breaks off ($fault) is no success" test "$(ends https://allowed.example:8443/$fault)" -gt 0
    check "nor in clear" test "$(ends http://allowed.example:8080/$fault)" -gt 0
done
equal "a port where nobody listens" connect-failed "$(rule_of https://allowed.example:9)"
equal "the same in clear" connect-failed "$(rule_of http://allowed.example:9)"

# A kept connection that ends when it is used again: what may be repeated is, once; what may not is never sent twice.
dropped() { grep -c "^$1 /drop" odd-tls.log; }
fetch -o /dev/null https://allowed.example:8443/keep/1
equal "a POST on a kept connection that is dropped" bad-response "$(rule_of -X POST https://allowed.example:8443/drop)"
equal "reached the host once" 1 "$(dropped POST)"
fetch -o /dev/null https://allowed.example:8443/keep/1
equal "a GET in its place" bad-response "$(rule_of https://allowed.example:8443/drop)"
equal "was tried once more" 2 "$(dropped GET)"

# In one piece with the end of its handshake this host says something that nobody asked for.
cat >hasty.py <<'END'
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.maximum_version = ssl.TLSVersion.TLSv1_2  # the server's Finished is the last one
context.load_cert_chain("good.pem", "good.key")
listener = socket.create_server(("203.0.113.10", 8448))
print("ready", flush=True)
while True:
    stream, _ = listener.accept()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            if outgoing.pending:
                stream.sendall(outgoing.read())
            incoming.write(stream.recv(65536))
    tls.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    stream.sendall(outgoing.read())
    stream.close()
END
in_agent internet python3 hasty.py >>hasty.out &
eventually grep -q ready hasty.out
equal "a host that speaks before it was asked" bad-response "$(rule_of https://allowed.example:8448/)"
equal "the gateway lives" 'hello from the internet' "$(fetch https://allowed.example/hello)"

# ---- credentials, methods, paths -----------------------------------------------------------------------------------------------------------
seen() { json "{k.lower(): v for k, v in d['headers'].items()}.get('$1')"; }
equal "the credential is written in" 'Bearer the-secret-of-the-user' \
    "$(fetch https://api.allowed.example/echo >echo.json
       grep -o 'Bearer the-secret-of-the-user' internet.log | tail -1)"
fetch -H 'Authorization: Bearer mine' -H 'X-Api-Key: mine' https://api.allowed.example/echo >/dev/null
equal "the client's own does not pass" 0 "$(grep -c 'Bearer mine\|"mine"' internet.log)"
equal "preserve_auth lets it pass" 'Bearer mine' "$(fetch -H 'Authorization: Bearer mine' https://other.example/echo | seen authorization)"
equal "in clear the credential's route is refused" credential-needs-tls "$(rule_of http://api.allowed.example/echo)"
equal "a method that is not allowed" method-not-allowed "$(rule_of -X POST -d x https://api.allowed.example/echo)"
equal "a path that is not allowed" path-not-allowed "$(rule_of https://api.allowed.example/hello)"
equal "a path that could be another" path-ambiguous "$(rule_of --path-as-is https://api.allowed.example/v1/../hello)"

# ---- a credential that changes while its request is on the way ---------------------------------------------------------------------------
# This host takes a connection, and opens TLS in it when it is told to.
cat >late.py <<'END'
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("good.pem", "good.key")
listener = socket.create_server(("203.0.113.10", 8449))
print("ready", flush=True)
is_late = True
while True:
    stream, _ = listener.accept()
    print("connection", flush=True)
    if is_late:
        open("late.go").read()
    is_late = False
    stream = context.wrap_socket(stream, server_side=True)
    head = b""
    while b"\r\n\r\n" not in head and (part := stream.recv(4096)):
        head += part
    print(head, flush=True)
    if head:
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlate")
    stream.close()
END
mkfifo late.go
in_agent internet python3 late.py >late.out 2>&1 &
check "a host that is late" eventually grep -q ready late.out
fetch https://allowed.example:8449/ >late.json &
late=$!
check "has the connection" eventually grep -q connection late.out
register_key another-secret-of-the-user >/dev/null
is_another() { fetch -o /dev/null https://api.allowed.example/echo; grep -q another-secret-of-the-user internet.log; }
check "while the credential changes" eventually is_another
echo >late.go
wait $late
equal "the request is refused" policy-changed "$(json 'd["rule"]' <late.json)"
check "and was not sent" eventually grep -qx "b''" late.out
equal "again, it goes" late "$(fetch https://allowed.example:8449/)"
equal "with the new one" 1 "$(grep -c 'Bearer another-secret-of-the-user' late.out)"
equal "and nothing went with the old one" 0 "$(grep -c 'Bearer the-secret-of-the-user' late.out)"

# ---- a passed connection that is revoked before its first byte ------------------------------------------------------------------------------
in_agent one python3 -c '
import base64, socket, ssl
s = socket.create_connection(("10.243.0.6", 8119), 5)
s.sendall(b"CONNECT git.allowed.example:443 HTTP/1.1\r\nHost: git.allowed.example:443\r\nProxy-Authorization: Basic " +
          base64.b64encode(b"agent:token-one") + b"\r\n\r\n")
print("open" if b" 200 " in s.recv(4096) else "refused", flush=True)
s.settimeout(15)
try:
    print("cut" if s.recv(1) == b"" else "data")
except ConnectionResetError:
    print("cut")
except socket.timeout:
    print("still there")' >early.out &
early=$!
eventually grep -q open early.out
register first 3 11 token-one '{"host": "allowed.example"}' >/dev/null
wait $early
equal "CONNECT, then a new policy without that host, before the ClientHello" 'open cut' "$(paste -sd' ' early.out)"

# ---- the records, and the end -----------------------------------------------------------------------------------------------------------------
sleep 0.5
api GET 'decisions?slot=3&generation=11&limit=1000' >decisions.json
equal "the refusals are on record" "['bad-certificate', 'bad-request', 'bad-response', 'connect-failed', 'credential-needs-tls', 'default-deny', 'host-mismatch', 'identity', 'method-not-allowed', 'path-ambiguous', 'path-not-allowed', 'policy-changed', 'revoked', 'tls-failed']" \
    "$(json 'sorted({r["rule"] for r in d["decisions"] if not r["allowed"]} - {"bad-hello"})' <decisions.json)"
equal "the credential is in no record, log or answer" '' "$(grep -l -e the-secret-of-the-user -e another-secret-of-the-user decisions.json gateway.log orchestrator.log)"
gateway_world_end >end.log
equal "gateway and orchestrator end clean, and said nothing" "0 " "$? $(cat end.log)"
[ "$TAP_FAILED" = 0 ] || sed 's/^/# /' gateway.log orchestrator.log | tail -40
finish
