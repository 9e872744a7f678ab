#!/usr/bin/env bash
# Measures doorbell beside stock libmlx5: prints the table, and writes target/bench.json and charts to
# target/bench. Takes about a minute on a machine that does nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cargo build --release --quiet -p doorbell-benches
exec timeout 280 "$out/release/bench" all --out "$out"
