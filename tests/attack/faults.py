#!/usr/bin/env -S python3 -B
"""a06, a09, a25, a26, a33: every system call of the engine fails, is lost, or is its last one, in turn, during every verb.

What must hold: a lease that was granted has its rules and its interface, a lease that was refused has neither, an engine
that was killed leaves what was in force, and the next one finds either all of a lease or nothing of it.
"""

import errno
import os
import signal
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

FAULTS = f"{ROOT}/build/tests/tools/attack_faults"
REPORT = "/tmp/faults"
CALLS_MAX = 120  # more than any verb makes: reaching it is a failure

world = World.enter(__file__)


class Faults:
    """The helper below attack_faults; orders that are given before the start hold from its first call on."""

    def __init__(self, *orders):
        self.lines = 0
        self.has_ended = False
        world.configure()
        starts = world.log().count("berth-helper: ready")
        reader, self.orders = os.pipe()
        for order in orders:
            os.write(self.orders, order.encode() + b"\n")
        with open(REPORT, "wb"):
            pass
        with open("/tmp/helper.log", "ab") as log:
            self.process = subprocess.Popen([FAULTS, REPORT, HELPER, "listen", "--config", "/tmp/helper.conf"],
                                            stdin=reader, stdout=log, stderr=log)
        os.close(reader)
        world.helper = self.process
        self.pid = int(self.hear().split()[1])
        for _ in orders:
            self.hear()
        world.helper_pid = lambda: self.pid
        eventually(lambda: world.log().count("berth-helper: ready") > starts or self.process.poll() is not None, 10, 0.005)

    def hear(self):
        def read():
            with open(REPORT, encoding="ascii") as file:
                lines = file.read().splitlines()
            return lines[self.lines] if len(lines) > self.lines else None
        line = eventually(read, 10, 0.002)
        expect(True, line is not None, "an answer of attack_faults")
        self.lines += 1
        self.has_ended = self.has_ended or line.startswith("ended")
        return line

    def order(self, line):
        """The answer, or "ended N" when the program has ended."""
        if self.has_ended:  # its last line was the answer to an earlier order; the pipe may be open for a moment yet
            return "ended"
        try:
            os.write(self.orders, line.encode() + b"\n")
        except BrokenPipeError:
            return "ended"
        return self.hear()

    def fired(self):
        """Has the last fault happened? After `let` that does not change any more."""
        answer = self.order("count").split()
        return answer[0] == "ended" or answer[-1] == "1"

    def is_dead(self):
        return eventually(lambda: self.process.poll() is not None, 10, 0.005)

    def end(self):
        """The engine first: it would outlive its supervisor, since a change of uid takes the death signal back."""
        try:
            if self.process.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it died of the last fault in this moment
        self.process.wait()
        os.close(self.orders)


# ---- what a lease is in the kernel ---------------------------------------------------------------------------------------

def elements(name):
    said = json.loads(run("nft", "-s", "-j", "list", "set", "inet", "berth", name))["nftables"]
    return [one for item in said for one in item.get("set", {}).get("elem", [])]


def interfaces_of(name):
    """The interfaces that the elements of a set or map begin with."""
    said = run("nft", "-s", "-j", "list", "table", "inet", "berth")
    found = []
    for item in json.loads(said)["nftables"]:
        one = item.get("set") or item.get("map")
        if not one or one["name"] != name:
            continue
        for element in one.get("elem", []):
            while isinstance(element, (list, dict)):
                if isinstance(element, list):
                    element = element[0]
                else:
                    element = element.get("val") or element.get("concat") or element.get("elem")
            found.append(element)
    return sorted(found)


def is_up(interface):
    try:
        with open(f"/sys/class/net/{interface}/flags", encoding="ascii") as file:
            return int(file.read(), 16) & 1 == 1
    except OSError:
        return False


def check_whole(granted=None, is_sealed=False):
    """Each lease in the kernel has all of its parts; the one that was just granted is among them, a refused one is not."""
    leases = interfaces_of("leases")
    for part in ("sources", "generations", "live"):
        wanted = [one for one in leases if not (is_sealed and one == granted)]
        expect(wanted, interfaces_of(part), f"{part} of the leases")
    if granted:
        expect(True, granted in leases, f"{granted} has its rules")
        expect(True, is_up(granted), f"{granted} is up")
    for interface in World.interfaces():
        if is_up(interface) and interface not in leases and interface not in interfaces_of("reserved"):
            # Between the two steps of a lease nobody has its descriptor; nothing of it is believed.
            expect(False, interface in interfaces_of("live"), f"{interface} is believed without a lease")
    return leases


