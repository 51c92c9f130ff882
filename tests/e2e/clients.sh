#!/usr/bin/env bash
# Clients as people use them, unmodified, in an agent, through the gateway to servers of the test's internet. Nothing in the
# agent is told of a proxy or of certificates but by berth. (clients_core.sh: a part of these in a virtual machine and in gVisor.)
export BERTH_TEST_BACKEND=${BERTH_TEST_BACKEND:-docker}
export WORLD_IMAGES=clients
. "$(dirname "$0")/../lib/world.bash"
. "$(dirname "$0")/../lib/tap.bash"
world_enter "$@"
mkdir -p "$WORLD/internet"
echo "grpc.example 203.0.113.22" >"$WORLD/internet/names"
world_start || exit 1

www=$WORLD/internet/www
log=$WORLD/internet/requests
"$WORLD_SOURCE/tests/lib/make_registries" "$www" https://allowed.example
git init -q --bare -b main "$www/push.git"
git -C "$www/push.git" config http.receivepack true
ip -n internet addr add 203.0.113.22/32 dev lo
ip netns exec internet "$WORLD_SOURCE/tests/lib/http2_peer" grpc 203.0.113.22 "$WORLD/internet/origin.pem" \
    "$WORLD/internet/origin.pem" "$log" >"$WORLD/grpc.log" 2>&1 &
cat >/home/1000/.config/berth/bottles/clients.yaml <<END
image: clients
egress:
  routes:
    - host: allowed.example
    - host: git.allowed.example
    - host: grpc.example
resources: {memory: 1G, cpus: 2}
$([ "${BERTH_TEST_RUNTIME:-}" != runsc ] || echo "isolation: gvisor")
END
printf -- '---\nharness: shell\nbottle: clients\n---\n' >/home/1000/.config/berth/agents/clients.md

agent() { # SHELL-TEXT, as somebody types it in the agent
    berth exec one -- bash -c "cd; $1"
}
# How many requests for PATH (a prefix) came from the gateway, whose address outside is that of the world's host. Any other
# sender is shown by name. With a third word: only those with a body of so many bytes.
from_gateway() { # PATH [BYTES]
    python3 - "$log" "$1" "${2:-0}" <<'END'
import json, sys
entries = [json.loads(line) for line in open(sys.argv[1])]
mine = [e for e in entries if e.get("path", "").startswith(sys.argv[2]) and e.get("body_bytes", 0) >= int(sys.argv[3])]
others = {e["peer"] for e in mine} - {"198.51.100.2"}
print("none" if not mine else " ".join(["other:", *others]) if others else "seen")
END
}
# client NAME PATH WANTED SHELL-TEXT: the client ends well, says something like WANTED (extended regular expression), and the
# origin saw its request for PATH come from the gateway.
client() {
    local name=$1 path=$2 wanted=$3 said
    if ! said=$(agent "$4" 2>"$WORLD/said") || ! grep -qE -- "$wanted" <<<"$said"; then
        fail "$name" "wanted: $wanted" "said: $said" "$(tail -n 30 "$WORLD/said")"
    elif [ "$(from_gateway "$path")" != seen ]; then
        fail "$name" "the origin saw of $path: $(from_gateway "$path")"
    else
        pass "$name"
    fi
}
is_full() { [ -z "${CLIENTS_CORE:-}" ]; }
greeting="This is allowed.example"

if ! berth spawn clients --name one --background >"$WORLD/out" 2>&1; then
    fail "an agent with clients" "$(cat "$WORLD/out")"
    finish
    exit
fi
check "the clients' programs go in" berth cp "$WORLD_SOURCE/tests/lib/clients" one:/home/agent/clients

# ---- streams that are silent for a while, beside all the rest ----
silence=${CLIENTS_SILENCE:-60}
events=https://allowed.example/events/$silence
python="python3 clients/python_clients.py"
node="node clients/node_clients.js"
java="java clients/JavaClients.java"
declare -A streams=(
    [curl]="curl -sSN '$events?curl-events' | sed -n 's/data: //p' | xargs"
    [requests]="$python requests-events '$events?requests-events'"
)
# Node's fetch ends a body by itself that brings nothing for 300 s (bodyTimeout of undici).
is_full && [ "$silence" -lt 300 ] && streams[fetch]="$node fetch-events '$events?fetch-events'"
for stream in "${!streams[@]}"; do
    agent "${streams[$stream]}" >"$WORLD/events.$stream" 2>&1 &
    streams[$stream]=$!
done

# ---- downloads ----
client "curl, HTTP/1.1" "/?curl-1" "$greeting.*1.1 200" \
    "curl -sS --http1.1 -w '%{http_version} %{http_code}' 'https://allowed.example/?curl-1' | xargs"
