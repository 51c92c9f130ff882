#!/bin/bash
# Manual pages are well formed.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

findings=""
while read -r file; do
    findings+=$(mandoc -Tlint -W warning "$file" || true)
done < <(tree_files 'docs/*' | grep '\.[1-9]$')
report "manual pages pass mandoc -Tlint" "$findings"
finish
