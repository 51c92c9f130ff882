#!/bin/bash
# The other compiler of the project: every file also passes clang's warnings, which are other ones than gcc's.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

read -r -a flags <<<"$(make -s print-cflags CC=clang)"
# eva_wire.c is for Frama-C; sources of macOS need its headers.
mapfile -t files < <(tree_files '*.c' | grep -v -e '_macos\.c$' -e '^tests/verify/')
findings=$(printf '%s\0' "${files[@]}" |
    nice xargs -0 -n 8 -P "$(nproc)" clang "${flags[@]}" -fsyntax-only -fno-color-diagnostics 2>&1 |
    grep -e 'error:' || true)
report "clang compiles every file without a warning" "$findings"
finish
