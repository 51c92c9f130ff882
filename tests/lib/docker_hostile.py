"""What a hostile container tries (tests/attack/hostile/), judged by what is seen outside of it.

    docker_hostile.py runc|runsc|podman [PART...]

Run inside a world of tests/lib/world.bash with a container engine and two agents of the user 1000, "one", which attacks, and
"other". Prints TAP: a case is good when the attacker says that it was refused, or got no answer, and nobody outside saw
anything of it. What was seen is printed below each case. Where the attacker alone can tell (a right, a file), the host is compared
with what it was before; frames that a container may not send are written into its interface by this program, to show what such a
right would be worth.

Outside are: every frame on every interface of the host, the internet, the gateway, the orchestrator and the other agent
(watcher.py); programs that listen on the host; the table's counters; the engine's own documents.
"""
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time

from host_processes import gvisor_holds, gvisor_processes, processes, read_text, started_at, status_of
from watcher import Listeners, Watcher, addresses_of, describe, in_network

IS_GVISOR = sys.argv[1] == "runsc"
PARTS = sys.argv[2:]
WORLD = "/tmp/world"
ATTACKER = "/home/agent/hostile"
PORTS = "22,25,53,80,111,443,631,2049,2375,2376,3128,5000,5355,6443,7400,8080,8119,9100,9420,10250"
NONCE = "hostile-" + os.urandom(4).hex()
count = failed = 0


# ---- TAP ------------------------------------------------------------------------------------------------------------

def report(is_good, name, *seen):
    global count, failed
    count += 1
    failed += not is_good
    print(f"{'ok' if is_good else 'not ok'} {count} - {name}")
    for line in seen:
        print(f"#   {line}", flush=True)


def skip(name, reason):
    global count
    count += 1
    print(f"ok {count} - {name} # SKIP {reason}", flush=True)


# ---- the engine -----------------------------------------------------------------------------------------------------

class Engine(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/docker.sock")


def engine(path):
    connection = Engine("localhost")
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())


def address_of(mac):
    """podman knows of no addresses: berth-init has set them, by the MACs."""
    return ".".join(str(int(byte, 16)) for byte in mac.split(":")[2:])


