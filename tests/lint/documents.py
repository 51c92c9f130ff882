#!/usr/bin/env python3
"""What documents say of the tree: each file of a folder is in the table of the folder's README, and what is named in a
document (files, folders, links, functions, tests) exists.
"""

import fnmatch
import glob
import os
import re
import sys

ROOT = os.environ.get("BERTH_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SOURCES = (".c", ".h", ".py", ".sh", ".bash", ".yaml", ".json", ".md")
SKIPPED = {".git", "build"}
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
# A file by name or pattern, as `engine.c` or `filter*.c`; a folder of the tree, as `vm/probe/`.
FILE = re.compile(r"[\w.*/\[\]-]+\.(?:\[ch\]|c|h|py|sh|bash|yaml|md)")
SYMBOL = re.compile(r"(?<![\w./-])(?:bt|t|test)_[a-z][a-z0-9_]{5,}(?![\w./*-])")


def tree():
    for parent, folders, files in os.walk(ROOT):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            yield os.path.relpath(os.path.join(parent, name), ROOT)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def exists(word, folder, names):
    if any(glob.glob(os.path.join(ROOT, where, word)) for where in (folder, "")):
        return True
    return "/" not in word and bool(fnmatch.filter(names, word))


def missing(document, names, symbols):
    folder, text = os.path.dirname(document), read(document)
    for word in sorted(set(QUOTED.findall(text))):
        words = [word[:-4] + "c", word[:-4] + "h"] if word.endswith("[ch]") else [word]
        if FILE.fullmatch(word) and not word.startswith(("/", "~", "$")):
            yield from (f"{document}: there is no {one}" for one in words if not exists(one, folder, names))
    for word in LINK.findall(text):
        if "://" not in word and not os.path.exists(os.path.join(ROOT, folder, word)):
            yield f"{document}: a link leads to {word}"
    for word in sorted(set(SYMBOL.findall(text)) - symbols):
        yield f"{document}: nothing is called {word}"


def unmentioned(readme, paths):
    """Files that no name or pattern of the README is meant for; its tables may leave the ending out."""
    folder = os.path.dirname(readme)
    patterns = [os.path.basename(word) for word in QUOTED.findall(read(readme))]
    for path in paths:
        name = os.path.basename(path)
        if os.path.dirname(path) == folder and name.endswith((".c", ".py", ".sh", ".bash")):
            stem = name.rsplit(".", 1)[0]
            if not any(fnmatch.fnmatch(name, one.replace("[ch]", "c")) or fnmatch.fnmatch(stem, one) for one in patterns):
                yield f"{readme} does not say what {name} is for"


def main():
    paths = list(tree())
    documents = [path for path in paths if path.endswith((".md", ".1", ".8"))]
    names = {os.path.basename(path) for path in paths}
    symbols = set(re.findall(r"\w+", " ".join(read(path) for path in paths if path.endswith(SOURCES[:5]))))
    # The top, and the tables of tests by subject: those say what is where, not each file.
    readmes = [path for path in documents if os.path.basename(path) == "README.md" and os.path.dirname(path) not in
               ("", "tests", "tests/attack/hostile")]
    checks = (("what documents name exists", [one for path in documents for one in missing(path, names, symbols)]),
              ("each folder's README says what its files are for",
               [one for path in readmes for one in unmentioned(path, paths)]))
    for number, (title, findings) in enumerate(checks, 1):
        print(f"{'not ok' if findings else 'ok'} {number} - {title}")
        for finding in findings:
            print(f"#   {finding}")
    print(f"1..{len(checks)}")
    return 1 if any(findings for _, findings in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
