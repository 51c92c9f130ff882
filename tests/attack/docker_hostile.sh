#!/usr/bin/env bash
# A hostile container: every way out of it that is known, tried from inside as the agent and as root, and judged by what is
# seen outside of it (tests/lib/docker_hostile.py). The attacker is the program of tests/attack/hostile/.
# variants: runc runsc
. "$(dirname "$0")/../lib/docker_world.bash"

# A host with an address of IPv6, since what there is none of cannot be reached either.
ip -6 addr add 2001:db8::2/64 dev uplink nodad
for name in one other; do
    berth spawn dev --name "$name" --background >"$WORLD/said.$name" 2>&1 || { cat "$WORLD/said.$name"; exit 1; }
    as 1000 berth cp /opt/source/build/tests/hostile "$name:/home/agent/hostile" >"$WORLD/said" 2>&1 || { cat "$WORLD/said"; exit 1; }
done
{
    declare -p WORLD_BERTH_ID WORLD_BIN
    declare -f as
    # shellcheck disable=SC2016 # expanded by the script that is written
    echo 'as 1000 berth "$@"'
} >"$WORLD/berth"
python3 /opt/source/tests/lib/docker_hostile.py "${BERTH_TEST_VARIANT:-runc}" "$@"
