#!/usr/bin/env bash
# Makes the file system of the virtual machine: scripts/rxe/image.sh TREE OUT writes OUT.cpio.
#
# Standard input has a line `test FILE` or `program FILE` for each executable that goes in beside those
# that are always there.
set -euo pipefail
here=$(dirname "$0")
. "$here/../guest.sh"
tree=$1
out=$2
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(cat "$tree/libraries")

rm -rf "$out"
mkdir -p "$out"/{bin,dev,etc,proc,run,sys,tmp,usr/bin,suite/tests,suite/programs}

add "$(find_program busybox)" bin/busybox
for program in rdma ibv_devinfo ibv_rc_pingpong ibv_srq_pingpong ibv_ud_pingpong; do
    add_program "$program"
done

# No other provider where libibverbs looks: what is proven here owes nothing to libmlx5. It lies apart, for
# the case that needs both.
mlx5=$(find_file "/usr/lib/*/libmlx5.so.1")
add "$mlx5" mlx5/libmlx5.so.1
add_libraries "$mlx5"
provider=$(find_file "/usr/lib/*/libibverbs/librxe-rdmav*.so")
ln -s libmlx5.so.1 "$out/mlx5/libmlx5-${provider##*-}"
add "$provider"
add_libraries "$provider"
add "$(find_file /etc/libibverbs.d/rxe.driver)"
# Loaded at run time.
for library in $(find_file "/usr/lib/*/librdmacm.so.1"); do
    add "$library"
    add_libraries "$library"
done

while read -r module; do
    add "$tree$module" "modules/$(basename "$module")"
    echo "/modules/$(basename "$module")"
done <"$tree/modules" >"$out/etc/modules"

add_suite

cp -r "$here/guest/." "$out/suite/"
mv "$out/suite/init" "$out/init"
echo "${FILTER-}" >"$out/suite/filter"
pack
