#!/bin/bash
# What the gateway does when others fail: hosts that stall, stop in the middle or lie about lengths, a resolver that is silent,
# no descriptors, no orchestrator. Each is a refusal in words or a cut, never a success, and a record; and it goes on.
# Resets, broken answers and wrong certificates are in gateway_http1.sh, streams in gateway_http2.sh.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
names=$(mktemp)
printf '%s\n' 'hole.example 203.0.113.99' 'hoard.example 203.0.113.22' >"$names"
gateway_world_start --names "$names" --origin-out origin.pem
rm "$names"

in_agent internet "$root/tests/lib/odd_origin" 203.0.113.10 8080 odd.log >odd.out &
in_agent internet python3 -c '
import socket, time
listener = socket.create_server(("203.0.113.10", 8501))
print("ready", flush=True)
held = []
while True:
    held.append(listener.accept())' >deaf.out &
check "the hosts that fail are up" eventually grep -q ready odd.out
check "and the one that never says a word" eventually grep -q ready deaf.out
routes='{"host": "allowed.example"}, {"host": "allowed.example:8080"}, {"host": "allowed.example:8501"}, {"host": "hole.example"},
    {"host": "silent.example"}'
register first 3 11 token-one "$routes" >/dev/null
equal "all is well" 'hello from the internet' "$(fetch https://allowed.example/hello)"

# ---- clients that end their direction, and may have gone ----------------------------------------------------------------------
cat >half.py <<'END'
import base64, socket, sys
stream = socket.create_connection(("10.243.0.6", 8119), 30)
token = base64.b64encode(b"agent:token-one").decode()
stream.sendall(f"GET http://allowed.example:8080/{sys.argv[1]} HTTP/1.1\r\nHost: allowed.example:8080\r\n"
               f"Proxy-Authorization: Basic {token}\r\n\r\n".encode())
stream.shutdown(socket.SHUT_WR)
stream.settimeout(300)
answer, end = b"", "end"
try:
    while part := stream.recv(65536):
        answer += part
except OSError as error:
    end = type(error).__name__
print(answer.split(b" ")[1].decode(), answer.count(b"data: "), answer.count(b"for a minute"), end, flush=True)
END
in_agent one python3 half.py stall >left.out &
left=$!
in_agent one python3 half.py stall-half >left-half.out &
left_half=$!
equal "such a client has its answer, piece by piece" "200 3 0 end" "$(in_agent one python3 half.py events)"

# ---- no descriptors --------------------------------------------------------------------------------------------------------
# The soft limit under which so many numbers are free.
limit_for() { # FREE
    python3 - "$gateway" "$1" <<'END'
import os, sys
used = {int(name) for name in os.listdir(f"/proc/{sys.argv[1]}/fd")}
print([number for number in range(len(used) + int(sys.argv[2]) + 1) if number not in used][int(sys.argv[2])])
END
}
soft=$(awk '/^Max open files/ {print $4}' "/proc/$gateway/limits")
hold() { "${unprivileged[@]}" prlimit --pid "$gateway" --nofile="$1:"; }
hold "$(limit_for 0)"
fetch http://allowed.example/hello >waiting.out &
waiting=$!
sleep 2.5
check "without a descriptor a client waits" kill -0 $waiting
equal "and has nothing" '' "$(cat waiting.out)"
hold "$soft"
wait $waiting
equal "until there is one" 'hello from the internet' "$(cat waiting.out)"
sleep 0.5 # its connection is closed
hold "$(limit_for 1)"
fetch http://allowed.example:8080/keep/1 >single.json
hold "$soft"
equal "with one only, for the client: refused" resolve-failed "$(json 'd["rule"]' <single.json)"
check "and recorded" eventually records resolve-failed False 1
equal "all is well again" 'hello from the internet' "$(fetch https://allowed.example/hello)"

# ---- hosts that stall --------------------------------------------------------------------------------------------------------
rule_of https://allowed.example:8501/ >deaf.rule &
rule_of http://hole.example/ >hole.rule &
rule_of http://silent.example/ >silent.rule &
for fault in stall stall-half; do
    equal "a host that stalls ($fault): its client waits until it has enough" 28 \
        "$(fetch --max-time 2 -o $fault.out http://allowed.example:8080/$fault; echo $?)"
    check "the host had the request" grep -q "GET /$fault " odd.log
done
equal "what had come of the answer was passed on at once" 500 "$(wc -c <stall-half.out)"
rule_of -d "$(head -c 50000 /dev/zero | tr '\0' a)" http://allowed.example:8080/reset >upload.rule
equal "a host that resets in the middle of an upload" bad-response "$(cat upload.rule)"

# ---- hosts that stop in the middle or lie about lengths ------------------------------------------------------------------------
for fault in half half-close half-reset half-chunk bad-chunk long-chunk; do
    check "no success: $fault" test "$(ends http://allowed.example:8080/$fault)" -gt 0