client "curl, HTTP/2" "/?curl-2" "$greeting.*2 200" \
    "curl -sS --http2 -w '%{http_version} %{http_code}' 'https://allowed.example/?curl-2' | xargs"
client "curl without TLS" "/?curl-plain" "$greeting" "curl -sS 'http://allowed.example/?curl-plain'"
client "wget" "/?wget" "$greeting" "wget -nv -O - 'https://allowed.example/?wget'"
client "wget without TLS" "/?wget-plain" "$greeting" "wget -nv -O - 'http://allowed.example/?wget-plain'"
client "openssl" "/?openssl" "$greeting" \
    "printf 'GET /?openssl HTTP/1.0\r\nHost: allowed.example\r\n\r\n' | openssl s_client -quiet -verify_return_error -verify_hostname allowed.example -connect allowed.example:443"

# ---- Python ----
client "Python's urllib" "/?urllib" "$greeting" "$python urllib 'https://allowed.example/?urllib'"
client "urllib with the checks of Python 3.13" "/?strict" "$greeting" "$python urllib-strict 'https://allowed.example/?strict'"
client "Python's requests" "/?requests" "$greeting" "$python requests 'https://allowed.example/?requests'"
client "pip" "/simple/files/" "from the index" "python3 -m pip install -q --target pip --no-cache-dir \
    --disable-pip-version-check --index-url https://allowed.example/simple/ berth-sample &&
    PYTHONPATH=pip python3 -c 'import berth_sample; print(berth_sample.word)'"

# ---- git ----
client "git clone" "/sample.git/git-upload-pack" "A sample repository" \
    "git clone -q https://git.allowed.example/sample.git && cat sample/README"
client "git push" "/push.git/git-receive-pack" "main" "git config --global user.name A
    git config --global user.email a@allowed.example
    cd sample && echo more >more && git add more && git commit -qm more && git push https://allowed.example/push.git HEAD:main 2>&1"
equal "arrives" more "$(git -C "$www/push.git" show main:more 2>&1)"
if is_full; then
    client "git push of 120 MB" "/push.git/git-receive-pack" "large" "cd sample && head -c 120000000 /dev/urandom >large &&
        git add large && git commit -qm large && git push https://allowed.example/push.git HEAD:large 2>&1"
    equal "in one request" seen "$(from_gateway /push.git/git-receive-pack 120000000)"
    equal "arrives whole" "$(agent "git -C sample rev-parse HEAD:large")" "$(git -C "$www/push.git" rev-parse large:large 2>&1)"
fi

