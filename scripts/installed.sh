#!/usr/bin/env bash
# Runs a verbs program on doorbell's data path with the installed programs, from a folder that is nobody's.
#
#   scripts/installed.sh BIN    BIN has doorbell and soft-mlx5
set -euo pipefail

bin=$(realpath "${1:?usage: installed.sh BIN}")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cd /
port=$((20000 + RANDOM % 20000))
export DOORBELL_LOG=1

side() {
    "$bin/soft-mlx5" run --strict --fabric "installed-$$" -- \
        "$bin/doorbell" run -- ibv_rc_pingpong -n 50 -p "$port" "$@"
}

side &
server=$!
# A client that comes before the server listens fails at once.
until side localhost 2>"$log"; do
    kill -0 "$server"
done
wait "$server"
grep 'posts: [1-9][0-9]* by doorbell, 0 by libmlx5' "$log"
