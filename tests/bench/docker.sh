#!/usr/bin/env bash
# Launch to the first command in a container, against the same steps by hand through the engine's API: network on a
# bridge, gateway connected, container with the same limits, attached, started, one exec. In turn, in one run; the
# probe is told apart. Prints medians of seven; nothing is judged.
export BERTH_TEST_BACKEND=docker
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
world_start || exit 1

cat >"$WORLD/by_hand.py" <<'END'
"""The launch by hand: python3 by_hand.py BRIDGE SUBNET-PREFIX -> milliseconds"""
import http.client, json, socket, subprocess, sys, time

class Engine(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/docker.sock")

def call(method, path, body=None):
    engine = Engine("localhost")
    engine.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
    answer = engine.getresponse()
    text = answer.read()
    if answer.status >= 400:
        raise SystemExit(f"{path}: {answer.status} {text}")
    return json.loads(text) if text else None

def stream(path, body=None):
    text = json.dumps(body) if body is not None else ""
    raw = socket.socket(socket.AF_UNIX)
    raw.connect("/run/docker.sock")
    raw.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    raw.recv(4096)
    return raw

bridge, prefix = sys.argv[1], sys.argv[2]
image = [tag for i in call("GET", "/images/json") for tag in i["RepoTags"] or [] if tag.startswith("berth-") and "/shell:" in tag][0]
profile = open("/opt/source/backends/docker_seccomp.json").read()
gateway = [c["Id"] for c in call("GET", "/containers/json") if c["Labels"].get("berth.role") == "gateway"][0]
started = time.monotonic()
call("POST", "/networks/create", {"Name": "hand", "Driver": "bridge", "Internal": True, "IPAM": {"Config": [
    {"Subnet": prefix + ".0/29", "Gateway": prefix + ".1"}]}, "Options": {"com.docker.network.bridge.name": bridge}})
call("POST", "/networks/hand/connect", {"Container": gateway, "EndpointConfig": {"IPAMConfig": {"IPv4Address": prefix + ".2"}}})
call("POST", "/containers/create?name=hand", {
    "Image": image, "User": "0:0", "Entrypoint": ["/bin/cat"], "OpenStdin": True, "StdinOnce": True, "HostConfig": {
        "NetworkMode": "hand", "ReadonlyRootfs": True, "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges", "seccomp=" + profile],
        "Sysctls": {"net.ipv4.ip_forward": "0"}, "IpcMode": "private", "CgroupnsMode": "private",
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}, {"Name": "nofile", "Soft": 16384, "Hard": 16384}],
        "Memory": 512 << 20, "MemorySwap": 512 << 20, "NanoCpus": 10**9, "PidsLimit": 4096, "LogConfig": {"Type": "none"},
        "Tmpfs": {"/run": "exec", "/tmp": "exec", "/var/tmp": "exec"}, "Mounts": [
            {"Type": "volume", "Source": "hand-" + name, "Target": target} for name, target in
            (("home", "/home/agent"), ("workspace", "/workspace"), ("base", "/var/lib/berth"))]},
    "NetworkingConfig": {"EndpointsConfig": {"hand": {"IPAMConfig": {"IPv4Address": prefix + ".3"}}}}})
life = stream("/containers/hand/attach?stream=1&stdin=1&stdout=1&stderr=1")
call("POST", "/containers/hand/start")
run = call("POST", "/containers/hand/exec", {"AttachStdout": True, "Cmd": ["true"], "User": "65525:65525"})
first = stream("/exec/" + run["Id"] + "/start", {"Detach": False, "Tty": False})
while first.recv(4096):
    pass
print(round((time.monotonic() - started) * 1000))
life.close()
call("DELETE", "/containers/hand?force=1")
call("POST", "/networks/hand/disconnect", {"Container": gateway, "Force": True})
call("DELETE", "/networks/hand")
for name in ("home", "workspace", "base"):
    call("DELETE", "/volumes/hand-" + name)
END

as 1000 berth up >/dev/null 2>&1 </dev/null
launches=() probes=() hands=()
for round in 1 2 3 4 5 6 7; do
    as 1000 berth spawn dev --name "n$round" --json -- true </dev/null >"$WORLD/spawn.json" 2>/dev/null || exit 1
    read -r launch probe < <(python3 -c 'import json, sys
document = json.load(sys.stdin)
steps = {step["step"]: step["ms"] for step in document["steps"]}
probe = steps.pop("probe", 0)
print(round(sum(steps.values()) - steps.get("infra", 0) + document["first_command_ms"]), round(probe))' <"$WORLD/spawn.json")
    launches+=("$launch") probes+=("$probe")
    as 1000 berth rm "n$round" --yes >/dev/null 2>&1 </dev/null
    ip link add hand0 type bridge
    hands+=("$(python3 "$WORLD/by_hand.py" hand0 10.241.0)") || exit 1
    ip link del hand0
done
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }
ours=$(median "${launches[@]}") theirs=$(median "${hands[@]}")
echo "launch to the first command, by berth: $ours ms (${launches[*]})"
echo "the same steps by hand:               $theirs ms (${hands[*]})"
echo "ratio $(python3 -c "print(round($ours / $theirs, 2))"); the probe apart: $(median "${probes[@]}") ms"
