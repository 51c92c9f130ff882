#!/usr/bin/env bash
# Credentials and rules about requests, as a user meets them: what is missing is said before the launch, the agent works
# without ever having the value, changes reach it while it runs, and every refusal explains itself.
# variants: qemu runc runsc
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

config=/home/1000/.config/berth
cat >$config/bottles/api.yaml <<END
egress:
  routes:
    - host: api.allowed.example
      methods: [GET]
      paths: [/bytes/*]
      auth: {scheme: bearer, from: example}
      log: 2
    - host: www.allowed.example
      dlp: {outbound: supervise}
    - host: allowed.example
$WORLD_RESOURCES
END
printf -- '---\nharness: shell\nbottle: api\n---\n' >$config/agents/api.md
chown -R 1000:1000 $config

value=value-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
other=value-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
set_credential() { printf '%s\n' "$1" | as 1000 berth credential set example; }
# The Authorization of the last request for a path that reached the internet.
seen() {
    python3 - "$1" "$WORLD/internet/requests" <<'END'
import json, sys
last = "none"
for line in open(sys.argv[2]):
    entry = json.loads(line)
    if entry["event"] == "request" and entry["path"] == sys.argv[1]:
        last = entry["headers"].get("Authorization", entry["headers"].get("authorization", "none"))
print(last)
END
}

check_status "without the credential nothing is started" 1 "berth credential set example" berth spawn api --background
equal "and nothing is left" 0 "$(berth list --json | json 'len(d["agents"])')"
check_status "too short a value is refused" 1 "shorter ones could not be" set_credential short
check_status "a value on the command line is refused" 64 "never from here" berth credential set example "$value"
check "a value from a pipe" set_credential "$value"
check "is not readable by others" test "$(stat -c %a /home/1000/.local/state/berth/credentials/example)" = 600
check "the agent starts" berth spawn api --name one --background

inside() { berth exec one -- "$@"; }
equal "a request with the credential" bbb "$(inside curl -sSf --max-time 30 https://api.allowed.example/bytes/3)"
equal "which the internet received" "Bearer $value" "$(seen /bytes/3)"
check "a program without any variable trusts the gateway" inside env -i /usr/bin/curl -sSf --max-time 30 -o /dev/null \
    https://allowed.example/bytes/1
has() { # TEXT: where the agent could find it
    inside sh -c "(env | grep -q -- $1 || grep -rsq -- $1 /run/berth /etc /home /tmp /workspace /proc/self/environ \
        /proc/[0-9]*/environ) && echo found || echo nowhere"
}
inside sh -c 'echo planted-in-a-file >/home/agent/planted'
equal "what is in a file of the agent's is found" found "$(has planted-in-a-file)"
equal "the agent has the value nowhere" nowhere "$(has "$value")"
check "but a bait" inside sh -c 'test ${#BACKUP_ACCESS_TOKEN} = 64'

rule() { inside curl -sS --max-time 30 "$@" | json 'd["rule"]'; }
equal "another path is refused" path-not-allowed "$(rule https://api.allowed.example/hello)"
equal "another method is refused" method-not-allowed "$(rule -X POST https://api.allowed.example/bytes/3)"
check_status "why says the same" 0 "path-not-allowed" berth why https://api.allowed.example/hello --agent one
check_status "and which credential goes with what is allowed" 0 "credential +example" \
    berth why https://api.allowed.example/bytes/3 --agent one
check "the records have the refusals" eventually sh -c \
    "setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/1000 /opt/source/build/berth logs --network one --blocked | grep -q path-not-allowed"
berth logs --network one --json >"$WORLD/logs.json"
equal "and what was allowed, with its path" True \
    "$(json 'any(r["allowed"] and r.get("path") == "/bytes/3" and r["granted_by"] == "bottle api" for r in d["decisions"])' <"$WORLD/logs.json")"
check "but no value" not grep -q "$value" "$WORLD/logs.json"

