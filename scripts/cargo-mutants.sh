#!/usr/bin/env bash
# Changes mlx5-wire and mlx5-ring in every way that cargo-mutants knows, one at a time, and lists the changes
# that no test of the two crates sees: cargo-mutants.sh [SHARD]
#
#   scripts/cargo-mutants.sh 0/16    the first of sixteen parts
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
tools=$target/tools
[ -x "$tools/bin/cargo-mutants" ] ||
    cargo install --quiet --locked --root "$tools" --version 27.1.0 cargo-mutants
export PATH=$tools/bin:$PATH
# Quick to build is what matters; the random tests are the same each time.
export CARGO_TARGET_DIR=$target/cargo-mutants CARGO_INCREMENTAL=1
export CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_OPT_LEVEL=1
export PROPTEST_CASES=24 PROPTEST_MAX_SHRINK_ITERS=0 RING_SEED=1

# The wire formats are also held by the rings' tests, which read and write them.
exec cargo mutants --package mlx5-wire --package mlx5-ring --test-package mlx5-wire,mlx5-ring \
    --jobs 1 --timeout 60 --build-timeout 300 --no-shuffle --output "$target/cargo-mutants" \
    ${1:+--shard "$1"} -- --lib --tests
