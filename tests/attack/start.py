#!/usr/bin/env -S python3 -B
"""a01 to a05, a07, a11, a14, a33: whoever starts the helper, or sits beside it, cannot bend it.

It is started by root. What root leaves behind in arguments, environment, descriptors, limits and signals must not matter
all the same. starter.py does this to the setuid starter, which gets all of it from a user.
"""

import ctypes
import os
import re
import resource
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

CONFIG = "/tmp/helper.conf"
ARGUMENTS = [HELPER, "listen", "--config", CONFIG]

world = World.enter(__file__)
world.configure()


def execute(argv, environment=None, prepare=None):
    """Status and output of the helper, executed with exactly these arguments, which may be none."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        if prepare:
            prepare()
        arguments = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
        variables = [f"{name}={value}".encode() for name, value in (environment or {}).items()]
        libc.execve(HELPER.encode(), arguments, (ctypes.c_char_p * (len(variables) + 1))(*variables, None))
        os._exit(126)
    os.close(writer)
    said = b""
    while data := os.read(reader, 65536):
        said += data
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def without_audit(said):
    """The messages, without the copies of audit lines."""
    return b"".join(line for line in said.splitlines(keepends=True) if not line.startswith(b'berth-helper: {"n":'))


class Started:
    """A helper that was started in some odd way, with standard descriptors and preparations of one's choice."""

    def __init__(self, prepare=None, environment=None, arguments=None, path=SOCKET, stderr=None, **options):
        if os.path.exists(path):
            os.unlink(path)
        self.path = path
        self.process = subprocess.Popen(arguments or ARGUMENTS, preexec_fn=prepare, env=environment or {},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=stderr if stderr is not None else subprocess.DEVNULL, **options)

    def serves(self):
        """It grants a lease and takes it back. False: it has ended, or it says that nothing is granted."""
        def connects():
            if self.process.poll() is not None:
                return True
            try:
                Client(ALICE, path=self.path).close()
                return True
            except (OSError, Closed):
                return False
        if not eventually(connects, 5) or self.process.poll() is not None:
            return False
        with Client(ALICE, path=self.path) as client:
            reply = client.request(LEASE, lease_body())
            if reply.status == KERNEL:
                return False
            expect(OK, reply.status, "status of LEASE")
            client.tap = reply.fds[0]
            expect(True, reply.lease()["interface"] in World.interfaces(), "interface")
            expect(OK, client.request(RELEASE).status, "RELEASE")
            expect(1, client.status()["healthy"], "healthy")
        return True

    def descriptors(self):
        folder = f"/proc/{self.process.pid}/fd"
        return {int(fd): os.readlink(f"{folder}/{fd}").split(":")[0] for fd in os.listdir(folder)}

    def limits(self):
        with open(f"/proc/{self.process.pid}/limits", encoding="ascii") as file:
            return {line[:26].strip(): line[26:].split()[:2] for line in file}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            eventually(lambda: not World.interfaces(), 3)
        self.process.kill()
        self.process.wait()
        World.wipe()


# ---- a01 ------------------------------------------------------------------------------------------------------------------

def odd_arguments():
    usage = execute([b"berth-helper"])
    expect(64, usage[0], "exit status without a command")
    mark = b"MARK%n%s"
    for argv in ([], [b""], [mark], [mark * 12000], [b"", mark], [mark, b""], [mark, mark * 12000], [mark] * 2000,
                 [mark, b"listen", mark], [mark, b"listen", b"--config"], [mark, b"listen", b"--user", b"0"],
                 [mark, b"listen", b"--user", b"-1"], [mark, b"listen", b"--user", b"4294967296"],
                 [mark, b"listen", b"--group", b"1e3"], [mark, b"listen", b"--socket", b"x", b"--socket"],
                 [mark, b"LISTEN"], [mark, b"listen ", b"--config", b"/x"]):
        status, said = execute(argv)
        expect((64, usage[1]), (status, said), f"{argv[:3]!r:.80}")


def odd_first_argument_serves():
    """Its name is nothing to it: with any argv[0] it serves, and says its own name."""
    for name in ("x", "", "%n%n", "a" * 120000, "../../bin/sh", "new\nline"):
        reader, writer = os.pipe()
        with Started(arguments=[name, *ARGUMENTS[1:]], executable=HELPER, stderr=writer) as helper:
            expect(True, helper.serves(), f"argv[0] {name[:20]!r}")
        os.close(writer)
        expect(b"berth-helper: ready\n", without_audit(os.read(reader, 65536)), "what it said")
        os.close(reader)


