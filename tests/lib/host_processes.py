"""Processes as the host's kernel sees them, and which of them are a container in gVisor."""
import os


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        return str(error)


def processes():
    """{pid: status} of every process of the host's view."""
    return {int(entry): read_text(f"/proc/{entry}/status") for entry in os.listdir("/proc") if entry.isdigit()}


def status_of(pid):
    return dict(line.split(":\t", 1) for line in read_text(f"/proc/{pid}/status").splitlines() if ":\t" in line)


def started_at(pid):
    """When it started; of one that has ended, something else each time."""
    return (read_text(f"/proc/{pid}/stat").rsplit(")", 1)[-1].split() + [None] * 20)[19] or object()


def gvisor_processes(container):
    """{pid: "sandbox", "gofer" or "sandbox's", "gofer's"}: what the host has of a container in gVisor."""
    found, parents = {}, {}
    for pid in processes():
        command = read_text(f"/proc/{pid}/cmdline")
        if command.startswith(("runsc-sandbox\0", "runsc-gofer\0")) and container in command:
            found[pid] = command.split("\0")[0][6:]
        parents[pid] = int(status_of(pid).get("PPid", "0"))
    before = None
    while before != len(found):
        before = len(found)
        found.update({pid: found[parent].removesuffix("'s") + "'s" for pid, parent in parents.items() if parent in found and pid not in found})
    return found


def gvisor_holds(container):
    """What the host's kernel lets these processes have: an attack on gVisor's own kernel must change none of it."""
    holds = set()
    for pid, kind in gvisor_processes(container).items():
        try:
            status = status_of(pid)
            fields = read_text(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
            holds |= {f"{kind}: {os.readlink(f'/proc/{pid}/ns/{name}')}" for name in ("mnt", "net", "pid", "ipc", "uts", "user", "cgroup")}
            holds |= {f"{kind}: rights {status['CapPrm']}, filter {status['Seccomp']}, users {status['Uid'].split()}",
                      f"{kind}: priority {fields[16]}, policy {fields[38]}"}
            targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            holds |= {f"{kind}: {target}" for target in targets if target.startswith("/dev/") and target != "/dev/null"}
        except (OSError, LookupError):
            continue  # it has ended meanwhile
    return {hold.replace("'s:", ":") for hold in holds}