# A request that waits for its owner, who is asked through the real command.
token=ghp"_$(od -An -N18 -tx1 /dev/urandom | tr -d ' \n')"
ask() { inside curl -sS --max-time 120 -d "key=$token" https://www.allowed.example/mirror >"$WORLD/$1.out" 2>&1 & }
number() { berth approvals list --json | json 'd["approvals"][0]["number"]'; }
is_waiting() { [ "$(berth approvals --json | json 'len(d["approvals"])')" = 1 ]; }
check_status "nothing waits yet" 0 "no request waits" berth approvals
ask allowed
check "a request with a token waits" eventually is_waiting
check_status "list says so" 0 "1 request waits for you: berth approvals list" berth list
equal "and in its document" 1 "$(berth list --json | json 'd["approvals"]')"
doctor_says_so() { [[ $(berth doctor) == *"1 request waits for you"* ]]; }
check "doctor, too" doctor_says_so
check_status "it is shown with what was found" 0 "a GitHub token" berth approvals list
check_status "one by one" 0 "www.allowed.example, port 443" berth approvals show "$(number)"
check "without the token" sh -c "! setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/1000 /opt/source/build/berth approvals list --json | grep -q '${token#ghp_}'"
equal "its number is completed" "$(number)" "$(berth complete approvals allow '')"
check_status "a wrong number" 64 "is not the number" berth approvals allow one
check_status "another number" 4 "no request 999999 waits" berth approvals deny 999999
check_status "--remember goes with allow" 64 "goes with allow" berth approvals deny "$(number)" --remember
check_status "the owner allows it" 0 "request [0-9]+ of one is allowed" berth approvals allow "$(number)"
wait $!
equal "it goes on" "key=$token" "$(cat "$WORLD/allowed.out")"
ask denied
check "the next one waits again" eventually is_waiting
check_status "the owner refuses it" 0 "request [0-9]+ of one is refused" berth approvals deny "$(number)"
wait $!
equal "the agent is told which rule that was" approval:denied "$(json 'd["rule"]' <"$WORLD/denied.out")"
gateway=$(inside sh -c 'echo ${https_proxy%:*}' | sed 's|^http://.*@|http://|')
equal "its gateway is known by its address" 0 "$([[ $gateway =~ ^http://[0-9.]+$ ]]; echo $?)"
check "the agent itself reaches nobody to answer" inside sh -c "! curl -s --max-time 5 --noproxy '*' $gateway:7400/v1/health"
check_status "the trail has both" 0 "approval-allow" berth audit
check_status "and nothing of the token" 1 "" sh -c "grep -rsq -- '${token#ghp_}' /home/1000/.local/state/berth/audit.jsonl"
is_recorded() { berth logs --network one --json | json 'sorted({r["rule"] for r in d["decisions"] if r["rule"].startswith("approval:")})' | grep -q 'allowed.*denied'; }
check "the records have both, too" eventually is_recorded

check_status "a new value reaches the agent that runs" 0 "agent one has it" set_credential "$other"
has_other() { inside curl -sSf --max-time 30 -o /dev/null https://api.allowed.example/bytes/4 && [ "$(seen /bytes/4)" = "Bearer $other" ]; }
check "within seconds" eventually has_other
check_status "a credential that is removed" 0 "every route that needs it is closed" berth credential rm example
is_closed() { inside curl -sS --max-time 30 -o /dev/null https://api.allowed.example/bytes/5 2>&1 | grep -q 'response 403'; }
check "closes its routes" eventually is_closed
check_status "and can be removed again" 0 "there is no credential example" berth credential rm example
check "and no other" inside curl -sSf --max-time 30 -o /dev/null https://allowed.example/bytes/1
check "no value is in any file but the user's own" not grep -rsq -- "$other" /home/1000/.local/state/berth
check "the agent stops" berth stop one

# ---- a change while an agent starts ----
check "a value" set_credential "$value"
berth spawn api --name two --background >"$WORLD/two" 2>&1 &
spawn=$!
two() { berth list --json | json "[a['$1'] for a in d['agents'] if a['name']=='two'][0]"; }
is_registered() { [ "$(two slot)" -ge 0 ]; }
for _ in $(seq 10); do eventually is_registered >/dev/null && break; done
check "a launch on its way, with what it knows registered" is_registered
check_status "another value tells nobody yet" 0 "is set" set_credential "$other"
wait $spawn
equal "the agent starts" 0 $?
check "and asks" berth exec two -- curl -sSf --max-time 30 -o /dev/null https://api.allowed.example/bytes/6
equal "with the later one" "Bearer $other" "$(seen /bytes/6)"
check "the agent stops" berth stop two
finish
