#!/usr/bin/env bash
# Image builds where they cannot work: real mmdebstrap and apt without a network, without mmdebstrap, by an account
# without ids. Each says what to do and leaves nothing. And the one build that needs no network.
cd "$(dirname "$0")/../.." || exit 1
. tests/lib/tap.bash

berth=$PWD/build/berth
world=$(mktemp -d "${TMPDIR:-/tmp}/berth-test-image.XXXXXX") || exit 1
trap 'rm -rf "$world"' EXIT
mkdir "$world/home" "$world/tmp" "$world/empty"
export HOME=$world/home TMPDIR=$world/tmp
unset XDG_DATA_HOME XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME XDG_RUNTIME_DIR BERTH_STATE_HOME BERTH_CONFIG_HOME
images=$HOME/.local/share/berth/images

if [ "$(id -u)" = 0 ]; then apart=(unshare --net); else apart=(unshare --user --map-auto --map-root-user --net); fi
if ! "${apart[@]}" true 2>/dev/null; then
    skip "image builds without a network" "impossible: no network namespace here"
    finish
    exit
fi
nothing_left() { # nothing_left WHAT
    equal "$1: nothing is left in the cache" "" "$(find "$images" -mindepth 1 ! -name '.lock-*' 2>/dev/null)"
    equal "$1: no temporary file is left" "" "$(ls -A "$TMPDIR")"
}

said=$("${apart[@]}" "$berth" image build shell 2>&1)
equal "a root image without a network: an error" 1 $?
check "the reason is named" grep -qE 'cannot build the image shell: mmdebstrap failed.*E: ' <<<"$said"
check "and what to do" grep -q 'check the network' <<<"$said"
nothing_left "root image"
check_status "a kernel without a network" 1 'cannot download linux-image-.*(Temporary failure|Could not|No packages|Unable)' \
    "${apart[@]}" "$berth" image build kernel
nothing_left "kernel"
ln -s "$(command -v apt-config)" "$world/empty/"
check_status "no mmdebstrap" 1 'install the package mmdebstrap' "${apart[@]}" env PATH="$world/empty" "$berth" image build shell
nothing_left "no mmdebstrap"
check_status "a misspelt recipe: the nearest one" 4 'shell' "$berth" image build shel

if [ "$(id -u)" = 0 ] && ! grep -q '^daemon:' /etc/subuid 2>/dev/null && chmod 755 "$world" && chown -R daemon "$HOME" "$TMPDIR" &&
    setpriv --reuid daemon --regid daemon --clear-groups test -x "$berth" -a -w "$TMPDIR"; then
    check_status "an account without ids: what the administrator must do" 1 'usermod --add-subuids' \
        unshare --net setpriv --reuid daemon --regid daemon --clear-groups "$berth" image build shell
    nothing_left "account without ids"
    chown -R root "$HOME" "$TMPDIR"
else
    skip "an account without ids" "impossible: needs root and an account without an entry in /etc/subuid"
fi

check "the infra image needs no network" "${apart[@]}" "$berth" image build infra
check "both programs are in it, as they were built" python3 - "$images"/infra-*/initrd build/berth-gateway build/berth-orchestrator <<'PYTHON'
import os, sys
data, at, found = open(sys.argv[1], "rb").read(), 0, {}
while True:
    assert data[at:at + 6] == b"070701", at
    fields = [int(data[at + 6 + 8 * i:at + 14 + 8 * i], 16) for i in range(13)]
    name = data[at + 110:at + 110 + fields[11] - 1].decode()
    at = (at + 110 + fields[11] + 3) & ~3
    found[name] = (fields[1], fields[2], data[at:at + fields[6]])
    at = (at + fields[6] + 3) & ~3
    if name == "TRAILER!!!":
        break
assert len(data) % 512 == 0
for path in sys.argv[2:]:
    mode, owner, content = found["berth/bin/" + os.path.basename(path)]
    assert (mode, owner) == (0o100755, 0) and content == open(path, "rb").read(), path
PYTHON
check "it is listed" sh -c "'$berth' image list --json | python3 -c '
import json, sys
assert \"infra\" in json.dumps(json.load(sys.stdin))'"
finish
