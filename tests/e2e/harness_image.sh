#!/usr/bin/env bash
# An image from real packages of npm, small ones: what the lock file pins is in it, and a package with another digest never.
# This needs npm's registry, as builds of images do, and the shell's image.
cd "$(dirname "$0")/../.." || exit 1
. tests/lib/tap.bash

build/berth image build --quiet shell || exit
images=$(build/berth image list --json | python3 -c 'import json, os, sys
print(os.path.dirname(os.path.dirname(json.load(sys.stdin)["images"][0]["path"])))') || exit
tree=$(mktemp -d "${TMPDIR:-/tmp}/berth-test-image.XXXXXX") || exit 1
trap 'rm -rf "$tree" "$images"/small-* "$images/.lock-small"' EXIT
mkdir -p "$tree/build" "$tree/images/recipes/small"
cp build/berth "$tree/build/"
cp images/recipes/*.yaml "$tree/images/recipes/"

# One package out of pi's, with its digest there; and a recipe that makes a command of a file in it.
python3 - "$tree/images/recipes" <<'END_OF_PYTHON'
import json, sys
folder = sys.argv[1]
entry = json.load(open("images/recipes/pi/package-lock.json"))["packages"]["node_modules/yaml"]
version = entry["version"]
root = {"name": "small", "dependencies": {"yaml": version}}
json.dump({**root, "private": True}, open(folder + "/small/package.json", "w"))
json.dump({"name": "small", "lockfileVersion": 3, "requires": True, "packages": {"": root, "node_modules/yaml": entry}},
          open(folder + "/small/package-lock.json", "w"))
commands = "{yaml: yaml/bin.mjs}"
open(folder + "/small.yaml", "w").write(f"form: disk\nbase: shell\nnpm: {{amd64: {commands}, arm64: {commands}}}\n")
END_OF_PYTHON

berth() { "$tree/build/berth" image build --json "$@"; }
path_of() { python3 -c 'import json, sys; print(json.load(sys.stdin)["images"][0]["path"])'; }
in_image() { /usr/sbin/debugfs -R "$1" "$image" 2>/dev/null; }

image=$(berth small | path_of)
check "an image from a package of npm" test -s "$image"
equal "with its command" /opt/small/node_modules/yaml/bin.mjs "$(in_image 'stat /usr/local/bin/yaml' | grep -o '/opt/[^"]*' || in_image 'cat /usr/local/bin/yaml')"
check "that anybody may run" grep -q 'Mode:  0755' <<<"$(in_image 'stat /opt/small/node_modules/yaml/bin.mjs')"
check "on top of the shell's files" grep -q '^agent:x:1000:' <<<"$(in_image 'cat /etc/passwd')"
check "and sound" /usr/sbin/e2fsck -fn "$image"
equal "it is not built again" "$image" "$(berth small | path_of)"

sed -i 's/sha512-\(.\)\(.\)/sha512-\2\1/' "$tree/images/recipes/small/package-lock.json"
check_status "a package with another digest is refused" 1 'cannot build the image small: .*(EINTEGRITY|integrity)' berth small
equal "and leaves no image" 1 "$(find "$images" -maxdepth 1 -name 'small-*' | wc -l)"
equal "and nothing half built" "" "$(find "$images" -maxdepth 1 -name '.building-small*')"
check_status "an image cannot be the base of itself" 1 'small cannot be the base' \
    sh -c "sed -i 's/base: shell/base: small/' '$tree/images/recipes/small.yaml' && '$tree/build/berth' image build small"
refused() { # RECIPE-TEXT WHAT
    printf '%b' "$1" >"$tree/images/recipes/small.yaml"
    check_status "refused with its place: $2" 1 "small.yaml:[0-9]+:[0-9]+: .*$2" "$tree/build/berth" image build small
}
refused 'form: disk\nbase: shell\n' "'npm' must map"
refused 'form: disk\nbase: shell\nnpm: {other: {a: b}}\n' "no commands for this machine's architecture"
refused 'form: disk\nbase: shell\nnpm: {amd64: {A: b}, arm64: {A: b}}\n' "'A' is no valid name of a command"
refused 'form: disk\nbase: shell\npackages: [git]\n' "unknown key 'packages'"
refused 'form: disk\nbase: shell\nnpm: {amd64: {a: b}, arm64: {a: b}}\nfiles: [a]\n' "'files' must map"
refused 'form: disk\nextends: claude\n' "only disk recipes without 'base'"
finish
