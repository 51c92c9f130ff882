"""The ground for attacks on the helper: a real helper in namespaces of its own, users that are real uids, frames written
by hand, and a bystander whose lease must go on working whatever is done to the engine.

Used by tests/attack/*.py:

    world = World.enter(__file__)       runs the script again as root of new namespaces; returns only inside
    world.start()                       the helper, and the bystander (uid 1001): an agent and its gateway, with traffic
    @case("a15 every length")           one TAP line; after the deed the oracle below must hold
    finish()

The oracle: the engine is alive and answers; the bystander's old connection carries data and a new one can be made; the
table reads as before and is what the engine thinks it is (RECONCILE finds nothing to do, and nothing was repaired); the
engine's descriptors and the interfaces are as before. It must not touch anything outside its namespaces.
"""

import ctypes
import glob
import hashlib
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAMESPACE = f"{ROOT}/build/tests/tools/namespace"
TOOL = f"{ROOT}/build/tests/tools/helper_tool"
HELPER = os.environ.get("WORLD_HELPER", f"{ROOT}/build/berth-helper")
if os.environ.get("BERTH_WORLD") == "inside":  # a copy, which nobody builds anew in the middle of a test
    HELPER = shutil.copy(HELPER, "/tmp/berth-helper")
    TOOL = shutil.copy(TOOL, "/tmp/helper_tool")
PYTHON = "/usr/bin/python3"  # another one may live in a home, which the namespaces hide
SOCKET = "/run/berth/helper.sock"
HELPER_UID, CLIENTS_GID, ALICE, BOB, BYSTANDER = 900, 901, 1000, 1002, 1001
FRAME = 512
HELLO, STATUS, LEASE, SEAL, COUNTERS, RELEASE, RECONCILE = range(1, 8)
(OK, VERSION, STATE, STALE, RATE, QUOTA, FULL, EXISTS, NOT_FOUND, UNSUPPORTED, NOT_PERMITTED, UNHEALTHY,
 KERNEL) = range(13)
AGENT, GATEWAY, ORCHESTRATOR = range(3)
CLONE_NEWNET = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)


# ---- TAP ---------------------------------------------------------------------------------------------------------------

_count = _failed = 0


def report(name, failures):
    global _count, _failed
    _count += 1
    _failed += bool(failures)
    print(f"{'not ok' if failures else 'ok'} {_count} - {name}")
    for line in "\n".join(failures).splitlines():
        print(f"#   {line}")
    sys.stdout.flush()


def note(text):
    print(f"# {text}", flush=True)


def skip(name, reason):
    global _count
    _count += 1
    print(f"ok {_count} - {name} # SKIP {reason}", flush=True)


def finish():
    if _failed and World.current:
        for line in World.current.log().splitlines()[-20:]:
            print(f"# {line}")
    if World.current:
        World.current.stop()
    print(f"1..{_count}", flush=True)
    os._exit(1 if _failed else 0)  # every process inside the namespaces ends with this one


def case(name, oracle=True, needs=None):
    """Runs the function at once, when the program that it needs is there. What it raises, and what the oracle finds afterwards, are the failures of one line."""
    def run(deed):
        if needs and not shutil.which(needs):
            skip(name, f"{needs} is not installed")
            return deed
        failures = []
        world = World.current
        began = time.monotonic()
        before = None
        try:
            before = world.snapshot() if oracle else None
            deed()
        except Exception:  # whatever went wrong is this case's failure, and the next one still runs
            failures.append(traceback.format_exc(limit=-3, chain=False))
        if before:
            failures += world.differences(before)
        if time.monotonic() - began > 5:
            note(f"{time.monotonic() - began:.1f} s")
        report(name, failures)
        return deed
    return run


def expect(wanted, got, what=""):
    if wanted != got and isinstance(wanted, list) and isinstance(got, list):
        missing, extra = ([one for one in left if one not in right] for left, right in ((wanted, got), (got, wanted)))
        raise AssertionError(f"{what or 'list'}: missing {missing!r}, too many {extra!r}"[:1500])
    if wanted != got:
        raise AssertionError(f"{what or 'value'}: wanted {wanted!r}, got {got!r}")


