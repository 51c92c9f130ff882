#!/usr/bin/env python3
"""What a function may look like and call: at most 60 lines, none of the calls that a mistake hides in.

Works on the formatting that tests/lint/format.sh enforces: a function's body begins and ends with a brace in the first
column.
"""

import os
import re
import sys

ROOT = os.environ.get("BERTH_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDERS = ("ipc", "helper", "lib", "policy", "vm", "images", "backends", "frontend")
LINES_MAX = 60
FORBIDDEN = {
    "system": "runs a shell", "popen": "runs a shell", "wordexp": "runs a shell",
    "gets": "no bound", "strcpy": "no bound", "strcat": "no bound", "sprintf": "no bound", "vsprintf": "no bound",
    "stpcpy": "no bound", "strncpy": "may leave no NUL", "strncat": "its length is not what one thinks",
    "atoi": "no error: use bt_number_parse", "atol": "no error: use bt_number_parse",
    "atoll": "no error: use bt_number_parse", "atof": "no error",
    "strtok": "hidden state", "alloca": "unbounded stack", "tmpnam": "race", "mktemp": "race", "tempnam": "race",
    "rand": "predictable: use bt_random_bytes", "random": "predictable: use bt_random_bytes",
    "setjmp": "skips cleanup", "longjmp": "skips cleanup", "scanf": "no bound", "sscanf": "overflow is undefined",
    "fscanf": "overflow is undefined", "vfork": "use bt_spawn_run",
}
CALL = re.compile(r"(?<![\w.>])(" + "|".join(FORBIDDEN) + r")\s*\(")
TEXT_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


def without_text(source):
    """The source with comments and strings blanked, line numbers kept."""
    return TEXT_OR_COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), source)


def long_functions(path, lines):
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            if number - start - 1 > LINES_MAX:
                yield f"{path}:{start}: a function of {number - start - 1} lines, more than {LINES_MAX}"
            start = None


def forbidden_calls(path, lines):
    for number, line in enumerate(lines, 1):
        for match in CALL.finditer(line):
            yield f"{path}:{number}: {match.group(1)}(): {FORBIDDEN[match.group(1)]}"


def main():
    lengths, calls = [], []
    for folder in FOLDERS:
        for parent, _, files in os.walk(os.path.join(ROOT, folder)):
            for name in sorted(files):
                if not name.endswith((".c", ".h")):
                    continue
                path = os.path.join(parent, name)
                with open(path, encoding="utf-8") as file:
                    lines = without_text(file.read()).split("\n")
                relative = os.path.relpath(path, ROOT)
                lengths += long_functions(relative, lines)
                calls += forbidden_calls(relative, lines)
    for number, (title, findings) in enumerate(((f"functions have at most {LINES_MAX} lines", lengths),
                                                ("no call of a forbidden function", calls)), 1):
        print(f"{'not ok' if findings else 'ok'} {number} - {title}")
        for finding in findings:
            print(f"# {finding}")
    print("1..2")
    return 1 if lengths or calls else 0


if __name__ == "__main__":
    sys.exit(main())