class Guest:
    """A container of berth's, and where it is."""
    def __init__(self, name):
        [found] = [c["Id"] for c in engine("/containers/json") if c["Labels"].get("berth.name") == name]
        document = engine(f"/containers/{found}/json")
        self.name, self.id, self.pid = name, found, document["State"]["Pid"]
        networks = document["NetworkSettings"]["Networks"]
        self.addresses = {network: entry["IPAddress"] or address_of(entry["MacAddress"]) for network, entry in networks.items()}
        own = document["HostConfig"]["NetworkMode"]
        if own not in networks: # podman says what kind it is; the agent's has the container's name
            own = document["Name"].strip("/")
        self.network, self.address = own, self.addresses[own]
        self.macs = {network: entry["MacAddress"] for network, entry in networks.items()}
        self.mac = self.macs[own]
        self.router = self.address.rsplit(".", 1)[0] + "." + str(int(self.address.rsplit(".", 1)[1]) // 8 * 8 + 1)
        labels = engine(f"/networks/{own}")["Labels"]
        self.bridge = labels["berth.bridge"]


def engine_state():
    """All that an agent could have made or changed there."""
    containers = engine("/containers/json?all=1")
    return json.dumps({
        "containers": sorted((c["Id"], c["State"], c["Image"]) for c in containers),
        "confinement": [engine(f"/containers/{c['Id']}/json")["HostConfig"] for c in sorted(containers, key=lambda c: c["Id"])],
        "networks": sorted((n["Id"], n["Name"], n["Internal"]) for n in engine("/networks")),
        "volumes": sorted(v["Name"] for v in engine("/volumes")["Volumes"] or []),
        "images": sorted(i["Id"] for i in engine("/images/json")),
    }, sort_keys=True)


# ---- the attacker ---------------------------------------------------------------------------------------------------

class Session:
    """One run of the attacker, which tries a line when it is given: what is seen meanwhile is that line's."""
    def __init__(self, user):
        command = ["bash", f"{WORLD}/berth", "exec", "-T", "one", "--", ATTACKER]
        if user == "root":
            command = ["docker", "-H", "unix:///run/docker.sock", "exec", "-i", "-u", "0:0", one.id, ATTACKER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def attempt(self, line):
        try:
            self.process.stdin.write(f"x {line}\n")
            self.process.stdin.flush()
        except OSError:
            return "nothing: the attacker has ended"
        said = self.process.stdout.readline()
        return said[2:].strip() if said.startswith("x ") else f"nothing: {said!r}"

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


sessions = {}


def attack(line, user="agent"):
    if user not in sessions or sessions[user].process.poll() is not None:
        sessions[user] = Session(user)
    return sessions[user].attempt(line.replace("NONCE", NONCE))


# ---- the network ----------------------------------------------------------------------------------------------------

class Case:
    """line: what is tried; may: how outcomes begin that are no success; own: looks whether a success in gVisor, whose own
    kernel grants it to itself, is one for the host: (is none, what was seen)"""
    def __init__(self, name, line, may=("refused", "silent"), user="agent", own=None):
        self.name, self.line, self.may, self.user, self.own = name, line, may, user, own


class Outside:
    """Whatever could see something of the attacker, and where it may be seen: its own port, and its gateway's beside it."""
    def __init__(self):
        self.watcher = Watcher({
            "host": None, "internet": "/run/netns/internet", "other agent": f"/proc/{other.pid}/ns/net",
            "gateway": f"/proc/{gateway.pid}/ns/net", "orchestrator": f"/proc/{orchestrator.pid}/ns/net"})
        self.listeners = Listeners([int(port) for port in PORTS.split(",")])
        self.own = {("host", one.bridge)} | {("host", port) for port in os.listdir(f"/sys/class/net/{one.bridge}/brif")}
        with in_network(f"/proc/{gateway.pid}/ns/net"):
            said = subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True, check=True).stdout
        self.own |= {("gateway", link["ifname"]) for link in json.loads(said)
                     if any(entry["local"] == gateway.addresses[one.network] for entry in link["addr_info"])}
        # Who has business with the orchestrator.
        self.known = {orchestrator.address, orchestrator.router, gateway.addresses[orchestrator.network]}

    def is_of_attacker(self, frame):
        source, destination = addresses_of(frame.data)
        if NONCE.encode() in frame.data or source == one.address or frame.data[6:12] == bytes.fromhex(one.mac.replace(":", "")):
            return True
        is_ip = frame.data[12:14] == b"\x08\x00"
        if frame.place in ("internet", "other agent"):  # where nobody else says anything now
            return is_ip and source != destination
        return frame.place == "orchestrator" and is_ip and not {source, destination} <= self.known

    def forget(self):
        self.watcher.forget()
        self.listeners.forget()
        self.before = drops()

    def look(self):
        """(what was seen where it may be, in words; whatever was seen anywhere else)"""
        time.sleep(0.05)
        frames = [frame for frame in self.watcher.taken() if self.is_of_attacker(frame)]
        foreign = [frame for frame in frames if (frame.place, frame.interface) not in self.own]
        heard = self.listeners.heard()
        own = [frame for frame in frames if frame.place == "host" and frame not in foreign]
        return (f"outside: {len(own)} frames at its own port, {drops() - self.before} refused by the table, {len(foreign)} "
                f"anywhere else, {len(heard)} at a listener of the host", [*map(describe, foreign), *map(str, heard)])


def judge_network(cases, outside):
    """Each alone, so that what is seen is its own."""
    for case in cases:
        outside.forget()
        said = attack(case.line, case.user)
        seen, leaks = outside.look()
        report(said.startswith(case.may) and not leaks, case.name, f"inside: {said}", seen, *leaks[:8])


def drops():
    """Packets of the attacker that the table refused."""
    text = subprocess.run(["nft", "list", "set", "inet", "berth", "refused"], capture_output=True, text=True, check=True).stdout
    return int(re.search(rf'"{one.bridge}" counter packets (\d+)', text).group(1))


def places():
    """Where a host, another guest or the world is."""
    return {
        "the host by its own bridge": one.router,
        "the host by another agent's bridge": other.router,
        "the host by the orchestrator's bridge": orchestrator.router,
        "the host by the gateway's bridge": gateway.router,
        "the host by the engine's own bridge": "172.17.0.1",
        "the host by its uplink": "198.51.100.2",
        "another agent": other.address,
        "the gateway on another agent's network": gateway.addresses[other.network],
        "the gateway on its way out": gateway.address,
        "the gateway beside the orchestrator": gateway.addresses[orchestrator.network],
        "the orchestrator": orchestrator.address,
        "the next router": "198.51.100.1",
        "an allowed host, not by the gateway": "203.0.113.10",
        "a resolver of the world": "203.0.113.53",
        "a public address": "203.0.113.99",
        "the metadata address": "169.254.169.254",
        "the metadata address of tasks": "169.254.170.2",
        "the metadata address of another cloud": "100.100.100.200",
    }


def reach_cases():
    cases = []
    for place, address in places().items():
        for how, device in (("", ""), (", bound to its interface", " eth0")):
            cases.append(Case(f"tcp to {place}{how}", f"tcp {address} {PORTS}{device}"))
            cases.append(Case(f"udp to {place}{how}", f"udp {address} {PORTS} NONCE{device}"))
    own_gateway = gateway.addresses[one.network]
    cases += [
        Case("every port of the orchestrator", f"tcp {orchestrator.address} 1-65535"),
        Case("every port of the host by its own bridge, udp", f"udp {one.router} 1-65535 NONCE"),
        Case("its gateway at ports that are none of a gateway's",
             f"tcp {own_gateway} 22,25,111,2375,2376,5000,6443,7400,8080,9101,10250"),
        Case("its own loopback at the engine's ports", "tcp 127.0.0.1 2375,2376,7400"),
        Case("the host's loopback by another of its addresses", f"tcp 127.0.0.2 {PORTS}"),
        Case("the nobody address", f"tcp 0.0.0.0 {PORTS}"),
    ]
    return cases


def engine_cases():
    """The engine by what it might be heard at, its helpers, and others of their kind."""
    paths = ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
             "/run/berth/helper.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user/1000/bus",
             "@/containerd-shim/moby/shim.sock", "@/run/docker.sock")
    addresses = (one.router, "172.17.0.1", "198.51.100.2", gateway.addresses[one.network])
    return [Case(f"the socket {path}", f"unix {path}", may=("refused",)) for path in paths] + \
        [Case(f"the engine by tcp at {place}", f"tcp {address} 2375,2376,2377,4243", user="root") for place, address in
         zip(("its own bridge", "the engine's bridge", "the uplink", "its gateway"), addresses)]


def dns_cases():
    """Docker's own resolver is in every container; it may ask the gateway and nobody else."""
    none = ("refused", "silent", "answered rcode:5", "answered rcode:3", "answered rcode:2", "answered rcode:4",
            "answered rcode:0 answers:0")
    label = NONCE.replace("hostile-", "h")
    tunnel = ".".join([label + "a" * (60 - len(label))] * 3)
    cases = []
    for protocol in ("udp", "tcp"):
        for place, server in (("127.0.0.11", "127.0.0.11"), ("its gateway", gateway.addresses[one.network])):
            for what, name, kind in (("a name of the world", f"{label}.other.example", 1), ("a name of nobody", f"{label}.invalid", 1),
                                     ("a tunnel of long labels", f"{tunnel}.other.example", 1),
                                     ("a tunnel below an allowed name", f"{label}.allowed.example", 16),
                                     ("TXT", f"{label}.other.example", 16), ("ANY", f"{label}.other.example", 255),
                                     ("AAAA of an allowed name", "allowed.example", 28), ("the host", "host.docker.internal", 1),
                                     ("another agent's container", other.network, 1),
                                     ("the address of the orchestrator", ".".join(reversed(orchestrator.address.split("."))) + ".in-addr.arpa", 12)):
                cases.append(Case(f"dns, {protocol}, {place}: {what}", f"dns {server} {name} {kind} {protocol}", may=none))
        for place, server in (("the world", "203.0.113.53"), ("the host", one.router), ("another agent's gateway", gateway.addresses[other.network]),
                              ("a resolver of the loopback", "127.0.0.53")):
            cases.append(Case(f"dns, {protocol}, {place}", f"dns {server} {label}.allowed.example 1 {protocol}", may=("refused", "silent")))
    return cases


