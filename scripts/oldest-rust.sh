#!/bin/sh
# The oldest toolchain that the crates support, by the name that rustup gives it.
cd "$(dirname "$0")/.." && sed -n 's/^rust-version = "\([0-9]*\.[0-9]*\)"$/\1.0/p' Cargo.toml
