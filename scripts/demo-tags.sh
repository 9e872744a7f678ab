#!/usr/bin/env bash
# Tag matching: several senders, one receiver, on a ConnectX if there is one, else on soft-mlx5.
#
#   DEMO_PATH=verbs scripts/demo-tags.sh      through libibverbs instead of directly
#   DEMO_SOFTWARE=1 scripts/demo-tags.sh      matching in the library
#   LINK=roce scripts/demo-tags.sh            soft-mlx5 on Ethernet
#
# The last line is the verdict.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

limit=300

echo "demo-tags: building"
cargo build --release -p soft-mlx5 -p doorbell --lib --bins --example tag_matching
target=$(target_directory)
target=$target/release

options=(--path "${DEMO_PATH:-auto}" ${DEMO_SOFTWARE:+--software})
device=$(connectx)
if [ -n "$device" ]; then
    under=() options+=(--device "$device")
else
    under=("$target/soft-mlx5" run --strict --link "${LINK:-ib}" --)
fi
timeout "$limit" "${under[@]}" "$target/examples/tag_matching" "${options[@]}"
