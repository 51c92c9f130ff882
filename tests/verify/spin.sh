#!/bin/bash
# The model of a lease's life (lease.pml), all states of it: once as it is, which must be right, and once with each slip
# that the model knows, which must be found.
#
#   tests/verify/spin.sh            when a file that the model speaks of, or the model, changed since it was recorded; in
#                                   continuous integration (CI=true) in any case
#   tests/verify/spin.sh --always   in any case
#   tests/verify/spin.sh --record   in any case, and then records the files as they are, when all is right
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/tap.bash
. "$SOURCE/tests/lib/tap.bash"
RECORD=$SOURCE/tests/verify/lease.checked

# The digest of each file that decides the order of steps. Of contents, so that a clone, an archive and a rebase agree.
list_digests() {
    (cd "$SOURCE" && sha256sum ipc/wire/*.[ch] ipc/chan/*.[ch] helper/{engine,ledger,verbs,kernel_linux}*.[ch] helper/kernel.h \
        tests/verify/lease.pml | LC_ALL=C sort -k 2)
}
DIGESTS=$(list_digests)
if [ -z "${1:-}${CI:-}" ] && [ "$DIGESTS" = "$(cat "$RECORD" 2>/dev/null)" ]; then
    pass "Spin found these very $(wc -l <"$RECORD") files right when they were recorded (--always searches again)"
    finish
    exit
fi
if ! command -v spin >/dev/null; then
    skip "the model of a lease's life" "spin is not installed: ./install-packages verify"
    finish
    exit
fi
WORK=$(mktemp -d) || exit 1
trap 'rm -rf "$WORK"' EXIT
cd "$WORK" || exit 1

# search OPTIMISATION DEFINE...: all states; what the verifier says. Compiling takes longer than finding a slip.
search() {
    local optimisation=$1
    shift
    rm -f pan*
    if spin "$@" -a "$SOURCE/tests/verify/lease.pml" && gcc "$optimisation" -w -DSAFETY -DCOLLAPSE -DMEMLIM=1024 -o pan pan.c; then
        timeout 600 ./pan -m100000
    fi 2>&1
}

# Finished, nothing found, no state left out.
said=$(search -O1)
states=$(grep -oE '[0-9]+ states, stored' <<<"$said")
if grep -q 'errors: 0' <<<"$said" && ! grep -qE 'not completed|too small|out of memory' <<<"$said"; then
    pass "two users, two slots, two deaths of the engine: ${states% stored} all right"
else
    fail "two users, two slots, two deaths of the engine" "$(tail -n 40 <<<"$said")"
fi
slips=$(grep -oE '\bMUTANT_[A-Z_]+' "$SOURCE/tests/verify/lease.pml" | sort -u)
for slip in $slips; do
    said=$(search -O0 "-D$slip")
    name=$(tr 'A-Z_' 'a-z ' <<<"${slip#MUTANT_}")
    if grep -q 'errors: [1-9]' <<<"$said" && grep -q 'assertion violated' <<<"$said"; then
        pass "slip found: $name"
    else
        fail "slip found: $name" "$(tail -n 40 <<<"$said")"
    fi
done
changed=$(diff <(echo "$DIGESTS") "$RECORD" 2>/dev/null | sed -nE 's/^< [0-9a-f]+ +//p' | tr '\n' ' ')
[ -z "$changed" ] || echo "# changed since Spin's last record: $changed(tests/verify/spin.sh --record)"
if [ "${1:-}" = --record ] && [ "$TAP_FAILED" = 0 ]; then
    echo "$DIGESTS" >"$RECORD"
fi
finish
