#!/usr/bin/env -S python3 -B
"""a35: pf on macOS. Nobody's text reaches pfctl, whatever an engine that was taken over orders; and here, where there is no
pf, the kind is refused by name.

The process that runs pfctl is the real one; /sbin/pfctl is the test's own, which writes down how it was called and keeps the
rules of each anchor. What a Mac's pf makes of the rules has to be seen on a Mac.
"""

import errno
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

PF, NOTHING = 3, 0xffff
RULE = re.compile(rb"(block drop|pass)( in| out)? quick inet( proto tcp)? from (any|[0-9./]+) to (any|self|[0-9./]+)( user [0-9]+)? "
                  rb'label "berth:[0-9]+(:[0-9]+){6}"\n')
ANCHORS = [b"com.apple/berth"] + [b"com.apple/berth.%d" % number for number in range(1, 16)]

world = World.enter(__file__)
MACOS = shutil.copy(f"{ROOT}/build/tests/tools/macos_tool", "/tmp/macos_tool")


# ---- here -------------------------------------------------------------------------------------------------------------------

def kind_is_refused():
    for role in (AGENT, GATEWAY, ORCHESTRATOR):
        for environment in range(16):
            with Client(ALICE) as client:
                client.lease(status=UNSUPPORTED, kind=PF, role=role, environment=environment)
                expect(set(), client.status()["own"], "slots")
    for environment in (16, 17, 128, 255):
        must_close(frame(LEASE, 2, 0, lease_body(kind=PF, environment=environment)), hello=True)


world.start()
case("a35 kind pf is refused by name, in every role and environment")(kind_is_refused)
world.stop()
World.current = None  # the oracle is the engine's; from here on there is none


# ---- a pfctl of the test's own --------------------------------------------------------------------------------------------------

PFCTL = """#!/bin/sh
PATH=/bin:/usr/bin
count=$(($(cat /tmp/pf/count) + 1))
echo $count >/tmp/pf/count
printf '%s\\0' "$@" >/tmp/pf/$count.argv
cat /proc/$$/environ >/tmp/pf/$count.environ
ls -l /proc/self/fd >/tmp/pf/$count.fds
case $(cat /tmp/pf/mode) in
fail) exit 1 ;;
fail_loudly) yes 'pfctl: DIOCXCOMMIT: Device busy' | head -c 100000; exit 1 ;;
hang) exec sleep 300 ;;
deaf) exec <&-; exit 1 ;;
killed) kill -9 $$ ;;
esac
case "$*" in
"-q -E") ;;
"-q -s rules") cat /tmp/pf/main ;;
"-q -k "*) ;;
"-q -a com.apple/berth"*" -f -") cat >"/tmp/pf/rules.${3#com.apple/}" ;;
"-q -a com.apple/berth"*" -s rules") cat "/tmp/pf/rules.${3#com.apple/}"; cat /tmp/pf/foreign ;;
*) echo "$*" >>/tmp/pf/unknown; exit 1 ;;
esac
"""


def put(name, text):
    with open(f"/tmp/pf/{name}", "w", encoding="ascii") as file:
        file.write(text)


def get(name):
    with open(f"/tmp/pf/{name}", "rb") as file:
        return file.read()


def calls():
    """How pfctl has been called since the last time."""
    found = []
    for number in range(1, int(get("count")) + 1):
        found.append(get(f"{number}.argv").split(b"\0")[:-1])
    put("count", "0\n")
    return found


os.mkdir("/tmp/pf")
for at, content in (("mode", "ok\n"), ("count", "0\n"), ("main", 'scrub-anchor "com.apple/*" all fragment reassemble\nanchor "com.apple/*" all\n'),
                    ("foreign", "")):
    put(at, content)
FOLDER = os.path.realpath("/sbin")
run("mount", "-t", "tmpfs", "-o", "mode=755", "sbin", FOLDER)
with open(f"{FOLDER}/pfctl", "w", encoding="ascii") as program:
    program.write(PFCTL)
os.chmod(f"{FOLDER}/pfctl", 0o755)


def order(environment=0, leases=(), cut=NOTHING):
    """leases: (slot, role, sealed, generation, uid)."""
    body = b"".join(struct.pack("<HBBIIxxxx", *lease) for lease in leases)
    return b"BPF1" + struct.pack("<BBHH6x", environment, 0, len(leases), cut) + body


