#!/usr/bin/env bash
# Unpacks what the virtual machine needs from packages of Debian. Nothing is installed, and no root is needed.
#
#   scripts/vm/unpack.sh CACHE SUITE FLAVOUR
#
# MODULES are modules to be loaded besides those of mlx5.
#
# CACHE/qemu gets QEMU with all its libraries, CACHE/programs what the guest runs and the system does not have, and
# CACHE/SUITE-FLAVOUR the kernel. When something cannot be had, CACHE/reason says what.
set -euo pipefail

cache=$1 suite=$2 flavour=$3
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# The first QEMU whose package has the client of vfio-user.
qemu_suites=(trixie trixie-backports)
programs=(busybox-static kmod iproute2 iputils-ping pciutils ibverbs-utils ibverbs-providers librdmacm1 rdmacm-utils perftest)
modules=(mlx5_core mlx5_ib ib_uverbs ib_umad rdma_cm rdma_ucm)
# All of a package would be half a gigabyte.
parts=(arch crypto lib net fs/configfs drivers/infiniband drivers/net/ethernet/mellanox drivers/ptp drivers/pci)
if [ -n "${MODULES-}" ]; then
    read -r -a more <<<"$MODULES"
    modules+=("${more[@]}") parts=('')
fi

say() {
    echo "vm: $*" >&2
}

die() {
    echo "$*" >"$cache/reason"
    exit 1
}

# Runs a program of apt on lists and archives of its own: world NAME PROGRAM ARGUMENTS. World `system` has the
# sources and the installed packages of the system; every other world has the suites that `found` gave it and nothing
# installed, so that a package comes with all its dependencies.
world() {
    local root=$cache/apt/$1 program=$2
    shift 2
    local apt=(
        -o Dir::State="$root/state" -o Dir::Cache="$root/cache" -o APT::Sandbox::User="$(id -un)"
        -o Debug::NoLocking=true -o Acquire::Retries=3 -o Acquire::http::Timeout=20
        -o Acquire::Languages=none -qq
    )
    if [ -e "$root/sources.list" ]; then
        apt+=(
            -o Dir::Etc::SourceList="$root/sources.list" -o Dir::Etc::SourceParts=/dev/null
            -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
            -o Dir::State::Status="$root/status"
        )
    else
        apt+=(-o Dir::State::Status=/var/lib/dpkg/status)
    fi
    timeout 600 "$program" "${apt[@]}" "$@"
}

# Makes a world of these suites: found NAME SUITE...
found() {
    local root=$cache/apt/$1 name=$1 one
    shift
    mkdir -p "$root"/{state/lists/partial,cache/archives/partial}
    rm -f "$root"/cache/archives/*.deb "$root/sources.list"
    for one in "$@"; do
        echo "deb [signed-by=$keyring] $mirror $one main"
    done >"$root/draft"
    if [ -s "$root/draft" ]; then
        mv "$root/draft" "$root/sources.list"
        : >"$root/status"
    fi
    say "reading the package lists of ${*:-the system}"
    world "$name" apt-get update >&2 || die "apt-get update failed for ${*:-the system}: is there a network?"
}

# Unpacks all fetched archives of a world to a directory.
unpack() {
    local archive
    for archive in "$cache/apt/$1"/cache/archives/*.deb; do
        [ ! -e "$archive" ] || dpkg -x "$archive" "$2"
    done
    rm -f "$cache/apt/$1"/cache/archives/*.deb
}

# The directories of a tree that hold libraries, separated by colons.
libraries() {
    find "$1" -name '*.so*' -printf '%h\n' | sort -u | sed "s,^$1,$2," | paste -sd:
}

get_qemu() {
    local new=$cache/new
    found qemu "${qemu_suites[@]}"
    say "fetching QEMU from ${qemu_suites[-1]}"
    world qemu apt-get install --yes --download-only --no-install-recommends \
        --target-release "${qemu_suites[-1]}" qemu-system-x86 >&2 || die "apt-get cannot fetch QEMU from ${qemu_suites[-1]}"
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
    # What is installed already is not fetched.
    world system apt-get install --yes --download-only --no-install-recommends "${programs[@]}" >&2 ||
        die "apt-get cannot fetch ${programs[*]}"
    rm -rf "$new" "$cache/programs"
    mkdir -p "$new"
    unpack system "$new"
    libraries "$new" "$cache/programs" >"$new/libraries"
    echo "${programs[*]}" >"$new/packages"
    mv "$new" "$cache/programs"
}

get_kernel() {
    local new=$cache/new name=kernel-$suite archive version packages package kmod
    found "$name" "$suite"
    package=linux-image-$flavour
    # The package of the version, and those that newer suites split it into.
    packages=$(world "$name" apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances "$package" 2>/dev/null | grep -E '^linux-(image|binary|modules)-[0-9]' | sort -u) || true
    [ -n "$packages" ] || die "there is no package $package in $suite"
    say "fetching" $packages
    (cd "$cache/apt/$name/cache/archives" && world "$name" apt-get download $packages) >&2 ||
        die "apt-get cannot fetch" $packages
    rm -rf "$new" "$cache/$suite-$flavour"
    mkdir -p "$new"
    for archive in "$cache/apt/$name"/cache/archives/*.deb; do
        # A package need not have each of them.
        dpkg --fsys-tarfile "$archive" | tar -x -C "$new" --wildcards --no-anchored 'vmlinuz*' 'modules.*' \
            "${parts[@]/#/kernel/}" 2>/dev/null || true
    done
    rm -f "$cache/apt/$name"/cache/archives/*.deb
    [ -d "$new/lib" ] || ln -s usr/lib "$new/lib"
    mv "$(find "$new" -name 'vmlinuz*' | head -n 1)" "$new/vmlinuz"
    version=$(ls "$new/lib/modules")
    kmod=$(PATH=$cache/programs/bin:$cache/programs/usr/bin:$PATH command -v kmod) || die "there is no kmod"
    # Newer packages leave lists out that depmod can do without.
    (exec -a depmod "$kmod" --basedir "$new" "$version") 2>/dev/null
    (exec -a modprobe "$kmod" --config /dev/null --dirname "$new" --set-version "$version" --all --show-depends \
        "${modules[@]}") | sed -n "s,^insmod $new\(/[^ ]*\).*,\1,p" | awk '!seen[$0]++' >"$new/modules"
    [ -s "$new/modules" ] || die "$package of $suite lacks one of ${modules[*]}"
    echo "$version" >"$new/version"
    echo "${modules[*]}" >"$new/wanted"
    mv "$new" "$cache/$suite-$flavour"
}

command -v apt-get >/dev/null || die "packages of Debian are needed and there is no apt-get"
[ "$(dpkg --print-architecture)" = amd64 ] || die "the machine is an amd64 one and the system is not"
[ -e $keyring ] || die "there is no $keyring: install debian-archive-keyring"
mirror=$(cat /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed -n 's/^URIs: *\([^ ]*\).*/\1/p' | head -n 1)
: "${mirror:=http://deb.debian.org/debian}"

mkdir -p "$cache"
[ -x "$cache/qemu/usr/bin/qemu-system-x86_64" ] || get_qemu
[ "$(cat "$cache/programs/packages" 2>/dev/null)" = "${programs[*]}" ] || get_programs
[ "$(cat "$cache/$suite-$flavour/wanted" 2>/dev/null)" = "${modules[*]}" ] || get_kernel
