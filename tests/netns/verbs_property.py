#!/usr/bin/env python3
"""Random verbs of three users against a model: after each of them, what the engine's STATUS tells every user and what
the kernel's table and links hold must be what the model says.

Leases with and without a wish, gateways and orchestrators, SEAL, RELEASE, kill -9 of a client, kill -9 of the engine
with adoption by the owner, attempts to adopt what is not one's own, and a flushed ruleset. Bounded; the seed is printed
and can be given again: BERTH_SEED. Everything in namespaces of its own.
"""

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if os.environ.get("BERTH_WORLD") != "inside":
    os.environ["BERTH_WORLD"] = "inside"
    os.execv(f"{SOURCE}/build/tests/tools/namespace",
             ["namespace", "--bind", SOURCE, "source", "python3", "/opt/source/tests/netns/verbs_property.py"])

HELPER, TOOL = os.environ.get("WORLD_HELPER", f"{SOURCE}/build/berth-helper"), f"{SOURCE}/build/tests/tools/helper_tool"
UID_HELPER, GID_CLIENTS, USERS = 900, 901, (1000, 1001, 1002)
SLOTS, QUOTA, ENVIRONMENTS = 8, 3, 2
STEPS, BUDGET_SECONDS, ANSWER_SECONDS = 250, 60, 20
ROLES = ("agent", "gateway", "orchestrator")
CONFIG = f"""user_uid: {UID_HELPER}
user_gid: {UID_HELPER}
socket_group: {GID_CLIENTS}
slots: {SLOTS}
slots_per_uid: {QUOTA}
requests_per_second: 10000
requests_burst: 10000
audit_folder: /tmp/audit
"""


class Mismatch(Exception):
    pass


