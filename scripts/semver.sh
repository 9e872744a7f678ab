#!/usr/bin/env bash
# Lists the changes of the public interfaces since a revision that would break programs, by cargo-semver-checks:
# semver.sh [REVISION]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# Nothing is released yet: this revision has the interface of 0.1.
baseline=${1:-8f38ee58}
cargo_tool semver-checks 0.51.0
# rdma-core-sys is left out: what it has comes from the installed headers.
for crate in mlx5-wire mlx5-ring doorbell soft-mlx5; do
    cargo semver-checks --package "$crate" --baseline-rev "$baseline" --release-type minor
done