def eventually(condition, seconds=5.0, pause=0.02):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(pause)


# ---- namespaces and users -------------------------------------------------------------------------------------------------

class as_user:
    """Inside it, this process acts as the uid, in the group that may connect (or another one). Its real uid too: that one
    counts for signals."""

    def __init__(self, uid, gid=CLIENTS_GID):
        self.uid, self.gid = uid, gid

    def __enter__(self):
        self.groups = os.getgroups()
        os.setgroups([])
        os.setresgid(self.gid, self.gid, 0)
        os.setresuid(self.uid, self.uid, 0)

    def __exit__(self, *_):
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(self.groups)


class in_network:
    """Sockets made inside belong to the network namespace of that name (None: this one)."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        if self.name:
            self.old = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            enter_network(f"/run/netns/{self.name}")

    def __exit__(self, *_):
        if self.name:
            if libc.setns(self.old, CLONE_NEWNET) != 0:
                os.abort()
            os.close(self.old)


def enter_network(path):
    fd = os.open(path, os.O_RDONLY)
    result = libc.setns(fd, CLONE_NEWNET)
    os.close(fd)
    if result != 0:
        raise OSError(ctypes.get_errno(), "setns")


def run(*command, check=True):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}: {done.stdout}")
    return done.stdout


# ---- frames by hand -----------------------------------------------------------------------------------------------------

def frame(verb, sequence, epoch, body=b"", version=1, kind=0, status=0, magic=b"BHT1"):
    head = magic + struct.pack("<HBBIIQ", version, kind, verb, sequence, status, epoch)
    return (head + body).ljust(FRAME, b"\0")


def hello_frame(lowest=1, highest=1, sequence=1):
    return frame(HELLO, sequence, 0, struct.pack("<HH", lowest, highest), version=0)


def lease_body(kind=0, role=AGENT, environment=0, slot=None, generation=0, adopt=False):
    flags = (slot is not None) | (2 if adopt else 0)
    return struct.pack("<BBBBHHI", kind, role, environment, flags, slot or 0, 0, generation)


class Reply:
    def __init__(self, data, fds):
        self.data, self.fds = data, list(fds)
        (self.version, self.kind, self.verb, self.sequence, self.status,
         self.epoch) = struct.unpack_from("<HBBIIQ", data, 4)
        self.body = data[24:]

    def lease(self):
        """The fields of a LEASE reply."""
        kind, role, environment, flags, slot, prefix, _, generation, host, guest = struct.unpack_from(
            "<BBBBHBBIII", self.body)
        return {"kind": kind, "role": role, "environment": environment, "flags": flags, "slot": slot, "prefix": prefix,
                "generation": generation, "host": host, "guest": guest, "host_mac": self.body[20:26],
                "guest_mac": self.body[26:32], "interface": self.body[32:48].rstrip(b"\0").decode()}

    def pool(self):
        """The fields of a STATUS reply."""
        live, reserved, dead, free = struct.unpack_from("<HHHH", self.body)
        own = {slot for slot in range(1024) if self.body[16 + slot // 8] >> slot % 8 & 1}
        return {"live": live, "reserved": reserved, "dead": dead, "free": free, "healthy": self.body[8], "own": own}


class Closed(Exception):
    """The engine has closed the connection."""


class Refused(Closed):
    """The engine did not admit the connection."""


class Client:
    """One connection to the helper, of a uid. Sequence and epoch are right unless a test says otherwise."""

    def __init__(self, uid, hello=True, path=SOCKET, gid=CLIENTS_GID):
        self.uid, self.sequence, self.epoch, self.tap = uid, 0, 0, -1
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with as_user(uid, gid):
            self.socket.connect(path)  # waits while the queue is full, which a socket with a timeout does not
        self.socket.settimeout(5)
        if hello:
            self.hello()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()
        if self.tap >= 0:
            os.close(self.tap)
            self.tap = -1

    def send(self, data, fds=()):
        try:
            if fds:
                socket.send_fds(self.socket, [data], fds)
            else:
                self.socket.send(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def receive(self):
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, FRAME + 1, 16)
        except ConnectionResetError:
            raise Closed from None
        if not data:
            raise Closed
        expect(FRAME, len(data), "length of a reply")
        return Reply(data, fds)

    def ask(self, data, fds=()):
        self.send(data, fds)
        return self.receive()

    def request(self, verb, body=b"", **fields):
        self.sequence += 1
        values = {"sequence": self.sequence, "epoch": self.epoch} | fields
        return self.ask(frame(verb, body=body, **values))

    def hello(self):
        reply = self.request(HELLO, struct.pack("<HH", 1, 1), version=0)
        if reply.status in (RATE, NOT_PERMITTED):
            raise Refused(f"status {reply.status}")
        expect(OK, reply.status, "status of HELLO")
        self.epoch = reply.epoch
        return reply

    def lease(self, status=OK, **wish):
        reply = self.request(LEASE, lease_body(**wish))
        expect(status, reply.status, "status of LEASE")
        if status != OK:
            expect([], reply.fds, "descriptors of a refusal")
            return None
        if not wish.get("adopt"):
            expect(1, len(reply.fds), "descriptors of a LEASE")
            self.tap = reply.fds[0]
        return reply.lease()

    def status(self):
        reply = self.request(STATUS)
        expect(OK, reply.status, "status of STATUS")
        return reply.pool()

    def is_closed(self, seconds=5.0):
        """Has the engine hung up, without a word?"""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(FRAME) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(5)


def must_close(data, uid=BOB, fds=(), hello=False):
    """Whoever sends this is hung up on without an answer."""
    with Client(uid, hello=hello) as client:
        try:
            client.send(data, fds)
        except Closed:
            return
        if not client.is_closed():
            raise AssertionError(f"not closed: {data[:32].hex()}... ({len(data)} bytes, {len(fds)} descriptors)")


# ---- what guests send -----------------------------------------------------------------------------------------------------

def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xffff:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ipv4(source, destination, protocol, payload, ttl=64):
    head = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(payload), 0, 0, ttl, protocol, 0, source, destination)
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def udp(source, source_port, destination, port, payload=b"x"):
    """A datagram without a checksum, which IPv4 allows (RFC 768)."""
    return ipv4(source, destination, 17, struct.pack(">HHHH", source_port, port, 8 + len(payload), 0) + payload)


def ethernet(to, source, kind, payload):
    return to + source + struct.pack(">H", kind) + payload


def arp(source_mac, source, target, operation=1):
    return ethernet(b"\xff" * 6, source_mac, 0x806,
                    struct.pack(">HHBBH6sI6sI", 1, 0x800, 6, 4, operation, source_mac, source, b"\0" * 6, target))


def tap_write(tap_fd, data, header=10):
    """One frame out of the guest. False: the interface is down or gone."""
    try:
        os.write(tap_fd, b"\0" * header + data)
        return True
    except OSError:
        return False


def address(text):
    return struct.unpack(">I", socket.inet_aton(text))[0]


def dotted(number):
    return socket.inet_ntoa(struct.pack(">I", number))


# ---- a guest with a real network stack -----------------------------------------------------------------------------------

class Tool:
    """helper_tool: a client in a process of its own that relays frames to a guest in a network namespace."""

    def __init__(self, uid, network=None, *command):
        guest = ["--guest", f"/run/netns/{network}"] if network else []
        self.process = subprocess.Popen(
            [TOOL, "--user", str(uid), "--group", str(uid), "--group", str(CLIENTS_GID), *guest, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        self.buffer = b""

    def tell(self, line):
        self.process.stdin.write(line.encode() + b"\n")

    def hear(self, pattern, seconds=10.0):
        """The first line that matches, as a dictionary of its key=value words; lines before it are skipped."""
        deadline = time.monotonic() + seconds
        while True:
            line, newline, rest = self.buffer.partition(b"\n")
            if newline:
                self.buffer = rest
                if re.search(pattern, line.decode(errors="replace")):
                    return dict(word.split("=", 1) for word in line.decode().split() if "=" in word)
                continue
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f"nothing like {pattern!r} was said")
            data = os.read(self.process.stdout.fileno(), 4096)
            if not data:
                raise AssertionError(f"ended before it said {pattern!r}: {self.buffer!r}")
            self.buffer += data

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Guest:
    """A leased slot with a network stack behind it, in a network namespace of the guest's name."""

    def __init__(self, name, uid, role="agent", environment=0):
        self.name, self.uid = name, uid
        run("ip", "netns", "add", name)
        self.tool = Tool(uid, name, "lease", role, str(environment))
        self.facts = self.tool.hear("^lease slot=|^error")
        if "slot" not in self.facts:
            raise AssertionError(f"{name} got no lease")
        self.host, self.address = self.facts["host"], self.facts["guest"]
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "set", "eth0", "address", self.facts["guest_mac"], "up")
        run("ip", "-n", name, "addr", "add", f"{self.address}/31", "dev", "eth0")
        run("ip", "-n", name, "route", "add", "default", "via", self.host)

    def end(self):
        self.tool.end()
        run("ip", "netns", "del", self.name, check=False)