def socket_cases():
    """Packets of one's own making, and families that lead elsewhere."""
    kinds = {"a raw socket, icmp": (2, 3, 1), "a raw socket, tcp": (2, 3, 6), "a raw socket of its own headers": (2, 3, 255),
             "a raw socket, igmp": (2, 3, 2), "a raw socket of IPv6": (10, 3, 58), "a packet socket": (17, 3, 0x0300),
             "a packet socket without headers": (17, 2, 0x0300), "a packet socket of old": (2, 10, 0x0300),
             "netfilter by netlink": (16, 3, 12), "audit by netlink": (16, 3, 9),
             "vsock": (40, 1, 0), "bluetooth": (31, 3, 1), "CAN": (29, 3, 1), "AF_ALG": (38, 5, 0), "AF_XDP": (44, 3, 0), "AF_KEY": (15, 3, 2),
             "TIPC": (30, 5, 0), "RDS": (21, 5, 0), "AX25": (3, 5, 0), "IPX": (4, 2, 0), "X25": (9, 5, 0), "AppleTalk": (5, 2, 0),
             "PPP": (24, 1, 0), "LLC": (26, 1, 0), "phonet": (35, 2, 0), "KCM": (41, 5, 0), "SMC": (43, 1, 0), "QRTR": (42, 2, 0),
             "NFC": (39, 5, 0), "MCTP": (45, 2, 0), "SCTP": (2, 1, 132), "DCCP": (2, 6, 33), "MPTCP": (2, 1, 262)}
    return [Case(f"{user}: {name}", "socket {} {} {}".format(*numbers), user=user, may=("refused",))
            for name, numbers in kinds.items() for user in ("agent", "root")] + \
        [Case(f"{user}: a pair of TIPC", "pair 30 1", user=user, may=("refused",)) for user in ("agent", "root")]


def change_cases():
    """What would make the network another one."""
    tries = {"another agent's address": f"address eth0 {other.address}", "the host's address": f"address eth0 {one.router}",
             "a route by the host": f"route eth0 {one.router}", "a route by another agent": f"route eth0 {other.address}",
             "a false neighbour": f"neighbour eth0 {one.router}", "another MAC": "link eth0 mac", "its interface down": "link eth0 down",
             "its interface to another network": "link eth0 namespace", "a dummy interface": "device dummy", "a veth": "device veth",
             "a bridge": "device bridge", "a wireguard": "device wireguard", "a tunnel": "device ipip", "a vlan": "device vlan"}
    options = {"a mark on its packets": "option 1 36 1", "any source": "option 0 19 1", "a forced buffer": "option 1 33 100000000",
               "a debugging socket": "option 1 1 1", "the priority of the kernel's own": "option 1 12 7"}
    sources = {"another agent's": other.address, "its gateway's": gateway.addresses[one.network], "the host's": one.router,
               "the loopback's": "127.0.0.1", "a public": "203.0.113.99"}
    target = gateway.addresses[one.network]
    return [Case(f"{user}: takes {name}", line, user=user, may=("refused",)) for name, line in tries.items() for user in ("agent", "root")] + \
        [Case(f"{user}: sets {name}", line, user=user, may=("refused", "done") if IS_GVISOR else ("refused",))
         for name, line in options.items() for user in ("agent", "root")] + \
        [Case(f"sends with {name} address", f"from {source} {target} 53 NONCE", may=("refused",)) for name, source in sources.items()] + \
        [Case(f"sends by loose source routing by {name}", f"routed {via} {other.address} 9 NONCE", may=("refused", "done"))
         for name, via in (("its gateway", target), ("the host", one.router))]


def group_cases():
    """To everybody at once, and IPv6, which there is none of."""
    last = one.router.rsplit(".", 1)[0] + "." + str(int(one.router.rsplit(".", 1)[1]) + 6)
    tries = {"a broadcast": "255.255.255.255", "a broadcast on its network": last, "all hosts": "224.0.0.1", "mDNS": "224.0.0.251",
             "SSDP": "239.255.255.250", "all routers": "224.0.0.2"}
    six = {"its own link": "fe80::1%eth0", "all nodes": "ff02::1%eth0", "all routers": "ff02::2%eth0", "the host": "2001:db8::2",
           "the world": "2001:db8::99", "the host as a mapped address": f"::ffff:{one.router}", "another agent as a mapped address":
           f"::ffff:{other.address}", "the world by NAT64": "64:ff9b::203.0.113.99", "the world by 6to4": "2002:cb00:7163::1",
           "metadata": "fd00:ec2::254"}
    return [Case(f"{name}{how}", f"udp {address} 53,1900,5353,67,137 NONCE{device}") for name, address in tries.items()
            for how, device in (("", ""), (", bound to its interface", " eth0"))] + \
        [Case(f"IPv6, {kind}, {name}", f"{kind} {address} {PORTS}" + (" NONCE" if kind == "udp" else ""))
         for name, address in six.items() for kind in ("tcp", "udp")]


# ---- inside ---------------------------------------------------------------------------------------------------------