# ---- trust: each variable is enough for a tool that goes by it, and without any the tool trusts nobody ----
# uses VARIABLE NAME PATH SHELL-TEXT: first all variables lead to another authority: the client refuses, and the origin sees
# nothing of PATH (a prefix); then this one is as berth sets it.
uses() {
    local name="$1 alone is enough for $2" said
    if said=$(agent ". ./others; $4" 2>&1) || ! grep -qiE "certif|issuer|PKIX|handshake" <<<"$said"; then
        fail "$name" "with another authority: $said"
    elif [ "$(from_gateway "$3")" != none ]; then
        fail "$name" "with another authority the origin saw: $(from_gateway "$3")"
    elif ! said=$(agent "right=\$$1; . ./others; export $1=\"\$right\"; $4" 2>&1) || [ "$(from_gateway "$3")" != seen ]; then
        fail "$name" "said: $said" "the origin saw: $(from_gateway "$3")"
    else
        pass "$name"
    fi
}
if is_full; then
    cp -r "$www/sample.git" "$www/only-git.git"
    cp -r "$www/simple" "$www/only-pip"
    cp -r "$www/go" "$www/only-go"
    cp -r "$www/go" "$www/only-go-folder"
    mkdir "$www/aws"
    cp "$www/index.html" "$www/aws/only"
    cp "$www/index.html" "$www/aws/get"
    : >"$www/aws/put" # what a PUT of this server's is answered with
    # shellcheck disable=SC2016
    agent 'openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -out other.pem -subj /CN=other -days 9 2>/dev/null
        mkdir empty
        for name in SSL_CERT_FILE NODE_EXTRA_CA_CERTS CURL_CA_BUNDLE GIT_SSL_CAINFO REQUESTS_CA_BUNDLE PIP_CERT \
            CARGO_HTTP_CAINFO AWS_CA_BUNDLE DENO_CERT CODEX_CA_CERTIFICATE GRPC_DEFAULT_SSL_ROOTS_FILE_PATH; do
            echo "export $name=$HOME/other.pem"
        done >others
        keytool -importcert -noprompt -alias other -file other.pem -keystore other.jks -storepass changeit 2>/dev/null
        echo "export SSL_CERT_DIR=$HOME/empty GIT_SSL_CAPATH=$HOME/empty" >>others
        echo "export JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=$HOME/other.jks" >>others'
    aws="export AWS_ACCESS_KEY_ID=nobody AWS_SECRET_ACCESS_KEY=nothing AWS_DEFAULT_REGION=us-east-1 AWS_MAX_ATTEMPTS=1 &&
        aws configure set default.s3.addressing_style path && aws --endpoint-url https://allowed.example s3"
    only="https://allowed.example/?only"
    go="mkdir -p go-only && cd go-only && { [ -e go.mod ] || /usr/lib/go-1.19/bin/go mod init test; } &&
        GOFLAGS=-modcacherw GOSUMDB=off /usr/lib/go-1.19/bin/go mod download allowed.example/sample@v1.0.0"
    uses SSL_CERT_FILE "OpenSSL, here Python's urllib" "/?only-urllib" "$python urllib '$only-urllib'"
    uses SSL_CERT_FILE "Go" "/only-go/" "export GOPROXY=https://allowed.example/only-go GOMODCACHE=\$HOME/go-1; $go"
    uses SSL_CERT_DIR "Go" "/only-go-folder/" \
        "export GOPROXY=https://allowed.example/only-go-folder GOMODCACHE=\$HOME/go-2; $go"
    uses NODE_EXTRA_CA_CERTS "Node" "/?only-node" "$node fetch '$only-node'"
    uses CURL_CA_BUNDLE "curl" "/?only-curl" "curl -sS '$only-curl'"
    uses GIT_SSL_CAINFO "git" "/only-git.git/" "git ls-remote https://git.allowed.example/only-git.git"
    uses REQUESTS_CA_BUNDLE "Python's requests" "/?only-requests" "$python requests '$only-requests'"
    # In pip the variables of requests come before its own.
    uses PIP_CERT "pip" "/only-pip/" "unset REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
        python3 -m pip download --retries 0 --no-cache-dir --disable-pip-version-check \
            --index-url https://allowed.example/only-pip/ -d pip-only berth-sample"
    uses AWS_CA_BUNDLE "AWS's command line" "/aws/only" "$aws cp s3://aws/only -"
    uses GRPC_DEFAULT_SSL_ROOTS_FILE_PATH "gRPC" "/test.Echo/" "$python grpc grpc.example:443"
    uses JAVA_TOOL_OPTIONS "Java" "/?only-java" "$java URLConnection '$only-java'"
fi
# The stores, for tools that are told nothing.
unset_all="unset SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE GIT_SSL_CAINFO JAVA_TOOL_OPTIONS"
client "curl by the system's store" "/?store-curl" "$greeting" "$unset_all; curl -sS 'https://allowed.example/?store-curl'"
client "wget by the system's store" "/?store-wget" "$greeting" "$unset_all; wget -nv -O - 'https://allowed.example/?store-wget'"
if is_full; then
    client "Java by the system's key store" "/?store-java" "$greeting" \
        "$unset_all; $java URLConnection 'https://allowed.example/?store-java'"
fi
# What no tool of Debian 12 goes by alone (harness.sh has Codex and pi's Node, which do) is there and leads to the same certificates.
for name in CARGO_HTTP_CAINFO DENO_CERT CODEX_CA_CERTIFICATE; do
    equal "$name is the bundle" "$(agent 'realpath "$NODE_EXTRA_CA_CERTS"')" "$(agent "realpath \"\$$name\"")"
done
equal "NODE_USE_ENV_PROXY is set" 1 "$(agent 'echo "$NODE_USE_ENV_PROXY"')"
equal "the proxy has one address in every spelling" 1 \
    "$(agent 'printf "%s\n" "$http_proxy" "$https_proxy" "$HTTP_PROXY" "$HTTPS_PROXY"' |
        grep -E '^http://agent:[^@]+@[0-9.]+:8119$' | sort | uniq -c | grep -c '^ *4 ')"

