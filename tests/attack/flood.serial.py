#!/usr/bin/env -S python3 -B
"""a18: one user floods the engine in every way that its socket has, while another one leases and releases. All that the other
one asks for is granted, and nothing of the flood is left. How long a LEASE takes meanwhile is printed (goal: 99 % below
50 ms) and measured by tests/bench/helper.sh; a busy machine fails nothing here."""

import fcntl
import os
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

world = World.enter(__file__)
TUNGETIFF = 0x800454d2
CONNECTIONS = 2500  # of each kind: 10 000 by each entrance and with each limit
HELD_MAX = 200      # by the flood, of its own


def open_connection():
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(SOCKET)
    peer.settimeout(5)
    return peer


def hang_up():
    open_connection().close()


def be_silent():
    return open_connection()


def send_pieces():
    """A byte and then another one, as a slow client of a stream would; and half a frame."""
    peer = open_connection()
    for piece in (hello_frame()[:1], hello_frame()[1:2], hello_frame()[:256]):
        peer.send(piece)
    return peer


def never_read():
    """Questions until the socket takes no more, and no answer is ever read."""
    peer = open_connection()
    peer.send(hello_frame())
    epoch = struct.unpack_from("<Q", peer.recv(FRAME), 16)[0]
    peer.setblocking(False)
    for sequence in range(2, 2000):
        peer.send(frame(STATUS, sequence, epoch))
    return peer


def flood(deed, report_fd):
    """In a process of its own, as BOB: until it is killed. Writes a byte for each try."""
    os.setgroups([CLIENTS_GID])
    os.setgid(CLIENTS_GID)
    os.setuid(BOB)
    os.nice(5)
    held = []
    while True:
        try:
            peer = deed()
            held += [peer] if peer else []
        except (OSError, struct.error):  # refused, hung up on, or full: the next one
            pass
        os.write(report_fd, b".")
        if len(held) > HELD_MAX:
            held.pop(0).close()


class Flood:
    def __init__(self, deed):
        self.deed, self.tries = deed, 0

    def __enter__(self):
        self.reports, write_end = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                flood(self.deed, write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        os.set_blocking(self.reports, False)
        return self

    def has_tried(self, count):
        try:
            self.tries += len(os.read(self.reports, 65536))
        except BlockingIOError:
            pass
        return self.tries >= count

    def __exit__(self, *_):
        os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        os.close(self.reports)
        expect(signal.SIGKILL, os.WTERMSIG(status), "how the flood ended")


def lease_many(count):
    """Each is granted, with a device of its own; the times of LEASE in ms, sorted."""
    times = []
    with Client(ALICE) as client:
        for _ in range(count):
            started = time.monotonic()
            lease = client.lease()
            times.append(1000 * (time.monotonic() - started))
            device = fcntl.ioctl(client.tap, TUNGETIFF, bytes(40))[:16].rstrip(b"\0").decode()
            expect(lease["interface"], device, "the device behind the descriptor")
            os.close(client.tap)
            client.tap = -1
            expect(OK, client.request(RELEASE).status, "status of RELEASE")
            time.sleep(0.02)
    return sorted(times)


def in_the_middle_of(deed):
    descriptors = world.descriptors()
    with Flood(deed) as running:
        expect(True, eventually(lambda: running.has_tried(50), 30), "the flood is on")
        times = lease_many(25)
        most = 0

        def is_through():
            nonlocal most
            most = max(most, world.descriptors())
            return running.has_tried(CONNECTIONS)
        expect(True, eventually(is_through, 240), f"{CONNECTIONS} hostile connections ({running.tries} so far)")
    note(f"LEASE in the middle of it: median {times[len(times) // 2]:.1f} ms, slowest {times[-1]:.1f} ms; "
         f"at most {most - descriptors} descriptors more")
    if most > descriptors + 20:
        raise AssertionError(f"{most} descriptors, {descriptors} before")


KINDS = (("connections that are closed at once", hang_up), ("silent connections", be_silent),
         ("bytes one after the other, half frames", send_pieces), ("answers that are never read", never_read))
# What an installation grants keeps most of a flood out; without it all of it arrives.
LIMITS = (("", {"requests_per_second": 200, "requests_burst": 1000}),
          (", no limit of requests", {"requests_per_second": 1000000, "requests_burst": 1000000}))
for entrance, where in (("listen", ""), ("passed", " (passed socket)")):
    for limits, settings in LIMITS:
        world.start_again(entrance, **settings)
        for name, deed in KINDS:
            case(f"a18 {name}{limits}{where}")(lambda: in_the_middle_of(deed))
finish()
