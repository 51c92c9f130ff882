#!/bin/bash
# Every C file is as clang-format leaves it.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

# clang-format --dry-run names each place; a reader wants each file once.
unformatted=$(tree_files '*.c' '*.h' | tr '\n' '\0' | nice xargs -0 -P "$(nproc)" -n 8 clang-format --dry-run 2>&1 |
    sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning:.*/\1: run clang-format -i \1/p' | sort -u)
report "C files are formatted" "$unformatted"
finish