def wait_for_release(before):
    """All that a fault delayed is done again by itself."""
    def is_clean():
        with Client(0) as root:
            pool = root.status()
            return pool["live"] == 2 and pool["dead"] == 0 and pool["reserved"] == 0 and pool["healthy"]
    expect(True, eventually(is_clean, 10, 0.05), "everything is given back")
    after = world.snapshot()
    for what in ("interfaces", "rules"):
        expect(before[what], after[what], what)


# ---- the verbs, as deeds ---------------------------------------------------------------------------------------------------

class Victim:
    """The user in whose request the fault happens. `before` is done without it."""

    def __init__(self):
        self.client = Client(ALICE)
        self.facts = None

    def lease(self):
        reply = self.client.request(LEASE, lease_body())
        if reply.status == OK:
            self.client.tap = reply.fds[0]
            self.facts = reply.lease()
        return reply.status


def deed_lease(victim):
    return victim.lease()


def deed_seal(victim):
    return victim.client.request(SEAL).status


def deed_release(victim):
    return victim.client.request(RELEASE).status


def deed_counters(victim):
    return victim.client.request(COUNTERS).status


def deed_status(victim):
    return victim.client.request(STATUS).status


def deed_end(victim):
    """As when the keeper dies; the answer to another user's question shows that the engine has seen it."""
    victim.client.close()
    with Client(BOB) as other:
        return other.request(STATUS).status


def deed_reconcile(_):
    with Client(0) as root:
        return root.request(RECONCILE).status


VERBS = {"LEASE": (deed_lease, False), "SEAL": (deed_seal, True), "COUNTERS": (deed_counters, True),
         "STATUS": (deed_status, True), "RELEASE": (deed_release, True), "the end of a connection": (deed_end, True),
         "RECONCILE": (deed_reconcile, True)}
NETLINK = ("sendto.netfilter", "recvmsg.netfilter", "sendto.route", "recvmsg.route")
# No memory, answer lost (nothing to read), answers lost (overrun), interrupted.
TROUBLES = [(call, number) for call in NETLINK for number in (errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR)]
TROUBLES += [("openat", errno.EMFILE), ("openat", errno.ENOENT), ("ioctl", errno.EBUSY), ("ioctl", errno.EPERM),
             ("sendmsg", errno.ENOBUFS), ("recvmsg", errno.ENOMEM), ("accept4", errno.EMFILE), ("accept4", errno.ECONNABORTED),
             ("getsockopt", errno.ENOTCONN), ("epoll_ctl", errno.ENOMEM),
             ("pwrite64", errno.ENOSPC)]


# RECONCILE reads set after set by the same calls: every fifth of them is enough.
STEPS = {"RECONCILE": 5}


def one_fault(verb, call, number, skip, before):
    """True when the fault happened."""
    deed, has_lease = VERBS[verb]
    victim = Victim()
    try:
        if has_lease:
            expect(OK, victim.lease(), "the lease before")
        faults.order(f"fail {call} {skip} {number}")
        status = None
        try:
            status = deed(victim)
        except (Closed, ConnectionError):
            pass
        faults.order("let")
        has_fired = faults.fired()
        if verb == "LEASE" and has_fired:
            check_whole(victim.facts["interface"] if status == OK else None)
        elif verb == "SEAL" and status == OK and has_fired:
            check_whole(victim.facts["interface"], is_sealed=True)
        elif verb in ("RELEASE", "the end of a connection") and status == OK and has_fired:
            expect(False, is_up(victim.facts["interface"]) and victim.facts["interface"] in interfaces_of("live"),
                   "the released slot is believed")
    finally:
        victim.client.close()
    if has_fired:
        wait_for_release(before)
    return has_fired