# ---- what only the container has time for ----
if is_full; then
    client "apt" "/debian/./berth-sample" "berth-sample_1.0.0_all.deb" "mkdir -p apt/lists/partial apt/cache/archives/partial
        echo 'deb [trusted=yes] https://allowed.example/debian ./' >apt/sources.list
        printf '%s\n' 'Dir::Etc::SourceList \"/home/agent/apt/sources.list\";' 'Dir::Etc::SourceParts \"-\";' \
            'Dir::State::Lists \"/home/agent/apt/lists\";' 'Dir::Cache \"/home/agent/apt/cache\";' >apt/conf
        export APT_CONFIG=/home/agent/apt/conf
        apt-get -q update && cd apt && apt-get -q download berth-sample && ls *.deb"
    client "npm" "/npm/files/" "from the registry" "npm install --loglevel=error --no-audit --no-fund --prefix npm \
        --registry https://allowed.example/npm/ berth-sample && cd npm && node -p 'require(\"berth-sample\")'"
    client "go" "/go/allowed.example/sample/@v/v1.0.0.zip" "from the proxy" "mkdir go-test && cd go-test &&
        PATH=\$PATH:/usr/lib/go-1.19/bin && go mod init test &&
        GOPROXY=https://allowed.example/go GOSUMDB=off go mod download -x allowed.example/sample@v1.0.0 &&
        cat ~/go/pkg/mod/allowed.example/sample@v1.0.0/sample.go"
    # The index of files is what this cargo calls unstable, and later ones prefer.
    cargo() { # NAME INDEX: in a project that wants a crate of that index
        printf '%s\n' "mkdir -p $1/src $1/.cargo && cd $1 && echo >src/lib.rs && export CARGO_HOME=\$HOME/$1-home RUSTC_BOOTSTRAP=1 &&
            printf '[registries.test]\nindex = \"%s\"\n' '$2' >.cargo/config.toml &&
            printf '%s\n' '[package]' 'name = \"user\"' 'version = \"1.0.0\"' '[dependencies]' \
                'berth-sample = { version = \"1\", registry = \"test\" }' >Cargo.toml &&
            cargo -Z sparse-registry fetch -q && cat \$CARGO_HOME/registry/src/*/berth-sample-1.0.0/src/lib.rs"
    }
    crates=https://allowed.example/crates
    client "cargo" "/crates/files/berth-sample/1.0.0/download" "from the crates" "$(cargo files "sparse+$crates/index/")"
    client "cargo, whose index is in git" "/crates.git/git-upload-pack" "from the crates" "$(cargo git "$crates.git")"
    # It has the system's store beside the variable, which therefore is not alone what it trusts; but it does go by it.
    check_status "cargo reads CARGO_HTTP_CAINFO" 101 "/nowhere|CA" \
        agent "export CARGO_HTTP_CAINFO=/nowhere; $(cargo nowhere "sparse+$crates/index/")"
    client "AWS's command line gets an object" "/aws/get" "$greeting" "$aws cp s3://aws/get -"
    client "and puts one" "/aws/put" "upload: " "$aws cp clients/README.md s3://aws/put"
    for one in fetch undici undici-fetch https; do
        client "Node: $one" "/?node-$one" "$greeting" "$node $one 'https://allowed.example/?node-$one'"
    done
    client "Node without TLS" "/?node-plain" "$greeting" "$node fetch 'http://allowed.example/?node-plain'"
    client "Java's HttpClient" "/?java" "HTTP_2 $greeting" "$java HttpClient 'https://allowed.example/?java'"
    client "Java's URLConnection" "/?connection" "$greeting" "$java URLConnection 'https://allowed.example/?connection'"
    client "gRPC" "/test.Echo/Stream" "^HELLO one FAILED_PRECONDITION asked 100$" "$python grpc grpc.example:443"
    client "a WebSocket of Python's websockets" "/websocket?python" "^hello$" \
        "$python websockets 'wss://allowed.example/websocket?python'"
    client "a WebSocket of Node's ws" "/websocket?ws" "^hello$" "$node ws 'wss://allowed.example/websocket?ws'"
fi

# ---- loopback goes nowhere, in every spelling ----
agent "mkdir -p local && echo local >local/index.html && cd local && exec python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1" &
serving=$!
check "a server in the agent" eventually agent "exec 3<>/dev/tcp/127.0.0.1/8000"
for name in localhost 127.0.0.1; do
    url=http://$name:8000/
    locals=("curl -sS $url" "wget -nv -O - $url" "$python urllib $url" "$python requests $url")
    is_full && locals+=("$node fetch $url" "$java HttpClient $url")
    for one in "${locals[@]}"; do
        check "to itself: $one" eval "agent '$one' | grep -q local"
    done
done
kill "$serving" 2>/dev/null

for stream in "${!streams[@]}"; do
    wait "${streams[$stream]}"
    equal "an event stream of $stream, silent for $silence s" "first last" "$(cat "$WORLD/events.$stream")"
    equal "came through the gateway" seen "$(from_gateway "/events/$silence?$stream-events")"
done
check "stop" berth stop one
finish
