#!/bin/bash
# Every known way round a gateway, tried from an agent and judged by what somebody outside saw (tests/lib/gateway_bypass.py).
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/lib/gateway_world.bash
. tests/lib/gateway_world.bash
gateway_world_enter "$@"
# shellcheck disable=SC2119 # the names of the usual internet
gateway_world_start

register first 3 11 token-one '{"host": "allowed.example"}, {"host": "*.allowed.example"}, {"host": "alias.example"},
  {"host": "loopback.example"}, {"host": "metadata.example"}, {"host": "slot.example"}, {"host": "mixed.example"},
  {"host": "rebind.example"}, {"host": "private.example"},
  {"host": "narrow.example", "methods": ["GET"], "paths": ["/public/*"]}' >/dev/null
register second 4 12 token-two '{"host": "blocked.example"}' >/dev/null
touch canary.log
python3 "$root/tests/lib/gateway_canary.py" canary.log >canary.out &
eventually grep -q ready canary.out
in_agent one python3 "$root/tests/lib/gateway_bypass.py" internet.log canary.log authority.pem "$@"
failed=$?
gateway_world_end >ends.out || {
    echo "# the gateway or the orchestrator did not end clean:"
    sed 's/^/# /' ends.out gateway.log
    failed=1
}
exit $failed
