#!/usr/bin/env -S python3 -B
"""a01 to a07, a11, a14, a33 through the setuid starter: a user starts the engine, and cannot bend it.

Everything that execve(2) carries over from a user is hostile here: arguments, environment, descriptors, limits, signals,
timers, umask, a folder that is gone, the terminal's process group, ptrace. After each deed either an engine serves both
users, has nothing of the caller about it, and holds exactly the rights of one that root started, or nothing was started and
nothing is left, and the next start by another user works.
"""

import ctypes
import os
import random
import resource
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

STARTER = "/usr/local/libexec/berth/berth-helper-start"
PROGRAM = "/usr/local/sbin/berth-helper"
LOCK = "/run/berth-helper-start.lock"
NET_ADMIN = 1 << 12
SERVES, ERROR, INFRASTRUCTURE, USAGE = 0, 1, 2, 64

world = World.enter(__file__)


def build_root():
    """The real one belongs to a root that this namespace does not know; the starter would be right to refuse it."""
    root = "/tmp/root"
    os.makedirs(root)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "root", root)
    for folder in ("etc/berth", "run", "proc", "sys", "dev", "opt", "var/log", "usr/local/sbin", "usr/local/libexec/berth"):
        os.makedirs(f"{root}/{folder}")
    os.mkdir(f"{root}/tmp")
    os.chmod(f"{root}/tmp", 0o1777)
    for folder in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{folder}"):
            os.symlink(os.readlink(f"/{folder}"), f"{root}/{folder}")
        if os.path.isdir(f"/usr/{folder}"):
            os.makedirs(f"{root}/usr/{folder}", exist_ok=True)
            run("mount", "--rbind", f"/usr/{folder}", f"{root}/usr/{folder}")
    for folder in ("proc", "sys", "dev"):
        run("mount", "--rbind", f"/{folder}", f"{root}/{folder}")
    files = {"etc/passwd": f"root:x:0:0::/:/bin/sh\n_berth:x:{HELPER_UID}:{HELPER_UID}::/:/bin/false\n",
             "etc/group": f"root:x:0:\nberth:x:{CLIENTS_GID}:\n",
             "etc/berth/helper.conf": "slots: 16\nslots_per_uid: 6\naudit_lines: 64\nrequests_burst: 10000\n"}
    for name, text in files.items():
        with open(f"{root}/{name}", "w", encoding="ascii") as file:
            file.write(text)
    shutil.copy(HELPER, root + PROGRAM)
    shutil.copy(f"{ROOT}/build/berth-helper-start", root + STARTER)
    shutil.copy("/etc/ld.so.cache", f"{root}/etc/")
    os.chown(root + STARTER, 0, CLIENTS_GID)
    os.chmod(root + STARTER, 0o4750)
    os.chroot(root)
    os.chdir("/tmp")


build_root()


# ---- who starts, and what came of it --------------------------------------------------------------------------------------

class Call:
    """One call of the starter by a user, in some odd way."""

    def __init__(self, uid=ALICE, argv=(b"berth-helper-start",), environment=None, prepare=None, groups=(CLIENTS_GID,), stderr=True):
        arguments = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
        variables = [f"{name}={value}".encode() for name, value in (environment or {}).items()]
        variables = (ctypes.c_char_p * (len(variables) + 1))(*variables, None)
        reader, writer = os.pipe()
        became, becoming = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                os.setgroups(groups)
                os.setgid(uid)
                os.setuid(uid)
                os.close(becoming)
                if stderr:
                    os.dup2(writer, 2)
                path = STARTER.encode()
                if prepare:
                    prepare()
                libc.execve(path, arguments, variables)  # nothing in between: after some deeds Python itself cannot go on
            finally:
                os._exit(126)
        try:
            os.setpgid(self.pid, self.pid)
        except OSError:
            pass  # it has done so by itself, and executes already
        os.close(writer)
        os.close(becoming)
        os.read(became, 1)  # from now on it is that user's
        os.close(became)
        self.reader = reader
        self.status = self.said = None

    def wait(self):
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.said = b""
        while data := os.read(self.reader, 65536):
            self.said += data
        os.close(self.reader)
        return self.status


def call(**options):
    one = Call(**options)
    one.wait()
    return one


