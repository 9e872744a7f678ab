#!/usr/bin/env bash
# Runs the steps of the GitHub action in clean systems of Debian: action-check.sh [SUITE...]
#
#   scripts/action-check.sh             bookworm (rdma-core 44) and trixie (rdma-core 56)
#
# Needs root, mmdebstrap and a mirror of Debian. The compiler and the crates are those of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

[ "$(id -u)" = 0 ] || skip "only root makes a system: sudo scripts/action-check.sh"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed"
[ $# -gt 0 ] || set -- bookworm trixie

# Runs in namespaces of its own: what is mounted is gone when it ends.
steps() {
    local system=$1
    mount -t proc proc "$system/proc"
    mount --rbind /dev "$system/dev"
    mkdir -p "$system"/{repository,toolchain,root/.cargo/registry}
    mount --bind . "$system/repository"
    mount --bind "$(rustc --print sysroot)" "$system/toolchain"
    mount --bind "${CARGO_HOME:-$HOME/.cargo}/registry" "$system/root/.cargo/registry"
    cp /etc/resolv.conf "$system/etc/resolv.conf"
    # As in .github/workflows/ci.yml.
    chroot "$system" env -i HOME=/root PATH=/root/.cargo/bin:/toolchain/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        CARGO_TARGET_DIR=/tmp/target CARGO_NET_OFFLINE=true DEBIAN_FRONTEND=noninteractive bash -euc '
            cd /tmp
            /repository/.github/actions/soft-mlx5/install.sh ""
            soft-mlx5 run --strict -- ibv_devinfo
            dpkg-query --showformat="action: rdma-core \${Version}\n" --show libibverbs1'
}

if [ "${1-}" = --inside ]; then
    steps "$2"
    exit
fi
cargo fetch --locked --quiet
systems=$(target_directory)/action
mkdir -p "$systems"
for suite in "$@"; do
    echo "action: $suite"
    system=$(mktemp -d "$systems/$suite-XXXXXX")
    chmod 755 "$system"
    code=0
    mmdebstrap --quiet --variant=apt --include=ca-certificates "$suite" "$system" &&
        unshare --mount --pid --fork --kill-child scripts/action-check.sh --inside "$system" || code=$?
    rm -rf --one-file-system "$system"
    [ "$code" = 0 ] || { echo "action: $suite: FAILED"; exit "$code"; }
    echo "action: $suite: ok"
done
