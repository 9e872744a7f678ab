#!/usr/bin/env bash
# Tick to trade: an exchange sends prices, a trader answers some with an order, and measures the time between the two.
#
#   DEMO_PATH=verbs scripts/demo-trade.sh    through libibverbs instead of directly
#   DEMO_LOSS=0.01 scripts/demo-trade.sh     on a link that loses one packet in a hundred
#
# Orders are UDP datagrams first, then messages of a connection (RC). Runs on soft-mlx5, which takes its time for each
# packet: the figures say nothing about an adapter. The last line is the verdict.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

path=${DEMO_PATH:-auto}
limit=300

echo "demo-trade: building"
cargo build --release -p soft-mlx5 -p doorbell --lib --bins --example tick_to_trade
target=$(target_directory)/release

# trade OPTIONS...: one session; prints what the trader measured, then the verdict of the exchange.
trade() {
    local under=("$target/soft-mlx5" run --strict --link roce --loss "${DEMO_LOSS:-0}" --fabric "demo-trade-$$-$#" --)
    local port out=$target/demo-trade.out trader code=0
    port=$(free_port)
    timeout "$limit" "${under[@]}" "$target/examples/tick_to_trade" --path "$path" --port "$port" \
        trade --svg "$target/tick-to-trade$1.svg" "${@:2}" &
    trader=$!
    # The exchange waits for the trader to listen.
    timeout "$limit" "${under[@]}" "$target/examples/tick_to_trade" --path "$path" --port "$port" \
        exchange 127.0.0.1 >"$out" || code=$?
    [ "$code" = 0 ] || kill "$trader" 2>/dev/null || true
    wait "$trader" || { [ "$code" != 0 ] || { echo "demo-trade: FAILED: the trader failed"; code=1; }; }
    cat "$out"
    return "$code"
}

trade ""
trade -rc --rc