CAPABILITIES = """chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin sys_boot
sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog
wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore""".split()
NAMESPACES = {"mounts": 0x20000, "control groups": 0x2000000, "host names": 0x4000000, "messages": 0x8000000, "users": 0x10000000,
              "processes": 0x20000000, "networks": 0x40000000, "clocks": 0x80}
BOTH = ("agent", "root")

# No profile may name these: they reach into the kernel, other processes, mounts, keys, the machine's clock or its memory.
NEVER = set("""acct add_key adjtimex bpf chroot clock_adjtime clock_settime clone3 delete_module fanotify_init fanotify_mark
    finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup ioperm
    iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind memfd_secret migrate_pages modify_ldt mount mount_setattr
    move_mount move_pages name_to_handle_at open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise
    process_mrelease process_vm_readv process_vm_writev quotactl quotactl_fd reboot request_key set_mempolicy setdomainname setns
    sethostname settimeofday swapoff swapon syslog umount2 unshare userfaultfd vhangup""".split())


def refused_calls():
    """All system calls of this machine that the profile does not name, and NEVER, {name: number}."""
    text = subprocess.run(["gcc", "-E", "-dM", "-include", "sys/syscall.h", "-"], input="", capture_output=True, text=True, check=True).stdout
    known = {name: int(number) for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.M)}
    profile = json.load(open("/opt/source/backends/docker_seccomp.json", encoding="utf-8"))
    allowed = {name for entry in profile["syscalls"] if entry["action"] == "SCMP_ACT_ALLOW" and "args" not in entry for name in entry["names"]}
    # Those that depend on their arguments are tried by name elsewhere.
    conditional = {name for entry in profile["syscalls"] if "args" in entry for name in entry["names"]}
    return {name: number for name, number in known.items() if name not in allowed | conditional or name in NEVER}


def is_own_kernels():
    holds = gvisor_holds(one.id)
    return bool(holds) and holds <= held_at_first, f"the host's kernel knows nothing of it: {len(holds)} things held as before"


def has_no_secret(path):
    """gVisor shows these to every user in it; berth puts nothing there."""
    state = "/home/1000/.local/state/berth"
    secrets = [json.loads(read_text(f"{state}/env/live/agents/one/secrets.json"))["token"], read_text(f"{state}/host.key").strip(),
               read_text(f"{state}/env/live/gateway.secret").strip()]
    run = subprocess.run(["bash", f"{WORLD}/berth", "exec", "-T", "one", "--", "cat", path], stdout=subprocess.PIPE, text=True, check=False)
    return len(run.stdout) > 0 and not any(secret in run.stdout for secret in secrets), f"{len(run.stdout)} bytes, none of {len(secrets)} secrets"


def right_cases():
    cases = [Case(f"{user}: gains cap_{name}", f"capability {number}", user=user, may=("refused",))
             for number, name in enumerate(CAPABILITIES) for user in BOTH]
    cases += [Case(f"{user}: becomes {who}", f"become {number}", user=user, may=("refused",)) for who, number in
              (("root", 0), ("a user of the host", 1000), ("the gateway's user", 65526)) for user in BOTH if (who, user) != ("root", "root")]
    cases += [Case(f"the call {name}", f"call {number}", may=("refused EPERM", "refused ENOSYS") if not IS_GVISOR else ("refused",),
                   own=is_own_kernels) for name, number in sorted(refused_calls().items())]
    cases += [Case("calls of 32 bits", "call-of-32-bits 20", may=("refused", "ended")),
              Case("calls of x32", "call-of-x32 39", may=("refused", "ended"))]
    for name, flag in NAMESPACES.items():
        cases += [Case(f"{user}: {how} a namespace of {name}", f"{verb} {flag:#x}", user=user, may=("refused",), own=is_own_kernels)
                  for how, verb in (("moves to", "unshare"), ("has a child in", "clone")) for user in BOTH
                  if not (name == "clocks" and verb == "clone")]  # clone(2) has no flag for it: that is its signal
    cases += [Case(f"{user}: enters the {kind} of process 1", f"enter /proc/1/ns/{kind} 0", user=user, may=("refused",))
              for kind in ("mnt", "net", "user", "pid") for user in BOTH]
    cases += [Case("agent: traces process 1", "trace 1", may=("refused",)), Case("agent: kills process 1", "kill 1", may=("refused",))]
    cases += [Case(f"raises its limit of {name}", f"raise {name}", may=("refused",), own=is_own_kernels)
              for name in ("descriptors", "core", "nice", "realtime")]
    cases += [Case(f"{user}: {what}", f"raise {name}", user=user, may=("refused",), own=is_own_kernels) for name, what in
              (("scheduler", "real time"), ("priority", "before all others"), ("disk", "the disk before all others")) for user in BOTH]
    cases += [Case("a personality that maps the first page", "personality 0x100000", may=("refused",), own=is_own_kernels),
              Case("a personality whose readable is executable", "personality 0x400000", may=("refused",), own=is_own_kernels),
              Case("types into a terminal", "terminal", may=("refused",))]
    return cases