def listen(network, port, host="0.0.0.0", kind=socket.SOCK_STREAM):
    with in_network(network):
        server = socket.socket(socket.AF_INET, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    if kind == socket.SOCK_STREAM:
        server.listen(64)
    server.settimeout(3)
    return server


def dial(network, host, port, seconds=3.0):
    with in_network(network):
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    peer.settimeout(seconds)
    try:
        peer.connect((host, port))
    except OSError:
        peer.close()
        raise
    return peer


def passes(one, other, data=b"over"):
    one.sendall(data)
    return other.recv(len(data)) == data


class Bystander:
    """Another user, who only wants to work: an agent and its gateway, one old connection, and new ones."""

    def __init__(self, uid=BYSTANDER):
        self.gateway = Guest("gateway", uid, "gateway")
        self.agent = Guest("agent", uid, "agent")
        self.server = listen("gateway", 8119)
        self.old = self.connect()

    def connect(self):
        one = dial("agent", self.agent.host, 8119)
        other, _ = self.server.accept()
        other.settimeout(3)
        return one, other

    def keep(self):
        """From now on both adopt their slots when the engine comes back."""
        for guest in (self.gateway, self.agent):
            guest.tool.tell("keep")

    def works(self):
        """What is wrong, or None."""
        try:
            if not (passes(*self.old) and passes(*reversed(self.old))):
                return "the bystander's old connection carries something else"
        except OSError as error:
            return f"the bystander's old connection is dead: {error}"
        try:
            one, other = self.connect()
            with one, other:
                if not (passes(one, other) and passes(other, one)):
                    return "the bystander's new connection carries something else"
        except OSError as error:
            return f"the bystander cannot connect: {error}"
        return None

    def end(self):
        for one in (*self.old, self.server):
            one.close()
        self.agent.end()
        self.gateway.end()


INTERNET, HOST = "203.0.113.1", "203.0.113.2"


def make_uplink():
    """A default route to a namespace that sees whatever leaves the host."""
    run("ip", "netns", "add", "internet")
    run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "outside", "netns", "internet")
    run("ip", "addr", "add", f"{HOST}/24", "dev", "uplink")
    run("ip", "link", "set", "uplink", "up")
    run("ip", "-n", "internet", "addr", "add", f"{INTERNET}/24", "dev", "outside")
    run("ip", "-n", "internet", "link", "set", "outside", "up")
    run("ip", "-n", "internet", "link", "set", "lo", "up")
    run("ip", "route", "add", "default", "via", INTERNET)
    # Answers find their way back, so that a leak would be a whole one.
    run("ip", "-n", "internet", "route", "add", "10.0.0.0/8", "via", HOST)


