# shellcheck shell=bash
# Sourced by the other scripts, in the root of the repository.

# Where cargo puts what it builds.
target_directory() {
    cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# The platform that cargo builds for.
host_platform() {
    rustc -vV | sed -n 's/^host: //p'
}

# Ends, for something that cannot be run here. Under CI=true that is a failure.
skip() {
    echo "skipped: $*"
    [ "${CI-}" = true ] && exit 1
    exit 3
}

# What makes `cargo --config` give each test a process of its own, under a command if one is given:
# apart SECONDS COMMAND
apart() {
    cargo build --quiet -p doorbell-tests --bin isolate
    echo "target.$(host_platform).runner = ['$(target_directory)/debug/isolate', '--limit', '$1', '--under', '$2']"
}
