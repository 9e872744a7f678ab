#!/usr/bin/env bash
# One step of the test-suite; without an argument the names of all, in order.
#
#   FILTER=name scripts/test-step.sh direct    only the tests whose name contains it
#
# Ends with 3 when the step cannot run here, which under CI=true is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

filter=(${FILTER:+"$FILTER"})

# Runs cargo so that each test gets a process of its own: isolated SECONDS COMMAND CARGO-ARGUMENTS...
isolated() {
    local runner
    runner=$(apart "$1" "$2")
    cargo --config "$runner" "${@:3}" -- "${filter[@]}"
}

# The integration tests never link the device: they run on what libibverbs shows them.
integration() {
    cargo build --quiet -p soft-mlx5
    local run code=0
    run="$(target_directory)/debug/soft-mlx5 run --strict"
    export DOORBELL_PATH=$1
    isolated 180 "$run --" test -p doorbell-tests \
        --test suite --test steady --test not_mlx5 --test registration --test tags --no-fail-fast || code=$?
    # Here the device reaches those of other processes.
    DOORBELL_NETWORKED=1 isolated 60 "$run --fabric test-$$ --" test -p doorbell-tests \
        --test interop --test tags_interop --no-fail-fast || code=$?
    return "$code"
}

case ${1-} in
    '')
        printf '%s\n' \
            format clippy doc package oldest unit doctest aarch64 \
            device programs python \
            direct verbs conformance asan valgrind mutants fuzz counts demo rxe
        ;;
    format)
        cargo fmt --all --check
        ;;
    clippy)
        cargo clippy --workspace --all-targets --quiet -- -D warnings
        ;;
    doc)
        RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
        ;;
    package)
        scripts/packages.sh
        ;;
    oldest)
        oldest=$(scripts/oldest-rust.sh)
        cargo "+$oldest" --version >/dev/null 2>&1 ||
            skip "Rust $oldest is not installed and there is no rustup to install it"
        cargo "+$oldest" check --workspace --all-targets --quiet
        ;;
    unit)
        # Everything that needs no device.
        code=0
        cargo test --workspace --exclude soft-mlx5 --exclude doorbell-tests \
            --exclude doorbell-stepped-tests --exclude doorbell-conformance \
            --lib --bins --tests --examples --no-fail-fast -- "${filter[@]}" || code=$?
        cargo test -p doorbell-tests --lib --test isolate --test docs --test compile_fail --test handover \
            --no-fail-fast -- "${filter[@]}" || code=$?
        exit "$code"
        ;;
    doctest)
        cargo test --workspace --doc --no-fail-fast -- "${filter[@]}"
        ;;
    device)
        # A breach of a rule stops the process, and a process has one device.
        code=0
        # All test binaries but that of the step `programs`.
        mapfile -t others < <(ls soft-mlx5/tests/*.rs soft-mlx5/tests/*/main.rs |
            sed -E 's,.*/tests/,,; s,(/main)?\.rs$,,' | grep -vx programs)
        isolated 120 "" test -p soft-mlx5 --lib --bins "${others[@]/#/--test=}" --no-fail-fast ||
            code=$?
        isolated 120 "" test -p doorbell-stepped-tests --lib --bins --tests --no-fail-fast || code=$?
        exit "$code"
        ;;
    programs)
        isolated 120 "" test -p soft-mlx5 --test programs --no-fail-fast
        ;;
    direct | verbs)
        integration "$1"
        ;;
    counts)
        # Instructions of the data path, which callgrind counts exactly.
        command -v valgrind >/dev/null || skip "valgrind is not installed"
        cargo build --release --quiet -p doorbell-benches
        "$(target_directory)/release/bench" counts --baseline benches/baseline.txt --out "$(target_directory)/bench"
        ;;
    python)
        cargo build --quiet -p soft-mlx5
        soft-mlx5/tests/programs/pyverbs.py "$(target_directory)/debug/soft-mlx5" "${filter[@]}"
        ;;
    conformance)
        cargo test -p doorbell-conformance --no-fail-fast -- "${filter[@]}"
        scripts/conformance.sh 100000
        ;;
    asan | valgrind)
        # More of both: make memory.
        scripts/memory.sh "$1"
        ;;
    mutants)
        # All of them: make mutants.
        scripts/mutants.sh short
        ;;
    fuzz)
        # Many more: make fuzz.
        scripts/fuzz.sh short
        ;;
    demo)
        cargo build --quiet -p soft-mlx5 -p doorbell -p doorbell-info -p doorbell-tests --lib --bins --examples
        isolated 120 "" test -p doorbell-tests --test demo --test event_server --test info \
            --test latency --test multicast --test pingpong --no-fail-fast
        ;;
    aarch64)
        command -v qemu-aarch64-static >/dev/null || skip "qemu-aarch64-static is not installed"
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
        cargo test -p mlx5-wire -p mlx5-ring --lib --tests --no-fail-fast \
            --target aarch64-unknown-linux-gnu -- "${filter[@]}"
        ;;
    rxe)
        scripts/rxe/run.sh
        ;;
    *)
        echo "test-step: there is no step $1" >&2
        exit 2
        ;;
esac
