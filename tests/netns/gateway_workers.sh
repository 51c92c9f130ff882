#!/bin/bash
# A gateway of three processes: who takes connections, what they have in common, what their ends mean.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
GATEWAY_WORKERS=3
gateway_world_start "$@"
token=workers-token-of-agent-one
register one 3 5 $token '{"host": "allowed.example", "tls": "pass"}' >/dev/null
proxy="http://agent:$token@10.243.0.6:8119"

workers() { cat "/proc/$gateway/task/$gateway/children"; }
count_workers() { workers | wc -w; }
equal "one process watches three" 3 "$(count_workers)"
for pid in $gateway $(workers); do
    check "process of the service's user: $(sed -n 's/^Uid:\t\([0-9]*\).*/\1/p' "/proc/$pid/status")" \
        grep -q '^Uid:.900.900.900.900' "/proc/$pid/status"
done

# ---- everybody takes connections: each of these stays open until all are there --------------------------------------------
cat >hold.py <<'END'
import base64, socket, ssl, sys
token, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
credentials = base64.b64encode(f"agent:{token}".encode()).decode()
context = ssl.create_default_context(cafile="ca.pem")
held = []
for _ in range(count):
    stream = socket.create_connection(("10.243.0.6", 8119), 30)
    stream.sendall(f"CONNECT {target}:443 HTTP/1.1\r\nHost: {target}:443\r\n"
                   f"Proxy-Authorization: Basic {credentials}\r\n\r\n".encode())
    assert stream.recv(4096).startswith(b"HTTP/1.1 200")
    held.append(context.wrap_socket(stream, server_hostname=target))
print("held", len(held), flush=True)
sys.stdin.readline()
ended = 0
for stream in held:
    try:
        ended += stream.recv(4096) == b""
    except TimeoutError:
        pass
    except OSError:
        ended += 1
print("ended", ended, flush=True)
END
mkfifo hold.go
exec {hold}<>hold.go
in_agent one python3 hold.py $token allowed.example 60 <hold.go >held &
holder=$!
check "sixty tunnels at once" eventually grep -qx "held 60" held
sockets() { for pid in $(workers); do find "/proc/$pid/fd" -lname 'socket:*' | wc -l; done | paste -sd' '; }
note "sockets of each worker: $(sockets)"
spread() { sockets | tr ' ' '\n' | sort -n | sed -n '2p'; }
check "at least two of them hold some" test "$(spread)" -gt 20

# ---- a change reaches the connections of all ---------------------------------------------------------------------------------
api DELETE agents/3/5 >/dev/null
sleep 3
echo >&"$hold"
wait $holder
equal "the agent's end is the end of every tunnel" "ended 60" "$(tail -1 held)"

# ---- what they have in common --------------------------------------------------------------------------------------------------
register one 3 6 $token '{"host": "allowed.example"}' >/dev/null
fetch() { in_agent one curl -s --cacert authority.pem --proxy "$proxy" --max-time 20 "https://allowed.example/hello"; }
twelve() {
    local fetchers=()
    : >answers
    for _ in $(seq 12); do
        fetch >>answers &
        fetchers+=($!)
    done
    wait "${fetchers[@]}"
    [ "$(grep -c 'hello from the internet' answers)" = 12 ]
}
# Each worker may believe for a moment that nobody is registered, as it was told last.
check "twelve requests at once" eventually twelve
allowed() { [ "$(api GET counters/3 | json 'd["allowed"]')" -ge "$1" ]; }
check "their decisions are counted together" eventually allowed 12
leaf_key() {
    in_agent one openssl s_client -connect 10.243.0.6:443 -servername allowed.example </dev/null 2>/dev/null |
        openssl x509 -noout -pubkey | sha256sum
}
equal "the leaves' key is one" 1 "$(for _ in $(seq 12); do leaf_key; done | sort -u | wc -l)"
resumed() { # how many of N connections were taken up again with the ticket of the first
    in_agent one openssl s_client -tls1_2 -connect 10.243.0.6:443 -servername allowed.example -sess_out ticket </dev/null >/dev/null 2>&1
    for _ in $(seq "$1"); do
        in_agent one openssl s_client -tls1_2 -connect 10.243.0.6:443 -servername allowed.example -sess_in ticket </dev/null 2>/dev/null |
            grep '^Reused'
    done | wc -l
}
equal "a ticket is good at any of them" 8 "$(resumed 8)"

# ---- whom one of them has served, all know when the orchestrator goes ------------------------------------------------------------
register two 4 7 token-of-agent-two '{"host": "allowed.example"}' >/dev/null
fetch_as_two() {
    in_agent two curl -s --cacert authority.pem --proxy "http://agent:token-of-agent-two@10.243.0.8:8119" --max-time 5 \
        "https://allowed.example/hello"
}
check "an agent is served once" eventually fetch_as_two
sleep 1 # they tell each other within an answer of the orchestrator, which is what takes time
kill -KILL "$orchestrator"
wait "$orchestrator" 2>/dev/null
equal "without an orchestrator each of its 24 new connections is served" 24 \
    "$(for _ in $(seq 24); do fetch_as_two; done | grep -c 'hello from the internet')"
orchestrator_start
check "with one all goes on" eventually gateway_is_seen
register one 3 6 $token '{"host": "allowed.example"}' >/dev/null

# ---- ends -------------------------------------------------------------------------------------------------------------------------
kill -TERM "$gateway"
wait "$gateway"
equal "SIGTERM ends all, clean" 0 $?
equal "and none is left" "" "$(pgrep -u 900 -f berth-gateway)"
gateway_start gateway.json
check "another one comes" eventually gateway_is_seen
three() { [ "$(count_workers)" = 3 ]; }
check "of three" eventually three
before=$(wc -l <gateway.log)
first=$(workers | awk '{print $2}')
kill -KILL "$first"
wait "$gateway"
equal "the end of one is the end of all" 1 $?
equal "which says so" "berth-gateway: a worker was ended by the signal 9" "$(tail -n +$((before + 1)) gateway.log | grep signal)"
equal "and leaves none" "" "$(pgrep -u 900 -f berth-gateway)"
sed -i '/ended by the signal 9/d' gateway.log
gateway_start gateway.json
check "one more" eventually three
watcher=$gateway
children=$(workers)
kill -KILL "$watcher"
wait "$watcher" 2>/dev/null
none_left() { [ -z "$(pgrep -u 900 -f berth-gateway)" ]; }
check "workers end with who watches them" eventually none_left
note "were: $children"
sed 's/"workers": 3/"workers": 9/' gateway.json >many.json
"${unprivileged[@]}" "$bin/berth-gateway" many.json 2>said
equal "too many are refused" "1 berth-gateway: configuration: \"workers\" is not a number from 1 to 8" "$? $(cat said)"
gateway_start gateway.json
check "and the last one" eventually three
gateway_world_end
equal "ends clean" 0 $?
finish
