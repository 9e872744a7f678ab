#!/usr/bin/env bash
# Tag matching: several senders, one receiver, on a ConnectX if there is one, else on soft-mlx5.
#
#   DEMO_PATH=verbs scripts/demo-tags.sh      through libibverbs instead of directly
#   DEMO_SOFTWARE=1 scripts/demo-tags.sh      matching in the library
#
# The last line is the verdict.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

limit=300

# The name of an adapter that the mlx5 driver runs and that this user may open.
connectx() {
    local device uverbs
    for device in /sys/class/infiniband/*; do
        [ "$(basename "$(readlink -f "$device/device/driver" 2>/dev/null)")" = mlx5_core ] || continue
        for uverbs in "$device"/device/infiniband_verbs/uverbs*; do
            uverbs=/dev/infiniband/$(basename "$uverbs")
            if [ -r "$uverbs" ] && [ -w "$uverbs" ]; then
                basename "$device"
                return
            fi
        done
    done
}

echo "demo-tags: building"
cargo build --release -p soft-mlx5 -p doorbell --lib --bins --example tag_matching
target=$(target_directory)
target=$target/release

options=(--path "${DEMO_PATH:-auto}" ${DEMO_SOFTWARE:+--software})
device=$(connectx)
if [ -n "$device" ]; then
    under=() options+=(--device "$device")
else
    under=("$target/soft-mlx5" run --strict --)
fi
timeout "$limit" "${under[@]}" "$target/examples/tag_matching" "${options[@]}"