# ---- a02 --------------------------------------------------------------------------------------------------------------------

HOSTILE = {"TMPDIR": "/tmp/evil", "HOME": "/tmp/evil", "PATH": "/tmp/evil", "IFS": "/", "LANG": "../../tmp/evil", "LC_ALL": "evil",
           "LANGUAGE": "evil", "LOCPATH": "/tmp/evil", "NLSPATH": "/tmp/evil/%N", "GCONV_PATH": "/tmp/evil", "MALLOC_CHECK_": "3",
           "MALLOC_TRACE": "/tmp/evil/trace", "RES_OPTIONS": "debug", "HOSTALIASES": "/tmp/evil/hosts", "LOCALDOMAIN": "evil",
           "TZ": "/tmp/evil/tz", "TZDIR": "/tmp/evil", "LISTEN_PID": "1", "LISTEN_FDS": "1000000", "LISTEN_FDNAMES": "evil",
           "NOTIFY_SOCKET": "/tmp/evil/notify", "BERTH_CONFIG_HOME": "/tmp/evil", "BERTH_SOCKET": "/tmp/evil/socket",
           "BERTH_TEST": "1", "BERTH_UID": "0", "LIBMNL_DEBUG": "1", "NFTNL_DEBUG": "1"}
HOSTILE |= {f"BERTH_{number}": "x" * 100 for number in range(5000)}


def hostile_environment():
    """5000 variables: what it opens, and every call of its start, are those of an environment without them. (It asks for
    its pid when LISTEN_PID is there.)"""
    os.makedirs("/tmp/evil", mode=0o777, exist_ok=True)
    os.chmod("/tmp/evil", 0o777)
    os.unlink("/tmp/trace") if os.path.exists("/tmp/trace") else None
    traces = []
    for environment in ({}, {"X": "1"}, HOSTILE):  # the first start makes what the others find
        launcher = "import os, sys, json; os.execve(sys.argv[2], sys.argv[2:], json.load(open(sys.argv[1])))"
        with open("/tmp/environment", "w", encoding="utf-8") as file:
            json.dump(environment, file)
        arguments = ["strace", "-o", "/tmp/trace", PYTHON, "-c", launcher, "/tmp/environment", *ARGUMENTS]
        with Started(arguments=arguments, environment=dict(os.environ)) as helper:
            expect(True, eventually(lambda: os.path.exists(SOCKET) and Started.serves(helper), 5), "it serves")
            children = run("pgrep", "-P", str(helper.process.pid)).split()
            expect(1, len(children), "processes below strace")
            with open(f"/proc/{children[0]}/environ", "rb") as file:
                file.read()
            os.kill(int(children[0]), signal.SIGKILL)
            helper.process.wait()
        with open("/tmp/trace", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        start = max(at for at, line in enumerate(lines) if line.startswith("execve("))
        ready = next(at for at, line in enumerate(lines) if "berth-helper: ready" in line)
        calls = [line.split("(")[0] + ":" + ",".join(part for part in line.split('"')[1::2] if part.startswith("/"))
                 for line in lines[start + 1:ready] if not line.startswith(("getpid", "pread", "brk", "mmap", "munmap", "recvmsg", "sendto"))]
        traces.append([re.sub("/proc/[0-9]+/", "/proc/N/", call) for call in calls])
    expect(traces[1], traces[2], "calls of the start")
    expect([], os.listdir("/tmp/evil"), "files that it was told to write")
    for call in traces[2]:
        expect(False, "/tmp/evil" in call, f"it opened {call}")


def passed_sockets_of_the_wrong_kind():
    """LISTEN_FDS with this pid: only one listening SOCK_SEQPACKET of AF_UNIX will do."""
    kinds = {}
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind("/tmp/stream.sock")
    stream.listen(1)
    kinds["a stream socket"] = stream.detach()
    network = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    network.bind(("127.0.0.1", 0))
    network.listen(1)
    kinds["a TCP socket"] = network.detach()
    kinds["a socket that does not listen"] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).detach()
    kinds["a file"] = os.open("/dev/null", os.O_RDWR)
    kinds["a netlink socket"] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).detach()
    launcher = ("import os, sys; fd = int(sys.argv[1]); os.dup2(fd, 3) if fd >= 0 else os.close(3) if fd == -2 else None;"
                "os.set_inheritable(3, True) if fd >= 0 else None;"
                "os.execve(sys.argv[3], sys.argv[3:], {'LISTEN_FDS': sys.argv[2], 'LISTEN_PID': str(os.getpid())})")
    for name, fd in kinds.items():
        done = subprocess.run([PYTHON, "-c", launcher, str(fd), "1", *ARGUMENTS], pass_fds=[fd], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=10)
        expect(1, done.returncode, name)
        expect(True, b"not a listening" in done.stdout, f"{name}: {done.stdout!r}")
        os.close(fd)
    for count in ("2", "-1", "x", "", "99999999999999999999"):
        done = subprocess.run([PYTHON, "-c", launcher, "-1", count, *ARGUMENTS], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=10)
        expect(1, done.returncode, f"LISTEN_FDS={count}: {done.stdout!r}")
    os.unlink("/tmp/stream.sock")


