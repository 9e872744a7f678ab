#!/usr/bin/env bash
# Makes the packages of the crates that can be published, and builds what is in them and nothing else.
#
# `cargo package` builds them one by one itself, and takes those of an earlier run for the same version where one
# depends on another; here each time is the first.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

kept=(tests stepped-tests conformance doc benches)
target=$(target_directory)
rm -f "$target"/package/*.crate
cargo package --workspace "${kept[@]/#/--exclude=doorbell-}" --no-verify --allow-dirty --offline --quiet

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for crate in "$target"/package/*.crate; do
    tar --extract --touch --file "$crate" --directory "$work"
done
cp Cargo.lock "$work"
{
    echo '[workspace]'
    echo 'resolver = "3"'
    echo 'members = ["*"]'
    echo '[patch.crates-io]'
    for package in "$work"/*/; do
        name=$(basename "$package")
        echo "${name%-*} = { path = \"$name\" }"
    done
} >"$work/Cargo.toml"
cd "$work"
CARGO_TARGET_DIR=$target/packages cargo build --workspace --lib --bins --offline --quiet
echo "packages: ok: $(ls -d -- */ | tr -d / | xargs)"