def file_cases():
    cases = [Case(f"{user}: writes to {path}", f"write {path}", user=user, may=("refused",),
                  own=is_own_kernels if path == "/dev/fuse" else None) for user in BOTH for path in (
        "/", "/usr", "/usr/bin", "/usr/bin/env", "/bin/sh", "/etc", "/etc/passwd", "/lib", "/opt", "/var", "/root", "/home", "/berth",
        "/berth/bin/berth-init", "/proc/1/exe", "/proc/1/mem", "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
        "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/all/rp_filter", "/proc/sys/fs/file-max", "/proc/irq", "/proc/bus",
        "/proc/kcore", "/proc/timer_list", "/sys", "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/class/net/eth0/mtu", "/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/devices/devices.allow", "/sys/power/state", "/dev/mem",
        "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/net/tun", "/dev/kvm", "/dev/fuse", "/dev/sda", "/dev/vda", "/dev/loop-control")]
    hidden = ("refused", "empty")
    cases += [Case(f"{user}: reads {path}", f"read {path}", user=user, may=hidden) for user in BOTH for path in (
        "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/dev/kmsg", "/dev/mem",
        "/proc/kpageflags", "/proc/kpagecount", "/sys/kernel/debug/sched/debug", "/sys/firmware/dmi/tables/DMI", "/var/run/docker.sock")]
    cases += [Case(f"agent: reads {path}", f"read {path}", may=hidden) for path in ("/proc/1/mem", "/run/berth/secrets", "/etc/shadow")]
    cases += [Case(f"agent: reads {path}", f"read {path}", may=hidden, own=lambda path=path: has_no_secret(path))
              for path in ("/proc/1/environ", "/proc/1/maps")]
    cases += [Case(f"{user}: lists {path}", f"list {path}", user=user, may=hidden) for user in BOTH for path in (
        "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf", "/proc/scsi", "/proc/acpi", "/dev/disk")]
    cases += [Case(f"{user}: makes and opens the device of {name}", f"node /tmp/hostile-node {kind} {major} {minor}", user=user, may=("refused",),
                   own=is_own_kernels if name == "fuse" else None)
              for user in BOTH for name, kind, major, minor in (("memory", "c", 1, 1), ("kernel messages", "c", 1, 11), ("tun", "c", 10, 200),
                                                               ("kvm", "c", 10, 232), ("a disk", "b", 8, 0), ("a loop", "b", 7, 0),
                                                               ("fuse", "c", 10, 229))]
    cases += [Case(f"{user}: mounts {name}", f"mount {words}", user=user, may=("refused",)) for user in BOTH for name, words in (
        ("its root for writing", "none / none 0x20"), ("/proc/sys for writing", "none /proc/sys none 0x1020"), ("a tmpfs", "none /tmp tmpfs 0"),
        ("proc", "none /tmp proc 0"), ("sysfs", "none /tmp sysfs 0"), ("the control groups", "none /tmp cgroup 0"), ("the other control groups", "none /tmp cgroup2 0"),
        ("a folder over another", "/tmp /etc none 0x1000"), ("devices", "none /tmp devtmpfs 0"), ("overlay", "none /tmp overlay 0"),
        ("a disk", "/dev/sda /tmp ext4 0"), ("bpf", "none /tmp bpf 0"), ("debugfs", "none /tmp debugfs 0"), ("without set-id protection", "none /home/agent none 0x20"))]
    cases += [Case(f"{user}: uncovers {path}", f"umount {path}", user=user, may=("refused",)) for user in BOTH for path in (
        "/proc/kcore", "/proc/sys", "/sys/firmware", "/sys", "/tmp")]
    cases += [Case(f"{user}: another root", "root /tmp", user=user, may=("refused",)) for user in BOTH]
    cases += [Case(f"{user}: a file by its handle", "handle /etc/hostname", user=user, may=("refused",)) for user in BOTH]
    cases += [Case(f"{user}: descriptors that were left open", "left-open", user=user, may=("none",)) for user in BOTH]
    return cases


def judge_inside(cases):
    """What the attacker's own eyes tell; what it would have done to others is looked at afterwards (host_state())."""
    for case in cases:
        said = attack(case.line, case.user)
        if IS_GVISOR and case.own and said.startswith(("done", "unlimited")):
            is_none, seen = case.own()
            report(is_none, case.name, f"inside: {said}", f"outside: {seen}")
        else:
            report(said.startswith(case.may), case.name, f"inside: {said}")


def host_state():
    """Of the host, what a container that got out would have changed."""
    settings = ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "vm/overcommit_memory", "net/ipv4/ip_forward",
                "net/ipv4/conf/all/rp_filter", "fs/file-max", "kernel/sysrq")
    links = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    return {"settings": [read_text(f"/proc/sys/{name}") for name in settings], "mounts": sorted(read_text("/proc/self/mountinfo").splitlines()),
            "links": re.sub(r"(valid|preferred)_lft \S+", "", links), "routes": routes,
            "modules": sorted(line.split()[0] for line in read_text("/proc/modules").splitlines()), "engine": engine_state()}


def changes(before, after):
    """Up to some lines of what is in one and not in the other."""
    def lines(value):
        return set(value) if isinstance(value, list) else set(str(value).splitlines())
    return [str(line)[:300] for line in sorted(lines(before) ^ lines(after))[:6]]


def judge_held():
    """How the host's kernel sees a process of the attacker; in gVisor there is none but gVisor's."""
    for user, uid in (("agent", 65525), ("root", 0)):
        session = Session(user)
        session.process.stdin.write("x hold\n")
        session.process.stdin.flush()
        found, deadline = [], time.monotonic() + 20
        while not IS_GVISOR and not found and time.monotonic() < deadline:
            found = [pid for pid, status in processes().items() if "Name:\thostile-held\n" in status]
        name = f"{user}: what the host's kernel holds of its rights"
        if IS_GVISOR:
            judge_gvisor_held(name)
        else:
            judge_process_held(name, uid, found[0] if found else 0)
        if user == "agent":
            first = int(read_text(f"/proc/{one.pid}/oom_score_adj"))
            score = first if IS_GVISOR else int(read_text(f"/proc/{found[0]}/oom_score_adj")) - first if found else 0
            report(first > 0 and score > 0, "agent: when memory is short it goes before its container, and that before the host",
                   f"outside: its container {first}" + ("" if IS_GVISOR else f", itself {score} more"))
        session.end()


