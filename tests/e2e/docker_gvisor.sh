#!/usr/bin/env bash
# isolation: gvisor: an agent in a container whose kernel is gVisor's. The engine of this test has it registered.
export BERTH_TEST_RUNTIME=runsc
. "$(dirname "$0")/../lib/docker_world.bash"

config=/home/1000/.config/berth
sed 's/^resources:/isolation: gvisor\nresources:/' $config/bottles/dev.yaml >$config/bottles/apart.yaml
printf -- '---\nharness: shell\nbottle: apart\n---\n' >$config/agents/apart.md
mkdir -p /home/1000/project/sub
echo one >/home/1000/project/file
echo keep >/home/1000/project/sub/keep
chown -R 1000:1000 $config /home/1000/project

check "an agent starts, proved" berth spawn apart --name one --workspace /home/1000/project --background
check_status "its kernel is gVisor" 0 "gVisor" berth exec one -- dmesg
equal "nobody has a capability" 0000000000000000 "$(berth exec one -- sed -n 's/^CapBnd:\t//p' /proc/self/status)"
equal "its root cannot be written" ro "$(berth exec one -- sed -n 's|^[^ ]* / [^ ]* \([^, ]*\).*|\1|p' /proc/mounts)"
check "what is allowed is reached" berth exec one -- curl -sSf --max-time 30 -o /dev/null https://allowed.example/
check_status "what is not is refused" 56 "response 403" berth exec one -- curl -sS --max-time 30 https://other.example/
check_status "nor is there a way around" 7 "" berth exec one -- curl -sS --noproxy '*' --max-time 10 http://203.0.113.10/
equal "standard input, output and the status" "ab 3" \
    "$(printf ab | as 1000 berth exec one -- sh -c 'cat; exit 3') $?"
check "the proof can be asked for again" berth probe one
check "it works" berth exec one -- sh -c 'echo two >/workspace/file && rm /workspace/sub/keep && echo new >/workspace/new'
check "and stops" berth stop one
check "its changes come home" berth apply one --yes
equal "all of them" "two new gone" \
    "$(cat /home/1000/project/file /home/1000/project/new | tr '\n' ' ')$([ -e /home/1000/project/sub/keep ] || echo gone)"
check "rm" berth rm one --yes
check "an agent without it" berth spawn dev --name two --background
equal "has the machine's kernel" "$(uname -r)" "$(berth exec two -- uname -r)"
check "stops" berth stop two
check "down" berth down
finish
