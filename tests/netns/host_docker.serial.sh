#!/bin/bash
# A host with Docker at work, which drops what is forwarded: install, agents of two users, Docker started again, upgrade and
# uninstall while they work.
set -uo pipefail
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/lib/host.bash
. "$SOURCE/tests/lib/host.bash"
host_enter
host_network
host_users
# As at a boot: Docker finds none of its chains. (Its policy it sets only when it is the first to switch on forwarding.)
docker_anew() {
    systemctl stop docker.service docker.socket
    nft delete table ip filter
    nft delete table ip nat
    iptables -P FORWARD DROP
    systemctl start docker.service
}
# Docker makes its chains in any order.
sorted_state() { host_state | sort; }
# The first start makes what stays when Docker ends: docker0, folders.
systemctl start docker.service
docker_anew
sorted_state >before
policy() { iptables -S FORWARD | head -1; }
rules() { iptables -S DOCKER-USER | grep -c 'berth+ -j ACCEPT'; }
equal "Docker drops what is forwarded" "-P FORWARD DROP" "$(policy)"

# ---- its addresses ------------------------------------------------------------------------------------------------------
docker_network() { curl_docker POST "/networks/create" "{\"Name\": \"$1\", \"IPAM\": {\"Config\": [{\"Subnet\": \"$2\"}]}}"; }
curl_docker() {
    python3 - "$@" <<'PYTHON'
import http.client, socket, sys
connection = http.client.HTTPConnection("docker")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/docker.sock")
connection.request(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None, {"Content-Type": "application/json"})
answer = connection.getresponse()
sys.exit(0 if answer.status < 300 else f"{answer.status} {answer.read().decode()}")
PYTHON
}
check "Docker gets a network in our block" docker_network other 10.243.0.0/24
check_status "install refuses, and names it" 1 'tap_base .* leads to br-[0-9a-f]+ \(a network of Docker\)' "$HELPER" install
check "the network goes" curl_docker DELETE /networks/other

# ---- install, agents at work --------------------------------------------------------------------------------------------
check_status "status names Docker's chain" 1 'the chain .ip filter FORWARD. drops' "$HELPER" status
check_status "install adds our accept to it" 0 '^added: iptables DOCKER-USER -i berth\+' "$HELPER" install
check_status "status: nothing drops us now" 0 'no chain drops what the helper lets through' "$HELPER" status
equal "two rules" 2 "$(rules)"
equal "Docker's policy is as it was" "-P FORWARD DROP" "$(policy)"
usermod -aG berth alice
usermod -aG berth bob
host_agents alice bob
host_talk alice bob
for user in alice bob; do check "$user's agent reaches the gateway, and that the uplink" host_works $user; done
"$HELPER" firewall --remove >/dev/null
for name in alice-gateway alice-egress; do
    lines=$(talk_lines $name)
    sleep 1
    more=$(($(talk_lines $name) - lines))
    check "without our accept Docker drops it: $name ($more answers since)" test $more -le 3
done
check_status "and status says so" 1 'the chain .ip filter FORWARD. drops' "$HELPER" status
systemctl start berth-firewall.service
for user in alice bob; do check "the unit puts it back: $user works on" host_works $user; done

# ---- Docker starts again --------------------------------------------------------------------------------------------------
since=$(date +%s%3N)
systemctl restart docker.service
equal "Docker started again: our accept is there" 2 "$(rules)"
for user in alice bob; do check "$user works on" host_works $user; done
note "Docker started again: longest pause of the traffic: $(host_pause "$since" alice bob) ms"
docker_anew
has_accept() { [ "$(rules)" = 2 ]; }
check "Docker made its chains anew: the unit ran after it" eventually has_accept
for user in alice bob; do check "$user works on" host_works $user; done
main_pid=$(systemctl show -P MainPID docker.service)
kill -9 "$main_pid"
docker_is_another() { [ "$(systemctl is-active docker.service)" = active ] && [ "$(systemctl show -P MainPID docker.service)" != "$main_pid" ]; }
check "Docker is killed, and systemd starts it" eventually docker_is_another
for user in alice bob; do check "$user works on" host_works $user; done
equal "our accept is there once: two rules" 2 "$(rules)"

# ---- upgrade ----------------------------------------------------------------------------------------------------------------
install -m 755 /opt/stage$HELPER $HELPER.new && mv $HELPER.new $HELPER
since=$(date +%s%3N)
check_status "upgrade while they work" 0 '^enabled and restarted' "$HELPER" install
check "all six slots are adopted" host_adopted alice bob
for user in alice bob; do check "$user works on" host_works $user; done
note "upgrade: longest pause of the traffic: $(host_pause "$since" alice bob) ms"

# ---- uninstall ----------------------------------------------------------------------------------------------------------------
check_status "uninstall while they hold slots: our accept goes" 0 '^removed: iptables DOCKER-USER -i' "$HELPER" uninstall
host_agents_end alice bob
equal "no rule of ours is left" "" "$(nft list ruleset | grep berth)"
equal "no interface" "" "$(ip -o link show | grep berth)"
equal "Docker runs on" active "$(systemctl is-active docker.service)"
rm -r /var/log/berth
sorted_state >after
check "the host is as it was before" diff before after
[ "$TAP_FAILED" = 0 ] || journalctl --no-pager -u berth-helper.service -u berth-firewall.service | tail -40 | sed 's/^/# /'
finish
