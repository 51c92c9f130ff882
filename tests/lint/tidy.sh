#!/bin/bash
# clang-tidy over every C file of the product, with .clang-tidy.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

# tidy FILE... -- FLAG...: one process a file, as many at a time as processors.
tidy()
{
    local files=()
    while [ "$1" != -- ]; do
        files+=("$1")
        shift
    done
    [ "${#files[@]}" -ne 0 ] || return 0
    printf '%s\0' "${files[@]}" |
        nice xargs -0 -I '{}' -P "$(nproc)" clang-tidy --quiet '{}' "$@" -std=gnu17 -D_GNU_SOURCE -I. 2>&1 |
        grep -v -e 'warnings\? generated' -e '^Suppressed ' -e '^Use -header-filter' -e 'warnings treated as errors$' || true
}

mapfile -t files < <(tree_files '*.c' | grep -v -e '^tests/' -e '_macos\.c$' -e '^helper/' -e '^ipc/' -e '^lib/\(error\|yaml\)\.c$')
mapfile -t bare_files < <(tree_files '*.c' | grep -e '^helper/' -e '^ipc/' -e '^lib/\(error\|yaml\)\.c$' | grep -v '_macos\.c$')
findings=$(tidy "${files[@]}" -- -include tests/lint/analysis.h && tidy "${bare_files[@]}" --)
findings=${findings//"$PWD/"/}
report "clang-tidy has nothing to say" "$findings"
finish
