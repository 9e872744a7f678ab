#!/usr/bin/env bash
# Unpacks what the virtual machine needs and the system does not have, and prints where it is.
#
#   scripts/rxe/unpack.sh CACHE
#
# Nothing is installed: QEMU may be in conflict with what is, and a kernel would be one to boot. When
# something cannot be had, CACHE/reason says what.
set -euo pipefail

cache=$1 name=rxe
packages=(qemu-system-x86 busybox-static kmod iproute2 ibverbs-utils ibverbs-providers librdmacm1)

. "$(dirname "$0")/../packages.sh"

# Whether a tree has all that the system does not have, now.
complete() {
    local path=$1/usr/bin:$1/bin:$1/usr/sbin:$1/sbin:$PATH:/usr/sbin:/sbin program
    [ "$(cat "$1/packages" 2>/dev/null)" = "${packages[*]}" ] || return
    for program in qemu-system-x86_64 busybox rdma ibv_devinfo; do
        program=$(PATH=$path command -v "$program") || return
        ! LD_LIBRARY_PATH=$(cat "$1/libraries") ldd "$program" 2>/dev/null | grep -q 'not found' || return
    done
}

for tree in "$cache"/linux-image-*; do
    if complete "$tree"; then
        echo "$tree"
        exit
    fi
done

need_debian
found system
# The name of the kernel's package changes with each update.
kernel=$(world system apt-cache depends linux-image-amd64 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p') || true
[ -n "$kernel" ] || die "there is no package linux-image-amd64"
tree=$cache/$kernel new=$cache/new
rm -rf "$new" "$tree"
mkdir -p "$new"
say "fetching ${packages[*]}"
fetch system "${packages[@]}"
unpack system "$new"
unpack_kernel system "$new" "$kernel" arch crypto lib net fs/configfs drivers/infiniband 'drivers/net/dummy.*'
libraries "$new" "$tree" >"$new/libraries"
echo "${packages[*]}" >"$new/packages"
# No dependency leads to the checksum, but a Soft-RoCE device cannot be made without it.
order_modules "$new" "$new" modules crc32_generic rdma_rxe dummy rdma_ucm

mv "$new" "$tree"
complete "$tree" || die "$tree lacks something after all packages were unpacked"
echo "$tree"
