#!/usr/bin/env bash
# Errors of the kind that drivers have, put in one at a time: sees that a test catches each.
#
#   scripts/mutants.sh          all of scripts/mutants
#   scripts/mutants.sh short    those marked so
#   scripts/mutants.sh NAME     those whose names begin like this
#
# A patch says what the error is, and which tests (arguments of `cargo test`) must fail with it. The same
# tests must pass without it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

target=$(target_directory)
tree=$target/mutants/tree
# Quick to build is what matters.
export CARGO_TARGET_DIR=$target/mutants/target CARGO_INCREMENTAL=1
export CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_OPT_LEVEL=1
optimisation=(--config 'profile.dev.package.soft-mlx5.opt-level=0')
# Few cases, the same each time, and no time for making a failing one smaller.
export PROPTEST_CASES=24 PROPTEST_MAX_SHRINK_ITERS=0 RING_SEED=1
# An error may well make a test run for ever.
build_limit=600 limit=60

rm -rf "$tree" "$target/mutants/log"
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory "$tree" 2>/dev/null || true
patches=$PWD/scripts/mutants
cd "$tree"

field() {
    sed -n "s/^$1: //p" "$2"
}

# Runs cargo test with these arguments: tests SECONDS ARGUMENTS...
tests() {
    timeout "$1" cargo test --quiet --offline "${optimisation[@]}" "${@:2}" \
        >"$target/mutants/log" 2>&1 </dev/null
}

# Ends with 1 when the tests fail, with 2 when they cannot be built, with 3 when they do not end.
try() {
    local code=0
    tests "$build_limit" --no-run "$@" || return 2
    tests "$limit" "$@" || code=$?
    case $code in
        0) return 0 ;;
        124) return 3 ;;
        *) return 1 ;;
    esac
}

chosen=()
for patch in "$patches"/*.patch; do
    name=$(basename "$patch" .patch)
    case ${1-all} in
        all) chosen+=("$patch") ;;
        short) [ "$(field Short "$patch")" != yes ] || chosen+=("$patch") ;;
        *) [ "${name#"$1"}" = "$name" ] || chosen+=("$patch") ;;
    esac
done
[ ${#chosen[@]} -gt 0 ] || { echo "mutants: there is no patch $1"; exit 2; }

fail() {
    [ ! -e "$target/mutants/log" ] || cat "$target/mutants/log"
    echo "mutants: FAILED: $*"
    exit 1
}

# All of them, also when only some are tried: who changes a line sees that a patch must follow.
for patch in "$patches"/*.patch; do
    git apply --recount --check "$patch" || fail "$(basename "$patch" .patch) does not apply any more"
done

# The tests by themselves: a test that fails anyway catches nothing.
while read -ra test; do
    try "${test[@]}" || fail "cargo test ${test[*]} fails without an error put in"
    grep -q ' [1-9][0-9]* passed' "$target/mutants/log" || fail "cargo test ${test[*]} runs no test"
done < <(for patch in "${chosen[@]}"; do field Test "$patch"; done | sort -u)

caught=0 missed=()
for patch in "${chosen[@]}"; do
    name=$(basename "$patch" .patch)
    read -ra test < <(field Test "$patch")
    git apply --recount "$patch"
    code=0
    try "${test[@]}" || code=$?
    case $code in
        0) missed+=("$name") verdict=MISSED ;;
        1) caught=$((caught + 1)) verdict=caught ;;
        3) caught=$((caught + 1)) verdict="caught, for it ran for $limit s" ;;
        *) fail "$name does not compile" ;;
    esac
    echo "mutants: $verdict: $name: $(head -1 "$patch")"
    git apply --recount -R "$patch"
done

if [ ${#missed[@]} -gt 0 ]; then
    echo "mutants: FAILED: $caught caught, ${#missed[@]} missed: ${missed[*]}"
    exit 1
fi
echo "mutants: ok: $caught caught, 0 missed"