def engine_pid():
    """Who listens, by the kernel's word; 0: nobody."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(SOCKET)
            return struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except OSError:
        return 0


def programs():
    """Processes that run the engine's or the starter's program."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/exe").removesuffix(" (deleted)") in (PROGRAM, STARTER):
                found.append(int(name))
        except OSError:
            pass
    return found


def status_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def descriptors(pid):
    """Of an engine that has noticed who hung up, and deleted the devices of those leases."""
    folder = f"/proc/{pid}/fd"
    eventually(lambda: not World.interfaces(), 5)
    held = None
    for _ in range(100):
        before, held = held, sorted(os.readlink(f"{folder}/{fd}").split(":")[0] for fd in os.listdir(folder))
        if held == before:
            break
        time.sleep(0.1)
    return held


def serves_both(pid, what=""):
    """The engine grants both users a lease; it is whom root would have started; nothing of the caller is about it."""
    for uid in (ALICE, BYSTANDER):
        with Client(uid) as client:
            lease = client.lease()
            expect(True, lease["interface"] in World.interfaces(), f"{what}: interface")
            expect(OK, client.request(RELEASE).status, f"{what}: RELEASE")
            expect(1, client.status()["healthy"], f"{what}: healthy")
    status = status_of(pid)
    expect([str(HELPER_UID)] * 4, status["Uid"].split(), f"{what}: uids")
    expect([str(HELPER_UID)] * 4, status["Gid"].split(), f"{what}: gids")
    expect("", status["Groups"].strip(), f"{what}: groups")
    expect([0, NET_ADMIN, NET_ADMIN, 0, 0], [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
           f"{what}: capabilities")
    expect(("1", "2", "0" * 16), (status["NoNewPrivs"], status["Seccomp"], status["SigBlk"]), f"{what}: no_new_privs, seccomp, blocked")
    expect(True, os.getsid(pid) not in (os.getsid(0), os.getpgid(0)), f"{what}: a session of its own")
    expect("/", os.readlink(f"/proc/{pid}/cwd"), f"{what}: directory")
    with open(f"/proc/{pid}/environ", "rb") as file:
        expect(b"", file.read(), f"{what}: environment")
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        expect(b"berth-helper\0listen\0--status-socket\0/run/berth-status/helper.sock\0", file.read(), f"{what}: arguments")
    with open(f"/proc/{pid}/maps", encoding="ascii") as file:
        expect(False, "/tmp/" in file.read(), f"{what}: it maps a file of the caller")


def end_engine():
    """As root: the engine ends, and what it made is taken away."""
    eventually(lambda: not World.interfaces(), 5)
    for pid in programs():
        os.kill(pid, signal.SIGKILL)
    if not eventually(lambda: not programs(), 20):
        raise AssertionError(f"processes do not end: {programs()}")
    World.wipe()


def starts(what, **options):
    """A call that has to end in an engine that serves, whatever is odd about it."""
    one = call(**options)
    expect((SERVES, b""), (one.status, one.said), f"{what}: status and words")
    pid = engine_pid()
    expect(True, eventually(lambda: programs() == [pid], 30), f"{what}: one process")
    serves_both(pid, what)
    held = descriptors(pid)
    end_engine()
    return held


def starts_or_refuses(what, **options):
    one = call(**options)
    pid = engine_pid()
    if one.status == SERVES:
        serves_both(pid, what)
    else:
        # By itself or by the kernel (too little memory for a program): nothing is left either way.
        expect(True, eventually(lambda: not programs(), 20), f"{what}: processes that are left ({one.said!r})")
        expect([], World.interfaces(), f"{what}: interfaces")
    end_engine()
    return one


# ---- a01, a02 -----------------------------------------------------------------------------------------------------------------

def odd_arguments():
    mark = b"MARK%n%s"
    usage = call(argv=(b"x", b"y"))
    expect(USAGE, usage.status, "status with an argument")
    for argv in ((mark, mark), (b"", mark), (mark, b"listen"), (mark, mark * 12000), (mark,) * 2000):
        one = call(argv=argv)
        expect((USAGE, usage.said), (one.status, one.said), f"{argv[:3]!r:.60}")
        expect(0, engine_pid(), "an engine")
    for argv in ((), (b"",), (mark,), (mark * 12000,), (b"../../bin/sh",)):
        starts(f"argv[0] {argv[:1]!r:.40}", argv=argv)


def hostile_environment():
    library = "/tmp/evil/library.so"
    os.makedirs("/tmp/evil", mode=0o777, exist_ok=True)
    os.chmod("/tmp/evil", 0o777)
    environment = {"LD_PRELOAD": library, "LD_AUDIT": library, "LD_LIBRARY_PATH": "/tmp/evil", "LD_DEBUG": "all",
                   "LD_DEBUG_OUTPUT": "/tmp/evil/debug", "LD_PROFILE": "libc.so.6", "LD_PROFILE_OUTPUT": "/tmp/evil",
                   "GLIBC_TUNABLES": "glibc.malloc.mxfast=glibc.malloc.mxfast=" + "A" * 4000, "GCONV_PATH": "/tmp/evil",
                   "MALLOC_CHECK_": "3", "MALLOC_TRACE": "/tmp/evil/trace", "TMPDIR": "/tmp/evil", "PATH": "/tmp/evil",
                   "LISTEN_FDS": "2", "LISTEN_PID": "1", "LISTEN_FDNAMES": "status:helper", "NOTIFY_SOCKET": "/tmp/evil/notify",
                   "BERTH_SOCKET": "/tmp/evil/socket", "BERTH_CONFIG_HOME": "/tmp/evil"}
    environment |= {f"BERTH_{number}": "x" * 100 for number in range(5000)}
    shutil.copy("/lib/x86_64-linux-gnu/libm.so.6" if os.path.exists("/lib/x86_64-linux-gnu/libm.so.6") else PROGRAM, library)
    starts("5000 variables", environment=environment)
    expect([os.path.basename(library)], os.listdir("/tmp/evil"), "files that it was told to write")


# ---- a03, a04 ---------------------------------------------------------------------------------------------------------------

def standard_descriptors():
    clean = starts("a plain call")
    for closed in range(1, 8):
        def prepare(closed=closed):
            for fd in range(3):
                if closed >> fd & 1:
                    os.close(fd)
        expect(clean, starts(f"closed: {closed:03b}", prepare=prepare), f"descriptors, closed: {closed:03b}")


def standard_error_is_an_object():
    """Its own words are written by the caller's identity alone: a netlink socket, a TAP, a file that root could write."""
    for make in (lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).detach(),
                 lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).detach(),
                 lambda: os.open("/dev/net/tun", os.O_RDWR),
                 lambda: os.open("/etc/passwd", os.O_RDONLY)):
        def prepare(make=make):
            fd = make()
            for target in range(3):
                os.dup2(fd, target)
        starts("standard descriptors are an object", prepare=prepare, stderr=False)
        expect(USAGE, call(argv=(b"x", b"y"), prepare=prepare, stderr=False).status, "status of a refusal told there")