def all_faults_of(verb):
    before = world.snapshot()
    count = 0
    for call, number in TROUBLES:
        for skip in range(0, CALLS_MAX, STEPS.get(verb, 1)):
            try:
                if not one_fault(verb, call, number, skip, before):
                    break
            except Exception as error:
                raise AssertionError(f"{call} number {skip} fails with {errno.errorcode[number]}: {error!r}") from error
            count += 1
        else:
            raise AssertionError(f"{call}: no end after {CALLS_MAX}")
    note(f"{verb}: {count} faults")


def signals_of_users():
    for uid in (ALICE, BOB):
        # SIGCONT is left out: a process of the same session may send it (kill(2)), and it does nothing here.
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGXFSZ, signal.SIGHUP, signal.SIGALRM, 0):
            with as_user(uid):
                try:
                    os.kill(faults.pid, number)
                except PermissionError:
                    continue
                raise AssertionError(f"uid {uid} may send signal {number} to the engine")


class continued:
    """Inside it whatever is stopped goes on a moment later."""

    def __enter__(self):
        self.has_ended = threading.Event()
        self.thread = threading.Thread(target=self._continue)
        self.thread.start()

    def _continue(self):
        while not self.has_ended.wait(0.01):
            try:
                os.kill(faults.pid, signal.SIGCONT)
            except PermissionError:
                pass  # in the moment in which this process is another user

    def __exit__(self, *_):
        self.has_ended.set()
        self.thread.join()


def stop_at_each_step():
    """Stopped before each call of LEASE and RELEASE and continued: the answer is late, and right."""
    with continued():
        for step in range(CALLS_MAX):
            faults.order(f"signal {step} {int(signal.SIGSTOP)}")
            with Client(BOB) as client:
                lease = client.lease()
                check_whole(lease["interface"])
                expect(OK, client.request(RELEASE).status, "RELEASE")
            faults.order("let")
            has_fired = faults.fired()
            if not has_fired:
                note(f"stopped before each of {step} calls")
                return
    raise AssertionError("no end")


def hangs_up_at_each_step():
    """The client dies at each step of its LEASE: SIGPIPE is nobody's end, and the slot is free again."""
    before = world.snapshot()
    for delay in range(12):
        client = Client(BOB)
        client.send(frame(LEASE, 2, client.epoch, lease_body()))
        time.sleep(delay / 4000)
        client.close()
    wait_for_release(before)


def peers_without_credentials():
    """SO_PEERCRED fails: nobody is admitted, root neither, and nobody becomes root by it."""
    for uid in (ALICE, 0):
        faults.order(f"fail getsockopt 0 {errno.ENOTCONN}")
        try:
            Client(uid).close()
            raise AssertionError(f"uid {uid} is admitted without credentials")
        except Closed:
            pass
        faults.order("let")
        expect(True, faults.fired(), "the fault happened")


def audit_that_takes_nothing():
    """No space for the line: LEASE is refused and leaves nothing; SEAL, RELEASE and the end of a connection act."""
    if not os.path.exists(world.audit.folder):
        raise AssertionError("no audit log")
    before = world.snapshot()
    with Client(BOB) as client:
        faults.order(f"fail pwrite64 0 {errno.ENOSPC}")
        client.lease(status=KERNEL)
        expect(True, faults.fired(), "the fault happened")
    wait_for_release(before)
    for deed in (SEAL, RELEASE, None):
        with Client(BOB) as client:
            interface = client.lease()["interface"]
            faults.order(f"fail pwrite64 0 {errno.ENOSPC}")
            if deed:
                expect(OK, client.request(deed).status, f"verb {deed}")
        with Client(BOB) as other:
            other.status()
        expect(False, interface in interfaces_of("live"), f"{interface} is believed")
        faults.order("let")
        wait_for_release(before)


faults = Faults()
world.bystander = Bystander()
case("a06 users may not send the engine any signal")(signals_of_users)
case("a06 stopped and continued before each call of LEASE")(stop_at_each_step)
case("a06 the client ends at each step of LEASE")(hangs_up_at_each_step)
case("a09 a peer whose credentials cannot be read")(peers_without_credentials)
case("a33 the audit log is full")(audit_that_takes_nothing)
for word in VERBS:
    # A repair is what drift or doubt ends with: the count of repairs is not part of this oracle.
    case(f"a25 each call of {word} fails, is lost, or is interrupted", oracle=False)(lambda: all_faults_of(word))