class Applier:
    """The process that runs pfctl, with things about it that pfctl must not get."""

    def __init__(self):
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(120)
        secret = os.open("/etc/passwd", os.O_RDONLY)
        os.set_inheritable(secret, True)

        def prepare():
            os.dup2(other.fileno(), 3)
            os.set_inheritable(3, False)
            libc.fcntl(3, 2, 0)  # F_SETFD: it is executed with it; what it passes on is its own affair
        self.process = subprocess.Popen([MACOS, "apply"], preexec_fn=prepare, close_fds=False, stdin=subprocess.DEVNULL,
                                        env={"SECRET": "secret", "PFCTL_OPTIONS": "-F all", "LD_DEBUG": ""})
        os.close(secret)
        other.close()

    def answer(self, data):
        """The errno that it answered; None: it has ended."""
        try:
            self.socket.sendall(data)
            reply = self.socket.recv(4, socket.MSG_WAITALL)
        except (BrokenPipeError, ConnectionResetError):
            return None
        return struct.unpack("<I", reply)[0] if len(reply) == 4 else None

    def status(self):
        self.socket.close()
        return self.process.wait(60)


def only_ours(anchor=None):
    """Every call was one of the fixed ones, for an anchor of ours, and every rule is made of fixed words and numbers."""
    made = calls()
    for argv in made:
        if argv[1] == b"-k":
            expect(True, all(re.fullmatch(rb"-k|[0-9./]+", word) for word in argv[1:]), f"pfctl {argv}")
            continue
        expect([b"-q", b"-a"], argv[:2], f"pfctl {argv}")
        expect(True, argv[2] in ([anchor] if anchor else ANCHORS) and argv[3:] in ([b"-f", b"-"], [b"-s", b"rules"]), f"pfctl {argv}")
        rules = get("rules." + argv[2].decode().removeprefix("com.apple/"))
        for line in rules.splitlines(keepends=True):
            expect(True, RULE.fullmatch(line) is not None, f"a rule: {line!r}")
    expect(False, os.path.exists("/tmp/pf/unknown"), "calls that nobody should make")
    return made


# ---- orders -----------------------------------------------------------------------------------------------------------------------

def each_environment():
    applier = Applier()
    for environment in range(16):
        expect(0, applier.answer(order(environment, [(environment, AGENT, 0, 7, 501)])), "answer")
        expect(2, len(only_ours(ANCHORS[environment])), "calls of pfctl")
    expect(0, applier.answer(order(3, [], cut=3)), "answer to the end of a lease")
    expect([[b"-q", b"-k", b"10.242.0.24/29"], [b"-q", b"-k", b"0.0.0.0/0", b"-k", b"10.242.0.24/29"]], calls()[2:], "connections that are cut")
    expect(b"", get("rules.berth.3"), "rules without a lease")
    expect(0, applier.status(), "exit status")
    for environment in (16, 46, 47, 255):  # 46 and 47 are "." and "/"
        applier = Applier()
        expect(None, applier.answer(order(environment)), f"environment {environment}")
        expect((errno.EBADMSG, []), (applier.status(), calls()), f"environment {environment}")


def pfctl_gets_nothing():
    applier = Applier()
    expect(0, applier.answer(order(0, [(1, GATEWAY, 0, 7, 501)])), "answer")
    for number in (1, 2):
        expect(b"", get(f"{number}.environ"), "variables")
        fds = [line.split(b" ")[-3::2] for line in get(f"{number}.fds").splitlines() if b" -> " in line]  # those of ls
        expect([b"0", b"1", b"2"], sorted(fd for fd, what in fds if not what.endswith(b"/fd")), "descriptors")
        fds = dict(fds)
        expect((b"socket", b"/dev/null"), (fds[b"0"].split(b":")[0], fds[b"2"]), "standard descriptors")
    only_ours(ANCHORS[0])
    expect(0, applier.status(), "exit status")


def every_slot():
    applier = Applier()
    leases = [(slot, slot % 3, slot % 2, 0xffffffff - slot, 0xfffffffe - slot) for slot in range(1024)]
    expect(0, applier.answer(order(15, leases)), "answer")
    only_ours(ANCHORS[15])
    expect(True, len(get("rules.berth.15").splitlines()) > 3000, "rules")
    data = order(2, leases[:5])
    for at in range(0, len(data) - 1):  # in single bytes
        applier.socket.sendall(data[at:at + 1])
    expect(0, applier.answer(data[-1:]), "answer to an order in pieces")
    only_ours(ANCHORS[2])
    expect(0, applier.status(), "exit status")


