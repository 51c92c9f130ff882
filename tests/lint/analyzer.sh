#!/bin/bash
# gcc -fanalyzer over the code that must not be wrong: the helper, the channel, the shared runtime.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

# analyze FILE... -- FLAG...
analyze()
{
    local files=()
    while [ "$1" != -- ]; do
        files+=("$1")
        shift
    done
    shift
    [ "${#files[@]}" -ne 0 ] || return 0
    printf '%s\0' "${files[@]}" |
        nice xargs -0 -I '{}' -P "$(nproc)" gcc -std=gnu17 -D_GNU_SOURCE -I. "$@" -O1 -fanalyzer \
            -fdiagnostics-plain-output -fdiagnostics-path-format=none -S -o /dev/null '{}' 2>&1 |
        grep -e 'warning:' -e 'error:' || true
}

mapfile -t files < <(tree_files 'lib/*.c' | grep -v -e '_macos\.c$' -e '^lib/\(error\|yaml\)\.c$')
mapfile -t bare_files < <(tree_files 'ipc/*.c' 'helper/*.c' 'lib/error.c' 'lib/yaml.c' | grep -v '_macos\.c$')
findings=$(analyze "${files[@]}" -- -include tests/lint/analysis.h && analyze "${bare_files[@]}" --)

unused=""
while read -r file warning _; do
    remaining=$(grep -v "^$file:.*\[$warning\]" <<<"$findings" || true)
    [ "$remaining" != "$findings" ] || unused+="tests/lint/analyzer.ignore: nothing matches $file $warning"$'\n'
    findings=$remaining
done < <(grep -v -e '^#' -e '^$' tests/lint/analyzer.ignore)
report "gcc -fanalyzer has nothing to say" "$findings"
report "every exemption from it is still needed" "${unused%$'\n'}"
finish
