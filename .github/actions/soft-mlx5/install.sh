#!/usr/bin/env bash
# Installs the libraries of rdma-core and soft-mlx5: install.sh [VERSION]
#
# Without a version it installs the soft-mlx5 beside it.
set -euo pipefail
here=$(cd "$(dirname "$0")/../../.." && pwd)

root=()
[ "$(id -u)" = 0 ] || root=(sudo)
"${root[@]}" apt-get update -qq
"${root[@]}" apt-get install -y -qq --no-install-recommends \
    gcc libc6-dev ca-certificates libibverbs-dev ibverbs-providers ibverbs-utils
if [ -n "${1-}" ]; then
    cargo install --locked soft-mlx5 --version "$1"
else
    cargo install --locked --path "$here/soft-mlx5"
fi
soft-mlx5 run -- ibv_devinfo
