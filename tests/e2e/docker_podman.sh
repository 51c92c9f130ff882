#!/usr/bin/env bash
# podman's service ends by itself when nobody asks it for a while, as Debian starts it: not under a guest. When it is killed its
# agents end, and say why, and go on with their work afterwards.
# variants: podman
export PODMAN_IDLE_SECONDS=5
. "$(dirname "$0")/../lib/docker_world.bash"

is_there() { kill -0 "$DOCKER_PID" 2>/dev/null; }
check "a pair" berth up
sleep 12
check "nobody asks for a while: the service stays" is_there
check "and so does the pair" berth up
check "an agent" berth spawn dev --name worker --background
check "which writes" berth exec worker -- sh -c 'echo kept >/home/agent/kept'
container=$(count /containers/json "[x['Id'] for x in d if x['Labels'].get('berth.name')=='worker'][0]")
process=$(count "/containers/$container/json" 'd["State"]["Pid"]')
check "its first process runs" kill -0 "$process"
kill -KILL "$DOCKER_PID"
wait "$DOCKER_PID" 2>/dev/null
has_ended() { ! kill -0 "$process" 2>/dev/null; }
check "the service is killed: the agent ends" eventually has_ended
says_why() { berth status worker | grep -q 'the container engine was stopped'; }
check "and says why" eventually says_why
equal "none runs" 0 "$(listed running)"
PODMAN_IDLE_SECONDS=0
docker_start_again
check "up" berth up
check "resume" berth resume worker --background
equal "it goes on with what it had" kept "$(berth exec worker -- cat /home/agent/kept)"
check "stop" berth stop worker
check "rm" berth rm worker
check "down" berth down
equal "nothing is left" "0 0 0" "$(in_engine)"
finish
