#!/usr/bin/env bash
# A host with control groups of version 2 and all their controllers, as current distributions have it, and volumes that can
# have a size: every limit of a plan is in the groups of its containers, and holds. The host is a machine of the test's own;
# version 1, and a version 2 that holds nothing, are in docker.sh and docker_errors.sh.
# beside the others: the machine is emulated, and waits for nobody.
export BERTH_TEST_MACHINE=own
. "$(dirname "$0")/../lib/docker_world.bash"

equal "the only control groups are those of version 2" "cgroup2fs 2" \
    "$(stat -f -c %T /sys/fs/cgroup) $(count /info 'd["CgroupVersion"]')"

# ---- nothing is left out, and nothing warned about ----
bottle() { # NAME RESOURCES
    printf 'egress:\n  routes:\n    - host: allowed.example\n%s\n' "$2" >"/home/1000/.config/berth/bottles/$1.yaml"
}
bottle limited "resources: {memory: 512M, cpus: 1, disk: 1G}"
bottle plain ""
launch() { # NAME BOTTLE COMMAND...
    as 1000 berth spawn shell --name "$1" --bottles "$2" "${@:3}" >"$WORLD/said.$1" 2>&1 </dev/null
}
warnings() { grep -E '^(note|warning):' "$WORLD/said.$1"; }
boundary="warning: docker: containers share the kernel of the host: the weakest boundary of berth's backends"
launch one limited --background
equal "an agent whose bottle asks for limits" 0 $?
equal "has them: only the backend is warned about" "$boundary" "$(warnings one)"
[ -z "$(berth list --json | json '"".join(a["name"] for a in d["agents"])')" ] && { cat "$WORLD/said.one"; exit 1; }

# ---- what the kernel was told ----
container() { count /containers/json "[c['Id'] for c in d if c['Labels']['berth.name']=='$1'][0]"; }
group_of() { # NAME: the folder of its container's group
    local pid
    pid=$(count "/containers/$(container "$1")/json" 'd["State"]["Pid"]')
    echo "/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")"
}
limits() { # GROUP
    (cd "$1" && paste -sd' ' memory.max memory.swap.max pids.max cpu.max | paste -sd' ')
}
event() { sed -n "s/^$3 //p" "$1/$2"; } # GROUP FILE EVENT
declare -A group
for name in one gateway orchestrator; do group[$name]=$(group_of $name); done
equal "the agent's group holds what its bottle says" "536870912 0 4096 100000 100000" "$(limits "${group[one]}")"
for name in gateway orchestrator; do
    check "the group of the $name has a limit of each" grep -qE '^[0-9]+ 0 256 [0-9]+ 100000$' <(limits "${group[$name]}")
done

# ---- what the kernel does ----
as 1000 berth cp /opt/source/build/tests/hostile one:/home/agent/hostile >"$WORLD/said" 2>&1 || cat "$WORLD/said"
hostile() { berth exec one -- /home/agent/hostile "$@" 2>&1; }
said=$(hostile memory 700)
equal "who takes more memory is killed" 137 "$?"
check "in the agent's group" test "$(event "${group[one]}" memory.events oom_kill)" -ge 1
check "which never had more than its limit" test "$(cat "${group[one]}/memory.peak")" -le 536870912
equal "nobody is killed in another" "0 0" \
    "$(event "${group[gateway]}" memory.events oom_kill) $(event "${group[orchestrator]}" memory.events oom_kill)"
said=$(hostile processes 5000)
check "processes end at their limit" grep -qE '^processes (40[0-9][0-9]) EAGAIN$' <(echo "$said")
check "which the group held" test "$(event "${group[one]}" pids.events max)" -ge 1
note "$said"
said=$(hostile fill /workspace 1100)
check "the workspace is full at its size" grep -qE '^mebibytes (9[0-9][0-9]|10[0-2][0-9]) (ENOSPC|EDQUOT)$' <(echo "$said")
note "$said"
check "the agent lives on" berth exec one -- true

# ---- an agent whose command takes it all, and one whose bottle asks for nothing ----
# shellcheck disable=SC2016
launch hog limited -- perl -e '$x .= "x" x 1048576 while 1'
equal "a command that takes more memory is the agent's failure" 3 $?
equal "and the agent's row says what ended it" "exited 137" \
    "$(berth list --json | json '["%s %d" % (a["status"], a["exit_status"]) for a in d["agents"] if a["name"] == "hog"][0]')"
check "an agent whose bottle asks for none" launch two plain --background
equal "has the default's limits without a word" "$boundary" "$(warnings two)"
equal "in its group" "2147483648 0 4096 200000 100000" "$(limits "$(group_of two)")"

# ---- and nothing stays ----
for name in one two; do check "stop $name" berth stop $name; done
for name in one two hog; do check "remove $name" berth rm $name --yes; done
check "down" berth down
equal "no group of a container is left" "" "$(find "/sys/fs/cgroup$DOCKER_CGROUP" -mindepth 1 -type d)"
finish