def inherited_descriptors():
    clean = starts("a plain call")

    def prepare():
        for _ in range(40):
            for fd in (os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/etc/passwd", os.O_RDONLY), *os.pipe(),
                       socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).detach()):
                os.set_inheritable(fd, True)
        os.dup2(0, 900)
    expect(clean, starts("200 descriptors", prepare=prepare), "descriptors")


# ---- a05, a06 ---------------------------------------------------------------------------------------------------------------

LIMITS = [("NOFILE", 0), ("NOFILE", 3), ("NOFILE", 5), ("NOFILE", 64), ("FSIZE", 0), ("FSIZE", 4096), ("AS", 1 << 20), ("AS", 64 << 20),
          ("STACK", 16384), ("STACK", 262144), ("DATA", 4096), ("NPROC", 0), ("NPROC", 1), ("MEMLOCK", 0), ("SIGPENDING", 0), ("CPU", 1),
          ("CPU", 0), ("NICE", 0), ("RTTIME", 1), ("CORE", resource.RLIM_INFINITY)]


def limits_of_the_caller():
    outcomes = []
    for name, value in LIMITS:
        def prepare(name=name, value=value):
            which = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(which)[1]
            resource.setrlimit(which, (value, value) if hard == resource.RLIM_INFINITY or value <= hard else (hard, hard))
        one = starts_or_refuses(f"{name} {value}", prepare=prepare)
        outcomes.append(f"{name} {value if value >= 0 else 'unlimited'}: {one.status}")
        if one.status not in (SERVES, ERROR, INFRASTRUCTURE) and name not in ("AS", "STACK", "DATA", "CPU"):
            raise AssertionError(f"{name} {value}: status {one.status}")
    note("; ".join(outcomes))
    for name in ("MEMLOCK 0: 0", "SIGPENDING 0: 0", "NICE 0: 0", "CORE unlimited: 0"):
        expect(True, name in outcomes, f"{name} is no hindrance")


