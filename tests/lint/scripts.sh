#!/bin/bash
# Shell scripts pass shellcheck, Python scripts compile.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

shell_findings="" python_findings=""
while read -r file; do
    case "$(head -n 1 "$file" | tr -d '\0')" in
    '#!'*bash* | '#!/bin/sh'* | '#!'*'env sh'*)
        # SC2016: commands for an inner shell are in single quotes on purpose. SC2012: names are our own.
        # SC1091: a script may source what a test makes.
        findings=$(shellcheck -x -P SCRIPTDIR -e SC2016,SC2012,SC1091 --format=gcc "$file" || true)
        [ -z "$findings" ] || shell_findings+=$findings$'\n'
        ;;
    '#!'*python3*)
        python_findings+=$(python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" 2>&1 |
            tail -n 3 || true)
        ;;
    esac
done < <(tree_files '*' | grep -v -e '\.[ch]$' -e '^tests/fuzz/corpus/')
report "shell scripts pass shellcheck" "${shell_findings%$'\n'}"
report "Python scripts parse" "$python_findings"
finish