def hostile_orders():
    """Whatever bytes: refused without a call of pfctl, or rules of numbers in an anchor of ours."""
    chance = random.Random(35)
    good = order(1, [(3, AGENT, 0, 7, 501), (9, GATEWAY, 0, 8, 502), (11, ORCHESTRATOR, 1, 9, 503)], cut=5)
    texts = (b'"\npass quick all\n"', b"; pfctl -F all", b"com.apple/berth/../x", b"$(reboot)", b"\0-F\0all\0")
    refused = obeyed = 0
    applier = Applier()
    for turn in range(100):
        data = bytearray(good)
        if turn % 5 == 0:
            text = chance.choice(texts)
            at = chance.randrange(len(data) - len(text))
            data[at:at + len(text)] = text
        elif turn % 5 == 1:
            data = bytearray(chance.randbytes(chance.randrange(1, 200)))
        else:
            for _ in range(1 + turn % 3):
                data[chance.randrange(4, len(data))] = chance.choice((0, 1, 2, 3, 15, 34, 46, 47, 255, chance.randrange(256)))
        applier.socket.sendall(data)
        applier.socket.shutdown(socket.SHUT_WR)  # an order that is shorter than it says is one that has ended
        reply = b""
        try:
            while part := applier.socket.recv(64):
                reply += part
        except ConnectionResetError:
            pass  # it has ended with bytes that it did not read
        made = only_ours()
        status = applier.status()
        expect(True, status in (0, errno.EBADMSG), f"exit status {status}")
        if reply:
            obeyed += 1
        else:
            refused += 1
            expect([], made, "calls for something that is no order")
        applier = Applier()
    applier.status()
    note(f"{obeyed} were orders, {refused} were none")
    expect(True, obeyed > 0 and refused > 0, "both happened")


# ---- a pfctl that fails -----------------------------------------------------------------------------------------------------------------

def pfctl_fails():
    applier = Applier()
    good = order(0, [(1, AGENT, 0, 7, 501)])
    for mode in ("fail", "fail_loudly", "deaf", "killed"):
        put("mode", mode + "\n")
        expect(errno.ECHILD, applier.answer(good), f"answer when pfctl does: {mode}")
        put("mode", "ok\n")
        expect(0, applier.answer(good), "answer afterwards")
    for foreign in ("pass quick all\n", 'pass quick all label "berth:1:7:501:0:0:0:4"\n', "\n", "x" * 3000000 + "\n"):
        put("foreign", foreign)
        expect(errno.EUCLEAN, applier.answer(good), f"answer when something else is in force: {foreign[:40]!r}")
        expect(errno.EUCLEAN, applier.answer(order(0)), "answer when something is in force that should be empty")
    put("foreign", "")
    expect(0, applier.answer(good), "answer afterwards")
    os.rename(f"{FOLDER}/pfctl", f"{FOLDER}/away")
    expect(errno.ENOENT, applier.answer(good), "answer without pfctl")
    os.rename(f"{FOLDER}/away", f"{FOLDER}/pfctl")
    expect(0, applier.answer(good), "answer afterwards")
    held = len(os.listdir(f"/proc/{applier.process.pid}/fd"))
    expect(0, applier.answer(good), "answer afterwards")
    expect(held, len(os.listdir(f"/proc/{applier.process.pid}/fd")), "descriptors")
    expect(0, applier.status(), "exit status")
    calls()


def pfctl_hangs():
    applier = Applier()
    put("mode", "hang\n")
    expect(errno.ETIMEDOUT, applier.answer(order(0, [(1, AGENT, 0, 7, 501)])), "answer when pfctl does not end")
    put("mode", "ok\n")
    expect(0, applier.answer(order(0)), "answer afterwards")
    expect("", run("pgrep", "-x", "sleep", check=False), "processes that are left")
    expect(0, applier.status(), "exit status")
    calls()


def main_rules_have_to_ask_us():
    def prepare():
        return subprocess.run([MACOS, "prepare"], check=False, timeout=60).returncode
    expect(0, prepare(), "status with Apple's rules")
    expect([[b"-q", b"-E"], [b"-q", b"-s", b"rules"]], calls(), "calls")
    good = get("main").decode()
    for main in ("", 'anchor "com.example/*" all\n', "pass all\n"):
        put("main", main)
        expect(errno.ENOENT, prepare(), f"status with {main!r}")
    put("main", good)
    put("mode", "fail\n")
    expect(errno.ECHILD, prepare(), "status when pf cannot be switched on")
    put("mode", "ok\n")
    calls()


case("a35 each environment has its anchor, and no other name exists", oracle=False)(each_environment)
case("a35 pfctl gets no variable and no descriptor but its own", oracle=False)(pfctl_gets_nothing)
case("a35 every slot at once, and orders in pieces", oracle=False)(every_slot)
case("a35 hostile orders: refused, or numbers", oracle=False)(hostile_orders)
case("a35 pfctl fails, is gone, or something else is in force", oracle=False)(pfctl_fails)
case("a35 pfctl hangs", oracle=False)(pfctl_hangs)
case("a35 main rules that do not ask our anchors", oracle=False)(main_rules_have_to_ask_us)
finish()
