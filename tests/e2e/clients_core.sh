#!/usr/bin/env bash
# A core set of the clients of clients.sh in a virtual machine.
export BERTH_TEST_BACKEND=qemu
. "$(dirname "$0")/clients.sh"
