#!/bin/bash
# Policies on requests, and credentials: what the internet received from real clients behind the gateway, what a refusal
# says, what a change does, and where the values of credentials are not.
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
gateway_world_start "$@"

fetch() { in_agent one curl -s --max-time 10 --cacert authority.pem "$@"; }
policy() { echo "{\"version\": 1, \"routes\": [$1]}"; }
register first 3 11 token-one '{"host": "allowed.example"}' >/dev/null

key=$(openssl rand -hex 32)
first=credential-value-one-$(openssl rand -hex 8)
second=agent:credential-value-two-$(openssl rand -hex 8)
canary=$(openssl rand -hex 20)
rules='{"host": "api.allowed.example", "methods": ["GET", "POST"], "paths": ["/echo", "/upload", "/v1/*"],
        "auth": {"scheme": "header", "header": "x-api-key", "from": "one"}, "log": 2, "granted_by": "bottle dev"},
       {"host": "api.allowed.example", "methods": ["GET"], "paths": ["/hello"], "auth": {"scheme": "bearer", "from": "one"}},
       {"host": "git.allowed.example", "auth": {"scheme": "basic", "from": "two"}, "transparent": "credentials"},
       {"host": "www.allowed.example", "headers": {"x-team": "red"}},
       {"host": "deep.www.allowed.example", "preserve_auth": true},
       {"host": "other.example", "auth": {"scheme": "header", "header": "x-special", "from": "one"}},
       {"host": "narrow.example", "auth": {"scheme": "none", "header": "x-special"}},
       {"host": "allowed.example"}'
credentials() { echo "{\"one\": \"$first\", \"two\": \"$second\"}"; }
register_with() { # ROUTES CREDENTIALS [MEMBERS [KEY]]
    api PUT agents/3/11 "{\"name\": \"first\", \"address\": \"10.243.0.7\", \"gateway_address\": \"10.243.0.6\",
        \"token_sha256\": \"$(digest token-one)\", \"policy\": $(policy "$1"), \"credentials\": $2, \"credential_key\": \"${4:-$key}\",
        \"canary\": \"$canary\"${3:-}}"
}
equal "a credential that a route names must be there" 'the policy names the credential "two", which is not there' \
    "$(register_with "$rules" "{\"one\": \"$first\"}" | json 'd["error"]')"
equal "a value that would be two fields is refused" 400 \
    "$(api PUT agents/3/11 "{\"name\": \"first\", \"address\": \"10.243.0.7\", \"gateway_address\": \"10.243.0.6\", \"token_sha256\":
        \"$(digest token-one)\", \"policy\": $(policy ''), \"credentials\": {\"one\": \"a\\r\\nb: c\"}, \"credential_key\": \"$key\"}" \
        -o /dev/null -w '%{http_code}' | json '400 if "cannot stand in a header field" in d["error"] else d')"
for name in $(printf 'a%.0s' {1..32}) Upper under_score -first; do
    equal "a name that nobody could use is refused: $name" "\"$name\" is not the name of a credential" \
        "$(register_with "" "{\"$name\": \"$first\"}" | json 'd["error"]')"
done
equal "credentials are another version" '{"policy_version":2}' "$(register_with "$rules" "$(credentials)")"
equal "the same again is not" '{"policy_version":2}' "$(register_with "$rules" "$(credentials)")"
# shellcheck disable=SC2030 # a key for this one question
equal "a version that does not rise with a change is refused" '"policy_version" is 2, and the next one of slot 3 is 3' \
    "$(register_with '' "$(credentials)" ', "policy_version": 2' "$(openssl rand -hex 32)" | json 'd["error"]')"
equal "and changes nothing, not even the key" open \
    "$(api GET agents | json '[a["credentials"] for a in d["agents"] if a["slot"] == 3][0]')"
sleep 6 # the gateway asks again every 5 s

# ---- what the internet received ---------------------------------------------------------------------------------------
# The last request for a path as the internet saw it: the value of a field, in lower case names.
seen() { # PATH FIELD
    python3 - "$1" "$2" <<'END'
import json, sys
last = None
for line in open("internet.log"):
    entry = json.loads(line)
    if entry["event"] == "request" and entry["path"].split("?")[0] == sys.argv[1]:
        last = {name.lower(): value for name, value in entry["headers"].items()}
print((last or {}).get(sys.argv[2], "none"))
END
}
api_url=https://api.allowed.example
equal "a request that the first route allows" 200 "$(fetch -x $proxy -o /dev/null -w '%{http_code}' \
    -H 'X-Api-Key: mine' -H 'Authorization: Bearer mine' $api_url/echo?a)"
