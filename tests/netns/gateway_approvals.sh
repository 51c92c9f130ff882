#!/bin/bash
# Requests that wait for their owner's word, with real clients: held, allowed, refused, expired, given up, too many. Nobody but
# the owner can answer, and nothing that is asked about is in any question, record or answer.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
gateway_world_start "$@"

# Nothing in this file looks like a secret: they are made here.
make_token() { echo ghp"_$(openssl rand -hex 18)"; }
token=$(make_token)
second=$(make_token)
credential=$(openssl rand -base64 30)
register one 3 7 token-one '
    {"host": "api.allowed.example", "dlp": {"outbound": "supervise", "entropy": "warn"}, "log": 2},
    {"host": "www.allowed.example", "dlp": {"outbound": "off", "entropy": "warn"}},
    {"host": "allowed.example"}' \
    "\"credentials\": {\"origin\": \"$credential\"}, \"credential_key\": \"$(openssl rand -hex 32)\"" >/dev/null
register two 4 8 token-two '{"host": "api.allowed.example", "dlp": {"outbound": "supervise"}}' >/dev/null
post() { fetch -H 'Content-Type: text/plain' --data-binary "$@"; }
waiting() { [ "$(api GET approvals | json 'len(d["approvals"])')" = "$1" ]; }
newest() { api GET approvals | json 'd["approvals"][-1]["number"]'; }
answer() { api PUT "approvals/$1" "{\"answer\": \"$2\"${3:+, \"remember\": true}}"; }
arrived() { grep -c "\"path\": \"$1\"" internet.log; }
held='' # of the client that waits
# In the background, with what came in NAME.out, until NAME is told to have ended by `wait`.
start() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >"$name.out" 2>&1 &
    eval "$name=$!"
}

# ---- one that is allowed ----------------------------------------------------------------------------------------------
printf 'before %s behind' "$token" >body
start held post @body "https://api.allowed.example/mirror?key=none"
check "a request with a token waits" eventually waiting 1
api GET approvals >question.json
equal "its owner sees whose it is, where it goes, and what was found" \
    "one api.allowed.example 443 POST /mirror body dlp:github-token ghp_**************** 0" \
    "$(json '" ".join(str(x) for a in d["approvals"] for x in (a["agent"], a["host"], a["port"], a["method"], a["path"], a["place"],
        a["finds"][0]["rule"], a["finds"][0]["excerpt"], a["more"]))' <question.json)"
equal "and neither the token nor any part of it" 0 "$(grep -c "${token:4:6}\|${token: -6}" question.json)"
equal "nor a digest that could be tried against" 0 \
    "$(grep -cF -e "$(digest "$token")" -e "$(digest "${token#ghp_}")" question.json)"
equal "nothing was sent meanwhile" 0 "$(arrived '/mirror')"
equal "the owner allows it" '{}' "$(answer "$(newest)" allow)"
wait "$held"
equal "and it goes on, whole" "$(cat body)" "$(cat held.out)"
check "the record says who let it pass" eventually records approval:allowed True 1
equal "an answer is given once" 404 \
    "$(curl -s -o /dev/null -w '%{http_code}' -X PUT -H "Authorization: Bearer $host_key" -d '{"answer": "allow"}' \
        "http://127.0.0.1:7400/v1/approvals/$(json 'd["approvals"][0]["number"]' <question.json)")"
start held post @body https://api.allowed.example/mirror
check "the next one with the same token waits again" eventually waiting 1

# ---- denied ---------------------------------------------------------------------------------------------------------------
before=$(arrived '/mirror')
answer "$(newest)" deny >/dev/null
wait "$held"
equal "a request that is denied is refused by name" approval:denied "$(rule <held.out)"
check "and says what to do" grep -q 'take it out of the request' held.out
equal "it did not go out" "$before" "$(arrived '/mirror')"
check "and is a record" eventually records approval:denied False 1