# ---- a03, a04 -------------------------------------------------------------------------------------------------------------------

def standard_descriptors():
    """Each combination of closed ones: 0 to 2 are /dev/null, or what 2 was; none of them is an object of the engine's."""
    for closed in range(8):
        def prepare(closed=closed):
            for fd in range(3):
                if closed >> fd & 1:
                    os.close(fd)
        with Started(prepare=prepare) as helper:
            expect(True, helper.serves(), f"it serves, closed: {closed:03b}")
            held = helper.descriptors()
            expect(["/dev/null"] * 3, [held[fd] for fd in range(3)], f"standard descriptors, closed: {closed:03b}")


def standard_error_is_an_object():
    """What it says goes to a netlink socket, a TAP, a socket: nothing happens with the object, and it serves."""
    before = World.interfaces()
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tap = os.open("/dev/net/tun", os.O_RDWR)
    objects = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).detach(),
               socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).detach(), tap, pair[0].fileno(),
               os.open("/tmp/readonly", os.O_RDONLY | os.O_CREAT, 0o600)]
    for fd in objects:
        with Started(stderr=fd) as helper:
            expect(True, helper.serves(), f"standard error is {os.readlink(f'/proc/self/fd/{fd}')}")
        expect(before, World.interfaces(), "interfaces")
    expect(0, os.stat("/tmp/readonly").st_size, "size of what cannot be written")
    for fd in objects[:3] + objects[4:]:
        os.close(fd)
    for one in pair:
        one.close()


def inherited_descriptors():
    """200 descriptors of all kinds are gone: a start with them has exactly those of a start without."""
    with Started() as helper:
        expect(True, helper.serves(), "it serves")
        clean = sorted(helper.descriptors().values())
    fds = []
    for _ in range(40):
        fds += [os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/etc/passwd", os.O_RDONLY), *os.pipe(),
                socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).detach()]
    high = fds[0] + 700
    os.dup2(fds[0], high)
    with Started(pass_fds=[*fds, high]) as helper:
        expect(True, helper.serves(), "it serves with them")
        expect(clean, sorted(helper.descriptors().values()), "descriptors")
    for fd in [*fds, high]:
        os.close(fd)


# ---- a05, a06 ---------------------------------------------------------------------------------------------------------------

def limited(name, soft, hard):
    return lambda: resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


LIMITS = [("NOFILE", 0, 0), ("NOFILE", 4, 4), ("NOFILE", 64, 64), ("NOFILE", 4, 4096), ("NOFILE", 300, 300), ("FSIZE", 0, 0),
          ("FSIZE", 4096, 4096), ("AS", 1 << 20, 1 << 20), ("AS", 8 << 20, 8 << 20), ("AS", 64 << 20, 64 << 20),
          ("STACK", 16384, 16384), ("STACK", 262144, 262144), ("DATA", 4096, 4096), ("CORE", resource.RLIM_INFINITY, resource.RLIM_INFINITY),
          ("NPROC", 0, 0), ("MEMLOCK", 0, 0), ("SIGPENDING", 0, 0), ("MSGQUEUE", 0, 0), ("CPU", 1, 1)]


