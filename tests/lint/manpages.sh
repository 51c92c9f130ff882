#!/bin/bash
# Manual pages are well formed, and the helper's says which settings there are and what bounds each number has.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

findings=""
while read -r file; do
    findings+=$(mandoc -Tlint -W warning "$file" || true)
done < <(tree_files 'docs/*' | grep '\.[1-9]$')
report "manual pages pass mandoc -Tlint" "$findings"
# Of a macro's arguments: JSON would lose its quotes.
findings=$(tree_files 'docs/*' | grep '\.[1-9]$' | xargs awk '
    (/^\./ || goes_on) && /(^| )"/ { print FILENAME ":" FNR ": a quote at the beginning of a word is not printed; write \\&\"" }
    { goes_on = (/^\./ || goes_on) && /\\$/ }')
report "no quote of theirs is lost" "$findings"

# {"name", FORM, where, minimum, maximum}; bounds that are a macro's are looked up in the page by the macro's value.
findings=""
while read -r name minimum maximum; do
    case $maximum in
    BT_POOL_SLOTS_MAX) maximum=1024 ;;
    ID_MAX) maximum=4294967294 ;;
    esac
    entry=$(awk -v name="$name" '/^\.It/ { is_in = $0 ~ "[ ,]" name "( |$)" } /^\.El/ { is_in = 0 } is_in' docs/berth-helper.8)
    if [ -z "$entry" ]; then
        findings+="$name is not in docs/berth-helper.8"$'\n'
    elif [ "$maximum" != 0 ] && ! grep -qw "$maximum" <<<"$entry"; then
        findings+="$name: docs/berth-helper.8 does not say that it is at most $maximum"$'\n'
    elif [ "$minimum" != 0 ] && ! grep -qw "$minimum" <<<"$entry"; then
        findings+="$name: docs/berth-helper.8 does not say that it is at least $minimum"$'\n'
    fi
    grep -q "\`$name\`" helper/README.md || findings+="$name is not in helper/README.md"$'\n'
done < <(sed -nE 's/^    \{"([a-z_]+)", FORM_[A-Z0-9]+, AT\([^)]*\), (\w+), (\w+)\},$/\1 \2 \3/p' helper/config.c)
report "berth-helper(8) and helper/README.md have every setting, with its bounds" "${findings%$'\n'}"
finish