# ---- in the head; in the path ------------------------------------------------------------------------------------------------
start held fetch -H "X-Note: $token" "https://api.allowed.example/echo/$token/x?q=$token"
check "one in the head waits" eventually waiting 1
equal "the path is shown without it" "/echo/ghp_$(printf '%38s' '' | tr ' ' '*') head" \
    "$(api GET approvals | json 'd["approvals"][0]["path"] + " " + d["approvals"][0]["place"]')"
answer "$(newest)" allow >/dev/null
wait "$held"
check "allowed, it goes on" grep -q "\"x-note\": \"$token\"" internet.log
start held fetch "https://api.allowed.example/%67hp_${token#ghp_}"
check "one in another spelling waits, too" eventually waiting 1
equal "and its path is not shown" "" "$(api GET approvals | json 'd["approvals"][0]["path"]')"
answer "$(newest)" deny >/dev/null
wait "$held"

# ---- one yes, one value ---------------------------------------------------------------------------------------------------------
{ cat body; head -c 100000 /dev/zero | tr '\0' 'a'; printf ' %s' "$second"; } >two
start held post @two https://api.allowed.example/mirror
check "a body with two tokens waits for the first one" eventually waiting 1
first=$(newest)
answer "$first" allow >/dev/null
asked_again() { [ "$(newest)" -gt "$first" ] 2>/dev/null; }
check "and then for the second one" eventually asked_again
answer "$(newest)" allow >/dev/null
wait "$held"
equal "both allowed, it goes on" "$(sha256sum <two)" "$(sha256sum <held.out)"
printf '%s and %s' "$token" "$second" >both
start held post @both https://api.allowed.example/mirror
check "two tokens that come together are one question" eventually waiting 1
equal "which names both" 2 "$(api GET approvals | json 'len(d["approvals"][0]["finds"])')"
answer "$(newest)" allow >/dev/null
wait "$held"
equal "and one answer" "$(cat both)" "$(cat held.out)"
seq 17 | while read -r _; do make_token; done >many
equal "more than can be asked about are refused at once" approval:too-many "$(post @many https://api.allowed.example/mirror | rule)"

# ---- compressed, chunked, large, waiting for leave -------------------------------------------------------------------------------
gzip -c body >body.gz
start held fetch -H 'Content-Encoding: gzip' --data-binary @body.gz https://api.allowed.example/mirror
check "a compressed one waits" eventually waiting 1
answer "$(newest)" allow >/dev/null
wait "$held"
equal "and goes on as it came" "$(sha256sum <body.gz)" "$(sha256sum <held.out)"
{ cat body; head -c 3000000 /dev/urandom | base64; } >large
start held post @large -H 'Expect: 100-continue' -H 'Transfer-Encoding: chunked' https://api.allowed.example/mirror
check "a large one waits" eventually waiting 1
held_at=$(resident VmRSS)
sleep 1
check "and what is behind the token stays with its sender" test $(($(resident VmRSS) - held_at)) -lt 1000
answer "$(newest)" allow >/dev/null
wait "$held"
equal "allowed, all of it arrives" "$(sha256sum <large)" "$(sha256sum <held.out)"

# ---- HTTP/2: one stream waits, the others go on -------------------------------------------------------------------------------------
parallel() {
    fetch -Z --no-progress-meter --http2 -o h2.held -w 'connections %{num_connects}\n' --data-binary @body https://api.allowed.example/mirror \
        --next -s --max-time 120 --cacert authority.pem -x $proxy --http2 -o h2.quick -w 'connections %{num_connects}\n' \
        https://api.allowed.example/hello
}
start held parallel
check "a stream waits" eventually waiting 1
check "another one of its connection does not" eventually grep -q 'hello from the internet' h2.quick
check "though the first still waits" waiting 1
answer "$(newest)" allow >/dev/null
wait "$held"
equal "then it goes on" "$(cat body)" "$(cat h2.held)"
equal "they were one connection" "connections 0 connections 1" "$(grep -o 'connections .' held.out | sort | tr '\n' ' ' | sed 's/ $//')"

