#!/bin/sh
# The runner of cargo (.cargo/config.toml): runs the programs and tests that cargo has built. Tests of the packages
# below need a software device, or a process each, and xtask knows which. Programs are not in `deps`.
case ${CARGO_PKG_NAME-}:$1 in
# A process for each test of the documentation, as rustdoc runs them where no runner is set.
*:*/rustdoctest*/rust_out) RUSTDOC_DOCTEST_BIN_PATH=$1 exec "$@" ;;
doorbell-tests:*/deps/* | doorbell-stepped-tests:*/deps/* | soft-mlx5:*/deps/*) ;;
*) exec "$@" ;;
esac
profile=${1%/deps/*}
case $profile in
*/release) flag=--release ;;
*) flag= ;;
esac
# Other profiles and platforms have no device: xtask runs their tests itself.
[ "${CARGO_PKG_NAME}" = soft-mlx5 ] && packages="-p xtask" || packages="-p xtask -p soft-mlx5"
root=$(dirname "$0")/..
(cd "$root" && cargo build --quiet --locked $flag $packages) || exit
exec "$profile/xtask" runner "$@"
