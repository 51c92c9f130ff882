# The head of scripts about containers: a started world (world.bash) with a container engine of its own, what of berth is in
# that engine (engine.bash), and TAP. To be sourced first; WORLD_IMAGES and a variant may be set before.
# shellcheck shell=bash

export BERTH_TEST_BACKEND=docker
. "$(dirname "${BASH_SOURCE[0]}")/world.bash"
. "$(dirname "${BASH_SOURCE[0]}")/engine.bash"
. "$(dirname "${BASH_SOURCE[0]}")/tap.bash"
world_enter "$@"
world_start || exit 1
