#!/usr/bin/env bash
# Images of the user's own making: a Dockerfile, or a folder that is laid over berth's image, named in a bottle.
# variants: runc runsc
. "$(dirname "$0")/../lib/docker_world.bash"

images_of_engine() { count '/images/json?all=1' 'len(d)'; }
at_terminal() { # ANSWER ARGUMENT...: a person starts the agent
    local answer=$1
    shift
    as 1000 /usr/bin/python3 /opt/source/tests/lib/terminal.py '[y/N]' "$answer\n" \
        -- /usr/bin/env PATH=/opt/source/build berth "$@"
}
bottles=/home/1000/.config/berth/bottles
made=/home/1000/made
built() { spawn=$1 && shift && berth spawn shell --bottles "$spawn" "$@"; }

mkdir -p "$made/über"
printf 'ARG BERTH_BASE\nFROM $BERTH_BASE\nCOPY tool /usr/local/bin/tool\nCOPY über /usr/local/share/über\nENV SECRET=env\nVOLUME /usr/local/share\nHEALTHCHECK CMD false\nUSER nobody\nENTRYPOINT ["/bin/false"]\nUSER root\nRUN (ls /sys/class/net; getent hosts allowed.example) > /usr/local/network; cp /bin/true /usr/local/setid; chmod 4755 /usr/local/setid; rm -f /berth/bin/berth-init; printf x > /berth/bin/berth-init\n' >"$made/Dockerfile"
printf '#!/bin/sh\necho one\n' >"$made/tool"
printf 'text' >"$made/über/Grüße"
ln -s /etc/shadow "$made/link"
chmod 0700 "$made" "$made/tool" "$made/über"
chown -R 1000:1000 "$made"
printf 'extends: dev\nimage: {dockerfile: %s/Dockerfile}\n' "$made" >"$bottles/made.yaml"

# ---- nobody builds without a word ----
check "the image that it builds on" berth spawn dev -- true
before=$(images_of_engine)
check_status "headless it is refused" 1 "say --build [0-9a-f]{16}" built made -- true
check_status "--yes is no consent to it" 1 "--yes does not" built made --yes -- true
check_status "nor is another digest" 1 "must be confirmed" built made --build 000000000000 -- true
check_status "nor no digest at all" 1 "must be confirmed" built made --build "" -- true
check_status "a person who says no" 1 "nothing was done" at_terminal n spawn shell --bottles made -- true
equal "nothing was built" "$before 0" "$(images_of_engine) $(berth image list --json | json 'len([i for i in d["images"] if i["name"]=="custom"])')"
printf 'image: {dockerfile: %s/Dockerfile}\n' "$made" >"$bottles/anywhere.yaml"
check_status "a virtual machine is refused by name" 1 "qemu cannot build" \
    as 1000 berth spawn -E other shell --bottles anywhere --backend qemu -- true

# ---- built, once for each content ----
at_terminal y spawn shell --bottles made -- grep -q one /usr/local/bin/tool >"$WORLD/out" 2>&1
equal "a person who says yes has it" 0 $?
check "the question showed the digest" grep -Eq 'digest [0-9a-f]{64}' "$WORLD/out"
equal "and nothing asks again" one "$(built made -- tool 2>/dev/null)"
equal "nothing of the build stays in the engine but the image" "$((before + 1)) 0" \
    "$(images_of_engine) $(engine '/containers/json?all=1' | json 'len([c for c in d if not c["Labels"].get("berth.role")])')"
# One after the other, since each launch takes its time.
built made -- sh -c 'echo $(cat /usr/local/share/über/*; echo; stat -c "%u %a" /usr/local/share/über; stat -c %a /usr/local/share/über/Grüße)
    stat -c %a /usr/local/setid; echo $(cat /usr/local/network); echo "$(id -un) $SECRET"' >"$WORLD/inside" 2>"$WORLD/err"