def judge_process_held(name, uid, pid):
    status = status_of(pid)
    sets = {key: int(status.get(key, "1"), 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    report(not any(sets.values()) and status.get("NoNewPrivs") == "1" and status.get("Seccomp") == "2" and
           status.get("Uid", "").split()[:1] == [str(uid)], name,
           f"outside: {sets}, uid {status.get('Uid')}, no new rights {status.get('NoNewPrivs')}, filter {status.get('Seccomp')}")


def judge_gvisor_held(name):
    """gVisor's kernel traces its processes, and its gofer opens files: each has that right, filters, and a root of its own."""
    rights = {"sandbox": 1 << 19, "gofer": 0b11111 | 1 << 18}  # ptrace; owners of files and chroot
    wrong, seen = [], {}
    for pid, kind in gvisor_processes(one.id).items():
        status, kind = status_of(pid), kind.removesuffix("'s")
        try:
            is_apart = all(os.readlink(f"/proc/{pid}/ns/{space}") != os.readlink(f"/proc/self/ns/{space}") for space in ("mnt", "net", "ipc", "uts"))
        except OSError:
            continue  # it has ended
        sets = [int(status.get(key, "1"), 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
        seen[kind] = seen.get(kind, 0) + 1
        if status.get("NoNewPrivs") != "1" or status.get("Seccomp") != "2" or not is_apart or any(held & ~rights[kind] for held in sets):
            wrong.append(f"{kind} {pid}: {sets}, no new rights {status.get('NoNewPrivs')}, filter {status.get('Seccomp')}, apart {is_apart}")
    root = f"/proc/{one.pid}/root"
    files = sorted(os.path.relpath(os.path.join(folder, name), root) for folder, names, found in os.walk(root)
                   if "proc" not in folder.removeprefix(root).split("/") for name in names + found)
    report(set(seen) == set(rights) and not wrong and set(files) <= {"etc", "etc/localtime", "proc"}, name,
           f"outside: {seen} processes with filters; the files that gVisor's kernel sees: {files}", *wrong[:6])


def judge_setuid():
    """A file of root's with the bit, which root in the container can make."""
    subprocess.run(["docker", "-H", "unix:///run/docker.sock", "exec", "-u", "0:0", one.id, "sh", "-c",
                    f"cp {ATTACKER} /var/lib/berth/hostile && chmod 6755 /var/lib/berth/hostile; chmod 755 /var/lib/berth"], check=True)
    said = attack("execute /var/lib/berth/hostile")
    report(said.startswith(("uid 65525 euid 65525 gid 65525 egid 65525", "refused")), "agent: a setuid file of root's", f"inside: {said}")


# ---- as if it could send what it likes ------------------------------------------------------------------------------

def mac_of(text):
    return bytes.fromhex(text.replace(":", ""))


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return 0xFFFF ^ ((total & 0xFFFF) + (total >> 16))


def ip(source, destination, protocol=17, payload=None, options=b"", fragment=0):
    if payload is None:
        text = NONCE.encode()
        payload = struct.pack("!HHHH", 4444, 53, 8 + len(text), 0) + text
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | words, 0, 4 * words + len(payload), 1, fragment, 64, protocol, 0,
                       socket.inet_aton(source), socket.inet_aton(destination)) + options
    check = checksum(head)
    return head[:10] + struct.pack("!H", (check & 0xFFFF) + (check >> 16) & 0xFFFF) + head[12:] + payload


def arp(operation, mac, address, target_mac, target):
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + mac + socket.inet_aton(address) + target_mac + socket.inet_aton(target)


def question():
    """A question that its gateway answers: allowed.example."""
    text = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07allowed\x07example\x00\x00\x01\x00\x01"
    return struct.pack("!HHHH", 4444, 53, 8 + len(text), 0) + text


def frames():
    """{name: frame}"""
    own, router = mac_of(one.mac), mac_of(read_text(f"/sys/class/net/{one.bridge}/address").strip())
    hers, target = mac_of(gateway.macs[one.network]), gateway.addresses[one.network]
    all_of, nonce = b"\xff" * 6, NONCE.encode()
    found = {}

    def add(name, to, kind, payload, sender=own):
        found[name] = to + sender + struct.pack("!H", kind) + payload

    for name, source in (("another agent's address", other.address), ("its gateway's address", target), ("the host's address", one.router),
                         ("the orchestrator's address", orchestrator.address), ("the loopback's address", "127.0.0.1"),
                         ("a public address", "203.0.113.99"), ("no address", "0.0.0.0"), ("a broadcast address", "255.255.255.255"),
                         ("an unused address of its network", other_of_network())):
        add(f"to its gateway from {name}", hers, 0x0800, ip(source, target))
        add(f"to its gateway from {name}, a question", hers, 0x0800, ip(source, target, payload=question()))
        add(f"to another agent from {name}", router, 0x0800, ip(source, other.address))
        add(f"to the world from {name}", router, 0x0800, ip(source, "203.0.113.99"))
    for name, place in places().items():
        add(f"its own address to {name}, by the host's MAC", router, 0x0800, ip(one.address, place))
        add(f"its own address to {name}, by its gateway's MAC", hers, 0x0800, ip(one.address, place))
    false = mac_of("02:00:00:00:00:01")
    add("another MAC, its own address", router, 0x0800, ip(one.address, "203.0.113.99"), false)
    add("its gateway's MAC, its gateway's address", router, 0x0800, ip(target, "203.0.113.99"), hers)
    add("the host's MAC", hers, 0x0800, ip(one.router, target), router)
    for name, address in (("its gateway's", target), ("the host's", one.router), ("another agent's", other.address), ("the next router's", "198.51.100.1")):
        add(f"ARP that says {name} address is its own", all_of, 0x0806, arp(2, own, address, all_of, address))
        add(f"ARP that asks with {name} address", all_of, 0x0806, arp(1, own, address, bytes(6), one.router))
    for name, number in (("icmp", 1), ("igmp", 2), ("ip in ip", 4), ("IPv6 in ip", 41), ("gre", 47), ("esp", 50), ("ospf", 89), ("sctp", 132), ("nothing known", 253)):
        add(f"protocol {name} to the world", router, 0x0800, ip(one.address, "203.0.113.99", number, nonce))
        add(f"protocol {name} to another agent", router, 0x0800, ip(one.address, other.address, number, nonce))
    add("a fragment to the host", router, 0x0800, ip(one.address, one.router, fragment=0x2000))
    add("the second fragment to another agent", router, 0x0800, ip(one.address, other.address, fragment=0x0010))
    route = bytes([131, 7, 4]) + socket.inet_aton(other.address) + b"\x00"
    add("loose source routing by the host", router, 0x0800, ip(one.address, one.router, options=route))
    add("loose source routing by its gateway", hers, 0x0800, ip(one.address, target, options=route))
    redirect = struct.pack("!BBH4s", 5, 1, 0, socket.inet_aton(one.address)) + ip(one.router, "203.0.113.10") + b"\x00" * 8
    add("an ICMP redirect to the host", router, 0x0800, ip(one.address, one.router, 1, redirect + nonce))
    add("an ICMP redirect to its gateway from the host", hers, 0x0800, ip(one.router, target, 1, redirect + nonce))
    add("a broadcast", all_of, 0x0800, ip(one.address, "255.255.255.255"))
    add("a DHCP discovery", all_of, 0x0800, ip("0.0.0.0", "255.255.255.255", payload=struct.pack("!HHHH", 68, 67, 8 + len(nonce), 0) + nonce))
    add("mDNS", mac_of("01:00:5e:00:00:fb"), 0x0800, ip(one.address, "224.0.0.251"))
    six = bytes.fromhex("6000000000083aff") + socket.inet_pton(socket.AF_INET6, "fe80::1") + socket.inet_pton(socket.AF_INET6, "ff02::1")
    add("a router's advertisement of IPv6", mac_of("33:33:00:00:00:01"), 0x86DD, six + bytes.fromhex("8600000040000708") + nonce)
    add("IPv6 to the host", router, 0x86DD, six[:24] + socket.inet_pton(socket.AF_INET6, "2001:db8::2") + nonce)
    add("IPv6 to the world", router, 0x86DD, six[:24] + socket.inet_pton(socket.AF_INET6, "2001:db8::99") + nonce)
    add("a vlan with another agent behind it", router, 0x8100, struct.pack("!HH", 1, 0x0800) + ip(one.address, other.address))
    add("two vlans", router, 0x88A8, struct.pack("!HHHH", 1, 0x8100, 1, 0x0800) + ip(one.address, other.address))
    add("PPPoE", router, 0x8864, bytes.fromhex("11000001002a0021") + ip(one.address, other.address))
    add("MPLS", router, 0x8847, bytes.fromhex("00064140") + ip(one.address, other.address))
    add("a spanning tree's root", mac_of("01:80:c2:00:00:00"), 38, bytes.fromhex("424203000000000000") + nonce + b"\x00" * 20)
    add("LLDP", mac_of("01:80:c2:00:00:0e"), 0x88CC, nonce)
    add("EAPOL", mac_of("01:80:c2:00:00:03"), 0x888E, nonce)
    add("a frame of no length", router, 0x0800, b"\x45" + nonce)
    return found


def other_of_network():
    parts = one.router.rsplit(".", 1)
    return f"{parts[0]}.{int(parts[1]) + 4}"


def judge_frames(outside):
    """Written into its interface by somebody who may: should a container ever get the right, this is what it is worth."""
    with in_network(f"/proc/{one.pid}/ns/net"):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind(("eth0", 0))
    for name, frame in frames().items():
        outside.forget()
        wire.send(frame)
        seen, leaks = outside.look()
        report(not leaks, f"as if it had packet sockets: {name}", seen, *leaks[:8])
    wire.close()


# ---- all there is of something --------------------------------------------------------------------------------------

GROUPS = """impossible: gVisor was told to leave control groups alone (--ignore-cgroups), as it must with their first version; berth
    said before the launch that these limits do not hold""".replace("\n    ", " ")


def group_value(controller, first, second):
    """A figure of the attacker's control group: the file "first" of version 1, or what there is of "second" in version 2."""
    folders = {}
    for line in read_text(f"/proc/{one.pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        folders.update({name: path for name in controllers.split(",")})
    if controller in folders:
        text = read_text(f"/sys/fs/cgroup/{controller}{folders[controller]}/{first}")
    else:
        [text] = [read_text(path) for name in second if os.path.exists(path := f"/sys/fs/cgroup{folders['']}/{name}")][:1]
    return sys.maxsize if text.strip() == "max" else int(text)


def judge_group(name, line, is_good, look):
    if is_unlimited:
        skip(name, GROUPS)
        return
    said = attack(line)
    value = look()
    report(is_good(said, value), name, f"inside: {said}", f"outside: {value}")


def number_in(said):
    found = re.search(r"\d+", said)
    return int(found.group()) if found else 0


def judge_exhaust():
    judge_group("all processes", "processes 5000", lambda said, _: said.endswith("EAGAIN") and number_in(said) < 4096,
                lambda: f"{group_value('pids', 'pids.max', ['pids.max'])} are its limit")
    limit = 512 << 20
    for name, line in (("all memory", "memory 700"), ("all shared memory", "shared 700")):
        judge_group(name, line, lambda said, value: said.startswith("ended by KILL") and value <= limit,
                    lambda: group_value("memory", "memory.max_usage_in_bytes", ["memory.peak", "memory.max"]))
    for folder, bound, user in (("/tmp", 256, "agent"), ("/var/tmp", 256, "agent"), ("/dev/shm", 64, "agent"), ("/run", 64, "root")):
        said = attack(f"fill {folder} {bound + 40}", user)
        report(said.startswith("refused") or said.endswith("ENOSPC") and number_in(said) <= bound, f"all of {folder}", f"inside: {said}")
    said = attack("fill /workspace 8")
    notes = read_text(f"{WORLD}/said.one")
    report("does not limit disk" in notes and said == "mebibytes 8", "its volumes have no size here, which was said before the launch", f"inside: {said}",
           *[line for line in notes.splitlines() if "disk" in line])
    for kind in ("null", "sockets", "memories"):
        said = attack(f"open {kind} 20000")
        report(said.endswith("EMFILE") and number_in(said) <= 16384, f"all descriptors, of {kind}", f"inside: {said}")
    said = attack("open inotify 20000")  # a user has 1024 of the host's; gVisor's are as bounded as descriptors
    report(said.endswith("EMFILE") and number_in(said) <= (16384 if IS_GVISOR else 1024), "all watchers of files", f"inside: {said}")
    engine_size = tree_size("/opt/docker/data")
    run = subprocess.run(["bash", f"{WORLD}/berth", "exec", "-T", "one", "--", "head", "-c", "67108864", "/dev/zero"], stdout=subprocess.PIPE, check=False)
    grown = tree_size("/opt/docker/data") - engine_size + tree_size("/home/1000/.local/state/berth/env/live/agents/one") // 1024 // 1024
    report(len(run.stdout) == 67108864 and grown < 8 << 20, "64 MiB of output leave nothing on the host's disk", f"outside: {grown} bytes more")
    said = subprocess.run(["bash", f"{WORLD}/berth", "exec", "-T", "other", "--", "/home/agent/hostile", "identity"], capture_output=True, text=True, check=False)
    report(said.stdout.startswith("uid"), "another agent works as before", f"{said.stdout} {said.stderr}")


def tree_size(folder):
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                pass
    return total


def is_keeping_a_status(command):
    """podman has a process for each command that ended, outside of the container, until somebody asked or five minutes."""
    words = command.split("\0")
    return words[0].endswith("/conmon") and "-u" in words and words[words.index("-u") + 1] != one.id


def of_container(namespace):
    """Processes that are in the container, or hold it."""
    found = list(gvisor_processes(one.id)) if IS_GVISOR else []
    for pid in processes():
        try:
            is_inside = not IS_GVISOR and os.readlink(f"/proc/{pid}/ns/pid") == namespace
            command = read_text(f"/proc/{pid}/cmdline")
            if is_inside or (one.id in command and not is_keeping_a_status(command)):
                found.append(pid)
        except OSError:
            pass
    return sorted({*found})


def eventually(is_so):
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)
    return is_so()


def judge_end():
    namespace = os.readlink(f"/proc/{one.pid}/ns/pid")
    groups = [path for line in read_text(f"/proc/{one.pid}/cgroup").splitlines() for path in
              [f"/sys/fs/cgroup/{line.split(':')[1]}{line.split(':')[2]}"] if one.id in path and os.path.isdir(path)]
    said = attack("leave")
    before = of_container(namespace)
    started = {pid: started_at(pid) for pid in before}
    report(said == "done left eight" and len(before) >= (1 if IS_GVISOR else 9), "processes that hear no signal are left", f"inside: {said}",
           f"outside: {len(before)} processes")
    for session in sessions.values():
        session.end()
    sessions.clear()
    run = subprocess.run(["bash", f"{WORLD}/berth", "stop", "one"], capture_output=True, text=True, check=False)
    # In gVisor a process says nothing of its container: those that were there must have gone.

    def remaining():
        return sorted({*of_container(namespace), *(pid for pid in before if started_at(pid) == started[pid])})
    eventually(lambda: not remaining())
    left = remaining()
    report(run.returncode == 0 and not left, "after the stop none of its processes is there", f"{run.stderr}", *[read_text(f"/proc/{pid}/cmdline") for pid in left])
    report(not [c for c in engine("/containers/json?all=1") if c["Id"] == one.id] and one.network not in [n["Name"] for n in engine("/networks")],
           "nor its container, nor its network")
    report(eventually(lambda: not os.path.exists(f"/sys/class/net/{one.bridge}")), "nor its bridge")
    table = subprocess.run(["nft", "list", "table", "inet", "berth"], capture_output=True, text=True, check=True).stdout
    report(f'"{one.bridge}"' not in table, "nor anything of it in the table")
    report(not [path for path in groups if os.path.isdir(path)], "nor its control groups", f"{len(groups)} there were")


def control(outside):
    """What shows that silence means something."""
    outside.forget()
    said = attack(f"tcp {gateway.addresses[one.network]} 8119")
    seen, leaks = outside.look()
    own = [frame for frame in outside.watcher.taken() if (frame.place, frame.interface) in outside.own]
    report(said.startswith("connected") and own and not leaks, "its gateway is reached, and that is seen", f"inside: {said}", seen,
           *leaks)
    outside.forget()
    with socket.create_connection((one.router, 2375), 2):
        time.sleep(0.05)
    report(bool(outside.listeners.heard()), "the host's listeners hear the host itself", str(outside.listeners.heard()))
    outside.forget()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as world:
        world.sendto(b"control", ("203.0.113.99", 9))
    report(len(outside.look()[1]) > 0, "what leaves for the world is seen there", *outside.look()[1][:2])


def judge_rights():
    judge_inside(right_cases())
    judge_setuid()
    judge_held()


def judge_state(before):
    after = host_state()
    for name, value in before.items():
        report(after[name] == value, f"after all of this the host's {name} are as before", *changes(value, after[name]))


def main():
    outside = Outside()
    control(outside)
    before = host_state()
    parts = {"network": lambda: judge_network(engine_cases() + dns_cases() + socket_cases() + change_cases() + group_cases() + reach_cases(), outside),
             "frames": lambda: judge_frames(outside), "rights": judge_rights, "files": lambda: judge_inside(file_cases()),
             "state": lambda: judge_state(before), "exhaust": judge_exhaust, "end": judge_end}
    for name, judge in parts.items():
        if not PARTS or name in PARTS:
            judge()
    for session in sessions.values():
        session.end()
    print(f"1..{count}")
    sys.exit(failed != 0)


one, other = Guest("one"), Guest("other")
gateway, orchestrator = Guest("gateway"), Guest("orchestrator")
held_at_first = gvisor_holds(one.id) if IS_GVISOR else set()
is_unlimited = IS_GVISOR and "--ignore-cgroups" in read_text(f"/proc/{one.pid}/cmdline")
if __name__ == "__main__":
    main()
