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
