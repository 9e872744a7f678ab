#!/usr/bin/env bash
# Compares doorbell with libmlx5 under random operations: conformance.sh OPERATIONS [SEED]
#
#   SUITE=trixie scripts/conformance.sh 100000    with the libmlx5 of a newer Debian, unpacked, not installed
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

cargo build --quiet --workspace --bin conformance
target=$(target_directory)
if [ -n "${SUITE-}" ]; then
    CONFORMANCE_UNDER=$(scripts/newer-rdma-core.sh "$SUITE")
    export CONFORMANCE_UNDER
fi
exec "$target/debug/conformance" --operations "$1" ${2:+--seed "$2"}
