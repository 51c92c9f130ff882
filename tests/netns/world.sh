#!/usr/bin/env bash
# The test world itself, where tests could be fooled by it: started from a folder that it covers, as a clone in a home is.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/lib/tap.bash
namespace=$PWD/build/tests/tools/namespace
if ! "$namespace" true 2>/dev/null; then
    skip "the test world" "namespaces cannot be had here"
    finish
    exit
fi
folder=$(mktemp -d /tmp/berth-world.XXXXXX)
trap 'rm -rf "$folder"' EXIT
equal "a folder that is covered is left" / "$(cd "$folder" && "$namespace" pwd -P)"
equal "another one is kept" /usr "$(cd /usr && "$namespace" pwd -P)"
check "git works from where the world begins" sh -c "cd $folder && $namespace git init -q --bare /tmp/x"
if [ "$(id -u)" = 0 ]; then
    cp "$namespace" "$folder/" && chmod 755 "$folder"
    check_status "an account without sub-ids is told what to do" 125 "usermod --add-subuids" \
        setpriv --reuid 12345 --regid 12345 --clear-groups env -i "PATH=$PATH" "$folder/namespace" true
else
    skip "an account without sub-ids is told what to do" "only root can become one"
fi
equal "the status is the command's" 7 "$("$namespace" sh -c 'exit 7'; echo $?)"
check "nothing of it is seen outside" sh -c "$namespace sh -c 'echo x >/tmp/berth-world-seen' && test ! -e /tmp/berth-world-seen"
finish
