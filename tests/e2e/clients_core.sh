#!/usr/bin/env bash
# A core set of the clients of clients.sh in a virtual machine and in gVisor.
# variants: qemu runsc
export CLIENTS_CORE=yes
. "$(dirname "$0")/clients.sh"
