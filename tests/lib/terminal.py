#!/usr/bin/env python3
"""Runs a command in a terminal of its own and types into it.

terminal.py [--columns N] [--term NAME] [--hang-up] [WAIT KEYS]... -- COMMAND...

Waits until the text WAIT has come, then types KEYS (backslash escapes as in Python), and so on; then waits until the
command ends, or with --hang-up takes the terminal away. Prints what the terminal got, and exits with the command's
status (128 + signal when one ended it), or 124 when a text did not come within two minutes.
"""
import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

PATIENCE_S = 120
HAND_S = 0.1  # before each KEYS: what comes within a millisecond of other keys is pasted, for tmux, and no key of its own


def options(words):
    found = {"columns": 100, "term": "xterm-256color", "hang-up": False}
    while words and words[0].startswith("--") and words[0] != "--":
        name = words.pop(0)[2:]
        found[name] = True if name == "hang-up" else words.pop(0)
    at = words.index("--")
    return found, words[:at], words[at + 1:]


def read_some(terminal, got):
    """False when the terminal is closed."""
    readable, _, _ = select.select([terminal], [], [], 0.5)
    if not readable:
        return True
    try:
        data = os.read(terminal, 65536)
    except OSError:
        return False
    got += data
    return bool(data)


def wait_for(terminal, got, start, text):
    deadline = time.monotonic() + PATIENCE_S
    while got.find(text, start) < 0:
        if not read_some(terminal, got) or time.monotonic() > deadline:
            return -1
    return got.find(text, start) + len(text)


def main():
    found, steps, command = options(sys.argv[1:])
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(found["columns"]), 0, 0))
        os.environ["TERM"] = found["term"]
        os.execvp(command[0], command)
    got, at = bytearray(), 0
    for text, keys in zip(steps[::2], steps[1::2]):
        at = wait_for(terminal, got, at, text.encode())
        if at < 0:
            break
        time.sleep(HAND_S)
        os.write(terminal, codecs.decode(keys, "unicode_escape").encode("latin-1"))
    if at >= 0 and not found["hang-up"]:
        deadline = time.monotonic() + PATIENCE_S
        while read_some(terminal, got) and time.monotonic() < deadline:
            pass
    os.close(terminal)
    if at < 0:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    sys.stdout.buffer.write(got)
    code = os.waitstatus_to_exitcode(status)
    return 124 if at < 0 else code if code >= 0 else 128 - code


sys.exit(main())
