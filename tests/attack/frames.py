#!/usr/bin/env -S python3 -B
"""a15, a16, a17, a19, a24, a27, a28: what arrives at the socket is not what the protocol says."""

import os
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

world = World.enter(__file__)

# Through the second entrance the same engine listens: every third of what is tried in thousands is enough there.


def every_length(step):
    """Three fillings: zeros, ones, and a frame that would be right with 512 bytes."""
    for filling in (b"\0" * 600, b"\xff" * 600, hello_frame().ljust(600, b"\0")):
        for length in range(0, 601, step):
            if length == FRAME and filling.startswith(b"BHT1"):
                continue
            must_close(filling[:length])


def every_bit_of(build, hello, step):
    """Each bit of a valid frame turned: the engine closes, or says no; it never does what was asked before. HELLO's
    version range may be turned into another valid one."""
    for bit in range(0, FRAME * 8, step):
        with Client(BOB, hello=hello) as client:
            data = bytearray(build(client))
            data[bit // 8] ^= 1 << bit % 8
            try:
                reply = client.ask(bytes(data))
            except Closed:
                continue
            for fd in reply.fds:
                os.close(fd)
            # A turned bit may leave a valid frame: another wish (kind, role, environment, slot) or another range.
            is_wish = hello and 24 <= bit // 8 < 30
            if not (is_wish or (not hello and 24 <= bit // 8 < 28) or reply.status in (STALE, STATE, VERSION)):
                raise AssertionError(f"bit {bit}: status {reply.status}")


def frames_in_pieces():
    """A frame in two messages, two frames in one, and a frame after an empty message."""
    for cut in (1, 24, 256, 511):
        with Client(BOB, hello=False) as client:
            client.send(hello_frame()[:cut])
            try:
                client.send(hello_frame()[cut:])
            except Closed:
                continue
            expect(True, client.is_closed(), f"closed after {cut} bytes")
    must_close(hello_frame() * 2)
    must_close(b"\0" * 65536)


def with_descriptors(step):
    """1, 2 and 253 descriptors, of kinds that would matter, thousands of times."""
    kinds = [os.open("/dev/null", os.O_RDWR), os.open("/proc/self/ns/net", os.O_RDONLY),
             socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).detach(), os.pipe()[0]]
    before, most = world.descriptors(), 0
    for count, times in ((1, 6000 // step), (2, 3900 // step), (253, 100)):
        fds = (kinds * 64)[:count]
        for turn in range(times):
            must_close(hello_frame(), fds=fds)
            if turn % 500 == 0:
                most = max(most, world.descriptors())
    with Client(BOB) as client:  # in the middle of a good connection too
        try:
            client.send(frame(STATUS, 2, client.epoch), fds=kinds)
            expect(True, client.is_closed(), "closed")
        except Closed:
            pass
    for fd in kinds:
        os.close(fd)
    if most > before + 20:
        raise AssertionError(f"{before} descriptors before, {most} in the middle of it")


def memory():
    with open(f"/proc/{world.helper_pid()}/status", encoding="ascii") as status:
        return {line.split()[0]: int(line.split()[1]) for line in status if line.startswith(("VmData", "VmSize"))}


def lies_about_length():
    """No field of a frame makes the engine ask for memory: every u16 and u32 of the body at its largest."""
    before = memory()
    for verb in range(256):
        for body in (b"\xff" * 488, b"\xff" * 16, b"\0" * 8 + b"\xff" * 8):
            with Client(BOB) as client:
                try:
                    client.send(frame(verb, 2, client.epoch, body))
                    client.is_closed()
                except Closed:
                    pass
    expect(before, memory(), "memory of the engine")


def two_descriptors_in_a_reply():
    """An engine that lies: the client closes everything that it was handed, and believes nothing."""
    path = "/tmp/liar.sock"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    os.chmod(path, 0o666)
    server.listen(1)
    server.settimeout(5)
    tool = subprocess.Popen([TOOL, "--socket", path, "--user", str(BOB), "lease", "agent", "0"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, bufsize=0)
    peer, _ = server.accept()
    peer.settimeout(5)

    def answer(verb, sequence, body, fds=()):
        expect(FRAME, len(peer.recv(FRAME + 1)), "length of a request")
        socket.send_fds(peer, [frame(verb, sequence, 7, body, kind=1)], fds)
    answer(HELLO, 1, struct.pack("<HHHHII", 1, 1, 16, 6, address("10.243.0.0"), address("10.242.0.0")))
    expect(True, b"connect ok" in tool.stdout.readline(), "HELLO believed")
    held = len(os.listdir(f"/proc/{tool.pid}/fd"))
    pipe = os.pipe()
    body = struct.pack("<BBBBHBBIII", 0, 0, 0, 1, 3, 31, 0, 9, address("10.243.0.6"), address("10.243.0.7"))
    body += bytes.fromhex("026274010003") + bytes.fromhex("026274020003") + b"berth3".ljust(16, b"\0")
    answer(LEASE, 2, body, [pipe[0], pipe[1]])
    said = tool.stdout.readline()
    expect(True, said.startswith(b"error lease"), f"the client refuses ({said!r})")
    if len(os.listdir(f"/proc/{tool.pid}/fd")) > held:
        raise AssertionError("the client kept a descriptor")
    tool.kill()
    tool.wait()
    tool.stdin.close()
    tool.stdout.close()
    for one in (server, peer):
        one.close()
    for fd in pipe:
        os.close(fd)
    os.unlink(path)


def slot_numbers():
    """As a wish a number outside the pool is either no frame or another slot; as an adoption it is nobody's."""
    for slot in (0, 1, 14, 15, 16, 255, 1022, 1023, 1024, 0x7fff, 0x8000, 0xfffe, 0xffff):
        with Client(BOB) as client:
            try:
                lease = client.lease(slot=slot)
                expect(True, lease["slot"] < 16 and slot < 1024, f"wish {slot}, slot {lease['slot']}")
            except Closed:
                expect(True, slot >= 1024, f"{slot} is no frame")
        for generation in (1, 0x7fffffff, 0xffffffff):
            with Client(BOB) as client:
                try:
                    client.lease(status=NOT_FOUND, slot=slot, generation=generation, adopt=True)
                except Closed:
                    expect(True, slot >= 1024, f"{slot} is no frame")
        must_close(frame(LEASE, 2, 0, lease_body(slot=slot, adopt=True)), hello=True)  # generation 0: nobody's


def numbers_of_all_kinds():
    """Every value of kind, role, environment and flags: granted, refused by name, or no frame."""
    for name, values in (("kind", range(256)), ("role", range(256)), ("environment", range(256))):
        for value in values:
            with Client(BOB) as client:
                reply = None
                try:
                    reply = client.request(LEASE, lease_body(**{name: value}))
                except Closed:
                    pass
                limit = {"kind": 4, "role": 3, "environment": 16}[name]
                expect(value < limit, reply is not None, f"{name} {value} is a frame")
                if reply:
                    wanted = UNSUPPORTED if name == "kind" and value > 0 else OK
                    if not (name == "kind" and reply.status in (OK, UNSUPPORTED)):
                        expect(wanted, reply.status, f"{name} {value}")
                    for fd in reply.fds:
                        os.close(fd)


def wrong_order():
    """A sequence number that is old, the same, skipped or at its end; an epoch that is not this engine's."""
    for change in (0, -1, 2, 1000, 0x7fffffff):
        with Client(BOB) as client:
            client.status()
            reply = client.ask(frame(STATUS, (client.sequence + change) & 0xffffffff, client.epoch))
            expect(STALE, reply.status, f"sequence {change:+}")
            expect(True, client.is_closed(), "closed")
    for epoch in (0, 1, 2**64 - 1):
        with Client(BOB) as client:
            try:
                expect(STALE, client.ask(frame(LEASE, 2, epoch, lease_body())).status, f"epoch {epoch}")
                expect(True, client.is_closed(), "closed")
            except Closed:  # 0 is no engine's: no frame
                expect(0, epoch, "epoch that is no frame")
    with Client(BOB) as client:  # its own frames, a second time
        data = frame(STATUS, 2, client.epoch)
        expect(OK, client.ask(data).status, "the first time")
        expect(STALE, client.ask(data).status, "the second time")
        expect(True, client.is_closed(), "closed")


def replay_of_a_release():
    """A captured RELEASE does not release the next lease."""
    with Client(BOB) as client:
        client.lease()
        release = frame(RELEASE, 3, client.epoch)
        expect(OK, client.ask(release).status, "RELEASE")
        client.sequence = 3
        first = client.lease()
        expect(STALE, client.ask(release).status, "the captured RELEASE")
        expect(True, client.is_closed(), "closed")
        del first


def versions():
    for lowest, highest, wanted in ((0, 0, VERSION), (2, 2, VERSION), (65535, 65535, VERSION), (2, 1, VERSION),
                                    (1, 65535, OK), (0, 65535, OK), (1, 1, OK)):
        with Client(BOB, hello=False) as client:
            try:
                reply = client.ask(hello_frame(lowest, highest))
            except Closed:  # an impossible or empty range is no frame at all
                expect(True, lowest > highest or lowest == 0, f"versions {lowest}..{highest}")
                continue
            expect(wanted, reply.status, f"versions {lowest}..{highest}")
            expect((1, 1), struct.unpack_from("<HH", reply.body), "the engine's versions")
            if wanted == VERSION:
                expect(b"\0" * 484, reply.body[4:], "nothing about the pool")
                expect(True, client.is_closed(), "closed")
    for version in (0, 2, 65535):  # another one than was agreed on
        with Client(BOB) as client:
            try:
                reply = client.ask(frame(STATUS, 2, client.epoch, version=version))
                expect(VERSION, reply.status, f"version {version} after HELLO")
                expect(True, client.is_closed(), "closed")
            except Closed:
                pass


def verbs_out_of_turn():
    with Client(BOB) as client:
        expect(STATE, client.request(HELLO, struct.pack("<HH", 1, 1), version=0, epoch=0).status, "a second HELLO")
        client.status()  # and the connection is as good as before
    for verb in range(256):  # before HELLO: whatever it is, nothing is told and nothing is done
        for epoch in (0, 1):
            if verb == HELLO:
                continue
            with Client(BOB, hello=False) as client:
                try:
                    reply = client.ask(frame(verb, 1, epoch, lease_body() if verb == LEASE else b""))
                    expect(True, reply.status in (STATE, STALE), f"verb {verb} before HELLO")
                    expect(b"\0" * 488, reply.body, "the body of a refusal")
                    expect(True, client.is_closed(), "closed")
                except Closed:
                    pass
    with Client(BOB) as client:
        for verb in (SEAL, COUNTERS, RELEASE):
            expect(STATE, client.request(verb).status, f"verb {verb} without a lease")
        expect(NOT_PERMITTED, client.request(RECONCILE).status, "RECONCILE of a user")
        client.lease()
        expect(STATE, client.request(LEASE, lease_body()).status, "a second LEASE on one connection")


for entrance, where, step in (("listen", "", 1), ("passed", " (passed socket)", 3)):
    world.start_again(entrance)
    case(f"a15 every length 0..600{where}")(lambda: every_length(step))
    case(f"a15 every bit of HELLO turned{where}")(lambda: every_bit_of(lambda _: hello_frame(), False, step))
    case(f"a15 every bit of LEASE turned{where}")(lambda: every_bit_of(
        lambda client: frame(LEASE, 2, client.epoch, lease_body(slot=3, environment=1)), True, step))
    case(f"a15 frames in pieces, two in one, 64 KiB{where}")(frames_in_pieces)
    case(f"a16 no field makes the engine ask for memory{where}")(lies_about_length)
    case(f"a17 1, 2 and 253 descriptors in {10000 // step} requests{where}")(lambda: with_descriptors(step))
    case(f"a24 slot numbers at every edge{where}")(slot_numbers)
    case(f"a24 every value of kind, role and environment{where}")(numbers_of_all_kinds)
    case(f"a27 old, repeated and skipped sequence numbers, foreign epochs{where}")(wrong_order)
    case(f"a27 a captured RELEASE{where}")(replay_of_a_release)
    case(f"a28 versions 0, 2, 65535{where}")(versions)
    case(f"a28 verbs before HELLO, twice, or in the wrong state{where}")(verbs_out_of_turn)

case("a19 two descriptors in a reply that has one", oracle=False)(two_descriptors_in_a_reply)


def replay_across_a_restart():
    """Frames captured before the engine was restarted mean nothing after it."""
    with Client(BOB) as client:
        captured = [frame(LEASE, 2, client.epoch, lease_body()), frame(STATUS, 2, client.epoch)]
    world.replace_helper()
    for data in captured:
        with Client(BOB) as client:
            expect(STALE, client.ask(data).status, "a frame of an earlier engine")
            expect(True, client.is_closed(), "closed")


case("a27 frames captured before a restart")(replay_across_a_restart)
finish()
