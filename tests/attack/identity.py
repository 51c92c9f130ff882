#!/usr/bin/env -S python3 -B
"""a08, a09, a10, a20, a21, a22, a23, a33, a34: who somebody is, what is whose, and what one can learn about others."""

import os
import random
import string
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

world = World.enter(__file__)


def child(deed):
    """Runs the deed in a process of its own. What it raises is raised here."""
    pid = os.fork()
    if pid == 0:
        try:
            deed()
        except BaseException as error:  # the parent has to learn of everything
            print(f"# {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    expect(0, status, "status of the child")


# ---- a08, a09, a10 -----------------------------------------------------------------------------------------------------------

def speaks_for_the_one_who_connected():
    """Alice connects and is gone; whoever has her socket then, root's child or Bob's with her old pid, is she."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def connect_and_leave():
        client = Client(ALICE)
        socket.send_fds(writer, [struct.pack("<Q", client.epoch)], [client.socket.fileno()])
    child(connect_and_leave)
    data, fds, _, _ = socket.recv_fds(reader, 8, 1)
    heir = Client.__new__(Client)
    heir.socket = socket.socket(fileno=fds[0])
    heir.socket.settimeout(5)
    heir.sequence, heir.epoch, heir.tap, heir.uid = 1, struct.unpack("<Q", data)[0], -1, BOB
    with as_user(BOB):  # a grandchild of somebody else speaks
        lease = heir.lease()
    expect(NOT_PERMITTED, heir.request(RECONCILE).status, "root speaks through Alice's connection")
    with Client(ALICE) as alice, Client(BOB) as bob:
        expect(True, lease["slot"] in alice.status()["own"], "the slot is Alice's")
        expect(set(), bob.status()["own"], "and not Bob's")
    heir.close()
    reader.close()
    writer.close()


def recycled_pids():
    """The pid of a client that is gone comes back as another user's: that user has nothing of the first one's. The next
    pid can be chosen in a pid namespace, as a recycled one would come."""
    client = None
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def connect_and_leave():
        first = Client(ALICE)
        socket.send_fds(writer, [struct.pack("<IQ", os.getpid(), first.epoch)], [first.socket.fileno()])
    child(connect_and_leave)
    data, fds, _, _ = socket.recv_fds(reader, 12, 1)
    pid, epoch = struct.unpack("<IQ", data)
    client = Client.__new__(Client)
    client.socket = socket.socket(fileno=fds[0])
    client.socket.settimeout(5)
    client.sequence, client.epoch, client.tap, client.uid = 1, epoch, -1, ALICE
    slot = client.lease()["slot"]
    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as last:
        last.write(str(pid - 1))

    def as_recycled():
        expect(pid, os.getpid(), "the pid has come back")
        with Client(BOB) as bob:
            expect(set(), bob.status()["own"], "slots of the recycled pid")
            for verb in (SEAL, COUNTERS, RELEASE):
                expect(STATE, bob.request(verb).status, f"verb {verb}")
    child(as_recycled)
    with Client(ALICE) as alice:
        expect({slot}, alice.status()["own"], "Alice's slot")
    client.close()
    reader.close()
    writer.close()


def dies_around_accept():
    """Gone before accept, between the halves of a frame, and with a lease under way."""
    for turn in range(300):
        pid = os.fork()
        if pid == 0:
            try:
                peer = Client(BOB, hello=False)
                if turn % 3 == 1:
                    peer.send(hello_frame()[:100])
                if turn % 3 == 2:
                    peer.send(hello_frame())
                    peer.send(frame(LEASE, 2, 1, lease_body()))
            finally:
                os.kill(os.getpid(), 9)
        os.waitpid(pid, 0)


def unusual_uids():
    """-1, the overflow uid and what lies above uid_max are nobody, and never root."""
    for uid in (65534, 2**31, 2**32 - 2):
        try:
            client = Client(uid)
        except OSError:
            continue  # not mapped here: nobody can be it
        except Closed:
            continue
        client.close()
        raise AssertionError(f"uid {uid} is served")


def unmapped_uid():
    """A peer that has no uid here: from a namespace of its own, with ids that are not mapped."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([CLIENTS_GID])
        os.setgid(CLIENTS_GID)
        os.setuid(BOB)
        if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER, and no map is written
            os.write(writer, b"-")
            os._exit(0)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(5)
        try:
            peer.connect(SOCKET)
            peer.send(hello_frame())
            data = peer.recv(FRAME)
            # It is Bob to the kernel (an id keeps its meaning outside): then it is he, or refused, but never another.
            os.write(writer, b"s" if data and Reply(data, []).status == OK else b"r")
            if data and Reply(data, []).status == OK:
                peer.send(frame(RECONCILE, 2, Reply(data, []).epoch))
                os.write(writer, b"%d." % Reply(peer.recv(FRAME), []).status)
        except OSError:
            os.write(writer, b"r")
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    said = os.read(reader, 16).decode()
    os.close(reader)
    expect(True, said in ("-", "r", f"s{NOT_PERMITTED}."), f"what it is taken for ({said})")


# ---- a20, a21 -------------------------------------------------------------------------------------------------------------------

def every_verb_on_foreign_slots():
    """Bob names each slot and generation that others hold, in every field that has room for one."""
    with Client(ALICE) as alice:
        lease = alice.lease()
        held = {(lease["slot"], lease["generation"])}
        held |= {(int(guest.facts["slot"]), int(guest.facts["generation"]))
                 for guest in (world.bystander.agent, world.bystander.gateway)}
        rules = world.rules()
        for slot, generation in sorted(held):
            with Client(BOB) as bob:
                bob.lease(status=NOT_FOUND, adopt=True, slot=slot, generation=generation)
                for verb in (SEAL, COUNTERS, RELEASE):
                    expect(STATE, bob.request(verb).status, f"verb {verb} without a lease")
            for verb in (SEAL, COUNTERS, RELEASE, STATUS):  # a body that names a slot is no frame
                must_close(frame(verb, 2, 0, lease_body(slot=slot, generation=generation)), hello=True)
        expect(rules, world.rules(), "the rules after all attempts")
        with Client(BOB) as bob:  # a wish for a slot that is held gets another one
            got = bob.lease(slot=lease["slot"])
            expect(True, got["slot"] not in {slot for slot, _ in held}, "another slot")
            expect(False, got["generation"] in {generation for _, generation in held}, "the same generation")
        expect({lease["slot"]}, alice.status()["own"], "Alice's slots")
        expect(OK, alice.request(COUNTERS).status, "Alice's COUNTERS")


def foreign_reserved_slots():
    """After a crash the slots wait for their owner: Bob gets the same answer for them as for slots that are not there."""
    answers = {}
    with Client(ALICE) as alice:
        lease = alice.lease()
        world.replace_helper()
        times = {"foreign": [], "absent": [], "wrong generation": []}
        with Client(BOB) as bob:
            for _ in range(100):
                for what, slot, generation in (("foreign", lease["slot"], lease["generation"]),
                                               ("absent", 15, lease["generation"]),
                                               ("wrong generation", lease["slot"], lease["generation"] + 1)):
                    began = time.perf_counter()
                    reply = bob.request(LEASE, lease_body(adopt=True, slot=slot, generation=generation))
                    times[what].append(time.perf_counter() - began)
                    expect(NOT_FOUND, reply.status, what)
                    answers.setdefault(what, reply.data[:8] + reply.data[12:])
        middle = {what: sorted(values)[50] for what, values in times.items()}
        note("median answer in us: " + ", ".join(f"{what} {value * 1e6:.0f}" for what, value in middle.items()))
        expect(1, len(set(answers.values())), "different answers")
        # A call of the kernel takes 100 us and more here; one comparison more or less takes nothing.
        expect(True, max(middle.values()) < 3 * min(middle.values()) + 50e-6, "the same class of time")
        with Client(ALICE) as again:
            again.lease(adopt=True, slot=lease["slot"], generation=lease["generation"])
            expect({lease["slot"]}, again.status()["own"], "Alice's slot")


def status_tells_no_owner():
    """STATUS shows one's own slots; of others' there are only counts. Errors of LEASE name nobody."""
    with Client(ALICE) as alice, Client(BOB) as bob:
        slot = alice.lease(role=GATEWAY)["slot"]
        reply = bob.request(STATUS)
        expect(set(), reply.pool()["own"], "Bob's slots")
        expect(b"\0" * 320, reply.body[16 + 128:16 + 128 + 320], "the rest of the frame")
        expect({slot}, alice.status()["own"], "Alice's slots")
        bob.lease(role=GATEWAY)  # that Alice has one in the same environment is nothing to him


# ---- a22 ------------------------------------------------------------------------------------------------------------------------

def quota_to_the_digit():
    held = [Client(ALICE) for _ in range(0)]
    try:
        for number in range(1, 7):
            held.append(Client(ALICE))
            held[-1].lease()
            expect(number, len(held[-1].status()["own"]), "slots held")
        with Client(ALICE) as one_more:
            for _ in range(3):
                one_more.lease(status=QUOTA)
            expect(OK, held[0].request(RELEASE).status, "RELEASE")
            one_more.lease()  # one given back, one granted
            held[0].lease(status=QUOTA)
    finally:
        for client in held:
            client.close()


def racing_connections():
    """40 connections at once: never more than the quota; the other user is served all the while."""
    reader, writer = os.pipe()
    gate, hold = os.pipe()  # who has a lease keeps it until all were counted
    pids = []
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            os.close(hold)
            got = b"-"
            for _ in range(20):  # not admitted: later
                try:
                    client = Client(ALICE)
                    got = b"+" if client.request(LEASE, lease_body()).status == OK else b"-"
                    break
                except (Closed, OSError):
                    time.sleep(0.02 * random.random())
            os.write(writer, got)
            if got == b"+":
                os.read(gate, 1)
            os._exit(0)
        pids.append(pid)
    os.close(gate)
    for _ in range(5):
        with Client(BOB) as bob:
            bob.lease()
    said = b""
    while len(said) < 40:
        said += os.read(reader, 40)
    with Client(ALICE) as alice:
        expect(said.count(b"+"), len(alice.status()["own"]), "slots held")
    expect(6, said.count(b"+"), "leases of 40 connections at once")
    os.close(hold)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)


