#!/bin/bash
# Nothing in the tree names the machine it was made on: no path below a developer's folder, no private host.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

# Bracketed so that this file does not find itself. /home/agent is the guest's; /home/user and /home/you are examples.
patterns=(
    '(^|[^A-Za-z0-9_.$}/])/wor[k]/'
    '/home/(?!agent|user|you|alice|bob)[a-z]{3}'
    '/Users/(?!you|alice|bob)[a-z]'
    'sub[a]gents? (session|task)'
    'localhost\.localdomai[n]'
)
findings=""
mapfile -t files < <(tree_files '*' | grep -v '^tests/fuzz/corpus/')
for pattern in "${patterns[@]}"; do
    findings+=$(grep -nIP -e "$pattern" -- "${files[@]}" /dev/null || true)
done
report "no path of the machine that berth was written on" "$findings"
finish