def umask_folder_priority():
    def prepare(umask):
        os.mkdir(f"/tmp/gone{umask}")
        os.chdir(f"/tmp/gone{umask}")
        os.rmdir(f"/tmp/gone{umask}")
        os.umask(umask)
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        libc.personality(0x0040000 | 0x0400000)  # no random addresses, readable is executable
        libc.prctl(26, 2, 0, 0, 0)  # PR_SET_TSC: reading the clock is a SIGSEGV, for Python, too, so this comes last
    for umask in (0, 0o777):
        one = call(prepare=lambda umask=umask: prepare(umask))
        expect(SERVES, one.status, f"status with umask {umask:o} ({one.said!r})")
        expect(0o660, os.stat(SOCKET).st_mode & 0o777, "mode of the socket")
        serves_both(engine_pid(), f"umask {umask:o}")
        end_engine()


def signals_of_the_caller():
    """Ignored, blocked, pending; alarms that go off later."""
    def prepare():
        for number in range(1, 65):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.2)
    one = call(prepare=prepare)
    expect(SERVES, one.status, f"status ({one.said!r})")
    pid = engine_pid()
    time.sleep(0.7)
    expect(pid, engine_pid(), "the engine, after the alarm")
    serves_both(pid, "signals")
    end_engine()

    def pending():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP):
            os.kill(os.getpid(), number)
    starts("pending signals", prepare=pending)


def nobody_holds_it():
    """The caller stops itself and its process group at once: the start goes on, or another user's does."""
    for number in (signal.SIGSTOP, signal.SIGTSTP):
        for _ in range(8):
            one = Call()
            time.sleep(random.random() * 0.01)
            with as_user(ALICE):
                os.killpg(one.pid, number)
            other = eventually(lambda: call(uid=BYSTANDER).status == SERVES, 60)
            expect(True, other, "another user's start")
            serves_both(engine_pid(), "after a stop")
            os.killpg(one.pid, signal.SIGCONT)
            one.wait()
            end_engine()


def nobody_kills_half_of_it():
    """The caller dies at some moment: an engine that serves, or none and the next one does; never two, never a lock held."""
    for _ in range(25):
        one = Call()
        time.sleep(random.random() * 0.02)
        with as_user(ALICE):
            os.kill(one.pid, signal.SIGKILL)
            for pid in programs():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        one.wait()
        expect(True, eventually(lambda: call(uid=BYSTANDER).status == SERVES, 60), "another user's start")
        pid = engine_pid()
        expect(True, eventually(lambda pid=pid: programs() == [pid], 20), "one engine")
        serves_both(pid, "after a kill")
        end_engine()


# ---- a07 ------------------------------------------------------------------------------------------------------------------------