inside() { sed -n "$1p" "$WORLD/inside"; }
equal "names of all letters, root's and readable" "text 0 755 644" "$(inside 1)"
equal "no file is of more right than the agent" 755 "$(inside 2)"
equal "its steps had no network" lo "$(inside 3)"
equal "what an image says of variables, users and programs is not taken" "agent " "$(inside 4)"

# ---- changed: asked again, and what is built is what was shown ----
printf '#!/bin/sh\necho two\n' >"$made/tool"
said=$(built made -- tool 2>&1)
equal "a changed file is asked about again" "1 yes" "$? $(grep -q 'must be confirmed' <<<"$said" && echo yes)"
digest=$(grep -oE -- '--build [0-9a-f]+' <<<"$said" | cut -d' ' -f2)
printf '#!/bin/sh\necho three\n' >"$made/tool"
check_status "its digest is no leave for what came after" 1 "must be confirmed" built made --build "$digest" -- tool
printf '#!/bin/sh\necho two\n' >"$made/tool"
equal "but for itself" two "$(built made --build "$digest" -- tool 2>/dev/null)"
printf '#!/bin/sh\necho one\n' >"$made/tool"
equal "what was agreed to once is not asked again" one "$(built made -- tool 2>/dev/null)"

# ---- an overlay ----
mkdir -p "$made.over/usr/local/bin"
printf '#!/bin/sh\necho over\n' >"$made.over/usr/local/bin/over"
chmod 0700 "$made.over/usr/local/bin/over" "$made.over/usr"
chown -R 1000:1000 "$made.over"
printf 'extends: dev\nimage: {overlay: %s.over}\n' "$made" >"$bottles/over.yaml"
digest=$(built over -- true 2>&1 | grep -oE -- '--build [0-9a-f]+' | cut -d' ' -f2)
equal "a folder is laid over the image" "over 0 755" \
    "$(built over --build "$digest" -- sh -c 'over; stat -c "%u %a" /usr/local/bin/over' 2>/dev/null | tr '\n' ' ' | sed 's/ $//')"

# ---- hostile ones ----
refused() { # NAME TEXT STATUS: the Dockerfile as it is now, agreed to
    local said digest
    said=$(built made -- true 2>&1)
    digest=$(grep -oE -- '--build [0-9a-f]+' <<<"$said" | cut -d' ' -f2)
    [ -n "$digest" ] && said=$(built made --build "$digest" -- true 2>&1)
    equal "$1" "$3 yes" "$? $(grep -qE "$2" <<<"$said" && echo yes)"
    printf '%s' "$said" >"$WORLD/said"
}
dockerfile() { # on berth's image, and what TEXT says (with escapes)
    # shellcheck disable=SC2016 # a variable of the Dockerfile
    printf 'ARG BERTH_BASE\nFROM $BERTH_BASE\n%b' "$1" >"$made/Dockerfile"
}
printf 'FROM scratch\n' >"$made/Dockerfile"
check_status "one that is not on berth's image" 1 "last FROM" built made -- true
dockerfile 'COPY ../../etc/passwd /x\n'
refused "one that reaches out of its folder" "could not be built" 1
dockerfile 'COPY link/x /x\n'
refused "or through a link" "could not be built" 1
dockerfile "RUN printf '\\\\033[2Jevil\\\\n'; exit 7\\n"
refused "a step that fails" "non-zero code: 7" 1
equal "drives no terminal" 0 "$(LC_ALL=C tr -d '\n' <"$WORLD/said" | LC_ALL=C grep -c '[[:cntrl:]]')"
dockerfile ''
mkfifo "$made/fifo"
check_status "what is no file" 1 "neither a file" built made -- true
rm "$made/fifo"
truncate -s 600M "$made/huge"
check_status "what is too large" 1 "512 MiB" built made -- true
rm "$made/huge"
mv "$made/Dockerfile" "$made/real"
ln -s /etc/passwd "$made/Dockerfile"
not built made -- true >"$WORLD/said" 2>&1
check "a Dockerfile that is a link shows nothing of where it leads" not grep -q root: "$WORLD/said"
rm "$made/Dockerfile"
mv "$made/real" "$made/Dockerfile"
refused "one that changes nothing" "" 0
check "and its base is still there" berth spawn dev -- true
printf 'extends: dev\nimage: {dockerfile: a, overlay: b}\n' >"$bottles/both.yaml"
check_status "both at once" 1 "needs one of" built both -- true

