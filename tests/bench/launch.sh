#!/usr/bin/env bash
# Launch to the first agent command against a bare boot of the same kernel and image to the same SSH command, infra pair
# warm, in one run, round by round in turn. Probe and workspace copy are printed apart.
. "$(dirname "$0")/../lib/world.bash"
world_enter "$@"
world_start || exit 1
rounds=${1:-5}

sed -i 's/^probe:/probe:\n  repeat: always/' /home/1000/.config/berth/config.yaml
as 1000 berth up --quiet
mkdir "$WORLD/bench"
folder() { echo /opt/images/"$1"-*; } # the only one of its name
for round in $(seq "$rounds"); do
    # shellcheck disable=SC2046
    /opt/source/build/bench/bench_boot $(folder kernel)/kernel $(folder kernel)/initrd $(folder shell)/image.ext4 \
        "$WORLD/bench" 1 >>"$WORLD/bare"
    started=$(date +%s%N)
    as 1000 berth spawn dev --name "bench$round" --json --quiet -- date +%s%N </dev/null >"$WORLD/launch.$round" || exit 1
    echo "$started" >"$WORLD/started.$round"
    as 1000 berth rm "bench$round" --yes --quiet </dev/null >/dev/null
done
as 1000 berth down --quiet
python3 - "$WORLD" "$rounds" <<'PY'
import json, statistics, sys
world, rounds = sys.argv[1], int(sys.argv[2])
bare = [float(line) for line in open(f"{world}/bare")]
steps, launches = {}, []
for i in range(1, rounds + 1):
    document = json.loads(open(f"{world}/launch.{i}").read())
    for step in document["steps"]:
        steps.setdefault(step["step"], []).append(step["ms"])
    apart = ("probe", "workspace", "workspace-base")
    launches.append(sum(s["ms"] for s in document["steps"] if s["step"] not in apart) + document["first_command_ms"])
median = statistics.median
print(f"bare boot to an SSH command     median {median(bare):7.0f} ms   (min {min(bare):.0f}, max {max(bare):.0f}, {rounds} rounds)")
print(f"berth launch to the same        median {median(launches):7.0f} ms   (min {min(launches):.0f}, max {max(launches):.0f})")
print(f"ratio                           {median(launches) / median(bare):14.2f}   (goal: at most 1.25)")
print("steps of the launch, median ms:")
for name, values in steps.items():
    print(f"  {name:16} {median(values):8.1f}" + ("   (apart)" if name in ("probe", "workspace", "workspace-base") else ""))
PY
