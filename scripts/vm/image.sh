#!/usr/bin/env bash
# Makes the file system of the virtual machine: scripts/vm/image.sh PROGRAMS KERNEL OUT writes OUT.cpio.
#
# PROGRAMS and KERNEL are directories that unpack.sh filled. Standard input has a line `test FILE` or `program FILE` for
# each executable that goes in beside those that are always there. FILES go to /root.
set -euo pipefail
here=$(dirname "$0")
. "$here/../guest.sh"
tree=$1 kernel=$2 out=$3
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(cat "$tree/libraries")

rm -rf "$out"
mkdir -p "$out"/{bin,dev,etc,modules,proc,root,run,sys,tmp,usr/bin,suite/tests,suite/programs}

add "$(find_program busybox)" bin/busybox
programs=(rdma ip ping lspci ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong)
programs+=(ethtool devlink fio mke2fs iperf3)
programs+=(rping ucmatose ib_write_lat ib_send_lat ib_send_bw ib_write_bw ib_read_lat ib_atomic_lat)
for program in "${programs[@]}"; do
    add_program "$program"
done
# What soft-mlx5 answers as a kernel, to be compared with the answers of this kernel.
answers=$here/../../soft-mlx5/tests/programs/answers
cc -O1 "$answers.c" -libverbs -o "$out/usr/bin/answers"
add_libraries "$out/usr/bin/answers"
case ${LINK-ib} in
    ib) cp "$answers.txt" "$out/suite/answers.txt" ;;
    roce) cp "$answers-roce.txt" "$out/suite/answers.txt" ;;
esac
# Loaded at run time.
libraries=("/usr/lib/*/libibverbs/libmlx5-rdmav*.so" "/usr/lib/*/librdmacm.so.1" "/usr/lib/*/libmlx5.so.1")
# pthread_exit needs it.
libraries+=("/usr/lib/*/libgcc_s.so.1")
for library in "${libraries[@]}"; do
    library=$(find_file "$library")
    add "$library"
    add_libraries "$library"
done
add "$(find_file /etc/libibverbs.d/mlx5.driver)"

add_modules() {
    local module name
    while read -r module; do
        name=$(basename "$module" .xz)
        case $module in
            *.xz) "$(find_program busybox)" xz -dc "$kernel$module" >"$out/modules/$name" ;;
            *) cp "$kernel$module" "$out/modules/$name" ;;
        esac
        echo "/modules/$name"
    done
}
add_modules <"$kernel/modules" >"$out/etc/modules"
add_modules <"$kernel/consumers" >"$out/etc/consumers"
# Where modprobe looks, and where the kernel looks for modprobe.
version=$(cat "$kernel/version")
mkdir -p "$out/lib/modules"
ln -s /modules "$out/lib/modules/$version"
sed 's,[^ ]*/,,g; s/\.xz//g' "$kernel/lib/modules/$version/modules.dep" >"$out/modules/modules.dep"
cp "$kernel/lib/modules/$version/modules.alias" "$out/modules/"
ln -s bin "$out/sbin"

add_suite

cp "$here/../rxe/guest"/{init,all.sh,listening} "$out/suite/"
cp -r "$here/guest/." "$out/suite/"
mv "$out/suite/init" "$out/init"
# The cases of a machine by itself, or those of machines and a process on one fabric, which go one after the other.
if [ "${CASES-}" = fabric ]; then
    cc -O1 -shared -fPIC "$here/guest/smc.c" -o "$out/suite/smc.so" -ldl
    mv "$out/suite/alone/warnings.sh" "$out/suite/"
    rm -r "$out/suite/cases" "$out/suite/alone"
    mkdir "$out/suite/cases" "$out/suite/alone"
    mv "$out/suite/warnings.sh" "$out/suite/alone/"
    mv "$out/suite/fabric"/* "$out/suite/alone/"
fi
rm -r "$out/suite/fabric" "$out/suite/smc.c"
echo "${FILTER-}" >"$out/suite/filter"
case ${LINK-ib} in
    ib) echo "export LINK=ib GID_OPTION= GID_X_OPTION=" ;;
    # Index of the IPv4 address, RoCE version 2.
    roce) echo "export LINK=roce GID_OPTION='-g 3' GID_X_OPTION='-x 3'" ;;
esac >>"$out/suite/environment"
[ -z "${SHELL_IN_MACHINE-}" ] || touch "$out/suite/shell"
for file in ${FILES-}; do
    cp "$file" "$out/root/"
    # Scripts and modules have no libraries.
    ! ldd "$file" >/dev/null 2>&1 || add_libraries "$file"
done
pack
