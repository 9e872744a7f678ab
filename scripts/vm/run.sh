#!/usr/bin/env bash
# Runs verbs programs and the tests of the direct path above the mlx5 driver of a kernel, in a virtual machine whose
# PCI function `soft-mlx5 serve` plays.
#
#   scripts/vm/run.sh                  KERNEL=bookworm, LINK=ib; FILTER=name runs only what the name contains
#   scripts/vm/run.sh short            a short form, `cargo xtask vm-short`, on an Ethernet port
#   scripts/vm/run.sh consumers        only what uses verbs in the kernel, on an Ethernet port
#   scripts/vm/run.sh fabric           two machines and a process connect to each other on a fabric that loses packets
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
if [ "$mode" = consumers ]; then
    : "${LINK=roce}"
    : "${FILTER=cases::answers cases::ethtool cases::nfs cases::nvme cases::recovery cases::reload cases::warnings}"
fi
fabric=()
if [ "$mode" = fabric ]; then
    LINK=roce
    fabric=(--fabric "vm-$$" --loss 0.01)
fi
export LINK=${LINK:-ib} FILTER=${FILTER-}

target=$(target_directory)
cache=$target/vm
kernel=$cache/$suite-$flavour
# Devices, and what else runs beside the machine.
beside=()

say() {
    echo "vm: $*"
}

failed() {
    local log
    show_console
    for log in "$cache"/beside/*; do
        say "$(basename "$log"):"
        sed 's/^/    /' "$log"
    done
    say "FAILED: $*"
    exit 1
}

finish() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    [ ${#beside[@]} = 0 ] || kill -- "${beside[@]}" 2>/dev/null || true
}
begin
trap finish EXIT
rm -rf "$cache/beside"
mkdir "$cache/beside"
$here/unpack.sh "$cache" "$suite" "$flavour" 9>&- || not_unpacked
case $mode in
    # Programs of others only.
    consumers) cargo build --quiet --locked --package soft-mlx5 && files='' ;;
    fabric) cargo build --quiet --locked --package soft-mlx5 && files='' && export CASES=fabric ;;
    *) build_files ;;
esac
case $mode in
    shell) export SHELL_IN_MACHINE=1 ;;
    # One binary of tests.
    short) files=$(grep -e '^program ' -e '^test .*/suite-[^/]*$' <<<"$files") ;;
esac
$here/image.sh "$cache/programs" "$kernel" "$cache/image" <<<"$files"
say "ready after $((SECONDS - began)) s, starting a machine with Linux $(cat "$kernel/version"), $LINK"

qemu=$cache/qemu
loader=$(find "$qemu" -name ld-linux-x86-64.so.2 | head -n 1)

# Starts the device of a machine, and puts the command of the machine into `run`. The second argument is for the
# command line of its kernel.
prepare() {
    local socket=$cache/socket-$1 log=$cache/beside/device-$1
    rm -f "$socket"
    : >"$log"
    # shellcheck disable=SC2086
    "$target/debug/soft-mlx5" serve --socket "$socket" --link "$LINK" "${fabric[@]}" ${OPTIONS-} >"$log" 2>&1 9>&- &
    beside+=($!)
    until grep -q listening "$log"; do
        kill -0 $! 2>/dev/null || { say "FAILED: $(cat "$log")"; exit 1; }
        sleep 0.1
    done
    # The emulated processor is the one of `make rxe`. Without no_timer_check a kernel may panic on a busy machine.
    # Memory is shared with the device.
    run=(
        "$loader" --library-path "$(cat "$qemu/libraries")" --argv0 qemu-system-x86_64 "$qemu/usr/bin/qemu-system-x86_64"
        -L "$qemu/usr/share/qemu" -L "$qemu/usr/share/seabios" -L "$qemu/usr/lib/ipxe/qemu"
        -machine q35,memory-backend=memory -object memory-backend-memfd,id=memory,size=1G,share=on -m 1G
        -accel tcg,thread=multi -cpu Nehalem,+rdrand -smp 2 -nodefaults -no-user-config -display none -no-reboot
        -kernel "$kernel/vmlinuz" -initrd "$cache/image.cpio"
        -append "console=ttyS0 no_timer_check tsc=reliable oops=panic panic=-1 mitigations=off rdinit=/init ${2-}"
        -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"'"$socket"'"}}'
    )
}

# Waits until a LID is taken; each machine and process takes the first that is free. Fails when process $2 is gone.
wait_for_lid() {
    until grep -q "@soft-mlx5/$(id -ru)/vm-$$/$1\$" /proc/net/unix; do
        kill -0 "$2" 2>/dev/null || return
        sleep 0.1
    done
}

# Runs the process that machine 2 connects to, and that then connects to machine 2.
run_process() {
    wait_for_lid 2 $$
    "$target/debug/soft-mlx5" run --link roce "${fabric[@]}" -- \
        sh -e -c "$here/guest/end serve 18640; until rping -c -a 10.219.0.2 -p 18650 -C 20 -V; do sleep 1; done"
}

# Says whether the machines run this case of the fabric: as the machines say it of all cases.
selected() {
    local part
    [ -n "$FILTER" ] || return 0
    for part in $FILTER; do
        [[ cases::$1 != *"$part"* ]] || return 0
    done
    return 1
}

ends=(device-1 device-2)
if [ "$mode" = fabric ]; then
    prepare 1 MACHINE=1
    "${run[@]}" -serial "file:$cache/beside/console-1" -serial "file:$cache/beside/verdict-1" </dev/null 9>&- \
        >"$cache/beside/qemu-1" 2>&1 &
    other=$!
    beside+=("$other")
    wait_for_lid 1 "$other" || failed "QEMU of machine 1 ended: $(cat "$cache/beside/qemu-1")"
    # Without its case the process would wait for machine 2 for ever.
    if selected between_machine_and_process; then
        # A group of its own ends with all its processes.
        set -m
        run_process >"$cache/beside/process" 2>&1 </dev/null 9>&- &
        process=$!
        set +m
        beside+=("-$process")
        ends+=(process)
    fi
    prepare 2 MACHINE=2
else
    told=LOOPS=${LOOPS-1}
    [[ ${OPTIONS-} != *--fail-firmware* ]] || told+=' FATAL=1'
    prepare 1 "$told"
fi
if [ "$mode" = shell ]; then
    "${run[@]}" -serial mon:stdio -serial null
    exit
fi
run_machine "${run[@]}"
if [ "$mode" = fabric ]; then
    [ ${#ends[@]} = 2 ] || wait "$process" || failed "the process on the fabric ended with $?"
    wait "$other" || failed "QEMU of machine 1 ended with $?"
    grep -qx 'verdict: ok' "$cache/beside/verdict-1" || failed "machine 1"
    for end in "${ends[@]}"; do
        # The device says it when it notices that its machine is gone.
        until lost=$(grep 'injected: ' "$cache/beside/$end"); do sleep 0.1; done
        say "$end: ${lost#*injected: }"
    done
    # Each sends thousands of packets, unless FILTER leaves the connections out.
    for case in "$here"/guest/fabric/*.sh; do
        ! selected "$(basename "$case" .sh)" || connections=1
    done
    [ -z "${connections-}" ] || [ "$(grep -l 'injected: [1-9]' "$cache"/beside/device-* | wc -l)" = 2 ] || failed "a machine's port lost no packet"
fi
programs=$(grep -c '^test cases::.* \.\.\. ok' "$verdict") || failed "no program ran"
tests=$(grep '^test .* \.\.\. ok' "$verdict" | grep -vc '^test cases::') || true
say "ok: kernel $(cat "$kernel/version"), $programs programs, $tests tests"
