#!/bin/bash
# clang-tidy over every C file of the product, with .clang-tidy. A file found clean is not looked at again until it, a
# header of it, or the rules change: build/lint holds the digests.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

# tidy_one FILE FLAG...
# shellcheck disable=SC2317 # called through xargs
tidy_one()
{
    local file=$1 digest findings
    shift
    digest=$({
        cat .clang-tidy
        clang -E "$@" -std=gnu17 -D_GNU_SOURCE -I. "$file"
    } 2>/dev/null | sha256sum | cut -c1-64)
    [ -e "build/lint/tidy-$digest" ] && return
    findings=$(clang-tidy --quiet "$file" -- "$@" -std=gnu17 -D_GNU_SOURCE -I. 2>&1 |
        grep -v -e 'warnings\? generated' -e '^Suppressed ' -e '^Use -header-filter' -e 'warnings treated as errors$' || true)
    if [ -z "$findings" ]; then
        touch "build/lint/tidy-$digest"
    else
        echo "$findings"
    fi
}
export -f tidy_one

# tidy FILE... -- FLAG...: one process a file, as many at a time as processors.
tidy()
{
    local files=()
    while [ "$1" != -- ]; do
        files+=("$1")
        shift
    done
    shift
    [ "${#files[@]}" -ne 0 ] || return 0
    # shellcheck disable=SC2016 # expanded by the inner shell
    printf '%s\0' "${files[@]}" | nice xargs -0 -I '{}' -P "$(nproc)" bash -c 'tidy_one "$@"' tidy '{}' "$@"
}

mkdir -p build/lint
find build/lint -name 'tidy-*' -mtime +30 -delete
mapfile -t files < <(tree_files '*.c' | grep -v -e '^tests/' -e '_macos\.c$' -e '^helper/' -e '^ipc/' -e '^lib/\(error\|yaml\)\.c$')
mapfile -t bare_files < <(tree_files '*.c' | grep -e '^helper/' -e '^ipc/' -e '^lib/\(error\|yaml\)\.c$' | grep -v '_macos\.c$')
findings=$(tidy "${files[@]}" -- -include tests/lint/analysis.h && tidy "${bare_files[@]}" --)
findings=${findings//"$PWD/"/}
report "clang-tidy has nothing to say" "$findings"
finish
