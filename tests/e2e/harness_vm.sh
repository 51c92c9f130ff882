#!/usr/bin/env bash
# The same harnesses in virtual machines. Without KVM their processors are emulated, which all three bear (qemu's processor
# has AVX2, and 1 GiB is enough): Claude Code, the slowest, takes half a minute to its first question on two busy processors.
export BERTH_TEST_BACKEND=
. "$(dirname "$0")/harness.sh"