def limits_of_the_starter():
    """Refused with a nonzero status and nothing in the kernel, or serving as ever; its messages go to a file."""
    outcomes = []
    for name, soft, hard in LIMITS:
        with open("/tmp/limited.log", "wb") as log, Started(prepare=limited(name, soft, hard), stderr=log) as helper:
            serves = helper.serves()
            outcomes.append(f"{name} {soft if soft < 1 << 40 else 'unlimited'}: {'serves' if serves else 'refused'}")
            if serves:
                expect(["0", "0"], helper.limits()["Max core file size"], "core file size")
            else:
                expect(True, helper.process.poll() != 0, f"{name} {soft}: exit status")
                if (helper.process.poll() or 0) < 0 and name not in ("AS", "STACK", "DATA"):
                    raise AssertionError(f"{name} {soft}: it died of signal {-helper.process.returncode} instead of refusing")
                expect([], World.interfaces(), f"{name} {soft}: interfaces")
    note("; ".join(outcomes))
    for name in ("CPU", "FSIZE 0", "FSIZE 4096"):  # no one in a user namespace may lift these
        expect(True, any(one.startswith(name) and one.endswith("refused") for one in outcomes), f"{name} is refused")
    for name in ("NOFILE 300", "CORE", "NPROC", "MEMLOCK", "SIGPENDING", "MSGQUEUE"):
        expect(True, any(one.startswith(name) and one.endswith("serves") for one in outcomes), f"{name} is no hindrance")


def umask_and_signals():
    """umask 0 and 777, ignored and blocked signals, a pending alarm: reset."""
    def prepare(umask):
        os.umask(umask)
        for number in range(1, 65):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.2)
    for umask in (0, 0o777):
        with Started(prepare=lambda umask=umask: prepare(umask)) as helper:
            expect(True, helper.serves(), f"umask {umask:o}")
            expect(0o660, os.stat(SOCKET).st_mode & 0o777, "mode of the socket")
            with open(f"/proc/{helper.process.pid}/status", encoding="ascii") as file:
                status = {line.split(":")[0]: line.split()[1] for line in file if ":" in line and len(line.split()) > 1}
            expect("0" * 16, status["SigBlk"], "blocked signals")
            ignored = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
            libc_own = 1 << 31 | 1 << 32  # signals 32 and 33: posix_spawn(3) of whoever started us may ignore them
            expect(sum(1 << number - 1 for number in ignored), int(status["SigIgn"], 16) & ~libc_own, "ignored signals")
            time.sleep(0.6)
            expect(None, helper.process.poll(), "the starter's alarm ends it")
            expect(True, helper.serves(), "it serves after the alarm")


# ---- a07 ----------------------------------------------------------------------------------------------------------------------

def watched_by_its_own_uid():
    """ptrace, memory, descriptors: refused to its own uid, which a broken VMM or another daemon might have, and to users."""
    with Started() as helper:
        expect(True, helper.serves(), "it serves")
        pid = helper.process.pid
        for uid in (HELPER_UID, ALICE):
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                got = []
                for number in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
                    if libc.ptrace(number, pid, 0, 0) == 0:
                        got.append(f"ptrace {number}")
                for name in ("mem", "maps", "environ", "auxv", "fd", "fdinfo", "exe", "cwd", "root", "ns/net", "syscall", "stack", "io"):
                    path = f"/proc/{pid}/{name}"
                    try:
                        (os.listdir if name in ("fd", "fdinfo") else os.readlink if name in ("exe", "cwd", "root", "ns/net")
                         else lambda one: open(one, "rb").read(1))(path)
                        got.append(name)
                    except OSError:
                        pass
                pidfd = os.pidfd_open(pid)
                if libc.syscall(438, pidfd, 3, 0) >= 0:  # pidfd_getfd
                    got.append("pidfd_getfd")
                local = ctypes.create_string_buffer(8)
                vector = struct.pack("PN", ctypes.addressof(local), 8)
                if libc.process_vm_readv(pid, vector, 1, vector, 1, 0) >= 0:
                    got.append("process_vm_readv")
                os.write(writer, " ".join(got).encode() or b"-")
                os._exit(0)
            os.close(writer)
            os.wait()
            expect("-", os.read(reader, 4096).decode(), f"what uid {uid} can do")
            os.close(reader)
        expect(None, helper.process.poll(), "alive")