# ---- in trailers, behind a body -------------------------------------------------------------------------------------------------------
cat >trailers.py <<'END'
import base64, socket, sys
stream = socket.create_connection(("10.243.0.8", 8119), 30)
stream.settimeout(120)
token = base64.b64encode(b"agent:token-two").decode()
stream.sendall(f"POST http://api.allowed.example/trailed HTTP/1.1\r\nHost: api.allowed.example\r\nConnection: close\r\n"
               f"Proxy-Authorization: Basic {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
               f"5\r\nhello\r\n0\r\nX-Note: {sys.argv[1]}\r\n\r\n".encode())
answer = b""
while part := stream.recv(65536):
    answer += part
print(answer.decode().replace("\r\n", "|"))
END
start held in_agent two python3 trailers.py "$token"
check "one in the trailers waits" eventually waiting 1
answer "$(newest)" deny >/dev/null
wait "$held"
check "denied, it is refused by name" grep -q '^HTTP/1.1 403 .*"approval:denied"' held.out
equal "and nothing of it went out" 0 "$(arrived '/trailed')"
start held in_agent two python3 trailers.py "$token"
check "it waits again" eventually waiting 1
answer "$(newest)" allow >/dev/null
wait "$held"
check "allowed, it is answered" not grep -q '^HTTP/1.1 403' held.out
equal "by the host" 1 "$(arrived '/trailed')"

# ---- given up, ended, too many -------------------------------------------------------------------------------------------------------
# shellcheck disable=SC2016 # the inner shell's
start held in_agent one bash -c 'echo $$ >client.pid; exec curl "$@"' curl -s --cacert authority.pem -x $proxy --data-binary @body \
    https://api.allowed.example/mirror
check "a client waits" eventually waiting 1
kill "$(cat client.pid)"
wait "$held"
check "when it gives up, its question is gone" eventually waiting 0
before=$(arrived '/mirror')
for number in 1 2 3 4; do start "held$number" post @body https://api.allowed.example/mirror; done
check "four of an agent wait" eventually waiting 4
equal "the fifth is refused by name" approval:too-many "$(post @body https://api.allowed.example/mirror | rule)"
start other in_agent two curl -s --max-time 120 --cacert authority.pem -x http://agent:token-two@10.243.0.8:8119 --data-binary @body \
    https://api.allowed.example/mirror
check "another agent can still ask" eventually waiting 5
equal "and harmless requests pass" 'hello from the internet' "$(fetch https://api.allowed.example/hello)"
api DELETE agents/3/7 >/dev/null
check "an agent that ends takes its questions with it" waiting 1
# shellcheck disable=SC2154 # set by start
for number in "$held1" "$held2" "$held3" "$held4"; do wait "$number"; done
equal "its requests end and reach nobody" "$before" "$(arrived '/mirror')"
equal "the other's question is still there" two "$(api GET approvals | json 'd["approvals"][0]["agent"]')"

