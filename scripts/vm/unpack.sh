#!/usr/bin/env bash
# Unpacks what the virtual machine needs from packages of Debian. Nothing is installed, and no root is needed.
#
#   scripts/vm/unpack.sh CACHE SUITE FLAVOUR
#
# MODULES are modules to be loaded besides those of mlx5.
#
# CACHE/qemu gets QEMU with all its libraries, CACHE/programs what the guest runs and the system does not have, and
# CACHE/SUITE-FLAVOUR the kernel. Its `modules` are loaded at the start, its `consumers` by the cases that need them. When something cannot be had, CACHE/reason says what.
set -euo pipefail

cache=$1 suite=$2 flavour=$3 name=vm
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# The first QEMU whose package has the client of vfio-user.
qemu_suites=(trixie trixie-backports)
programs=(busybox-static kmod iproute2 iputils-ping pciutils ibverbs-utils ibverbs-providers librdmacm1 rdmacm-utils perftest)
programs+=(ethtool fio e2fsprogs iperf3)
modules=(mlx5_core mlx5_ib ib_uverbs ib_umad rdma_cm rdma_ucm)
# Kernel consumers of verbs, and what their cases need. A flavour need not have each.
consumers=(nvme_rdma nvmet_rdma brd smc ib_iser ib_isert rpcrdma nfsd nfsv4)
parts=(arch crypto lib net fs/configfs drivers/infiniband drivers/net/ethernet/mellanox drivers/ptp drivers/pci)
parts+=(drivers/nvme drivers/block drivers/target drivers/scsi fs)
if [ -n "${MODULES-}" ]; then
    read -r -a more <<<"$MODULES"
    modules+=("${more[@]}") parts=('')
fi

. "$(dirname "$0")/../packages.sh"

get_qemu() {
    local new=$cache/new suite=${qemu_suites[-1]}
    found qemu "${qemu_suites[@]}"
    say "fetching QEMU from $suite"
    fetch qemu --target-release "$suite" qemu-system-x86
    rm -rf "$new" "$cache/qemu"
    mkdir -p "$new"
    unpack qemu "$new"
    libraries "$new" "$cache/qemu" >"$new/libraries"
    mv "$new" "$cache/qemu"
}

get_programs() {
    local new=$cache/new
    found system
    say "fetching ${programs[*]}"
    fetch system "${programs[@]}"
    rm -rf "$new" "$cache/programs"
    mkdir -p "$new"
    unpack system "$new"
    libraries "$new" "$cache/programs" >"$new/libraries"
    echo "${programs[*]}" >"$new/packages"
    mv "$new" "$cache/programs"
}

get_kernel() {
    local new=$cache/new world=kernel-$suite packages package=linux-image-$flavour
    found "$world" "$suite"
    # The package of the version, and those that newer suites split it into.
    packages=$(world "$world" apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances "$package" 2>/dev/null | grep -E '^linux-(image|binary|modules)-[0-9]' | sort -u) || true
    [ -n "$packages" ] || die "there is no package $package in $suite"
    rm -rf "$new" "$cache/$suite-$flavour"
    mkdir -p "$new"
    unpack_kernel "$world" "$new" "$packages" "${parts[@]}"
    order_modules "$new" "$cache/programs" modules "${modules[@]}"
    # The modules of consumers, as far as the flavour has them.
    (order_modules "$new" "$cache/programs" consumers "${consumers[@]}") 2>/dev/null || true
    ls "$new/lib/modules" >"$new/version"
    echo "${modules[*]} ${consumers[*]}" >"$new/wanted"
    mv "$new" "$cache/$suite-$flavour"
}

need_debian
[ -e $keyring ] || die "there is no $keyring: install debian-archive-keyring"
mirror=$(cat /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed -n 's/^URIs: *\([^ ]*\).*/\1/p' | head -n 1)
: "${mirror:=http://deb.debian.org/debian}"

mkdir -p "$cache"
[ -x "$cache/qemu/usr/bin/qemu-system-x86_64" ] || get_qemu
[ "$(cat "$cache/programs/packages" 2>/dev/null)" = "${programs[*]}" ] || get_programs
[ "$(cat "$cache/$suite-$flavour/wanted" 2>/dev/null)" = "${modules[*]} ${consumers[*]}" ] || get_kernel
