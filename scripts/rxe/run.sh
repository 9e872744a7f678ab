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

target=$(target_directory)
cache=$target/rxe

say() {
    echo "rxe: $*"
}

failed() {
    show_console
    say "FAILED: $*"
    exit 1
}

begin
tree=$($here/unpack.sh "$cache" 9>&-) || not_unpacked
build_files
$here/image.sh "$tree" "$cache/image" <<<"$files"
say "ready after $((SECONDS - began)) s, starting the machine"

# The verdict comes through a port of its own: nothing that the kernel says can be taken for it. KVM is
# never used: that it is there does not mean that it works. Separate page tables for the kernel would
# cost an emulated processor a third of its speed; without RDRAND it waits for random numbers.
trap '[ -z "$machine" ] || kill "$machine" 2>/dev/null || true' EXIT
qemu=$(PATH=$tree/usr/bin:$PATH command -v qemu-system-x86_64)
run_machine env LD_LIBRARY_PATH="$(cat "$tree/libraries")" "$qemu" \
    -M q35 -accel tcg,thread=multi -cpu Nehalem,+rdrand -smp 2 -m 512 -nodefaults -no-user-config \
    -display none -no-reboot -kernel "$tree/vmlinuz" -initrd "$cache/image.cpio" \
    -append "console=ttyS0 quiet oops=panic panic=-1 mitigations=off rdinit=/init"
passed=$(grep -c '^test .* \.\.\. ok' "$verdict") || failed "no test ran"
say "ok: $passed tests"
