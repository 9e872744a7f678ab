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

# The name of an adapter that the mlx5 driver runs and that this user may open.
connectx() {
    local device uverbs
    for device in /sys/class/infiniband/*; do
        [ "$(basename "$(readlink -f "$device/device/driver" 2>/dev/null)")" = mlx5_core ] || continue
        for uverbs in "$device"/device/infiniband_verbs/uverbs*; do
            uverbs=/dev/infiniband/$(basename "$uverbs")
            if [ -r "$uverbs" ] && [ -w "$uverbs" ]; then
                basename "$device"
                return
            fi
        done
    done
}

# A port that nobody listens on.
free_port() {
    local port=18515
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        port=$((port + 1))
    done
    echo $port
}

# Ends, for something that cannot be run here. Under CI=true that is a failure.
skip() {
    echo "skipped: $*"
    [ "${CI-}" = true ] && exit 1
    exit 3
}

# Installs a subcommand of cargo below the target directory, unless there is one: cargo_tool NAME VERSION
cargo_tool() {
    local tools
    tools=$(target_directory)/tools
    export PATH=$tools/bin:$PATH
    command -v "cargo-$1" >/dev/null || cargo install --quiet --locked --root "$tools" --version "$2" "cargo-$1"
}
