#!/bin/bash
# cppcheck over every C file of the product. Macros of libraries are unknown to it: no findings about those.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

mapfile -t files < <(tree_files '*.c' | grep -v '^tests/')
if [ "${#files[@]}" -ne 0 ]; then
    # constParameter*, constVariable*: callbacks have their caller's signature. unusedFunction is not asked for, since
    # the files are checked one by one. unreadVariable: bt_auto_* variables are read by their cleanup.
    findings=$(nice cppcheck --quiet -j "$(nproc)" --std=c11 --language=c -D_GNU_SOURCE -D__linux__ -I. --inline-suppr \
        --enable=warning,performance,portability --error-exitcode=0 \
        --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unreadVariable \
        --suppress=constParameter --suppress=constParameterCallback --suppress=constVariable \
        --suppress=unknownMacro --suppress=preprocessorErrorDirective \
        --template='{file}:{line}: {id}: {message}' "${files[@]}" 2>&1)
fi
report "cppcheck has nothing to say" "${findings:-}"
finish
