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
. scripts/common.sh
. scripts/guest.sh
here=scripts/rxe

# Seconds in which neither serial port says anything: init gives up on a suite before.
stalled=900

target=$(target_directory)
cache=$target/rxe
console=$cache/console.log
verdict=$cache/verdict.log
machine=

say() {
    echo "rxe: $*"
}

failed() {
    say "the console of the machine:"
    tr -d '\r' <"$console" | sed 's/^/    /'
    say "FAILED: $*"
    exit 1
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock --wait 300 9 || { say "FAILED: another run does not end"; exit 1; }

began=$SECONDS
rm -f "$cache/reason"
tree=$($here/unpack.sh "$cache" 9>&-) || skip "$(cat "$cache/reason" 2>/dev/null || echo 'unpacking failed')"

say "building the tests"
# In the group of this script, whose processor time says that it is not stalled.
files=$(timeout --foreground 3600 cargo xtask vm-files)
$here/image.sh "$tree" "$cache/image" <<<"$files"
say "ready after $((SECONDS - began)) s, starting the machine"

# The verdict comes through a port of its own: nothing that the kernel says can be taken for it. KVM is
# never used: that it is there does not mean that it works. Separate page tables for the kernel would
# cost an emulated processor a third of its speed; without RDRAND it waits for random numbers.
began=$SECONDS
: >"$console" >"$verdict"
trap '[ -z "$machine" ] || kill "$machine" 2>/dev/null || true' EXIT
LD_LIBRARY_PATH=$(cat "$tree/libraries") "$(PATH=$tree/usr/bin:$PATH command -v qemu-system-x86_64)" \
    -M q35 -accel tcg,thread=multi -cpu Nehalem,+rdrand -smp 2 -m 512 -nodefaults -no-user-config \
    -display none -no-reboot -kernel "$tree/vmlinuz" -initrd "$cache/image.cpio" \
    -append "console=ttyS0 quiet oops=panic panic=-1 mitigations=off rdinit=/init" \
    -serial "file:$console" -serial "file:$verdict" </dev/null 9>&- &
machine=$!
code=0
watch_machine $machine "$console" "$verdict" $stalled || code=$?
machine=

[ $code = 0 ] || failed "QEMU ended with $code"
ended=$(sed -n 's/^verdict: //p' "$verdict")
[ -n "$ended" ] || failed "the machine ended without a verdict"
[ "$ended" = ok ] || failed "$ended"
passed=$(grep -c '^test .* \.\.\. ok' "$verdict") || failed "no test ran"
skipped=$(grep -c '^test .* \.\.\. skipped, ' "$verdict") || true
say "$((SECONDS - began)) s in the machine, $skipped tests skipped for the reasons above"
say "ok: $passed tests"
