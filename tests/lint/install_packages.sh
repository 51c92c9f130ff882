#!/bin/bash
# ./install-packages leaves the machine's services as they are, whatever becomes of the installation. A copy of it, with its
# two paths below a folder of the test's own, calls programs that only write down what they were asked.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/tap.bash
. "$SOURCE/tests/lib/tap.bash"

FOLDER=$(mktemp -d)
export FOLDER
mkdir "$FOLDER/bin"
sed -e "s|^POLICY=.*|POLICY=$FOLDER/policy|" -e "s|^SYSTEMD=.*|SYSTEMD=$FOLDER/systemd|" "$SOURCE/install-packages" >"$FOLDER/script"

stub() { # NAME: its text is standard input
    { echo '#!/bin/bash'; cat; } >"$FOLDER/bin/$1"
    chmod 755 "$FOLDER/bin/$1"
}
stub id <<<'echo 0'
stub apt-cache <<<'exit 0'
stub dpkg-query <<'END'
[ -e "$FOLDER/installed" ] && printf "installed %s\n" "${@:4}"
END
stub systemctl <<'END'
echo "$*" >>"$FOLDER/systemctl.calls"
case $1 in
cat) [ -e "$FOLDER/units/$2" ] ;;
esac
END
# Each installation looks whether the policy is there; what it then does is one word of the plan.
stub apt-get <<'END'
[ "$1" = install ] || exit 0
[ -x "$FOLDER/policy" ] && echo yes >>"$FOLDER/policy.seen" || echo no >>"$FOLDER/policy.seen"
read -r deed rest <"$FOLDER/plan"
echo "$rest" >"$FOLDER/plan"
touch "$FOLDER/units/docker.service" "$FOLDER/units/containerd.service"
case $deed in
works) touch "$FOLDER/installed" ;;
fails) exit 100 ;;
*) kill -s "$deed" "$PPID" ;;
esac
END

# installs PLAN [UNIT...]: with these units there before; the exit status of the script.
installs() {
    rm -rf "$FOLDER/installed" "$FOLDER/units" "$FOLDER/policy.seen" "$FOLDER/systemctl.calls"
    mkdir -p "$FOLDER/units"
    echo "$1" >"$FOLDER/plan"
    shift
    local unit
    for unit in "$@"; do touch "$FOLDER/units/$unit"; done
    # A signal that is ignored from the start could not be trapped.
    PATH=$FOLDER/bin:$PATH env --default-signal=HUP,INT,TERM bash "$FOLDER/script" build >"$FOLDER/said" 2>&1
    echo $?
}
seen() { paste -sd' ' "$FOLDER/policy.seen"; }
disabled() { grep '^disable' "$FOLDER/systemctl.calls" 2>/dev/null | sed 's/.* //' | paste -sd' '; }
left() { [ -e "$FOLDER/policy" ] && cat "$FOLDER/policy"; }

while read -r plan status policy; do
    equal "the installation: $plan: exit status" "$status" "$(installs "${plan//,/ }")"
    equal "the installation: $plan: services were forbidden" "${policy//,/ }" "$(seen)"
    equal "the installation: $plan: and are no more" "" "$(left)"
done <<END
works 0 yes
fails,works 0 yes,yes
fails,fails 100 yes,yes
INT 130 yes
TERM 143 yes
HUP 129 yes
fails,TERM 143 yes,yes
END

equal "without systemd nothing is disabled" "" "$(disabled)"
mkdir "$FOLDER/systemd"
equal "under systemd: exit status" 0 "$(installs works)"
equal "an engine that it installed is not started at the next boot" "docker.service containerd.service" "$(disabled)"
equal "interrupted: exit status" 143 "$(installs 'fails TERM')"
equal "nor is one whose installation was interrupted" "docker.service containerd.service" "$(disabled)"
equal "with units that were there: exit status" 0 "$(installs 'fails works' containerd.service)"
equal "somebody's containerd stays as it is" docker.service "$(disabled)"
equal "with an engine that was there: exit status" 0 "$(installs works docker.service docker.socket containerd.service)"
equal "somebody's engine stays as it is" "" "$(disabled)"

echo somebody >"$FOLDER/policy"
for plan in works 'fails fails' TERM; do
    installs "$plan" >/dev/null
    equal "the administrator's own policy stays ($plan)" somebody "$(left)"
done
rm -rf "$FOLDER"
finish
