#!/usr/bin/env python3
"""Who may include whom: the folders of berth depend on each other in one direction only."""

import os
import re
import sys

ROOT = os.environ.get("BERTH_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')

# A file's folder is the longest of these that it is below. What it may include besides its own folder:
ALLOWED = {
    "ipc/base": [],
    "ipc/wire": ["ipc/base"],
    "ipc/chan": ["ipc/base", "ipc/wire"],
    "ipc/client": ["ipc/base", "ipc/wire", "ipc/chan", "lib"],
    "helper": ["ipc/base", "ipc/wire", "ipc/chan"],
    "lib": ["ipc/base"],
    "policy": ["lib", "ipc/base"],
    "vm": ["lib", "ipc/base"],
    "images": ["lib", "ipc/base"],
    "backends": ["lib", "vm", "images", "policy", "ipc/base", "ipc/wire", "ipc/chan", "ipc/client"],
    "frontend": ["lib", "vm", "images", "policy", "backends", "ipc/base", "ipc/wire", "ipc/chan", "ipc/client"],
    "tests": [""],
}


def folder_of(path):
    candidates = [folder for folder in ALLOWED if path.startswith(folder + "/")]
    return max(candidates, key=len) if candidates else None


def wrong_includes(path):
    folder = folder_of(path)
    if folder is None:
        return [f"{path}: its folder is unknown to tests/lint/includes.py"]
    found = []
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1)
            if not os.path.exists(os.path.join(ROOT, target)):
                found.append(f"{path}:{number}: \"{target}\" is not a path from the top of the tree")
            elif folder != "tests" and folder_of(target) != folder and folder_of(target) not in ALLOWED[folder]:
                found.append(f"{path}:{number}: {folder} may not include \"{target}\"")
    return found


def sources():
    for top in sorted({folder.split("/")[0] for folder in ALLOWED}):
        for parent, _, files in os.walk(os.path.join(ROOT, top)):
            for name in sorted(files):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(parent, name), ROOT)


def main():
    findings = [finding for path in sources() for finding in wrong_includes(path)]
    print(f"{'not ok' if findings else 'ok'} 1 - every include follows the direction of the folders")
    for finding in findings:
        print(f"# {finding}")
    print("1..1")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
