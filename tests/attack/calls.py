#!/usr/bin/env -S python3 -B
"""a13: no system call is permitted to the engine that nothing uses. It works under strace, with whatever its clients and its
administrator can make it do; what it has called after its filter was set is compared with the filter's own list.

The other direction, that everything else kills, is test_helper_confinement.c.
"""

import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

TRACE = "/tmp/calls.trace"

world = World.enter(__file__)


def permitted():
    """The names in helper/confine.c; of a pair, the older processors' call, which these are."""
    with open(f"{ROOT}/helper/confine.c", encoding="utf-8") as file:
        source = file.read().partition("#define EITHER")[2].partition("\n")[2]
    return set(re.findall(r"(?:SCMP_SYS|EITHER)\((\w+)", source))


# What the engine would call where the clock cannot be read without a call; no test can take that away.
RARE = {"clock_gettime"}


def engine():
    return int(run("pgrep", "-P", str(world.helper.pid)).split()[0])


def work():
    """Each verb and kind, hostile clients, drift, a stop and a restart with adoption."""
    for kind in (0, 1, 2):
        with Client(ALICE) as gateway, Client(ALICE) as agent:
            for client, role in ((gateway, GATEWAY), (agent, AGENT)):
                reply = client.request(LEASE, lease_body(kind=kind, role=role))
                expect(True, reply.status in (OK, UNSUPPORTED), f"status of LEASE of kind {kind}")
                client.tap = reply.fds[0] if reply.fds else -1
                if reply.status == OK:
                    expect(OK, client.request(COUNTERS).status, "COUNTERS")
            if reply.status == OK:
                expect(OK, agent.request(SEAL).status, "SEAL")
                expect(OK, gateway.request(RELEASE).status, "RELEASE")
    must_close(b"rubbish")
    with Client(0) as root:
        expect(OK, root.request(RECONCILE).status, "RECONCILE")
    run("nft", "flush", "ruleset")
    expect(True, eventually(lambda: "right again" in world.log(), 20), "repair of the rules")
    os.kill(engine(), signal.SIGSTOP)
    time.sleep(0.1)
    os.kill(engine(), signal.SIGCONT)
    with Client(ALICE) as client:
        client.status()


def many_leases():
    """More than one answer of the kernel holds, and one flow of a guest, which RELEASE has to find."""
    clients = []
    for number in range(200):
        clients.append(Client((ALICE, BOB)[number % 2]))
        lease = clients[-1].lease()
    with Client(0) as root:
        expect(OK, root.request(RECONCILE).status, "RECONCILE")
    tap_write(clients[-1].tap, ethernet(lease["host_mac"], lease["guest_mac"], 0x800, udp(lease["guest"], 4000, lease["host"], 53)))
    for client in clients:
        client.close()


def used():
    with open(TRACE, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    filtered = max(at for at, line in enumerate(lines) if "SECCOMP_SET_MODE_FILTER" in line)
    return {match.group(1) for line in lines[filtered + 1:] if (match := re.match(r"(?:\d+ +)?(?:<\.\.\. )?(\w+)(?:\(| resumed>)", line))}


def no_surplus():
    world.starter = ["strace", "-f", "-o", TRACE]
    world.settings |= {"slots": 256, "slots_per_uid": 128}
    world.start_helper(60)
    work()
    many_leases()
    with Client(ALICE) as client:
        client.lease()
        os.kill(engine(), signal.SIGKILL)
        world.helper.wait()
        calls = used()
        with open(TRACE, encoding="utf-8", errors="replace") as file:
            ioctls = set(re.findall(r"ioctl\(\d+, \w+", file.read().partition("SECCOMP_SET_MODE_FILTER")[2]))
        ioctls = {re.sub(r"\d+, ", "", one) for one in ioctls}
        world.start_helper(60)
        eventually(lambda: not World.interfaces(), 3)
        calls |= used()
    note(f"used: {' '.join(sorted(calls))}")
    os.kill(engine(), signal.SIGKILL)
    world.helper.wait()
    expect([], sorted(permitted() - calls - RARE - {"exit_group"}), "permitted, and used by nothing")
    with open(f"{ROOT}/helper/confine.c", encoding="utf-8") as file:
        requests = re.search(r"ioctl_requests\[\] = \{(.*?)\}", file.read(), re.DOTALL).group(1).replace(",", " ").split()
    expect([], [name for name in requests if f"ioctl({name}" not in ioctls], "ioctl requests that are permitted, and used by nothing")
    expect([], sorted(calls - permitted() - {"ioctl", "getsockopt"}), "used, and not permitted")


def ends_by_itself():
    """An engine that may not go on, after its filter was set: a table of its name that it did not make."""
    world.kill_helper()
    World.wipe()
    run("nft", "add", "table", "inet", "berth")
    done = subprocess.run(["strace", "-f", "-o", TRACE, HELPER, "listen", "--config", "/tmp/helper.conf"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
    expect(1, done.returncode, f"exit status ({done.stdout!r})")
    expect(True, "exit_group" in used(), "exit_group")


case("a13 no system call is permitted that nothing uses", oracle=False, needs="strace")(no_surplus)
case("a13 an engine that may not go on ends by itself", oracle=False, needs="strace")(ends_by_itself)
World.current = None
finish()