equal "its credential is there" "$first" "$(seen /echo x-api-key)"
equal "the agent's own is not" none "$(seen /echo authorization)"
fetch -x $proxy -o /dev/null $api_url/hello
equal "the second route's scheme" "Bearer $first" "$(seen /hello authorization)"
fetch -x $proxy -o /dev/null -u mine:mine https://git.allowed.example/hello
equal "basic" "Basic $(printf %s "$second" | base64 -w0)" "$(seen /hello authorization)"
fetch -x $proxy -o /dev/null -H 'Authorization: Bearer mine' -H 'X-Api-Key: mine-too' https://deep.www.allowed.example/bytes/1
equal "preserve_auth keeps the agent's own" "Bearer mine" "$(seen /bytes/1 authorization)"
equal "in whatever field" mine-too "$(seen /bytes/1 x-api-key)"
fetch -x $proxy -o /dev/null -H 'Authorization: Bearer mine' -H 'Private-Token: mine' https://allowed.example/bytes/2
equal "otherwise they are taken out" "none none" "$(seen /bytes/2 authorization) $(seen /bytes/2 private-token)"
fetch --resolve git.allowed.example:443:10.243.0.6 -o /dev/null https://git.allowed.example/bytes/3
equal "transparent, where the route says so" "Basic $(printf %s "$second" | base64 -w0)" "$(seen /bytes/3 authorization)"
fetch --resolve api.allowed.example:443:10.243.0.6 -o /dev/null $api_url/v1/x
equal "and nowhere else" none "$(seen /v1/x x-api-key)"
fetch --resolve other.example:443:10.243.0.6 -o /dev/null -H 'X-Special: mine' https://other.example/bytes/4
equal "the agent's own neither, in the credential's field" "none */*" "$(seen /bytes/4 x-special) $(seen /bytes/4 accept)"
fetch -x $proxy -o /dev/null -H 'X-Special: mine' https://narrow.example/bytes/5
equal "nor where the credential was taken away" "none */*" "$(seen /bytes/5 x-special) $(seen /bytes/5 accept)"
fetch -x $proxy -o /dev/null -H 'X-Special: mine' https://allowed.example/bytes/6
equal "where none was meant it is a field like others" mine "$(seen /bytes/6 x-special)"

# ---- refusals ----------------------------------------------------------------------------------------------------------
refusal() { fetch -x $proxy "$@" | json '"%s|%s" % (d["rule"], d["hint"])'; }
refused_by() { refusal "$@" | cut -d'|' -f1; }
equal "another method" "method-not-allowed|see 'methods' of route 0 (bottle dev), or add a route for it" \
    "$(refusal -X DELETE $api_url/echo)"
equal "HEAD goes with GET" 200 "$(fetch -x $proxy -I -o /dev/null -w '%{http_code}' $api_url/hello)"
equal "another path" path-not-allowed "$(refused_by $api_url/other)"
equal "dot segments" path-ambiguous "$(refused_by --path-as-is $api_url/v1/../other)"
equal "encoded dot segments" path-ambiguous "$(refused_by --path-as-is $api_url/v1/%2e%2e/other)"
equal "an encoded slash" path-ambiguous "$(refused_by $api_url/v1/..%2fother)"
equal "an empty segment" path-ambiguous "$(refused_by $api_url/v1//other)"
check "nothing of them left" not grep -q '/other"' internet.log
equal "without the field" header-not-allowed "$(refused_by https://www.allowed.example/hello)"
equal "with it" 200 "$(fetch -x $proxy -o /dev/null -w '%{http_code}' -H 'X-Team: red' https://www.allowed.example/hello)"
equal "with it twice" header-not-allowed "$(refused_by -H 'X-Team: red' -H 'X-Team: red' https://www.allowed.example/hello)"
equal "a credential never goes in clear" credential-needs-tls "$(refused_by http://api.allowed.example/hello)"
equal "an encoded slash where no route looks at paths" 404 \
    "$(fetch -x $proxy -o /dev/null -w '%{http_code}' https://allowed.example/@scope%2fname)"

