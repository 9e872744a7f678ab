#!/usr/bin/env bash
# Makes the file system of the virtual machine: scripts/rxe/image.sh TREE OUT writes OUT.cpio.
#
# Standard input has a line `test FILE` or `program FILE` for each executable that goes in beside those
# that are always there.
set -euo pipefail
here=$(dirname "$0")
tree=$1
out=$2
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(cat "$tree/libraries")

rm -rf "$out"
mkdir -p "$out"/{bin,dev,etc,proc,run,sys,tmp,usr/bin,suite/tests,suite/programs}

# Copies a file to where it is on the system, or to the second argument.
add() {
    local to=$out/${2-${1#"$tree"}}
    mkdir -p "$(dirname "$to")"
    cp --dereference "$1" "$to"
}

# Copies the libraries of an executable, and the loader.
add_libraries() {
    local library
    ldd "$1" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' |
        while read -r library; do
            [ -e "$out/${library#"$tree"}" ] || add "$library"
        done
}

# Prints where a program or a file is: unpacked, or in the system.
find_program() {
    PATH=$tree/usr/bin:$tree/bin:$tree/usr/sbin:$tree/sbin:$PATH:/usr/sbin:/sbin command -v "$1"
}
find_file() {
    local file
    for file in "$tree"$1 $1; do
        [ ! -e "$file" ] || { echo "$file"; return; }
    done
    echo "rxe: there is no $1" >&2
    return 1
}

add "$(find_program busybox)" bin/busybox
for program in rdma ibv_devinfo ibv_rc_pingpong ibv_srq_pingpong ibv_ud_pingpong; do
    file=$(find_program "$program")
    add "$file" "usr/bin/$program"
    add_libraries "$file"
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

while read -r kind file; do
    [ -n "$file" ] || continue
    name=$(basename "$file")
    case $kind in
        # Without the hash that cargo appends.
        test) to=$out/suite/tests/${name%-*} ;;
        program) to=$out/suite/programs/$name ;;
    esac
    # Most of a test binary is what a debugger would read.
    strip --strip-debug -o "$to" "$file"
    add_libraries "$file"
done

cp -r "$here/guest/." "$out/suite/"
mv "$out/suite/init" "$out/init"
echo "${FILTER-}" >"$out/suite/filter"
(cd "$out" && find . | "$(find_program busybox)" cpio -o -H newc -R 0:0 2>/dev/null) >"$out.cpio"
