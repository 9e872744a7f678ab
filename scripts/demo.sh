#!/usr/bin/env bash
# The main job: one server receives from the connections of two client processes through one SRQ.
#
#   DEMO_PATH=verbs scripts/demo.sh    through libibverbs instead of directly
#
# Runs on a ConnectX if there is one, else on soft-mlx5. The last line is the server's verdict.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

path=${DEMO_PATH:-auto}
messages=200000 clients=2 connections=2
limit=300

echo "demo: building"
cargo build --release -p soft-mlx5 -p doorbell --lib --bins --example srq_server --example srq_client
target=$(target_directory)
target=$target/release

device=$(connectx)
if [ -n "$device" ]; then
    under=() options=(--device "$device")
else
    under=("$target/soft-mlx5" run --strict --fabric "demo-$$" --) options=()
fi

port=$(free_port)

# The clients wait for the server to listen.
pids=()
for ((i = 1; i <= clients; i++)); do
    timeout "$limit" "${under[@]}" "$target/examples/srq_client" "${options[@]}" --seed "$i" \
        --connections "$connections" --messages $((messages / clients)) "127.0.0.1:$port" &
    pids+=($!)
done
code=0
timeout "$limit" "${under[@]}" "$target/examples/srq_server" "${options[@]}" --path "$path" \
    --connections $((clients * connections)) "127.0.0.1:$port" || code=$?
[ "$code" = 0 ] || kill "${pids[@]}" 2>/dev/null || true
for pid in "${pids[@]}"; do
    wait "$pid" || { [ "$code" != 0 ] || { echo "demo: FAILED: a client failed"; code=1; }; }
done
exit "$code"
