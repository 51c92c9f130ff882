#!/usr/bin/env python3
"""Looks for texts in what processes have in memory.

    memory_search.py FILE PID...      prints the texts of FILE (one a line) that are in the memory of any of them

Everything that a process could have written is read: private and shared mappings that are or were writable, the stack with
arguments and environment; not files mapped to be read. For a virtual machine's monitor that is all of the guest's memory.
"""
import sys

CHUNK = 16 << 20


def regions(process):
    with open(f"/proc/{process}/maps") as maps:
        for line in maps:
            words = line.split(None, 5)
            first, last = (int(word, 16) for word in words[0].split("-"))
            path = words[5].strip() if len(words) > 5 else ""
            is_file = path.startswith("/") and not path.startswith(("/memfd:", "/dev/zero"))
            if "r" in words[1] and path not in ("[vvar]", "[vsyscall]", "[vvar_vclock]") and ("w" in words[1] or not is_file):
                yield first, last


def search(process, texts):
    found, longest = set(), max(map(len, texts))
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        for first, last in regions(process):
            at, rest = first, b""
            while at < last:
                try:
                    memory.seek(at)
                    data = memory.read(min(CHUNK, last - at))
                except (OSError, OverflowError):
                    data = b""
                if not data:  # a guard page, or memory of a device
                    at, rest = at + 4096, b""
                    continue
                at += len(data)
                data = rest + data
                found.update(text for text in texts if text in data)
                rest = data[-longest:]
    return found


def main():
    with open(sys.argv[1], "rb") as file:
        texts = file.read().split()
    found, seen = set(), 0
    for process in sys.argv[2:]:
        try:
            found |= search(process, texts)
            seen += 1
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended meanwhile
    if not seen:
        sys.exit("none of these processes is there")
    for text in sorted(found):
        print(text.decode())


if __name__ == "__main__":
    main()
