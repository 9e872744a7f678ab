# shellcheck shell=bash
# Sourced by the scripts that unpack packages of Debian for a virtual machine, without installing them and without root.
# `$cache` is where they are unpacked, `$name` the beginning of each line that is printed. When something cannot be had,
# $cache/reason says what.

say() {
    echo "$name: $*" >&2
}

die() {
    echo "$*" >"$cache/reason"
    exit 1
}

# Ends where packages of Debian for amd64 cannot be used.
need_debian() {
    command -v apt-get >/dev/null || die "packages of Debian are needed and there is no apt-get"
    [ "$(dpkg --print-architecture)" = amd64 ] || die "the machine is an amd64 one and the system is not"
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
    local root=$cache/apt/$1 world=$1 one
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
    world "$world" apt-get update >&2 || die "apt-get update failed for ${*:-the system}: is there a network?"
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

# Fetches packages with their dependencies, except what is installed already: fetch WORLD OPTION... PACKAGE...
fetch() {
    local world=$1
    shift
    world "$world" apt-get install --yes --download-only --no-install-recommends "$@" >&2 ||
        die "apt-get cannot fetch ${*: -1}"
}

# Fetches the packages of a kernel, and unpacks the kernel and its modules below these directories of it:
# unpack_kernel WORLD DIRECTORY "PACKAGES" PART... All of a package would be half a gigabyte.
unpack_kernel() {
    local archives=$cache/apt/$1/cache/archives new=$2 packages=$3 archive world=$1
    shift 3
    say "fetching" $packages
    (cd "$archives" && world "$world" apt-get download $packages) >&2 || die "apt-get cannot fetch" $packages
    for archive in "$archives"/linux-*.deb; do
        # A package need not have each of them.
        dpkg --fsys-tarfile "$archive" | tar -x -C "$new" --wildcards --no-anchored 'vmlinuz*' 'modules.*' \
            "${@/#/kernel/}" 2>/dev/null || true
        rm "$archive"
    done
    [ -d "$new/lib" ] || ln -s usr/lib "$new/lib"
    mv "$(find "$new" -name 'vmlinuz*' | head -n 1)" "$new/vmlinuz"
}

# Writes the files of modules to DIRECTORY/LIST in the order in which they are loaded: order_modules DIRECTORY PROGRAMS
# LIST MODULE... PROGRAMS is where kmod may be.
order_modules() {
    local new=$1 programs=$2 list=$3 kmod version
    shift 3
    version=$(ls "$new/lib/modules")
    kmod=$(PATH=$programs/bin:$programs/usr/bin:$PATH command -v kmod) || die "there is no kmod"
    # Newer packages leave lists out that depmod can do without.
    (exec -a depmod "$kmod" --basedir "$new" "$version") 2>/dev/null
    (exec -a modprobe "$kmod" --config /dev/null --dirname "$new" --set-version "$version" --all --show-depends "$@") |
        sed -n "s,^insmod $new\(/[^ ]*\).*,\1,p" | awk '!seen[$0]++' >"$new/$list"
    [ -s "$new/$list" ] || die "Linux $version lacks one of $*"
}
