#!/usr/bin/env bash
# An engine that dies at each step of a launch and of a stop, and a keeper that does: list tells the truth, cleanup leaves
# nothing. Between berth and the engine stands a socket that kills the engine, or who asks, when a given request comes,
# before it gets there.
export BERTH_TEST_BACKEND=docker
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/engine.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

cat >"$WORLD/killer.py" <<'END_OF_KILLER'
"""Passes connections on to the engine; when a request is as the file "deadly" says, kills the engine or the caller."""
import os, signal, socket, struct, sys, threading
ours, theirs, deadly, pid_file = sys.argv[1:]

def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            end.shutdown(how)
        except OSError:
            pass

def serve(client):
    engine = socket.socket(socket.AF_UNIX)
    try:
        data = client.recv(65536)
        method, path = data.decode(errors="replace").split(" ")[:2]
        words = open(deadly).read().split() if os.path.exists(deadly) else []
        if words and method == words[0] and words[1] in path:
            os.unlink(deadly)
            caller = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            os.kill(caller if words[2] == "caller" else int(open(pid_file).read()), signal.SIGKILL)
        engine.connect(theirs)
        engine.sendall(data)
        back = threading.Thread(target=pump, args=(engine, client))
        back.start()
        pump(client, engine)
        back.join()
    except (OSError, ValueError):
        pass
    client.close()
    engine.close()

listener = socket.socket(socket.AF_UNIX)
listener.bind(ours)
os.chmod(ours, 0o666)
listener.listen(64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
END_OF_KILLER
python3 "$WORLD/killer.py" /run/killer.sock /run/docker.sock "$WORLD/deadly" /run/docker.pid &
check "the deadly socket" eventually curl -sf --unix-socket /run/killer.sock -o /dev/null http://localhost/_ping
by() { as 1000 env DOCKER_HOST=unix:///run/killer.sock timeout 60 berth "$@" </dev/null; }
is_clean() { berth cleanup bots && [ "$(in_engine)" = "0 0 0" ] && [ "$(listed running)" = 0 ]; }
for step in "POST /volumes/create" "DELETE /containers/" "POST /networks/create" "POST /connect" \
    "POST /containers/create" "POST /attach" "POST /start" "POST /exec"; do
    by up >"$WORLD/up" 2>&1
    echo "$step engine" >"$WORLD/deadly"
    by spawn dev --name dying --background >"$WORLD/said" 2>&1
    status=$?
    equal "killed at $step of a launch: the launch fails, and that is all" "failed yes 0" \
        "$([ $status != 0 ] && [ $status != 124 ] && echo failed) $([ -e "$WORLD/deadly" ] || echo yes) $(listed running)"
    [ -e "$WORLD/deadly" ] && note "$(tail -n 3 "$WORLD/up" "$WORLD/said")"
    docker_start_again
    check "and is cleaned up" is_clean
    rm -f "$WORLD/deadly"
done
for step in "DELETE /containers/" "DELETE /networks/"; do
    check "an agent" by spawn dev --name dying --background
    echo "$step engine" >"$WORLD/deadly"
    by stop dying >"$WORLD/said" 2>&1
    equal "killed at $step of a stop: it does not run" "yes 0" "$([ -e "$WORLD/deadly" ] || echo yes) $(listed running)"
    docker_start_again
    check "and is cleaned up" is_clean
    rm -f "$WORLD/deadly"
done
# ---- a keeper that dies: the command that follows it undoes the launch ----
for step in "POST /networks/create" "POST /start"; do
    by up >"$WORLD/up" 2>&1
    echo "$step caller" >"$WORLD/deadly"
    by spawn dev --name dying --background >"$WORLD/said" 2>&1
    equal "a keeper killed at $step: the launch fails and leaves nothing" "1 yes 0 0 0 0 " \
        "$? $([ -e "$WORLD/deadly" ] || echo yes) $(in_engine) $(berth list --json | json 'len(d["agents"])') $(ls /home/1000/.local/state/berth/env/live/agents)"
    rm -f "$WORLD/deadly"
done
check "and then all is as ever" berth spawn dev --name after -- true
check "down" berth down
finish