# ---- a11 ----------------------------------------------------------------------------------------------------------------------------

def links_in_the_place_of_files():
    """A link, a fifo, a folder or somebody else's file as configuration; links as lock file and socket."""
    os.makedirs("/tmp/links", mode=0o755, exist_ok=True)
    good = "/tmp/links/good"
    with open(CONFIG, encoding="ascii") as source, open(good, "w", encoding="ascii") as target:
        target.write(source.read())
    os.symlink(good, "/tmp/links/link")
    os.mkfifo("/tmp/links/fifo", 0o600)
    os.mkdir("/tmp/links/folder")
    for name, owner, mode in (("alices", ALICE, 0o644), ("groups", 0, 0o664), ("everybodys", 0, 0o646)):
        with open(f"/tmp/links/{name}", "w", encoding="ascii") as file:
            file.write("slots: 7\n")
        os.chown(f"/tmp/links/{name}", owner, CLIENTS_GID)
        os.chmod(f"/tmp/links/{name}", mode)
    for name in ("link", "fifo", "folder", "alices", "groups", "everybodys", "absent"):
        status, said = execute([b"x", b"listen", b"--config", f"/tmp/links/{name}".encode()])
        expect(1, status, f"status with {name} ({said!r})")
    os.makedirs("/run/berth", mode=0o750, exist_ok=True)
    os.chown("/run/berth", 0, CLIENTS_GID)
    for path in ("/run/berth/helper.lock", SOCKET):
        if os.path.lexists(path):
            os.unlink(path)
    with open("/tmp/links/victim", "w", encoding="ascii") as file:
        file.write("precious")
    os.symlink("/tmp/links/victim", "/run/berth/helper.lock")
    status, said = execute([argument.encode() for argument in ARGUMENTS])
    expect(1, status, f"status with a link as lock ({said!r})")
    os.unlink("/run/berth/helper.lock")
    os.symlink("/tmp/links/victim", SOCKET)
    helper = subprocess.Popen(ARGUMENTS, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    expect(True, eventually(lambda: not os.path.islink(SOCKET) and os.path.exists(SOCKET)), "the link gives way to the socket")
    with open("/tmp/links/victim", encoding="ascii") as file:
        expect("precious", file.read(), "what the link named")
    expect((0, 0o644), (os.stat("/tmp/links/victim").st_uid, os.stat("/tmp/links/victim").st_mode & 0o777), "its owner and mode")
    helper.kill()
    helper.wait()
    World.wipe()


def swap_configuration(path):
    """Until it is killed: Alice's file, a link to it, and root's own, as fast as it goes."""
    def alices(new):
        with open(new, "w", encoding="ascii") as file:
            file.write("slots: 7\n")
            os.fchown(file.fileno(), ALICE, ALICE)
    while True:
        for make in (lambda new: os.symlink("/tmp/links/alices", new), alices, lambda new: os.link("/tmp/links/good", new)):
            make(path + ".new")
            os.rename(path + ".new", path)


def configuration_changes_under_it():
    """The configuration is swapped for Alice's file and for a link to it as fast as it goes: hers is never used."""
    path = "/tmp/links/race"
    os.link("/tmp/links/good", path)
    swapper = os.fork()
    if swapper == 0:
        try:
            swap_configuration(path)
        finally:
            os._exit(1)
    served = refused = 0
    try:
        for _ in range(40):
            with Started(arguments=[*ARGUMENTS[:3], path]) as helper:
                client = eventually(lambda: helper.process.poll() is not None or connected(helper), 5, 0.005)
                if not isinstance(client, Client):
                    refused += 1
                    continue
                reply = client.request(HELLO, struct.pack("<HH", 1, 1), version=0)
                expect(16, struct.unpack_from("<H", reply.body, 4)[0], "slots of the configuration in use")
                client.close()
                served += 1
        expect((0, 0), os.waitpid(swapper, os.WNOHANG), "the swapper's end")
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    expect(True, served > 0 and refused > 0, "both happened")
    note(f"{served} starts with root's configuration, {refused} refused")


def connected(helper):
    if helper.process.poll() is not None:
        return None
    try:
        return Client(ALICE, hello=False)
    except OSError:
        return None


def no_path_of_a_caller():
    """After its start the engine opens one path, whatever clients do."""
    with Started(arguments=["strace", "-o", "/tmp/trace", *ARGUMENTS]) as helper:
        expect(True, helper.serves(), "it serves")
        for text in (b"/etc/passwd", b"../../etc/shadow", b"/dev/mem"):
            must_close(frame(LEASE, 2, 0, text.ljust(64, b"/")), hello=True)
        for pid in run("pgrep", "-P", str(helper.process.pid)).split():
            os.kill(int(pid), signal.SIGKILL)
        helper.process.wait()
    with open("/tmp/trace", encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    ready = next(at for at, line in enumerate(lines) if "berth-helper: ready" in line)
    opened = {line.split('"')[1] for line in lines[ready:] if '"/' in line and not line.startswith(("write", "---"))}
    expect({"/dev/net/tun"}, opened, "paths after the start")


# ---- a33 -----------------------------------------------------------------------------------------------------------------------

def log_holds_no_caller_bytes():
    """Text in every field, in every state: not a byte of it in the log."""
    with open("/tmp/said.log", "wb") as log, Started(stderr=log) as helper:
        expect(True, helper.serves(), "it serves")
        for text in (b"INJECTED\n", b"\nberth-helper: ready\n", b"\x1b[2J%n%s"):
            for offset in range(0, 512 - len(text), 8):
                data = bytearray(frame(LEASE, 2, 0, b""))
                data[offset:offset + len(text)] = text
                with Client(BOB, hello=offset % 16 == 0) as client:
                    try:  # text in place of sequence or epoch is STALE, elsewhere it is no frame
                        expect(STALE, client.ask(bytes(data)).status, "status")
                    except Closed:
                        pass
    with open("/tmp/said.log", "rb") as file:
        said = file.read()
    expect(b"berth-helper: ready\n", without_audit(said), "the log")
    for text in (b"INJECTED", b"\x1b", b"%n"):
        expect(False, text in said, f"{text!r} in the log")


def log_that_takes_nothing():
    """Nobody reads its messages, the disk is full, the reader is gone: it serves, and drift is repaired."""
    full_reader, full_writer = os.pipe()
    os.set_blocking(full_writer, False)
    try:
        while True:
            os.write(full_writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(full_writer, True)
    gone_reader, gone_writer = os.pipe()
    os.close(gone_reader)
    targets = [full_writer, gone_writer, os.open("/dev/full", os.O_WRONLY)]
    for fd in targets:
        with Started(stderr=fd) as helper:
            expect(True, helper.serves(), f"its messages go to {os.readlink(f'/proc/self/fd/{fd}')}")
            run("nft", "flush", "ruleset")
            expect(True, eventually(helper.serves, 3), "it serves after drift, of which it has to speak")
    for fd in (*targets, full_reader):
        os.close(fd)


case("a01 odd, empty, huge argument vectors", oracle=False)(odd_arguments)
case("a01 its own name is nothing to it", oracle=False)(odd_first_argument_serves)
case("a02 5000 hostile variables", oracle=False, needs="strace")(hostile_environment)
case("a02 passed sockets of the wrong kind", oracle=False)(passed_sockets_of_the_wrong_kind)
case("a03 each combination of closed standard descriptors", oracle=False)(standard_descriptors)
case("a03 standard error is a netlink socket, a TAP, a socket", oracle=False)(standard_error_is_an_object)
case("a04 200 inherited descriptors", oracle=False)(inherited_descriptors)
case("a05 limits of the starter", oracle=False)(limits_of_the_starter)
case("a05 a06 umask, ignored and blocked signals, alarms", oracle=False)(umask_and_signals)
case("a07 ptrace, memory and descriptors of the engine", oracle=False)(watched_by_its_own_uid)
case("a11 links, fifos and other people's files", oracle=False)(links_in_the_place_of_files)
case("a11 the configuration is swapped while it is read", oracle=False)(configuration_changes_under_it)
case("a11 no path of a caller", oracle=False, needs="strace")(no_path_of_a_caller)
case("a33 the log holds no byte of a caller", oracle=False)(log_holds_no_caller_bytes)
case("a33 the log takes nothing", oracle=False)(log_that_takes_nothing)
World.current = None
finish()
