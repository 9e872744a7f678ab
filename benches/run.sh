#!/usr/bin/env bash
# Measures doorbell beside stock libmlx5: counts instructions, takes times, and writes target/bench.json. Takes five
# minutes on a machine that does nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

out=$(target_directory)
cargo build --release --quiet -p doorbell-benches --bins
rm -f "$out"/bench/*.rows
timeout 300 "$out/release/bench" counts --out "$out/bench"
timeout 500 cargo bench --quiet -p doorbell-benches --bench processor -- --noplot
{
    echo '['
    cat "$out/bench/counts.rows" "$out/bench/processor.rows" | sed '$!s/$/,/'
    echo ']'
} >"$out/bench.json"
echo "bench: $out/bench.json"
echo "bench: not measured: an adapter; 'cargo bench -p doorbell-benches --bench device' runs on one"
