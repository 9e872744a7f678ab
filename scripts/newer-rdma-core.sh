#!/usr/bin/env bash
# Unpacks, without installing, the rdma-core of a newer Debian and what it needs, and prints a command
# that runs a program on it: newer-rdma-core.sh [SUITE [python]]
#
# With `python` the command is an interpreter with pyverbs, and rdma-core's tests are below usr/share/doc/rdma-core.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

suite=${1:-trixie} python=${2-}
target=$(target_directory)
root=$target/rdma-core/$suite${python:+-python}
libraries=$root/files/usr/lib/x86_64-linux-gnu

if [ ! -e "$root/done" ]; then
    rm -rf "$root"
    mkdir -p "$root"/{lists/partial,archives/partial,files}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" \
        >"$root/sources.list"
    # A world of its own for apt: nothing of the system is read or changed.
    apt=(-o "Dir::Etc::SourceList=$root/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
        -o "Dir::State::Lists=$root/lists" -o "Dir::Cache=$root" -o Dir::State::Status=/dev/null
        -o Debug::NoLocking=true -o APT::Sandbox::User= -o Acquire::Languages=none -qq)
    (
        cd "$root"
        timeout 300 apt-get "${apt[@]}" update
        packages=(libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200 libc6 libgcc-s1)
        if [ -n "$python" ]; then
            version=$(apt-cache "${apt[@]}" depends python3-pyverbs | sed -n 's/.*Depends: libpython\(3\.[0-9]*\).*/\1/p' | head -n 1)
            packages+=(python3-pyverbs rdma-core librdmacm1t64 libibumad3 zlib1g libexpat1 libffi8)
            packages+=("python$version-minimal" "libpython$version" "libpython$version-minimal" "libpython$version-stdlib")
        fi
        timeout 300 apt-get "${apt[@]}" download "${packages[@]}"
        for package in *.deb; do
            dpkg-deb -x "$package" files
        done
        # The unpacked libibverbs shall not load the provider of the system: it looks for a directory of
        # configuration that does not exist, and the environment names the provider.
        sed -i 's#/etc/libibverbs\.d#/non/libibverbs.d#g' files/usr/lib/x86_64-linux-gnu/libibverbs.so.1.*
        ls -1 ./*.deb >done
    ) >&2
fi
# The provider's suffix has a number that changes; libibverbs adds it.
provider=$libraries/libibverbs/libmlx5
loader=$(find "$root/files" -name 'ld-linux-x86-64.so.2' -type f -o -name 'ld-linux-x86-64.so.2' -type l | head -1)
command="$loader --library-path $libraries"
if [ -n "$python" ]; then
    usr=$root/files/usr
    command="PYTHONHOME=$usr PYTHONPATH=$usr/lib/python3/dist-packages $command $(find "$usr/bin" -name 'python3.*')"
fi
echo "env IBV_DRIVERS=$provider $command"
