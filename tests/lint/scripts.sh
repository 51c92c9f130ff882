#!/bin/bash
# Shell scripts pass shellcheck, Python scripts compile.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

shell_findings="" python_findings=""
while read -r file; do
    case "$(head -n 1 "$file" | tr -d '\0')" in
    '#!'*bash* | '#!/bin/sh'* | '#!'*'env sh'*)
        shell_findings+=$(shellcheck -x --format=gcc "$file" || true)
        ;;
    '#!'*python3*)
        python_findings+=$(python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" 2>&1 |
            tail -n 3 || true)
        ;;
    esac
done < <(tree_files '*' | grep -v -e '\.[ch]$' -e '^tests/fuzz/corpus/')
report "shell scripts pass shellcheck" "$shell_findings"
report "Python scripts parse" "$python_findings"
finish