case("a25 after all of that")(lambda: None)


# ---- killed ----------------------------------------------------------------------------------------------------------------

def adopt_again():
    for guest in (world.bystander.gateway, world.bystander.agent):
        guest.tool.hear("^kept slot")


def generation_of_victim():
    """That of the only lease in the table that is not the bystander's. None: there is none. An interface that is gone,
    with the engine that held its only descriptor, is a number in the table."""
    said = json.loads(run("nft", "-s", "-j", "list", "map", "inet", "berth", "generations"))["nftables"]
    found = {one[1] for item in said for one in item.get("map", {}).get("elem", [])}
    found -= {int(guest.facts["generation"]) for guest in (world.bystander.gateway, world.bystander.agent)}
    expect(True, len(found) <= 1, "at most one lease more than the bystander's")
    return found.pop() if found else None


def clean_up(generation, has_descriptor):
    """What the killed request left is adopted by its owner and given back, so that the next round begins as this one. A
    device that went with the engine is no device any more: then nobody gets the slot, and it is given back at once."""
    with Client(ALICE) as owner:
        own = owner.status()["own"]
        if generation is not None:
            expect(1, len(own), "the lease that was in the table is reserved")
        for slot in own:
            owner.lease(status=OK if has_descriptor else NOT_FOUND, adopt=True, slot=slot, generation=generation)
            if has_descriptor:
                expect(OK, owner.request(RELEASE).status, "RELEASE of what was adopted")
        return len(own)


def killed_at(verb, step):
    """Returns whether the engine came to that step, and how many leases of the victim outlived it."""
    global faults
    deed, has_lease = VERBS[verb]
    victim = Victim()
    if has_lease:
        expect(OK, victim.lease(), "the lease before")
    faults.order(f"signal {step} {int(signal.SIGKILL)}")
    is_answered = False
    try:
        deed(victim)
        is_answered = True
    except (Closed, ConnectionError):
        pass
    if is_answered: # the fault may come behind the answer
        faults.order("let")
    if is_answered and not faults.fired():
        victim.client.close()
        return False, 0
    expect(True, faults.is_dead(), "the engine is dead")
    faults.end()
    is_sealed = verb == "SEAL" and victim.facts and victim.facts["interface"] not in interfaces_of("live")
    check_whole(victim.facts["interface"] if is_sealed else None, is_sealed)
    wrong = world.bystander.works()
    expect(None, wrong, "with the engine dead")
    generation = victim.facts["generation"] if is_sealed else generation_of_victim()
    faults = Faults()
    adopt_again()
    left = clean_up(generation, victim.client.tap >= 0)
    victim.client.close()
    return True, left


def all_kills_of(verb):
    steps, left = 0, 0
    before = world.snapshot()
    for step in range(CALLS_MAX):
        try:
            has_fired, leases = killed_at(verb, step)
        except Exception as error:
            raise AssertionError(f"killed before call {step} of {verb}: {error!r}") from error
        if not has_fired:
            wait_for_release(before)
            note(f"{verb}: killed before each of {steps} calls; {left} times the lease was there and could be adopted")
            return
        steps += 1
        left += leases
    raise AssertionError("no end")


def kills_of_the_start():
    """Crash after crash: each start is killed one call later than the one before."""
    global faults
    before = world.snapshot()
    for step in range(CALLS_MAX * 4):
        faults.order("let")
        faults.end()
        if step % 40 == 39:  # the adoption deadline holds through all crashes, and is not what this is about
            faults = Faults()
            adopt_again()
            faults.end()
        faults = Faults(f"signal {step} {int(signal.SIGKILL)}")
        faults.order("let")  # it is ready or dead; if it is dead, or dies of it still, this was not the last step
        if not faults.fired():
            break
    else:
        raise AssertionError("no end")
    adopt_again()
    note(f"killed before each of {step} calls of the start")
    wait_for_release(before)


world.bystander.keep()
for word in VERBS:
    case(f"a26 SIGKILL before each call of {word}")(lambda: all_kills_of(word))
case("a26 SIGKILL before each call of the start, one crash after the other")(kills_of_the_start)
faults.order("let")
finish()
