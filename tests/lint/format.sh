#!/bin/bash
# Every C file is as clang-format leaves it.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

mapfile -t files < <(tree_files '*.c' '*.h')
unformatted=""
for file in "${files[@]}"; do
    # Not --dry-run: its exit status and warnings name lines, a reader wants the file.
    clang-format "$file" | cmp -s - "$file" || unformatted+="$file: run clang-format -i $file"$'\n'
done
report "C files are formatted" "${unformatted%$'\n'}"
finish
