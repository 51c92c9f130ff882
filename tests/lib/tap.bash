# TAP for bash test scripts that source this: check, check_status, equal, skip, note, finish; not, eventually.
# shellcheck shell=bash

TAP_COUNT=0
TAP_FAILED=0

# pass NAME / fail NAME [DETAIL...]
pass() {
    TAP_COUNT=$((TAP_COUNT + 1))
    echo "ok $TAP_COUNT - $1"
}

fail() {
    TAP_COUNT=$((TAP_COUNT + 1))
    TAP_FAILED=$((TAP_FAILED + 1))
    echo "not ok $TAP_COUNT - $1"
    shift
    local line
    for line in "$@"; do
        printf '%s\n' "$line" | sed 's/^/#   /'
    done
}

# check NAME COMMAND...: the command must succeed; what it said is shown when it does not
check() {
    local name=$1 said status
    shift
    said=$("$@" 2>&1)
    status=$?
    if [ "$status" = 0 ]; then pass "$name"; else fail "$name" "status $status of: $*" "$said"; fi
}

# check_status NAME STATUS TEXT COMMAND...: must end with this status, and say this (extended regular expression) on
# stdout or stderr
check_status() {
    local name=$1 wanted=$2 text=$3 said status
    shift 3
    said=$("$@" 2>&1 </dev/null)
    status=$?
    if [ "$status" != "$wanted" ]; then
        fail "$name" "status $status instead of $wanted of: $*" "$said"
    elif ! grep -qE -- "$text" <<<"$said"; then
        fail "$name" "nothing like /$text/ in:" "$said"
    else
        pass "$name"
    fi
}

# equal NAME WANTED GOT
equal() {
    if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "wanted: $2" "got:    $3"; fi
}

# note TEXT: a figure or a fact that is not judged
note() { echo "# $1"; }

not() { ! "$@"; }

# eventually COMMAND...: does it succeed within a few seconds?
eventually() {
    local try
    for try in $(seq 250); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.02
    done
    echo "not in $try tries: $*"
    return 1
}

skip() {
    TAP_COUNT=$((TAP_COUNT + 1))
    echo "ok $TAP_COUNT - $1 # SKIP $2"
}

finish() {
    echo "1..$TAP_COUNT"
    [ "$TAP_FAILED" = 0 ]
}
