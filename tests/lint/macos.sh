#!/bin/bash
# What of the parts for macOS can be looked at anywhere: *_macos.c against headers of our own (tests/lib/fake/macos), the
# other files of helper/macos as part of the ordinary build, and launchd's property list by a parser.
set -euo pipefail
# shellcheck source=tests/lint/common.bash
. "$(dirname "$0")/common.bash"

read -r -a flags <<<"$(make -s print-cflags CC=clang)"
findings=""
mapfile -t files < <(tree_files '*_macos.c')
for file in "${files[@]}"; do
    findings+=$(clang "${flags[@]}" -fsyntax-only -D_DARWIN_C_SOURCE -isystem tests/lib/fake/macos "$file" 2>&1 || true)
done
report "${#files[@]} files for macOS alone: their syntax and types (not compiled for it, not run)" "$findings"

findings=$(python3 - <<'END' 2>&1 || true
import plistlib, subprocess
for gid in (0, 901, 4294967294):
    data = subprocess.run(["build/tests/tools/macos_tool", "plist", str(gid)], stdout=subprocess.PIPE, check=True).stdout
    job = plistlib.loads(data)
    main, status = job["Sockets"].pop("helper"), job["Sockets"].pop("status")
    wanted = {
        "started with listen alone": job["ProgramArguments"] == ["/usr/local/sbin/berth-helper", "listen"],
        "no variable, no shell, no user of its own": not job.keys() & {"EnvironmentVariables", "Program", "UserName", "inetdCompatibility"},
        "kept alive": job["KeepAlive"] is True and job["RunAtLoad"] is True,
        "no core dumps": job["HardResourceLimits"]["Core"] == 0, "umask": job["Umask"] == 0o077,
        "descriptors for all slots": job["SoftResourceLimits"]["NumberOfFiles"] >= 1024 + 200,
        "two sockets": job["Sockets"] == {},
        "streams": {main["SockType"], status["SockType"]} == {"stream"} and main["SockFamily"] == "Unix",
        "the main one is the group's": (main["SockPathOwner"], main["SockPathGroup"], main["SockPathMode"]) == (0, gid, 0o660),
        "the other everybody's": (status["SockPathOwner"], status["SockPathMode"]) == (0, 0o666),
        "absolute paths": all(one["SockPathName"].startswith("/var/db/berth/") for one in (main, status)),
    }
    for name, is_so in wanted.items():
        if not is_so:
            print(f"gid {gid}: not so: {name}")
END
)
report "launchd's property list says what it should" "$findings"
finish
