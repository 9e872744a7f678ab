#!/usr/bin/env bash
# Compares doorbell with libmlx5 under random operations: conformance.sh OPERATIONS [SEED]
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet -p doorbell-conformance
target=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
exec "$target/debug/conformance" --operations "$1" ${2:+--seed "$2"}