class Client:
    """One connection: helper_tool, which obeys lines."""

    def __init__(self, uid, *command):
        self.uid, self.rest = uid, b""
        self.process = subprocess.Popen([TOOL, "--user", str(uid), "--group", str(uid), "--group", str(GID_CLIENTS),
                                         *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self.expect(r"connect ok")

    def line(self):
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Mismatch(f"uid {self.uid}: no answer in {ANSWER_SECONDS} s")
            got = os.read(self.process.stdout.fileno(), 4096)
            if not got:
                raise Mismatch(f"uid {self.uid}: the client ended: {self.rest!r}")
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()

    def expect(self, pattern):
        line = self.line()
        match = re.match(pattern, line)
        if not match:
            raise Mismatch(f"uid {self.uid}: /{pattern}/ expected, heard: {line}")
        return match

    def tell(self, *words):
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.process.stdin.flush()

    def ask(self, *words):
        self.tell(*words)
        return self.line()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Engine:
    def __init__(self):
        self.process = None

    def start(self):
        with open("/tmp/helper.log", "ab") as log:
            self.process = subprocess.Popen([HELPER, "listen", "--config", "/tmp/helper.conf"], stdin=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE, stdout=log)
        os.set_blocking(self.process.stderr.fileno(), False)
        self.said = b""
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"ready" not in self.said:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Mismatch(f"the engine did not start: {self.said.decode(errors='replace')}")
            self.listen(0.05)

    def listen(self, seconds=0):
        """Its words, read so that it never waits for us."""
        while select.select([self.process.stderr], [], [], seconds)[0]:
            got = os.read(self.process.stderr.fileno(), 65536)
            if not got:
                return
            self.said = (self.said + got)[-20000:]
            seconds = 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


class Lease:
    def __init__(self, client, facts, uid, role, environment):
        self.client, self.uid, self.role, self.environment = client, uid, role, environment
        self.slot, self.generation = int(facts["slot"]), int(facts["generation"])
        self.host, self.guest, self.mac = facts["host"], facts["guest"], facts["guest_mac"]
        self.interface, self.is_sealed = f"berth{self.slot}", False


def expected_links(leases):
    """{set: elements} that link agents with their gateway, and gateways with their orchestrator."""
    found = {"agent_pairs": set(), "gateway_pairs": set(), "gateways": set(), "orchestrators": set()}
    live = [lease for lease in leases if not lease.is_sealed]
    for dialler, server, pairs, target in (("agent", "gateway", "agent_pairs", "gateways"),
                                           ("gateway", "orchestrator", "gateway_pairs", "orchestrators")):
        for one in live:
            for other in live:
                if one.role == dialler and other.role == server and one.uid == other.uid and \
                        one.environment == other.environment:
                    found[pairs] |= {(one.interface, other.interface, one.generation),
                                     (other.interface, one.interface, one.generation)}
                    found[target].add((one.interface, one.host, other.guest))
    return found


def expected_table(leases):
    live = [lease for lease in leases if not lease.is_sealed]
    table = expected_links(leases)
    table["sources"] = {(lease.interface, lease.mac, lease.guest) for lease in live}
    table["generations"] = {(lease.interface, lease.generation) for lease in live}
    table["live"] = {(lease.interface, lease.generation) for lease in live}
    table["owners"] = {(lease.interface, lease.uid) for lease in live}
    table["uplinks"] = {(lease.interface, lease.generation) for lease in live if lease.role == "gateway"}
    table["leases"] = {(lease.interface,) for lease in leases}
    table["reserved"] = set()
    return table


def flat(element):
    if isinstance(element, dict) and "elem" in element:
        return flat(element["elem"]["val"])
    if isinstance(element, dict):
        return tuple(element["concat"])
    if isinstance(element, list):
        return tuple(part for item in element for part in flat(item))
    return (element,)


def read_table(names):
    document = json.loads(subprocess.run(["nft", "-j", "list", "table", "inet", "berth"], check=True,
                                         capture_output=True).stdout)
    table = {}
    for item in document["nftables"]:
        body = item.get("set") or item.get("map")
        if body and body["name"] in names:
            table[body["name"]] = {flat(element) for element in body.get("elem", [])}
    return table


class Trial:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.engine, self.leases, self.generation, self.history, self.counts = Engine(), [], 0, [], {}

    def of(self, uid):
        return [lease for lease in self.leases if lease.uid == uid]

    def pick(self):
        return self.random.choice(self.leases) if self.leases else None

    # ---- what the users do ----

    def expected_refusal(self, uid, role, environment):
        if role != "agent" and any(lease.role == role and lease.environment == environment for lease in self.of(uid)):
            return "EEXIST"
        if len(self.of(uid)) >= QUOTA:
            return "EDQUOT"
        return "ENOSPC" if len(self.leases) >= SLOTS else None

    def lease(self):
        uid, role = self.random.choice(USERS), self.random.choice(ROLES[:1] + ROLES)
        environment, wish = self.random.randrange(ENVIRONMENTS), self.random.randrange(-SLOTS, SLOTS)
        refusal = self.expected_refusal(uid, role, environment)
        client = Client(uid)
        line = client.ask("lease", role, environment, *([wish] if wish >= 0 else []))
        self.history.append(f"lease {uid} {role} {environment} wish {wish}: {line}")
        if refusal:
            client.end()
            if line != f"error lease {refusal}":
                raise Mismatch(f"{refusal} expected: {line}")
            return
        facts = dict(re.findall(r"(\w+)=(\S+)", line))
        if not line.startswith("lease slot="):
            raise Mismatch(f"a lease expected: {line}")
        lease = Lease(client, facts, uid, role, environment)
        used = {other.slot for other in self.leases}
        if lease.slot in used or lease.slot >= SLOTS or (wish >= 0 and wish not in used and lease.slot != wish):
            raise Mismatch(f"slot {lease.slot}, wished {wish}, used {sorted(used)}")
        if lease.generation <= self.generation or facts["role"] != role or int(facts["environment"]) != environment:
            raise Mismatch(f"generation not above {self.generation}, or another role: {line}")
        self.generation = lease.generation
        self.leases.append(lease)

    def end_lease(self, lease, line=None, wanted=None):
        self.leases.remove(lease)
        lease.client.end()
        if line != wanted:
            raise Mismatch(f"{wanted} expected: {line}")

    def release(self):
        lease = self.pick()
        if lease:
            self.history.append(f"release {lease.slot}")
            self.end_lease(lease, lease.client.ask("release"), "release ok")

    def kill_client(self):
        lease = self.pick()
        if lease:
            self.history.append(f"kill the client of {lease.slot}")
            self.end_lease(lease)

    def seal(self):
        lease = self.pick()
        if lease:
            self.history.append(f"seal {lease.slot}")
            line = lease.client.ask("seal")
            lease.is_sealed = True
            if line != "seal ok":
                raise Mismatch(line)

    def adopt_live(self):
        """What is live cannot be adopted, by nobody; nor what is not there."""
        lease, uid = self.pick(), self.random.choice(USERS)
        slot, generation = (lease.slot, lease.generation) if lease else (0, 1)
        client = Client(uid)
        line = client.ask("adopt", slot, generation)
        client.end()
        self.history.append(f"adopt {uid} {slot} {generation}: {line}")
        if line != "error adopt ENOENT":
            raise Mismatch(line)

    def second_lease(self):
        """A connection is one lease: another one on it is refused and changes nothing."""
        lease = self.pick()
        if lease:
            line = lease.client.ask("lease", "agent", 0)
            self.history.append(f"second lease of {lease.slot}: {line}")
            if line != "error lease EBADFD":
                raise Mismatch(line)

    def flush(self):
        self.history.append("flush ruleset")
        subprocess.run(["nft", "flush", "ruleset"], check=True)

    # ---- the engine's death ----

    def crash(self):
        self.history.append("kill the engine")
        self.engine.kill()
        self.engine.start()
        for lease in list(self.leases):
            lease.client.expect("gone")
            uid = self.random.choice(USERS)
            if self.random.random() < 0.3 and uid != lease.uid:
                thief = Client(uid)
                line = thief.ask("adopt", lease.slot, lease.generation)
                thief.end()
                if line != "error adopt ENOENT":
                    raise Mismatch(f"uid {uid} adopts slot {lease.slot} of {lease.uid}: {line}")
            lease.client.tell("connect")
            lease.client.expect("connect ok")
            if self.random.random() < 0.2:
                line = lease.client.ask("adopt", lease.slot, lease.generation - 1)
                if line != "error adopt ENOENT":
                    raise Mismatch(f"another generation of slot {lease.slot} is adopted: {line}")
            line = lease.client.ask("adopt", lease.slot, lease.generation)
            if not re.match(rf"adopt slot={lease.slot} generation={lease.generation} .* sealed={int(lease.is_sealed)}$", line):
                raise Mismatch(f"slot {lease.slot} is not adopted as it was: {line}")

    # ---- the comparison ----

    def compare_status(self):
        for uid in USERS:
            client = Client(uid)
            line = client.ask("status")
            client.end()
            facts = dict(re.findall(r"(\w+)=(\S*)", line))
            own = {int(slot) for slot in facts.get("own", "").split(",") if slot}
            wanted = {lease.slot for lease in self.of(uid)}
            if own != wanted or facts.get("live") != str(len(self.leases)) or facts.get("reserved") != "0" or \
                    int(facts["dead"]) + int(facts["free"]) != SLOTS - len(self.leases) or facts["healthy"] != "1":
                raise Mismatch(f"uid {uid}: own {sorted(wanted)} of {len(self.leases)} expected: {line}")

    def compare_kernel(self):
        wanted = expected_table(self.leases)
        found = read_table(wanted.keys())
        for name, elements in wanted.items():
            if found.get(name) != elements:
                raise Mismatch(f"set {name}: expected {sorted(elements)}, found {sorted(found.get(name, {'no set'}))}")
        links = {link["ifname"]: link for link in
                 json.loads(subprocess.run(["ip", "-j", "link", "show"], check=True, capture_output=True).stdout)
                 if link["ifname"].startswith("berth")}
        up = {name for name, link in links.items() if "UP" in link["flags"]}
        if not {lease.interface for lease in self.leases} <= links.keys() or \
                up - {lease.interface for lease in self.leases} or \
                {lease.interface for lease in self.leases if not lease.is_sealed} - up:
            raise Mismatch(f"links up: {sorted(up)}, there: {sorted(links)}")

    def compare(self):
        """What a killed client or a flush sets off takes the engine a moment."""
        deadline = time.monotonic() + 10
        while True:
            self.engine.listen()
            try:
                self.compare_status()
                self.compare_kernel()
                return
            except (Mismatch, subprocess.CalledProcessError):
                if time.monotonic() > deadline or self.engine.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def run(self):
        self.engine.start()
        deadline = time.monotonic() + BUDGET_SECONDS
        verbs = [(self.lease, 40), (self.release, 14), (self.kill_client, 8), (self.seal, 6), (self.adopt_live, 4),
                 (self.second_lease, 3), (self.flush, 2), (self.crash, 4)]
        while len(self.history) < STEPS and time.monotonic() < deadline:
            verb = self.random.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])[0]
            verb()
            self.counts[verb.__name__] = self.counts.get(verb.__name__, 0) + 1
            self.compare()
        for lease in list(self.leases):
            self.end_lease(lease)
        self.compare()

    def stop(self):
        for lease in self.leases:
            lease.client.end()
        if self.engine.process and self.engine.process.poll() is None:
            self.engine.kill()


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    seed = int(os.environ.get("BERTH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    os.chdir("/tmp")
    os.mkdir("audit", 0o755)
    with open("helper.conf", "w", encoding="utf-8") as file:
        file.write(CONFIG)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print(f"# seed {seed}", flush=True)
    trial = Trial(seed)
    try:
        trial.run()
        did = ", ".join(f"{name} {count}" for name, count in sorted(trial.counts.items()))
        print(f"ok 1 - model, STATUS and the kernel agree after each of {len(trial.history)} steps ({did})")
        return 0
    except (Mismatch, OSError, subprocess.CalledProcessError) as error:
        print("not ok 1 - model, STATUS and the kernel agree after each step")
        print(f"#   {error}")
        for line in trial.history[-15:] + [f"engine: {line}" for line in
                                           trial.engine.said.decode(errors="replace").splitlines()[-10:]]:
            print(f"#   {line}")
        return 1
    finally:
        trial.stop()
        print("1..1")


if __name__ == "__main__":
    sys.exit(main())
