#!/usr/bin/env bash
# Runs verbs programs and the tests of the direct path above the mlx5 driver of a kernel, in a virtual machine whose
# PCI function `soft-mlx5 serve` plays.
#
#   scripts/vm/run.sh                  KERNEL=bookworm, LINK=ib; FILTER=name runs only what the name contains
#   scripts/vm/run.sh short            a short form, `cargo xtask vm-short`, on an Ethernet port
#   scripts/vm/run.sh shell            a shell in the machine
#
# KERNEL is a suite of Debian, or SUITE/FLAVOUR as in trixie/amd64; the flavour is cloud-amd64 by default. OPTIONS are
# more options of `soft-mlx5 serve`, MODULES more modules, FILES more files for /root of the machine. Needs no root:
# what is not installed is unpacked under target/vm/. Ends with 3 when it cannot run here, which under CI=true is a
# failure. docs/vm.md has the rest.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. scripts/common.sh
. scripts/guest.sh
here=scripts/vm

KERNEL=${KERNEL:-bookworm}
suite=${KERNEL%%/*}
flavour=${KERNEL#"$suite"}
flavour=${flavour#/}
: "${flavour:=cloud-amd64}"
mode=${1-}
if [ "$mode" = short ]; then
    # The connection manager needs an Ethernet port.
    LINK=roce
    FILTER='basics:: cases::devinfo cases::rc_pingpong cases::rping cases::doorbell_selftest cases::warnings'
fi
export LINK=${LINK:-ib} FILTER=${FILTER-}

target=$(target_directory)
cache=$target/vm
kernel=$cache/$suite-$flavour
socket=$cache/socket
device=''

say() {
    echo "vm: $*"
}

failed() {
    show_console
    say "the device:"
    sed 's/^/    /' "$cache/device.log"
    say "FAILED: $*"
    exit 1
}

finish() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    [ -z "$device" ] || kill "$device" 2>/dev/null || true
}
begin
trap finish EXIT
$here/unpack.sh "$cache" "$suite" "$flavour" 9>&- || not_unpacked
build_files
case $mode in
    shell) export SHELL_IN_MACHINE=1 ;;
    # One binary of tests.
    short) files=$(grep -e '^program ' -e '^test .*/suite-[^/]*$' <<<"$files") ;;
esac
$here/image.sh "$cache/programs" "$kernel" "$cache/image" <<<"$files"
say "ready after $((SECONDS - began)) s, starting a machine with Linux $(cat "$kernel/version"), $LINK"

rm -f "$socket"
# shellcheck disable=SC2086
"$target/debug/soft-mlx5" serve --socket "$socket" --link "$LINK" ${OPTIONS-} >"$cache/device.log" 2>&1 9>&- &
device=$!
until grep -q listening "$cache/device.log"; do
    kill -0 $device 2>/dev/null || { say "FAILED: $(cat "$cache/device.log")"; exit 1; }
    sleep 0.1
done

qemu=$cache/qemu
loader=$(find "$qemu" -name ld-linux-x86-64.so.2 | head -n 1)
# The emulated processor is the one of `make rxe`. Without no_timer_check a kernel may panic on a busy machine.
# Memory is shared with the device.
run=(
    "$loader" --library-path "$(cat "$qemu/libraries")" --argv0 qemu-system-x86_64 "$qemu/usr/bin/qemu-system-x86_64"
    -L "$qemu/usr/share/qemu" -L "$qemu/usr/share/seabios" -L "$qemu/usr/lib/ipxe/qemu"
    -machine q35,memory-backend=memory -object memory-backend-memfd,id=memory,size=1G,share=on -m 1G
    -accel tcg,thread=multi -cpu Nehalem,+rdrand -smp 2 -nodefaults -no-user-config -display none -no-reboot
    -kernel "$kernel/vmlinuz" -initrd "$cache/image.cpio"
    -append "console=ttyS0 no_timer_check tsc=reliable oops=panic panic=-1 mitigations=off rdinit=/init"
    -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"'"$socket"'"}}'
)
if [ "$mode" = shell ]; then
    "${run[@]}" -serial mon:stdio -serial null
    exit
fi
run_machine "${run[@]}"
programs=$(grep -c '^test cases::.* \.\.\. ok' "$verdict") || failed "no program ran"
tests=$(grep '^test .* \.\.\. ok' "$verdict" | grep -vc '^test cases::') || true
say "ok: kernel $(cat "$kernel/version"), $programs programs, $tests tests"