# ---- changes -----------------------------------------------------------------------------------------------------------
changed=credential-value-new-$(openssl rand -hex 8)
old=$first first=$changed
equal "a new value is a new version" '{"policy_version":3}' "$(register_with "$rules" "$(credentials)")"
has_new() { fetch -x $proxy -o /dev/null $api_url/v1/new && [ "$(seen /v1/new x-api-key)" = "$changed" ]; }
check "and is sent within seconds" eventually has_new
drip() { fetch -N -x $proxy https://git.allowed.example/drip/300 >drip.out 2>&1; echo $? >drip.status; }
drip &
dripping=$!
sleep 1
register_with '{"host": "api.allowed.example", "auth": {"scheme": "bearer", "from": "one"}}' "{\"one\": \"$first\"}" >/dev/null
wait $dripping
check "a response that is no longer allowed is cut" test "$(cat drip.status)" != 0
check "before its end" not grep -q 'drip 299' drip.out

# Ended and registered again between two questions of the gateway, the same lease has another policy.
equal "another agent" '{"policy_version":1}' "$(register second 4 21 token-two '{"host": "allowed.example"}')"
in_agent two bash -c 'curl -sN --http1.1 --max-time 100 --cacert authority.pem -x http://agent:token-two@10.243.0.8:8119 \
    https://allowed.example/drip/5000 >again.out; echo $? >again.status' &
dripping=$!
check "a long answer begins" eventually grep -q 'drip 1' again.out
api DELETE agents/4/21 >/dev/null
equal "a lease that comes back counts its versions on" '{"policy_version":2}' \
    "$(register second 4 21 token-two '{"host": "other.example"}')"
wait $dripping
check "so that what it may not any more is cut" grep -qxE '18|35|56' again.status
check "in the middle" not grep -q 'drip 4999' again.out

# ---- where the values are not ---------------------------------------------------------------------------------------
register_with "$rules" "$(credentials)" >/dev/null
equal "agents are listed with the state of their credentials" open \
    "$(api GET agents | json '[a["credentials"] for a in d["agents"] if a["slot"] == 3][0]')"
# shellcheck disable=SC2031 # the script's own key
values=("$old" "$changed" "${second#agent:}" "$canary" "$key")
absent() { # FILE...
    local value file
    for file in "$@"; do
        [ -s "$file" ] || { echo "$file is not there, or empty"; return 1; }
    done
    for value in "${values[@]}"; do
        ! grep -aq -- "$value" "$@" || return 1
    done
}
check "what is not there has no values, and proves nothing" not absent nothing
check "no value is on the registry's disk" absent registry/*
check "nor in a log" absent gateway.log orchestrator.log
api GET 'decisions?limit=1000' >decisions.json
api GET agents >agents.json
check "nor in records or lists" absent decisions.json agents.json
check "the path is in the records of log: 2, without its query" grep -q '"path":"/echo"' decisions.json
api GET metrics >metrics.txt
check "counters as Prometheus reads them" grep -qE '^berth_gateway_allowed_total\{agent="first",slot="3"\} [1-9]' metrics.txt
check "of all agents" grep -qE '^berth_agents [1-9]' metrics.txt
equal "every line is a comment or a sample" 0 "$(grep -cvE '^(# (HELP|TYPE) .*|[a-z_]+(\{[^}]*\})? [0-9]+)$' metrics.txt)"
equal "for the host alone" 401 "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:7400/v1/metrics)"
kill -TERM $orchestrator
wait $orchestrator
equal "the orchestrator ends clean" 0 $?
orchestrator_start
check "a restarted orchestrator answers" eventually api GET health
equal "and has the credentials closed" sealed \
    "$(api GET agents | json '[a["credentials"] for a in d["agents"] if a["slot"] == 3][0]')"
kill -TERM $gateway
wait $gateway
equal "the gateway ends clean" 0 $?
gateway_start gateway.json
check "a new gateway finds it" eventually gateway_is_seen
equal "what needs them is refused" credential-unavailable "$(refused_by $api_url/hello)"
equal "what does not is not" 200 "$(fetch -x $proxy -o /dev/null -w '%{http_code}' https://allowed.example/hello)"
register_with "$rules" "$(credentials)" >/dev/null
is_open() { [ "$(fetch -x $proxy -o /dev/null -w '%{http_code}' $api_url/hello)" = 200 ]; }
check "until its keeper registers it again" eventually is_open

gateway_world_end >end.log
equal "both programs end clean, without a word" "0 " "$? $(cat end.log)"
[ "$TAP_FAILED" = 0 ] || sed "s/^/# /" gateway.log orchestrator.log | tail -40
finish
