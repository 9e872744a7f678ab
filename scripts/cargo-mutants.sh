#!/usr/bin/env bash
# Changes mlx5-wire and mlx5-ring in every way that cargo-mutants knows, one at a time, and lists the changes
# that no test of the crate sees: cargo-mutants.sh [FILE...]
#
#   scripts/cargo-mutants.sh                              both crates, whole
#   scripts/cargo-mutants.sh mlx5/ring/src/srq.rs         that file
#
# Most changes are seen by the quick tests of the library, within a second: what these do not see is put to the
# integration tests, and what these do not see either to the tests that go through all states of a queue.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

files=("$@")
[ $# != 0 ] || mapfile -t files < <(git ls-files mlx5/wire/src mlx5/ring/src | grep -v '/testing/\|tests\(/\|\.rs$\)')

target=$(target_directory)
cargo_tool mutants 27.1.0
cargo_tool nextest 0.9.143
# The sources are changed in place, of a copy: building it again after each change is quick.
tree=$target/cargo-mutants/tree out=$target/cargo-mutants/out
rm -rf "$tree" "$out"
mkdir -p "$tree" "$out"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory "$tree" 2>/dev/null || true
cd "$tree"
export CARGO_TARGET_DIR=$target/cargo-mutants/target CARGO_INCREMENTAL=1
export CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_OPT_LEVEL=1
# The random tests are the same each time.
export PROPTEST_CASES=24 PROPTEST_MAX_SHRINK_ITERS=0 RING_SEED=1

# What ends by its limit was not seen to fail, but does not behave as it did: it is counted as caught, and listed.
slow='not test(/queues_of_[48]|the_largest/)'
for file in "${files[@]}"; do
    crate=${file#mlx5/} crate=mlx5-${crate%%/*} name=${file//\//-}
    pass() { # SECONDS ARGUMENTS...
        cargo mutants --package "$crate" --test-package "$crate" --file "$file" --in-place --iterate \
            --baseline skip --no-shuffle --build-timeout 300 --timeout "$1" --output "$out/$name" \
            --test-tool nextest -- "${@:2}" >"$out/$name.log" 2>&1 || [ $? -le 3 ]
        [ -f "$out/$name/mutants.out/timeout.txt" ] || return 0
        tee -a "$out/$name/mutants.out/caught.txt" <"$out/$name/mutants.out/timeout.txt" >>"$out/$name.ended"
    }
    pass 12 --lib -E "$slow"
    pass 20 --lib --tests -E "$slow"
    pass 90 --lib --tests
    caught=$({ cat "$out/$name"/mutants.out/{caught,previously_caught}.txt 2>/dev/null || true; } | sort -u | wc -l)
    missed=$(cat "$out/$name/mutants.out/missed.txt" 2>/dev/null || true)
    echo "$file: $caught seen, $(grep -c . <<<"$missed" || true) not seen"
    [ -z "$missed" ] || sed 's/^/    not seen: /' <<<"$missed"
    [ ! -s "$out/$name.ended" ] || sed 's/^/    ended by its limit: /' "$out/$name.ended"
done
