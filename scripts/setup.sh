#!/usr/bin/env bash
# Installs what is missing: Debian packages, and parts of the Rust toolchain.
#
#   scripts/setup.sh build    what building and running needs
#   scripts/setup.sh bench    the above and what the benches need
#   scripts/setup.sh test     the above and what the test-suite needs
#   scripts/setup.sh action   what is needed for building, and for making clean systems
#
# Says nothing and touches no network when all is there.
set -euo pipefail

# rustc links through gcc. Recommended packages are not installed, so libc is named too.
build=(gcc libc6-dev ca-certificates libibverbs-dev ibverbs-providers)
benches=(valgrind)
tests=(ibverbs-utils librdmacm-dev tshark g++ pkg-config)
tests+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
# Verbs programs that soft-mlx5 is judged by, see docs/programs.md.
tests+=(infiniband-diags iproute2 rdma-core python3 python3-pyverbs python3-scapy perftest qperf ucx-utils libfabric-bin rdmacm-utils mpich fio dpdk-dev)

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Runs a command as root; 125 when there is no way to.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else
        return 125
    fi
}

debian_packages() {
    local package missing=()
    if ! command -v dpkg-query >/dev/null; then
        printf 'setup: not a Debian system: needs what Debian calls %s\n' "$*"
        return
    fi
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0

    local install=(apt-get install -y --no-install-recommends "${missing[@]}")
    local apt=(-o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -qq)
    as_root true || die "packages are missing and there is neither root nor sudo; run: ${install[*]}"
    printf 'setup: installing %s\n' "${missing[*]}"
    as_root timeout 300 apt-get "${apt[@]}" update </dev/null ||
        die "apt-get update failed; then run: ${install[*]}"
    as_root timeout 900 "${install[@]}" "${apt[@]}" </dev/null || die "failed: ${install[*]}"
}

rust_parts() {
    command -v cargo >/dev/null || die "cargo is missing: install Rust from https://rustup.rs"
    [ "$1" = test ] || return 0
    if ! command -v rustup >/dev/null; then
        # A toolchain without rustup has what it has; the steps that need more say so.
        return 0
    fi
    local component
    for component in rustfmt clippy; do
        rustup component list --installed | grep -q "^$component" || {
            printf 'setup: adding %s\n' "$component"
            timeout 600 rustup component add "$component"
        }
    done
    rustup target list --installed | grep -qx aarch64-unknown-linux-gnu || {
        printf 'setup: adding the target aarch64-unknown-linux-gnu\n'
        timeout 600 rustup target add aarch64-unknown-linux-gnu
    }
    local oldest
    oldest=$(sed -n 's/^rust-version = "\([0-9.]*\)"$/\1.0/p' Cargo.toml)
    rustup toolchain list | grep -q "^$oldest-" || {
        printf 'setup: installing Rust %s\n' "$oldest"
        timeout 600 rustup toolchain install "$oldest" --profile minimal --no-self-update
    }
}

cd "$(dirname "$0")/.."
case ${1-} in
    build) debian_packages "${build[@]}" ;;
    bench) debian_packages "${build[@]}" "${benches[@]}" ;;
    test) debian_packages "${build[@]}" "${benches[@]}" "${tests[@]}" ;;
    action) debian_packages "${build[@]}" mmdebstrap debian-archive-keyring ;;
    *) die "usage: setup.sh build|bench|test|action" ;;
esac
rust_parts "$1"
