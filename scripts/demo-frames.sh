#!/usr/bin/env bash
# Market data: a publisher sends an A and a B feed with gaps, a subscriber finds them.
#
#   DEMO_PATH=verbs scripts/demo-frames.sh    through libibverbs instead of directly, into plain receives
#   DEMO_LOSS=0.01 scripts/demo-frames.sh     on a link that loses one frame in a hundred
#
# Runs on soft-mlx5: frames of a publisher on the same adapter would not leave it. The last line is the verdict.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

path=${DEMO_PATH:-auto}
limit=300

echo "demo-frames: building"
cargo build --release -p soft-mlx5 -p doorbell --lib --bins --example market_data
target=$(target_directory)
target=$target/release
loss=${DEMO_LOSS:-0}
under=("$target/soft-mlx5" run --strict --link roce --loss "$loss" --fabric "demo-frames-$$" --)

port=$(free_port)

options=()
[ "$path" != verbs ] || options+=(--plain)
[ "$loss" = 0 ] || options+=(--lossy)
# The publisher waits for the subscriber to listen.
timeout "$limit" "${under[@]}" "$target/examples/market_data" --path "$path" --port "$port" \
    publish 127.0.0.1 --frames 1000000 &
publisher=$!
code=0
timeout "$limit" "${under[@]}" "$target/examples/market_data" --path "$path" --port "$port" \
    subscribe "${options[@]}" > "$target/demo-frames.out" || code=$?
[ "$code" = 0 ] || kill "$publisher" 2>/dev/null || true
wait "$publisher" || { [ "$code" != 0 ] || { echo "demo-frames: FAILED: the publisher failed"; code=1; }; }
cat "$target/demo-frames.out"
exit "$code"