done
equal "a length beyond measure" bad-response "$(rule_of http://allowed.example:8080/huge)"
equal "two lengths" bad-response "$(rule_of http://allowed.example:8080/both)"
equal "some interim answers" "at last" "$(fetch http://allowed.example:8080/interim/20)"
equal "interim answers without end" bad-response "$(rule_of http://allowed.example:8080/interim/5000)"
equal "more than was announced is not passed on" one "$(fetch http://allowed.example:8080/more)"
check "they are recorded" eventually records bad-response False 1

# ---- those that took their time --------------------------------------------------------------------------------------------------
for kind in deaf:tls-failed hole:connect-failed silent:resolve-failed; do
    has_rule() { [ -s "${kind%:*}.rule" ]; }
    for _ in 1 2 3 4 5; do
        eventually has_rule >/dev/null && break
    done
    equal "a refusal after all: ${kind%:*}" "${kind#*:}" "$(cat "${kind%:*}.rule")"
    check "and a record" eventually records "${kind#*:}" False 1
done

wait $left
equal "a client that ended its direction is not waited with for ever" "504 0 1 end" "$(cat left.out)"
wait $left_half
equal "nor in the middle of an answer, which is cut then" "200 0 0 ConnectionResetError" "$(cat left-half.out)"

# ---- no orchestrator -------------------------------------------------------------------------------------------------------------
fetch -N https://allowed.example/drip/2000 >drip.out &
drip=$!
check "a long answer begins" eventually grep -q 'drip 1' drip.out
kill -KILL $orchestrator
wait $orchestrator 2>/dev/null
equal "without an orchestrator a known agent goes on" 'hello from the internet' "$(fetch https://allowed.example/hello)"
equal "an unknown one does not" 503 "$(in_agent two curl -s -o /dev/null -w '%{http_code}' --max-time 30 -H 'Host: allowed.example' http://10.243.0.8/)"
is_refused() { [ "$(rule_of http://allowed.example/hello 2>/dev/null)" = orchestrator-unreachable ]; }
for _ in $(seq 20); do
    eventually is_refused >/dev/null && break
done
check "after its time the known one neither" is_refused
wait $drip
check "and what was open is cut, not ended" test $? -gt 0
check "in the middle" not grep -q 'drip 1999' drip.out
orchestrator_start
is_well() { [ "$(fetch https://allowed.example/hello)" = 'hello from the internet' ]; }
check "with an orchestrator all is well again" eventually is_well
check "and it hears of what was refused meanwhile" eventually records orchestrator-unreachable False 1

# ---- few places: 200 connections, 200 to hosts ------------------------------------------------------------------------------------
kill -TERM "$gateway"
wait "$gateway"
roomy=("${unprivileged[@]}")
unprivileged=(prlimit --nofile=920 "${roomy[@]}")
gateway_start gateway.json
unprivileged=("${roomy[@]}")
check "a gateway with few descriptors" eventually is_well
hoarder=$root/tests/lib/gateway_hoarder.py
in_agent internet ip addr add 203.0.113.22/32 dev lo
in_agent internet "$hoarder" host 203.0.113.22 origin.pem >hoard.out &
check "a host without end" eventually grep -q ready hoard.out
register second 4 11 token-two '{"host": "hoard.example"}' >/dev/null
patiently() { for _ in $(seq 9); do eventually "$@" && return; done; }
too_many() { # REASON
    [ "$(api GET 'decisions?limit=1000&slot=4' | json "any(r['rule'] == 'too-many' and '$1' in r['reason'] for r in d['decisions'])")" = True ]
}
crowd() { # MODE CONNECTIONS REASON
    local hoarding go
    mkfifo "go-$1"
    exec {go}<>"go-$1"
    in_agent two "$hoarder" "$1" 10.243.0.8 hoard.example "$2" authority.pem <"go-$1" >"hoard-$1" &
    hoarding=$!
    check "who takes all there is ($1) is refused some, with a record" patiently too_many "$3"
    equal "another agent has all of its requests answered" 9 "$(for _ in $(seq 9); do fetch https://allowed.example/hello; done | grep -c hello)"
    echo >&"$go"
    wait $hoarding
    note "$1: $(cat "hoard-$1")"
}
crowd idle 190 "of all agents"
equal "in words, and no connection ended as if all were well" "True 0" "$(json 'd["refused"] > 0, d["ended"]' <hoard-idle | tr -d '(,)')"
crowd streams 2 "connections to hosts"

gateway_world_end >end.log
equal "both programs end clean, without a word" "0 " "$? $(cat end.log)"
[ "$TAP_FAILED" = 0 ] || sed 's/^/# /' gateway.log orchestrator.log | tail -40
finish
