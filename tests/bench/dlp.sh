#!/bin/bash
# How fast the gateway's filters read what agents send, one core, next to a copy of the same bytes and to grep -F.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
build/bench/bench_dlp "$folder"
