#!/usr/bin/env bash
# Sends many messages through one SRQ of soft-mlx5, over a link on which everything goes wrong:
#
#   scripts/soak.sh [MESSAGES]    100,000,000 by default, which takes minutes
set -euo pipefail
cd "$(dirname "$0")/.."

SOAK_MESSAGES=${1:-100000000} timeout 7200 \
    cargo test --release --quiet -p soft-mlx5 --lib engine::tests::soak::long -- --ignored --nocapture
