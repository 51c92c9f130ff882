# Shared by the lint scripts: where the tree is, which files are in it, how a result is printed. Sourced, not run.

cd "${BERTH_ROOT:-$(dirname "$0")/../..}" || exit 1
test_number=0
test_failures=0

# Files of the tree whose names match the given git pathspecs: recorded ones and new ones that are not ignored; with
# no git or no repository (a release archive) everything below the folder.
tree_files()
{
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -co --exclude-standard -- "$@" | sort -u | while read -r file; do
            if [ -f "$file" ]; then echo "$file"; fi
        done
    else
        local arguments=() pattern
        for pattern in "$@"; do
            arguments+=(-o -path "./$pattern" -o -path "./$pattern/*")
        done
        find . -path ./build -prune -o -type f \( "${arguments[@]:1}" \) -print | sed 's|^\./||' | sort
    fi
}

# report NAME FINDINGS: one TAP line; findings (when there are any) make it a failure and are shown.
report()
{
    test_number=$((test_number + 1))
    if [ -z "$2" ]; then
        echo "ok $test_number - $1"
    else
        test_failures=$((test_failures + 1))
        echo "not ok $test_number - $1"
        # shellcheck disable=SC2001 # every line gets the prefix
        sed 's/^/# /' <<<"$2"
    fi
}

finish()
{
    echo "1..$test_number"
    [ "$test_failures" -eq 0 ]
    exit
}
