#!/usr/bin/env bash
# Installs what C programs need to attach objects to doorbell: library, header, and a file for pkg-config.
#
#   scripts/install-c.sh PREFIX [LIBRARY]    DESTDIR is put before all; without LIBRARY one is built
set -euo pipefail

prefix=$(realpath -m "${1:?usage: install-c.sh PREFIX [LIBRARY]}")
library=${2-}
cd "$(dirname "$0")/.."
if [ -z "$library" ]; then
    cargo build --release --locked --package doorbell-drop-in --lib
    library=${CARGO_TARGET_DIR:-target}/release/libdoorbell_drop_in.so
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
to=${DESTDIR-}$prefix
install -D -m 755 "$library" "$to/lib/libdoorbell_drop_in.so"
install -D -m 644 drop-in/include/doorbell.h "$to/include/doorbell.h"
# Programs find the library where it was installed, without ldconfig and LD_LIBRARY_PATH.
rpath=
[ "$prefix" = /usr ] || rpath=' -Wl,-rpath,${prefix}/lib'
install -d "$to/lib/pkgconfig"
cat >"$to/lib/pkgconfig/doorbell-drop-in.pc" <<END
prefix=$prefix

Name: doorbell-drop-in
Description: doorbell's data path for single objects of libibverbs on mlx5 devices
Version: $version
Libs: -L\${prefix}/lib$rpath -ldoorbell_drop_in
Requires.private: libibverbs
Cflags: -I\${prefix}/include
END
echo "install-c: ok: $to/lib/libdoorbell_drop_in.so, $to/include/doorbell.h, $to/lib/pkgconfig/doorbell-drop-in.pc"
[ "$prefix" = /usr ] || echo "install-c: pkg-config tells programs to look for the library in $prefix/lib (rpath)"
case $prefix in
/usr | /usr/local) ;;
*) echo "install-c: export PKG_CONFIG_PATH=$prefix/lib/pkgconfig before you call pkg-config" ;;
esac