# ---- nobody else answers ---------------------------------------------------------------------------------------------------------------
number=$(newest)
jwt=$(curl -s -d "{\"secret\": \"$secret\"}" http://127.0.0.1:7400/v1/token | json 'd["token"]')
as_gateway() { curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $jwt" "$@"; }
equal "the gateway's token is one" 200 "$(as_gateway -d '[]' http://127.0.0.1:7400/v1/counters)"
equal "it answers no question" 401 "$(as_gateway -X PUT -d '{"answer": "allow"}' "http://127.0.0.1:7400/v1/approvals/$number")"
equal "and sees none" 401 "$(as_gateway http://127.0.0.1:7400/v1/approvals)"
equal "the owner's key asks none" 401 \
    "$(curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $host_key" -d '{}' http://127.0.0.1:7400/v1/approvals)"
equal "without any, nothing" 401 "$(curl -s -o /dev/null -w '%{http_code}' -X PUT -d '{"answer": "allow"}' "http://127.0.0.1:7400/v1/approvals/$number")"
check "an agent does not reach that port" not in_agent two curl -s --max-time 2 http://10.243.0.8:7400/v1/health
equal "nor through its gateway" ip-literal \
    "$(in_agent two curl -s -x http://agent:token-two@10.243.0.8:8119 http://127.0.0.1:7400/v1/health | rule)"
check "the question still waits" waiting 1
equal "an answer that is none" 400 "$(curl -s -o /dev/null -w '%{http_code}' -X PUT -H "Authorization: Bearer $host_key" -d '{"answer": "yes"}' \
    "http://127.0.0.1:7400/v1/approvals/$number")"

# ---- the orchestrator starts anew ---------------------------------------------------------------------------------------------------------
restart() {
    kill -TERM "$orchestrator"
    wait "$orchestrator"
    orchestrator_start
}
restart
# shellcheck disable=SC2154 # set by start
wait "$other"
equal "who waited then is refused" approval:unavailable "$(rule <other.out)"
check "the pair is whole again" eventually gateway_is_seen
routes='{"host": "api.allowed.example", "dlp": {"outbound": "supervise"}},
    {"host": "www.allowed.example", "dlp": {"outbound": "off", "entropy": "warn"}}'
register one 3 9 token-three "$routes" >/dev/null
proxy=http://agent:token-three@10.243.0.6:8119
start held post @body https://api.allowed.example/mirror
check "another question comes" eventually waiting 1
check "its number is no earlier one's" test "$(newest)" -gt "$number"

# ---- remembered until the agent ends -----------------------------------------------------------------------------------------------------
equal "the owner allows this value for good" '{}' "$(answer "$(newest)" allow remember)"
wait "$held"
equal "it goes on" "$(cat body)" "$(cat held.out)"
equal "and the next one without a question" "$(cat body)" "$(post @body https://api.allowed.example/mirror)"
check "which is a record" eventually records approval:remembered True 1
start held post "$second" https://api.allowed.example/mirror
check "another value waits" eventually waiting 1
answer "$(newest)" deny >/dev/null
wait "$held"
register one 3 10 token-four "$routes" >/dev/null
proxy=http://agent:token-four@10.243.0.6:8119
start held post @body https://api.allowed.example/mirror
check "the slot's next agent is asked for" eventually waiting 1
answer "$(newest)" deny >/dev/null
wait "$held"

# ---- what looks random ----------------------------------------------------------------------------------------------------------------------
before=$(decision dlp:entropy True)
random=$(for _ in 1 2 3 4; do openssl rand -base64 30; done)
equal "text that looks random passes" "$random" "$(post "$random" https://www.allowed.example/mirror)"
check "with a record" eventually records dlp:entropy True $((before + 1))
post "a request about nothing in particular, 2026-01-01 $(openssl rand -hex 32)" https://www.allowed.example/mirror >/dev/null
equal "a token where dlp is off passes, as before" "$token" "$(post "$token" https://www.allowed.example/mirror)"
post "$random" https://www.allowed.example/mirror >/dev/null
check "the next one is another record" eventually records dlp:entropy True $((before + 2))
equal "prose, dates and hexadecimal digests are none" $((before + 2)) "$(decision dlp:entropy True)"

# ---- nobody answers ----------------------------------------------------------------------------------------------------------------------
sed -i 's/^{/{"approval_seconds": 1, /' orchestrator.json
restart
check "the pair is whole once more" eventually gateway_is_seen
before=$(arrived '/mirror')
equal "after its time a request is refused" approval:expired "$(post @body https://api.allowed.example/mirror | rule)"
check "no question is left" eventually waiting 0
equal "and nothing went out" "$before" "$(arrived '/mirror')"
check "that is a record, too" eventually records approval:expired False 1

equal "no record holds a token" 0 "$(api GET 'decisions?limit=1000' | grep -c "${token#ghp_}\|${second#ghp_}")"
gateway_world_end >end.log
equal "both programs end clean, without a word" "0 " "$? $(cat end.log)"
finish
