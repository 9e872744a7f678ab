#!/usr/bin/env bash
# Runs the tests of the verbs path on Soft-RoCE, in a virtual machine with a kernel of Debian.
#
#   FILTER=name scripts/rxe/run.sh    only the tests whose name contains it
#
# Needs no root: what is not installed is unpacked under target/rxe/. Ends with 3 when it cannot run
# here, which under CI=true is a failure. docs/rxe.md has the rest.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
here=scripts/rxe

# Seconds from the start of the machine to its end.
limit=120

target=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cache=$target/rxe
console=$cache/console.log
verdict=$cache/verdict.log

say() {
    echo "rxe: $*"
}

skip() {
    say "skipped: $*"
    [ "${CI-}" = true ] && exit 1
    exit 3
}

# Prints the executables that cargo makes of its arguments: those that pass for a test only if the
# first one is `true`.
executables() {
    local test=$1
    shift
    timeout 900 cargo "$@" --message-format=json |
        sed -n "/\"reason\":\"compiler-artifact\".*\"overflow_checks\":[a-z]*,\"test\":$test}/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock --wait 300 9 || { say "another run does not end"; exit 1; }

began=$SECONDS
reason=$(mktemp)
trap 'rm -f "$reason"' EXIT
tree=$($here/unpack.sh "$cache" 2> >(tee "$reason" >&2)) || skip "$(tail -n 1 "$reason")"

say "building the tests"
tests=$(executables true test -p doorbell-tests --tests --no-run)
programs=$(
    executables false build -p doorbell-tests --bins
    executables false build -p doorbell --examples
)

$here/image.sh "$tree" "$cache/image" <<<"$(sed 's/^/test /' <<<"$tests"; sed 's/^/program /' <<<"$programs")"
say "ready after $((SECONDS - began)) s, starting the machine"

# The verdict comes through a port of its own: nothing that the kernel says can be taken for it.
began=$SECONDS
: >"$console" >"$verdict"
code=0
LD_LIBRARY_PATH=$(cat "$tree/libraries") timeout --kill-after=5 "$limit" \
    "$(PATH=$tree/usr/bin:$PATH command -v qemu-system-x86_64)" \
    -M q35 -accel tcg,thread=multi -cpu Nehalem -smp 2 -m 512 -nodefaults -no-user-config \
    -display none -no-reboot -kernel "$tree/vmlinuz" -initrd "$cache/image.cpio" \
    -append "console=ttyS0 quiet oops=panic panic=-1 rdinit=/init" \
    -serial "file:$console" -serial "file:$verdict" </dev/null &
machine=$!
tail --pid=$machine --lines=+1 --sleep-interval=0.2 --follow "$verdict" | grep --line-buffered -v '^verdict: ' &
shown=$!
wait $machine || code=$?
wait $shown || true

failed() {
    say "the console of the machine:"
    tr -d '\r' <"$console" | sed 's/^/    /'
    say "FAILED: $*"
    exit 1
}

[ $code != 124 ] || failed "the machine did not end in $limit s"
[ $code = 0 ] || failed "qemu ended with $code"
ended=$(sed -n 's/^verdict: //p' "$verdict")
[ -n "$ended" ] || failed "the machine ended without a verdict"
[ "$ended" = ok ] || failed "$ended"
passed=$(grep -c '^test .* \.\.\. ok' "$verdict") || failed "no test ran"
say "$((SECONDS - began)) s in the machine, $(grep -c '^test .* \.\.\. ignored' "$verdict" || true) tests skipped"
say "ok: $passed tests"
