#!/usr/bin/env bash
# Compares doorbell with libmlx5 under random operations: conformance.sh OPERATIONS [SEED]
#
#   SUITE=trixie scripts/conformance.sh 100000    with the libmlx5 of a newer Debian, unpacked, not installed
#   DROP_IN=1 scripts/conformance.sh 100000       libmlx5 with the drop-in
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

cargo build --quiet --workspace --bin conformance --bin doorbell --lib
target=$(target_directory)
if [ -n "${SUITE-}" ]; then
    CONFORMANCE_UNDER=$(scripts/newer-rdma-core.sh "$SUITE")
    export CONFORMANCE_UNDER
fi
exec ${DROP_IN:+"$target/debug/doorbell" run --} "$target/debug/conformance" --operations "$1" ${2:+--seed "$2"}