def traced():
    """Traced, or without a right to new privileges, it is the caller's and no more: it says so and starts nothing."""
    expect(ERROR, call(prepare=lambda: libc.prctl(38, 1, 0, 0, 0)).status, "status with no_new_privs")
    expect(0, engine_pid(), "an engine")
    expect(True, eventually(lambda: not programs(), 30), "processes that are left")
    def traced_by_alice():
        child = os.fork()
        if child == 0:
            libc.ptrace(0, 0, 0, 0)
            return  # it executes the starter, traced by its parent
        os.waitpid(child, 0)  # stopped at execve
        libc.ptrace(7, child, 0, 0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    expect(ERROR, call(prepare=traced_by_alice).status, "status when its caller traces it")
    expect(0, engine_pid(), "an engine")
    expect(True, eventually(lambda: not programs(), 30), "processes that are left")


def closed_pids():
    """Of the programs' processes those that have no uid but root's or the engine's, with that uid. To be asked as root."""
    found = {}
    for pid in programs():
        try:
            uids = set(map(int, status_of(pid)["Uid"].split()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if uids in ({0}, {HELPER_UID}):
            found[pid] = uids.pop()
    return found


def open_to_alice(pid):
    """What she may do to a process, by name. It may end meanwhile, but not become hers."""
    acts = {"signal": lambda: os.kill(pid, signal.SIGCONT), "memory": lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY)),
            "descriptors": lambda: os.listdir(f"/proc/{pid}/fd"), "program": lambda: os.readlink(f"/proc/{pid}/exe"),
            "environment": lambda: os.close(os.open(f"/proc/{pid}/environ", os.O_RDONLY))}
    done = []
    with as_user(ALICE):
        for name, act in acts.items():
            try:
                act()
                done.append(name)
            except OSError:
                pass
        if libc.ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
            done.append("ptrace")
    return done


def processes_are_closed():
    """While it starts, and afterwards: no process of it that is root's or the engine's can be traced, read or signalled."""
    seen = set()
    for _ in range(10):
        one = Call()
        while not os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            for pid, uid in closed_pids().items():
                expect([], open_to_alice(pid), f"what Alice may do to a process of uid {uid}, while it starts")
                seen.add(uid)
        expect(SERVES, one.wait(), f"status ({one.said!r})")
        pid = engine_pid()
        expect(True, eventually(lambda pid=pid: closed_pids() == {pid: HELPER_UID}, 20), "the engine alone is left")
        expect([], open_to_alice(pid), "what Alice may do to the engine")
        end_engine()
    expect({0, HELPER_UID}, seen, "uids of the processes that she tried to reach during a start")
    with subprocess.Popen(["sleep", "300"], user=ALICE, group=CLIENTS_GID, extra_groups=[]) as own:
        expect(5 + 1, len(open_to_alice(own.pid)), "what the same acts do to a process of hers")
        own.kill()


# ---- a11, a14: paths ------------------------------------------------------------------------------------------------------------

def refuses(what, status=INFRASTRUCTURE, text=b""):
    one = call()
    expect(status, one.status, f"{what}: status ({one.said!r})")
    expect(True, text in one.said, f"{what}: {one.said!r}")
    expect(0, engine_pid(), f"{what}: an engine")
    expect(True, eventually(lambda: not programs(), 30), f"{what}: processes that are left")


def program_is_not_roots_alone():
    for path in (PROGRAM, "/usr/local/sbin", "/usr/local", "/usr", "/"):
        before = os.stat(path)
        for owner, mode in ((ALICE, before.st_mode & 0o7777), (0, before.st_mode & 0o7777 | 0o020), (0, before.st_mode & 0o7777 | 0o002),
                            (0, 0o1777)):
            os.chown(path, owner, -1)
            os.chmod(path, mode)
            try:
                refuses(f"{path}: owner {owner}, mode {mode:o}", text=b"not root's alone")
            finally:
                os.chown(path, 0, 0)
                os.chmod(path, before.st_mode & 0o7777)
    os.rename(PROGRAM, PROGRAM + ".real")
    refuses("the program is not there", text=b"missing")
    os.symlink(PROGRAM + ".real", PROGRAM)
    refuses("the program is a link", text=b"a link")
    os.unlink(PROGRAM)
    os.mkdir(PROGRAM)
    refuses("the program is a folder")
    os.rmdir(PROGRAM)
    with open(PROGRAM, "w", encoding="ascii") as file:
        file.write("not a program\n")
    os.chmod(PROGRAM, 0o755)
    refuses("the program is none", text=b"ended before it was ready")
    os.rename(PROGRAM + ".real", PROGRAM)
    starts("the program is back")


def lock_is_not_a_lock():
    os.unlink(LOCK)
    with open("/tmp/victim", "w", encoding="ascii") as file:
        file.write("precious")
    for what, make in (("a link", lambda: os.symlink("/tmp/victim", LOCK)), ("a folder", lambda: os.mkdir(LOCK)),
                       ("a fifo", lambda: os.mkfifo(LOCK)), ("Alice's file", lambda: os.chown(LOCK, ALICE, 0) if open(LOCK, "w", encoding="ascii") else None)):
        make()
        refuses(f"the lock is {what}", text=b"lock")
        (os.rmdir if os.path.isdir(LOCK) and not os.path.islink(LOCK) else os.unlink)(LOCK)
    expect(0o644, os.stat("/tmp/victim").st_mode & 0o777, "mode of what the link named")
    starts("the lock is gone")
    expect((0, 0o600), (os.stat(LOCK).st_uid, os.stat(LOCK).st_mode & 0o777), "owner and mode of the lock")


def configuration_is_wrong():
    """The engine refuses; its words are the administrator's, not the caller's."""
    with open("/etc/berth/helper.conf", "r+", encoding="ascii") as file:
        good = file.read()
        file.write("nonsense\n")
    refuses("a wrong configuration", text=b"ended before it was ready")
    one = call()
    expect(False, b"line" in one.said, f"words of the engine: {one.said!r}")
    with open("/etc/berth/helper.conf", "w", encoding="ascii") as file:
        file.write(good)
    starts("the configuration is right again")


# ---- who may, and how many -----------------------------------------------------------------------------------------------------

def others_may_not():
    one = call(uid=BOB, groups=())
    expect(126, one.status, "status for one who is not in the group")
    expect(0, engine_pid(), "an engine")


def many_at_once():
    """Forty calls of two users: one engine."""
    for _ in range(3):
        gate, opened = os.pipe()
        calls = [Call(uid=(ALICE, BYSTANDER)[number % 2], prepare=lambda: (os.close(opened), os.read(gate, 1))) for number in range(40)]
        os.close(gate)
        os.close(opened)
        outcomes = [one.wait() for one in calls]
        expect(set(), set(outcomes) - {SERVES, INFRASTRUCTURE}, "statuses")
        for one in calls:
            expect(True, one.status == SERVES or b"somebody else is starting" in one.said, f"what it said: {one.said!r}")
        pid = engine_pid()
        expect(True, eventually(lambda pid=pid: programs() == [pid], 20), "one engine")
        serves_both(pid, "forty calls")
        note(f"{outcomes.count(SERVES)} found or made it, {outcomes.count(INFRASTRUCTURE)} were told that it is being started")
        for _ in range(5):
            expect(SERVES, call().status, "status when one serves")
        expect(True, eventually(lambda pid=pid: programs() == [pid], 30), "still the same")
        end_engine()


def log_is_not_the_callers():
    """What the engine records of others does not go to whoever started it."""
    one = Call()
    one.wait()
    serves_both(engine_pid(), "it serves")
    expect(b"", one.said, "what the caller got to read")
    pid = engine_pid()
    expect("pipe", os.readlink(f"/proc/{pid}/fd/2").split(":")[0], "standard error")
    end_engine()


case("a01 setuid: odd, empty, huge argument vectors", oracle=False)(odd_arguments)
case("a02 setuid: 5000 hostile variables, LD_PRELOAD, tunables", oracle=False)(hostile_environment)
case("a03 setuid: each combination of closed standard descriptors", oracle=False)(standard_descriptors)
case("a03 setuid: standard descriptors are netlink sockets, TAPs, files of the kernel", oracle=False)(standard_error_is_an_object)
case("a04 setuid: 200 inherited descriptors", oracle=False)(inherited_descriptors)
case("a05 setuid: limits of the caller", oracle=False)(limits_of_the_caller)
case("a05 setuid: umask, a folder that is gone, priority, a clock that kills", oracle=False)(umask_folder_priority)
case("a06 setuid: ignored, blocked, pending signals, alarms", oracle=False)(signals_of_the_caller)
case("a06 setuid: a caller who stops does not hold it", oracle=False)(nobody_holds_it)
case("a06 setuid: a caller who dies at any moment leaves nothing half done", oracle=False)(nobody_kills_half_of_it)
case("a07 setuid: traced, or without new privileges", oracle=False)(traced)
case("a07 setuid: its processes are closed to the caller", oracle=False)(processes_are_closed)
case("a11 a14 setuid: a program or folder that is not root's alone", oracle=False)(program_is_not_roots_alone)
case("a11 setuid: links, fifos and other people's files as lock", oracle=False)(lock_is_not_a_lock)
case("a33 setuid: a wrong configuration is the administrator's to read", oracle=False)(configuration_is_wrong)
case("a33 setuid: the engine's words do not go to its starter", oracle=False)(log_is_not_the_callers)
case("setuid: who is not in the group may not", oracle=False)(others_may_not)
case("setuid: forty calls at once make one engine", oracle=False)(many_at_once)
World.current = None
finish()
