#!/bin/bash
# agent.sh ORCHESTRATOR GATEWAY (ADDRESS:PORT each): what the demo's "agent" does inside its sandbox. It works on the
# repository, uses what its policy allows, and then tries every other way out. Each line
# "RESULT|what|how it ended|detail" is shown in the demo's table.
cd /workspace || exit 1
host=$(ip -4 route show default 2>/dev/null | sed -n 's/.*via \([0-9.]*\).*/\1/p')
[ -n "$host" ] || host=$(sed -n 's/^nameserver //p' /etc/resolv.conf)

result() {
    printf 'RESULT|%s|%s|%s\n' "$1" "$2" "$3"
}

# ---- its work ----
sed -i 's/return "hello";/return "hello from the sandbox";/' greeting.c
printf 'notes of an agent, not tracked by git yet\n' >NOTES.txt
gcc -o /tmp/greeting greeting.c 2>/dev/null && result "the program it changed" works "$(/tmp/greeting)"

# ---- what its policy allows ----
if page=$(curl -sS --max-time 20 https://allowed.example/index.html 2>&1); then
    result "https://allowed.example with curl" reached "$(head -n 1 <<<"$page")"
else
    result "https://allowed.example with curl" FAILED "$page"
fi
if out=$(git clone -q https://git.allowed.example/sample.git /tmp/sample 2>&1 && cat /tmp/sample/README 2>&1); then
    result "git clone over HTTPS" reached "$(tail -n 1 <<<"$out")"
else
    result "git clone over HTTPS" FAILED "$(tail -n 1 <<<"$out")"
fi

# ---- what it does not ----
body=$(curl -sS --max-time 20 http://blocked.example/ 2>&1)
reason=$(sed -n 's/.*"reason" *: *"\([^"]*\)".*/\1/p' <<<"$body")
if [ -n "$reason" ]; then result "http://blocked.example" refused "$reason"; else result "http://blocked.example" LEAK "$body"; fi
out=$(curl -sS --max-time 20 https://blocked.example/ 2>&1)
if grep -q 403 <<<"$out"; then result "https://blocked.example" refused "$out"; else result "https://blocked.example" LEAK "$out"; fi

# attempt NAME ADDRESS PORT: a direct TCP connection must not open
attempt() {
    local out
    if out=$(timeout 8 bash -c "exec 3<>/dev/tcp/$2/$3" 2>&1); then
        result "$1" LEAK "connected"
    else
        out=${out##*: }
        result "$1" blocked "${out:-no answer}"
    fi
}
attempt "TCP straight to the internet" 203.0.113.99 443
attempt "TCP to the host, another port" "$host" 22
attempt "TCP to the host's own address" 198.51.100.2 22
attempt "TCP to the metadata address" 169.254.169.254 80
attempt "TCP over IPv6" 2001:db8::1 443
attempt "TCP to the orchestrator" "${1%:*}" "${1#*:}"
attempt "TCP to the gateway's own address" "${2%:*}" "${2#*:}"
if out=$(timeout 8 bash -c 'exec 3<>/dev/udp/203.0.113.99/4433; printf x >&3; printf y >&3; head -c 1 <&3' 2>&1) &&
    [ -n "$out" ]; then
    result "UDP straight to the internet" LEAK "answered"
else
    out=${out##*: }
    result "UDP straight to the internet" blocked "${out:-no answer}"
fi
if name=$(getent ahostsv4 "x$RANDOM.exfiltrate.example" 2>&1); then
    result "a DNS name that is not allowed" LEAK "$name"
else
    result "a DNS name that is not allowed" refused "the gateway answers for allowed names only"
fi
exit 0
