#!/usr/bin/env bash
# Runs the fuzz targets under libFuzzer, each on a part of N inputs, from the corpus that is committed.
#
#   scripts/fuzz.sh 10000000              all targets; SEED=number, default 1
#   scripts/fuzz.sh 1000000 wqes packets  only these
#   scripts/fuzz.sh short                 replays the corpus, and a few thousand inputs with a fixed seed
#   scripts/fuzz.sh build                 only builds them
#   scripts/fuzz.sh merge                 puts what earlier runs found into the corpus, as little of it as covers the same
#
# What a run finds it leaves in target/fuzz/TARGET; an input that breaks something stays there as crash-*.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

all=(commands connections firmware vfio_user wqes packets cqes decode)
# Longer programs find nothing that these do not, and are slow.
declare -A longest=([commands]=3000 [connections]=3000 [firmware]=1024 [vfio_user]=1024 [wqes]=1024 [packets]=3072 [cqes]=2048 [decode]=4096)

host=$(host_platform)
target_dir=$(target_directory)
bin=$target_dir/$host/fuzz

# Edge coverage in the form that libFuzzer reads; the flags are those of cargo-fuzz without a sanitizer, which
# would take a nightly compiler. With --target they leave build scripts alone.
build() {
    command -v c++ >/dev/null || {
        echo "fuzz: skipped: libFuzzer is C++, and there is no C++ compiler: apt-get install g++"
        exit 3
    }
    local flags=(-Cpasses=sancov-module -Ccodegen-units=1)
    flags+=(-Cllvm-args=-sanitizer-coverage-level=3)
    flags+=(-Cllvm-args=-sanitizer-coverage-inline-8bit-counters)
    flags+=(-Cllvm-args=-sanitizer-coverage-pc-table)
    RUSTFLAGS="${flags[*]}" cargo build --quiet --locked -p doorbell-fuzz --features libfuzzer \
        --profile fuzz --target "$host" "${all[@]/#/--bin=fuzz-}"
}

# Runs a target: run TARGET INPUTS ARGUMENTS...; prints one line, and all of the log when it fails.
run() {
    local name=$1 inputs=$2 found=$target_dir/fuzz/$1 log
    shift 2
    mkdir -p "$found"
    log=$found.log
    if ! "$bin/fuzz-$name" -runs="$inputs" -seed="${SEED:-1}" -max_len="${longest[$name]}" -timeout=120 \
        -artifact_prefix="$found/" -print_final_stats=1 "$@" "fuzz/corpus/$name" >"$log" 2>&1; then
        tail -n 100 "$log"
        echo "fuzz: $name: FAILED; again: $bin/fuzz-$name $found/crash-*"
        return 1
    fi
    # In libFuzzer's own words: the edges there are, those that were covered, and the inputs.
    grep -e '^INFO: Loaded 1 PC tables' -e 'DONE' -e '^stat::number_of_executed_units' "$log" | sed "s/^/fuzz: $name: /"
    echo "fuzz: $name: ok, seed ${SEED:-1}"
}

case ${1-} in
    short)
        build
        export SEED=1
        for name in "${all[@]}"; do
            inputs=$(find "fuzz/corpus/$name" -type f | wc -l)
            # Nothing that is found is kept: each time the same inputs.
            new=$(mktemp -d)
            run "$name" "$((inputs + 3000))" "$new" && code=0 || code=1
            rm -r "$new"
            [ "$code" = 0 ] || exit "$code"
        done
        ;;
    build)
        build
        ;;
    merge)
        build
        for name in "${all[@]}"; do
            mkdir -p "$target_dir/fuzz/$name"
            merged=$(mktemp -d)
            "$bin/fuzz-$name" -set_cover_merge=1 -use_counters=0 -max_len="${longest[$name]}" "$merged" "fuzz/corpus/$name" \
                "$target_dir/fuzz/$name" 2>&1 | tail -n 1
            rm -rf "fuzz/corpus/$name"
            cp -r "$merged" "fuzz/corpus/$name"
            rm -r "$merged"
        done
        ;;
    [0-9]*)
        total=$1
        shift
        names=("$@")
        [ $# -gt 0 ] || names=("${all[@]}")
        build
        code=0
        for name in "${names[@]}"; do
            mkdir -p "$target_dir/fuzz/$name"
            run "$name" "$((total / ${#names[@]}))" "$target_dir/fuzz/$name" || code=1
        done
        exit "$code"
        ;;
    *)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
esac