def full_pool():
    """Two uids with their quotas fill the pool: the next gets FULL, which says nothing else, and gets a slot as soon as
    there is one."""
    uids = [ALICE] * 6 + [BOB] * 6 + [1003] * 2  # with the bystander's two: all 16
    held = []
    try:
        for uid in uids:
            held.append(Client(uid))
            held[-1].lease()
        with Client(1003) as late:
            late.lease(status=FULL)
            held.pop().close()
            eventually(lambda: late.status()["free"] + late.status()["dead"] > 0)
            late.lease()
    finally:
        for client in held:
            client.close()


# ---- a23 ------------------------------------------------------------------------------------------------------------------------

NAMES = ["a" * 16, "a" * 17, "a" * 255, "a/b", "../../etc", "%s%n", "two words", "-rf", "new\\nline", "caf\u00e9", "a;b", "$(id)", "."]


def names_do_not_reach_a_frame():
    """Agents with names of all kinds: refused by berth itself; nothing connects to the helper."""
    home = "/home/1000"
    os.makedirs(f"{home}/.config/berth/agents", exist_ok=True)
    os.makedirs(f"{home}/.config/berth/bottles", exist_ok=True)
    with open(f"{home}/.config/berth/agents/dev.md", "w", encoding="ascii") as file:
        file.write("---\nharness: shell\nbottle: dev\n---\n")
    with open(f"{home}/.config/berth/bottles/dev.yaml", "w", encoding="ascii") as file:
        file.write("egress: {routes: []}\n")
    run("chown", "-R", f"{ALICE}:{ALICE}", home)
    for name in NAMES:
        done = subprocess.run(["setpriv", "--reuid", str(ALICE), "--regid", str(ALICE), "--groups", str(CLIENTS_GID),
                               "env", "-i", f"HOME={home}", "PATH=/usr/bin:/bin", f"{ROOT}/build/berth", "spawn", "dev",
                               "--name", name, "--dry-run", "--", "true"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        long_is_fine = name in ("a" * 16, "a" * 17)
        if done.returncode == 0 and not long_is_fine:
            raise AssertionError(f"accepted: {name!r}: {done.stdout[-300:]!r}")
        if done.returncode < 0 or b"\n\n" in done.stdout and not done.stdout.strip():
            raise AssertionError(f"{name!r}: ended with {done.returncode}")


def no_field_takes_text():
    """Text in every place of a frame that holds a number or nothing: no frame, or a refusal; never an interface."""
    before = World.interfaces()
    for text in (b"berth7", b"eth0;id", b"../../x", b"%n%n%n%n", b"a\nb", "café".encode(), string.printable.encode()):
        for offset in range(24, 80):
            body = bytearray(488)
            body[offset - 24:offset - 24 + len(text)] = text[:488 - offset + 24]
            must_close(frame(LEASE, 2, 0, bytes(body)), hello=True)
    expect(before, World.interfaces(), "interfaces")


# ---- a33 ------------------------------------------------------------------------------------------------------------------------

def one_audit_line_each():
    """Each changing verb has one line, with the uid of the connection and the lease; what changes nothing has none."""
    expect([], world.audit.read_on(), "the chain")
    with Client(ALICE) as client:
        first = client.lease(role=ORCHESTRATOR, environment=3)
        expect(OK, client.request(SEAL).status, "SEAL")
        expect(OK, client.request(RELEASE).status, "RELEASE")
        second = client.lease()
        for _ in range(20):
            client.status()
            client.request(COUNTERS)
    def is_ended():
        with Client(BOB) as bob:
            return bob.status()["live"] == 2
    expect(True, eventually(is_ended), "the end of the connection is seen")
    expect([], world.audit.read_on(), "the chain")
    expect({"LEASE": 2, "SEAL": 1, "RELEASE": 1, "EOF": 1}, world.audit.counts, "audit lines")
    number = world.audit.next - 1
    lines = [json.loads(world.audit.line(number - back)) for back in range(5)][::-1]
    expect([first["generation"]] * 3 + [second["generation"]] * 2, [line["generation"] for line in lines], "generations")
    expect([ALICE] * 5, [line["uid"] for line in lines], "uids")


# ---- a34 ------------------------------------------------------------------------------------------------------------------------

def connection_is_passed_on():
    """Alice gives Bob her connection: he may do what she may, as she; his own account is as before. Hers is not widened
    either: root writing to it stays a user."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with Client(ALICE) as alice:
        socket.send_fds(one, [b"x"], [alice.socket.fileno()])
        _, fds, _, _ = socket.recv_fds(other, 1, 1)

        def as_bob():
            os.setgroups([CLIENTS_GID])
            os.setgid(CLIENTS_GID)
            os.setuid(BOB)
            passed = socket.socket(fileno=fds[0])
            passed.settimeout(5)
            passed.send(frame(LEASE, 2, alice.epoch, lease_body()))
            data, taps, _, _ = socket.recv_fds(passed, FRAME, 4)
            expect(OK, Reply(data, taps).status, "LEASE through Alice's connection")
        child(as_bob)
        with Client(ALICE) as asking, Client(BOB) as bob:
            expect(1, len(asking.status()["own"]), "the slot counts against Alice")
            expect(set(), bob.status()["own"], "and not for Bob")
        alice.sequence = 2
        expect(NOT_PERMITTED, alice.request(RECONCILE).status, "root writes to it")
        os.close(fds[0])
    one.close()
    other.close()


def credentials_in_a_message():
    """SCM_CREDENTIALS of root, sent with a request of Bob: ancillary data makes it no better, or it is refused."""
    with Client(BOB) as client:
        credentials = struct.pack("iII", os.getpid(), 0, 0)
        client.socket.sendmsg([frame(RECONCILE, 2, client.epoch)], [(socket.SOL_SOCKET, 2, credentials)])
        try:
            expect(NOT_PERMITTED, client.receive().status, "RECONCILE with root's credentials")
        except Closed:
            pass


world.start()
case("a08 the one who connected is who speaks, whoever holds the socket")(speaks_for_the_one_who_connected)
case("a08 a recycled pid")(recycled_pids)
case("a09 300 clients die before accept, in a frame, in a LEASE")(dies_around_accept)
case("a10 uid 65534, 2^31, 2^32-2")(unusual_uids)
case("a10 a peer without a uid")(unmapped_uid)
case("a20 every verb on slots and generations of others")(every_verb_on_foreign_slots)
case("a21 STATUS and refusals tell nothing about others")(status_tells_no_owner)
case("a22 quota: one less, exactly, one more")(quota_to_the_digit)
case("a22 40 connections at once")(racing_connections)
case("a22 a full pool")(full_pool)
case("a23 no field takes text")(no_field_takes_text)
case("a23 names of all kinds never reach the helper")(names_do_not_reach_a_frame)
case("a33 one audit line for each changing verb")(one_audit_line_each)
case("a34 a connection that is passed on")(connection_is_passed_on)
case("a34 root's credentials in a message")(credentials_in_a_message)
case("a21 a foreign reserved slot answers like an absent one")(foreign_reserved_slots)

world.start_again("passed")
case("a08 the one who connected is who speaks (passed socket)")(speaks_for_the_one_who_connected)
case("a20 every verb on slots and generations of others (passed socket)")(every_verb_on_foreign_slots)
case("a22 quota: one less, exactly, one more (passed socket)")(quota_to_the_digit)
case("a33 one audit line for each changing verb (passed socket)")(one_audit_line_each)
finish()