# ---- the world --------------------------------------------------------------------------------------------------------

# Sets that change in the course of legitimate work: the record of generations, and the flows of the moment.
CHANGING_SETS = {"state", "agent_flows", "gateway_flows"}


class AuditReader:
    """Reads on in the audit log; keeps the chain and who holds what according to it."""

    LINE, SEGMENT_LINES, SEGMENTS = 384, 8192, 8
    GIVEN, TAKEN = ("LEASE", "ADOPT"), ("RELEASE", "EOF", "EXPIRE")

    def __init__(self, folder):
        self.folder = folder
        self.next = 1
        self.before = "0" * 64
        self.held = {}  # slot to generation
        self.is_complete = True  # no line was lost since the last start
        self.counts = {}  # lines of the changing verbs that succeeded, since the last look

    def line(self, number):
        place = (number - 1) % (self.SEGMENT_LINES * self.SEGMENTS)
        try:
            with open(f"{self.folder}/audit.{place // self.SEGMENT_LINES}", "rb") as file:
                size = os.fstat(file.fileno()).st_size // self.SEGMENT_LINES  # of a line, padded
                return os.pread(file.fileno(), size, place % self.SEGMENT_LINES * size)
        except FileNotFoundError:
            return b""

    def read_on(self):
        """What is wrong with the new lines."""
        self.counts = {}
        while (data := self.line(self.next)).startswith(b'{"n":%d,' % self.next):
            event = json.loads(data)
            if event["before"] != self.before:
                return [f"audit line {self.next} does not follow the one before it"]
            self.before = hashlib.sha256(data).hexdigest()
            self.next += 1
            self._count(event)
        return []

    def _count(self, event):
        if event["event"] == "START":
            self.held = {}  # they wait for adoption
            self.is_complete = True
        if "lost" in event:
            self.is_complete = False
        if event["status"] != "OK" or "slot" not in event:
            return
        self.counts[event["event"]] = self.counts.get(event["event"], 0) + 1
        if event["event"] in self.GIVEN:
            self.held[event["slot"]] = event["generation"]
        elif event["event"] in self.TAKEN:
            self.held.pop(event["slot"], None)


