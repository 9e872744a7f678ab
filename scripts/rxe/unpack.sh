#!/usr/bin/env bash
# Unpacks what the virtual machine needs and the system does not have, and prints where it is.
#
#   scripts/rxe/unpack.sh CACHE
#
# Nothing is installed: QEMU may be in conflict with what is, and a kernel would be one to boot. When
# something cannot be had, CACHE/reason says what.
set -euo pipefail

cache=$1
packages=(qemu-system-x86 busybox-static kmod iproute2 ibverbs-utils ibverbs-providers librdmacm1)

say() {
    echo "rxe: $*" >&2
}

die() {
    echo "$*" >"$cache/reason"
    exit 1
}

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

command -v apt-get >/dev/null || die "packages of Debian are needed and there is no apt-get"
[ "$(dpkg --print-architecture)" = amd64 ] || die "the machine is an amd64 one and the system is not"

# Lists and archives of our own need no root and leave those of the system alone.
mkdir -p "$cache"/apt/{state/lists/partial,cache/archives/partial}
apt=(
    -o Dir::State="$cache/apt/state" -o Dir::State::status=/var/lib/dpkg/status
    -o Dir::Cache="$cache/apt/cache" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=true
    -o Acquire::Retries=3 -o Acquire::http::Timeout=20 -qq
)
archives=$cache/apt/cache/archives
rm -f "$archives"/*.deb

say "asking for packages"
timeout 120 apt-get "${apt[@]}" update >&2 || die "apt-get update failed: is there a network?"
# Its name changes with each update.
kernel=$(apt-cache "${apt[@]}" depends linux-image-amd64 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p') || true
[ -n "$kernel" ] || die "there is no package linux-image-amd64"

say "fetching $kernel, ${packages[*]}"
# What is installed already is not fetched.
timeout 300 apt-get "${apt[@]}" install --yes --download-only --no-install-recommends "${packages[@]}" >&2 ||
    die "apt-get cannot fetch ${packages[*]}"
(cd "$archives" && timeout 300 apt-get "${apt[@]}" download "$kernel") >&2 || die "apt-get cannot fetch $kernel"

tree=$cache/$kernel
new=$cache/new
rm -rf "$new" "$tree"
mkdir -p "$new"
for archive in "$archives"/*.deb; do
    case $archive in
        */linux-image-*)
            # All of it would be half a gigabyte.
            dpkg --fsys-tarfile "$archive" | tar -x -C "$new" --wildcards './boot/vmlinuz*' \
                './lib/modules/*/modules.*' \
                './lib/modules/*/kernel/'{arch,crypto,lib,net,fs/configfs,drivers/infiniband} \
                './lib/modules/*/kernel/drivers/net/dummy.*'
            ;;
        *) dpkg -x "$archive" "$new" ;;
    esac
done
rm -f "$archives"/*.deb

mv "$new"/boot/vmlinuz* "$new/vmlinuz"
find "$new" -name '*.so.*' -printf '%h\n' | sort -u | sed "s,^$new,$tree," | paste -sd: >"$new/libraries"
echo "${packages[*]}" >"$new/packages"

# The order in which modules are loaded. No dependency leads to the checksum, but a Soft-RoCE device
# cannot be made without it.
version=$(ls "$new/lib/modules")
kmod=$(PATH=$new/bin:$new/usr/bin:$PATH command -v kmod) || die "there is no kmod"
(exec -a depmod "$kmod" --basedir "$new" "$version")
(exec -a modprobe "$kmod" --config /dev/null --dirname "$new" --set-version "$version" --all \
    --show-depends crc32_generic rdma_rxe dummy rdma_ucm) |
    sed -n "s,^insmod $new\(/[^ ]*\).*,\1,p" | awk '!seen[$0]++' >"$new/modules"

mv "$new" "$tree"
complete "$tree" || die "$tree lacks something after all packages were unpacked"
echo "$tree"
