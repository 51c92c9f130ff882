#!/usr/bin/env bash
# One harness in a virtual machine: the one with the smallest image, since without KVM a processor is emulated.
export BERTH_TEST_BACKEND=
export WORLD_IMAGES=${WORLD_IMAGES-pi}
. "$(dirname "$0")/harness.sh"