class World:
    current = None

    @staticmethod
    def enter(script):
        if os.environ.get("BERTH_WORLD") != "inside":
            name = os.path.relpath(os.path.abspath(script), ROOT)
            os.execve(NAMESPACE, [NAMESPACE, "--bind", ROOT, "source", PYTHON, "-B", f"/opt/source/{name}"],
                      dict(os.environ, BERTH_WORLD="inside", HOME="/root"))
        os.chdir("/tmp")
        os.umask(0o022)
        run("ip", "link", "set", "lo", "up")
        os.makedirs("/run/netns", exist_ok=True)
        World.current = World()
        return World.current

    def __init__(self):
        self.helper = None
        self.bystander = None
        self.entrance = "listen"
        self.audit = AuditReader("/tmp/audit")
        self.starter = []  # put in front of the helper's command
        self.settings = {"user_uid": HELPER_UID, "socket_group": CLIENTS_GID, "slots": 16, "slots_per_uid": 6, "audit_folder": "/tmp/audit",
                         "audit_lines": AuditReader.SEGMENT_LINES,
                         "requests_per_second": 100000, "requests_burst": 1000000}

    def configure(self, **settings):
        self.settings |= settings
        with open("/tmp/helper.conf", "w", encoding="ascii") as file:
            file.writelines(f"{name}: {value}\n" for name, value in self.settings.items())

    def log(self):
        try:
            with open("/tmp/helper.log", encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def start_helper(self, seconds=10.0):
        """Through the entrance; returns when it says that it is ready."""
        self.configure()
        starts = self.log().count("berth-helper: ready")
        command = [*self.starter, HELPER, "listen", "--config", "/tmp/helper.conf"]
        with open("/tmp/helper.log", "ab") as log:
            if self.entrance == "passed":
                self.helper = self._start_passed(command, log)
            else:
                self.helper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if not eventually(lambda: self.log().count("berth-helper: ready") > starts or self.helper.poll() is not None,
                          seconds) or self.helper.poll() is not None:
            raise AssertionError(f"the helper did not start: {self.log()[-2000:]}")

    def _start_passed(self, command, log):
        """As a service manager does: LISTEN_FDS, and the socket at descriptor 3."""
        os.makedirs("/run/berth", mode=0o750, exist_ok=True)
        os.chown("/run/berth", 0, CLIENTS_GID)
        if os.path.exists(SOCKET):
            os.unlink(SOCKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(SOCKET)
        os.chown(SOCKET, 0, CLIENTS_GID)
        os.chmod(SOCKET, 0o660)
        listener.listen(128)
        launcher = ("import os, sys; fd = int(sys.argv[1]); os.dup2(fd, 3); os.set_inheritable(3, True);"
                    "os.execve(sys.argv[2], sys.argv[2:], {'LISTEN_FDS': '1', 'LISTEN_PID': str(os.getpid())})")
        process = subprocess.Popen([PYTHON, "-c", launcher, str(listener.fileno()), *command],
                                   pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        listener.close()
        return process

    def start(self, entrance="listen", **settings):
        self.entrance = entrance
        self.settings |= settings
        self.start_helper()
        self.bystander = Bystander()

    def helper_pid(self):
        return self.helper.pid

    def kill_helper(self):
        self.helper.kill()
        self.helper.wait()

    def replace_helper(self):
        """It is killed and comes again, and has the bystander's leases back."""
        self.bystander.keep()
        self.kill_helper()
        self.start_helper()
        for guest in (self.bystander.gateway, self.bystander.agent):
            guest.tool.hear("^kept ")

    def stop(self):
        if self.bystander:
            self.bystander.end()
            self.bystander = None
        if self.helper and self.helper.poll() is None:
            eventually(lambda: not self.interfaces(), 3)
            self.kill_helper()

    def start_again(self, entrance, **settings):
        """A helper that knows nothing of the one before."""
        self.stop()
        self.wipe()
        self.start(entrance, **settings)

    @staticmethod
    def wipe():
        run("nft", "flush", "ruleset")
        for name in World.interfaces():
            run("ip", "link", "del", name, check=False)

    # ---- the oracle -----------------------------------------------------------------------------------------------

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.helper_pid()}/fd"))

    @staticmethod
    def interfaces():
        return sorted(os.path.basename(path) for path in glob.glob("/sys/class/net/berth*"))

    @staticmethod
    def rules():
        """The table without counters, handles and what changes in the course of legitimate work; sets sorted."""
        tables = json.loads(run("nft", "-s", "-j", "list", "table", "inet", "berth"))["nftables"]
        lines = []
        for item in tables:
            for value in item.values():
                value.pop("handle", None)
                if value.get("name") in CHANGING_SETS:
                    value.pop("elem", None)
                if isinstance(value.get("elem"), list):
                    value["elem"] = sorted(json.dumps(one, sort_keys=True) for one in value["elem"])
            lines.append(json.dumps(item, sort_keys=True))
        return sorted(lines)

    def repairs(self):
        return self.log().count("not ours any more")

    def settled_descriptors(self):
        """Connections that were just closed are gone a moment later; devices of ended leases when they are deleted together."""
        for _ in range(20):
            before = self.descriptors(), self.interfaces()
            time.sleep(0.06)
            if (self.descriptors(), self.interfaces()) == before:
                break
        return before[0]

    def snapshot(self):
        return {"descriptors": self.settled_descriptors(), "interfaces": self.interfaces(), "rules": self.rules(),
                "repairs": self.repairs()}

    def differences(self, before):
        if self.helper.poll() is not None:
            return [f"the engine ended with {self.helper.returncode}"]
        failures = []
        failures += self.audit.read_on()
        eventually(lambda: self.descriptors() == before["descriptors"] and self.interfaces() == before["interfaces"])
        after = self.snapshot()
        for what in ("descriptors", "interfaces", "repairs"):
            if after[what] != before[what]:
                failures.append(f"{what}: {before[what]} before, {after[what]} after")
        try:
            expect(before["rules"], after["rules"], "rules")
        except AssertionError as error:
            failures.append(str(error))
        if self.bystander:
            wrong = self.bystander.works()
            failures += [wrong] if wrong else []
        try:
            with Client(0) as root:
                expect(OK, root.request(RECONCILE).status, "status of RECONCILE")
                pool = root.status()
                expect(1, pool["healthy"], "healthy")
            if os.path.exists(self.audit.folder):
                failures += self.audit.read_on()
            if self.audit.is_complete and self.audit.next > 1:
                expect(pool["live"], len(self.audit.held), f"leases according to the audit log ({self.audit.held})")
            expect(after["repairs"], self.repairs(), "repairs after RECONCILE")
        except Exception as error:  # a helper that does not answer is a finding, not the end of the test
            failures.append(f"the engine does not answer as it should: {error!r}")
        return failures


def send_signal(pid, name):
    os.kill(pid, getattr(signal, name))
