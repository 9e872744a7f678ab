#!/usr/bin/env bash
# Measures doorbell beside stock libmlx5: prints the table, and writes target/bench.json. Takes a few minutes on a
# machine that does nothing else.
#
#   DOCS=1 benches/run.sh    puts the table of times into docs/benchmarks.md, too
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

out=$(target_directory)
cargo build --release --quiet -p doorbell-benches
exec timeout 540 "$out/release/bench" all --out "$out" ${DOCS:+--docs docs}
