#!/usr/bin/env python3
"""How much of the helper an auditor has to read, in the three parts of helper/README.md, "Reading it".

Counts lines that are neither blank nor comment. Each part has a bound just above what it holds: who wants more says here
why. Every source file of the engine belongs to one part; admin_*.c and admin.c are programs of their own, starter/ and
macos/ are read for themselves.
"""

import glob
import os
import re
import sys

ROOT = os.environ.get("BERTH_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PARTS = (
    ("what a caller may get", 2048, """verbs engine ledger admission kernel_linux kernel_linux_elements
     kernel_linux_rules"""),
    ("how it is written, read back and recorded", 2290, """kernel_linux_table kernel_linux_link kernel_linux_netlink
     kernel_linux_readback kernel_linux_write kernel_linux_events kernel_linux_uplink kernel_linux_flows
     audit record sha256 say"""),
    ("the start, before any caller", 1095, "main sanitise config trusted accounts listener privilege confine"),
)
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/', re.DOTALL)


def count_code(name):
    with open(os.path.join(ROOT, "helper", name + ".c"), encoding="utf-8") as file:
        code = COMMENT.sub(lambda match: match.group(1) or "", file.read())
    return sum(1 for line in code.split("\n") if line.strip())


def main():
    named = [name for _, _, names in PARTS for name in names.split()]
    present = {os.path.basename(path)[:-2] for path in glob.glob(os.path.join(ROOT, "helper", "*.c"))}
    engine = {name for name in present if not name.startswith("admin") or name == "admission"}
    has_failed = set(named) != engine or len(named) != len(set(named))
    print(f"{'not ok' if has_failed else 'ok'} 1 - each file of the engine is in one part")
    for name in sorted(set(named) ^ engine):
        print(f"# helper/{name}.c")
    for number, (title, bound, names) in enumerate(PARTS, 2):
        lines = sum(count_code(name) for name in names.split() if name in present)
        has_failed |= lines > bound
        print(f"{'not ok' if lines > bound else 'ok'} {number} - {title}: {lines} lines of code, at most {bound}")
    print(f"1..{len(PARTS) + 1}")
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
