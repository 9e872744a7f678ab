#!/usr/bin/env bash
# Runs the rings, the safe layer and the device under a tool that watches memory: memory.sh asan|valgrind [long]
#
# Sixteen-fold with `long`. Conformance reaches all three layers, and libmlx5, in one process.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

host=$(host_platform)
target=$(target_directory)
times=1
[ "${2-}" != long ] || times=16
export RING_SEED=1 PROPTEST_CASES=$((8 * times)) CARGO_PROFILE_DEV_DEBUG=line-tables-only

# Operations of conformance, each process under a command.
conformance() {
    CONFORMANCE_UNDER=${3-} "$1" --operations "$2" --seed 1
}

case ${1-} in
    asan)
        [ "$host" = x86_64-unknown-linux-gnu ] || skip "Rust has no AddressSanitizer for $host here"
        # The device of the integration tests is loaded into their processes as it is.
        cargo build --quiet -p soft-mlx5
        apart=$(apart 180 "$target/debug/soft-mlx5 run --strict --")
        # The stable compiler has it, and does not let on.
        export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$target/asan
        asan=(cargo test --quiet --target "$host")
        # Nothing outlives the tests of the rings, so leaks count.
        "${asan[@]}" -p mlx5-ring --lib -- --skip explorer
        # Buffers that a device may still write are never freed, and libibverbs keeps its lists.
        # The device meets signals itself, and lets those pass that are the program's.
        export ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0
        "${asan[@]}" -p soft-mlx5 --lib
        "${asan[@]}" -p doorbell-stepped-tests --test events --test compression -- --test-threads 1
        # On the direct path, unless told otherwise; for what takes a million messages there is `long`.
        brief=(--skip a_million)
        [ "$times" = 1 ] || brief=()
        "${asan[@]}" --config "$apart" -p doorbell-tests --test suite --test tags -- "${brief[@]}"
        cargo build --quiet --target "$host" -p doorbell-conformance
        conformance "$CARGO_TARGET_DIR/$host/debug/conformance" $((16000 * times))
        ;;
    valgrind)
        command -v valgrind >/dev/null || skip "valgrind is not installed"
        under="valgrind -q --error-exitcode=9"
        export CARGO_TARGET_DIR=$target
        cargo build --quiet -p doorbell-conformance
        conformance "$target/debug/conformance" $((3000 * times)) "$under"
        # One case of each random test, unless more are asked for.
        PROPTEST_CASES=$times cargo --config "target.$host.runner = '$under'" \
            test --quiet -p mlx5-ring --lib -- --skip explorer --test-threads 1
        ;;
    *)
        echo "usage: memory.sh asan|valgrind [long]" >&2
        exit 2
        ;;
esac
