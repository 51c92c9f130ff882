#!/usr/bin/env bash
# Many agents in containers: twenty launched at once, fifty launched and removed without a trace.
# variants: runc runsc
. "$(dirname "$0")/../lib/docker_world.bash"

leases() { berth status --json | json 'd["helper"]["live"]'; }
seconds() { echo $((($(date +%s%N) - $1) / 1000000000)); }
rules() { helper_rules && ip -o link show type bridge | wc -l; }

check "the pair" berth up
rules >"$WORLD/before"
check "there are rules to compare" [ "$(wc -l <"$WORLD/before")" -gt 200 ]

# ---- twenty at once ----
started=$(date +%s%N)
launches=()
for number in $(seq 20); do
    berth spawn dev --name "many-$number" --background >"$WORLD/spawn-$number" 2>&1 &
    launches+=($!)
done
failed=0
for number in $(seq 20); do
    wait "${launches[number - 1]}" || { failed=$((failed + 1)) && note "$number: $(tail -n 2 "$WORLD/spawn-$number")"; }
done
note "20 launches at once: $(seconds "$started") s"
equal "twenty at once all start" "0 20" "$failed $(listed running)"
equal "each with what it needs, and a lease, beside the pair's" "20 20 60 22" "$(in_engine) $(leases)"
check "the last one works" berth exec many-20 -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
started=$(date +%s%N)
ends=()
for number in $(seq 20); do
    { berth stop "many-$number" && berth rm --yes "many-$number"; } >"$WORLD/stop-$number" 2>&1 &
    ends+=($!)
done
failed=0
for number in $(seq 20); do
    wait "${ends[number - 1]}" || { failed=$((failed + 1)) && note "$number: $(tail -n 2 "$WORLD/stop-$number")"; }
done
equal "twenty at once all stop and are removed" 0 $failed
note "20 stopped and removed: $(seconds "$started") s"

# ---- thirty more, five at a time ----
started=$(date +%s%N)
work() { # FIRST: every fifth
    local number
    for number in $(seq "$1" 5 30); do
        berth spawn dev --name "more-$number" -- true && berth rm --yes "more-$number" || return
    done
}
workers=()
for first in 1 2 3 4 5; do
    work $first >"$WORLD/work-$first" 2>&1 &
    workers+=($!)
done
failed=0
for first in 1 2 3 4 5; do
    wait "${workers[first - 1]}" || { failed=$((failed + 1)) && note "$(tail -n 2 "$WORLD/work-$first")"; }
done
note "30 launched, five at a time, run and removed: $(seconds "$started") s"
equal "thirty more come and go" 0 $failed
equal "fifty leave no container, network or volume, and no lease but the pair's" "0 0 0 2" "$(in_engine) $(leases)"
equal "nor a rule or a bridge" "" "$(rules | diff "$WORLD/before" -)"
equal "nor a row or a folder" "0 " "$(berth list --json | json 'len(d["agents"])') $(ls /home/1000/.local/state/berth/env/live/agents)"
check "down" berth down
finish