# ---- nobody else's image is taken ----
equal "another user has to agree too" 1 "$(
    as 1001 mkdir -p /home/1001/.config/berth/bottles
    cp "$bottles/over.yaml" "$bottles/dev.yaml" /home/1001/.config/berth/bottles/
    chown -R 1001:1001 /home/1001/.config/berth/bottles
    chmod 755 /home/1000 "$made.over" "$made.over/usr" "$made.over/usr/local/bin/over"
    as 1001 berth spawn shell --bottles over -- over >/dev/null 2>&1 </dev/null
    echo $?)"
check "an agent on such an image is frozen" berth spawn shell --bottles over --name base -- sh -c 'echo mine > ~/mark'
check "like any other" berth freeze base
check "and others begin with both" berth spawn dev --image base -- sh -c 'over && grep -qx mine ~/mark'
check "cleanup" berth cleanup bots
check "down" berth down

# ---- builds that are killed: what they leave in the engine goes, and nothing else ----
check "a socket before the engine's" engine_socket /run/killer.sock
left() { # containers, images without a name
    echo "$(count '/containers/json?all=1' 'len(d)') $(count '/images/json?filters=%7B%22dangling%22%3A%5B%22true%22%5D%7D' 'len(d)')"
}
base=$(count /images/json '[t for i in d for t in i["RepoTags"] or [] if "/shell:" in t][0]')
own() { # NETWORK: a container that a person makes by hand
    engine_post "/containers/create?name=own-$1" \
        "{\"Image\": \"$base\", \"Cmd\": [\"sleep\", \"600\"], \"HostConfig\": {\"NetworkMode\": \"$1\"}}"
}
own bridge
equal "a container of somebody's, which has a network" "1 0" "$(left)"
agreed() { built made -- true 2>&1 | grep -oE -- '--build [0-9a-f]+' | cut -d' ' -f2; }
killed_build() { as 1000 env DOCKER_HOST=unix:///run/killer.sock timeout 120 berth spawn shell --bottles made --build "$(agreed)" -- true </dev/null; }

# (A step that ends when it is told to: an engine that comes again gives what it left running ten seconds.)
dockerfile 'RUN echo made > /usr/local/made\nRUN trap "exit 1" TERM; sleep 600 & wait\n'
killed_build >"$WORLD/said" 2>&1 &
builder=$!
is_at_work() { [ "$(count /containers/json "len([c for c in d if 'sleep 600' in c['Command'] and c['Names'][0][:5] != '/own-'])")" = 1 ]; }
check "a build is at work" eventually is_at_work
kill -KILL "$DOCKER_PID"
docker_start_again
wait "$builder"
equal "the engine is killed: the build fails, and leaves a container and an image" "2 2 1" "$? $(left)"
own none
engine_post /containers/own-none/start
equal "another one of somebody's, which runs" "3 1" "$(left)"
check "--dry-run says what would go" grep -q "would remove a build's container" <(berth cleanup images --dry-run)
equal "and removes nothing" "3 1" "$(left)"
check_status "cleanup images removes it" 0 "a build.s image" berth cleanup images
equal "all of it, and nothing of somebody's" "2 0" "$(left)"

dockerfile 'RUN echo another > /usr/local/made\n'
order "kill GET /export caller"
killed_build >"$WORLD/said" 2>&1
equal "berth is killed as it takes the image out: a container and an image are left" "137 3 1" "$? $(left)"
dockerfile 'RUN echo next > /usr/local/made\n'
check "the next build" built made --build "$(agreed)" -- true
equal "removes them" "2 0" "$(count '/containers/json?all=1' "len([c for c in d if not c['Labels'].get('berth.role')])") $(left | cut -d' ' -f2)"
check "cleanup" berth cleanup bots
check "down" berth down
finish
