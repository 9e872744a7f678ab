# shellcheck shell=bash
# Sourced by scripts that make and watch a virtual machine. `tree` is where packages were unpacked, `out` the file
# system of the machine.

# Copies a file to where it is on the system, or to the second argument.
add() {
    local to=$out/${2-${1#"$tree"}}
    mkdir -p "$(dirname "$to")"
    cp --dereference "$1" "$to"
}

# Copies the libraries of an executable, and the loader.
add_libraries() {
    local library
    ldd "$1" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' |
        while read -r library; do
            [ -e "$out/${library#"$tree"}" ] || add "$library"
        done
}

# Prints where a program or a file is: unpacked, or in the system.
find_program() {
    PATH=$tree/usr/bin:$tree/bin:$tree/usr/sbin:$tree/sbin:$PATH:/usr/sbin:/sbin command -v "$1"
}
find_file() {
    local file
    for file in "$tree"$1 $1; do
        [ ! -e "$file" ] || { echo "$file"; return; }
    done
    echo "there is no $1 to be copied" >&2
    return 1
}

# Copies a program with its libraries to usr/bin.
add_program() {
    local file
    file=$(find_program "$1") || { echo "there is no program $1 to be copied" >&2; return 1; }
    add "$file" "usr/bin/$1"
    add_libraries "$file"
}

# Copies what standard input lists, `test FILE` or `program FILE` in a line, to suite/.
add_suite() {
    local kind file name to
    mkdir -p "$out"/suite/{tests,programs}
    while read -r kind file; do
        [ -n "$file" ] || continue
        name=$(basename "$file")
        case $kind in
            # Without the hash that cargo appends.
            test) to=$out/suite/tests/${name%-*} ;;
            program) to=$out/suite/programs/$name ;;
        esac
        # Most of a test binary is what a debugger would read.
        strip --strip-debug -o "$to" "$file"
        add_libraries "$file"
    done
    # The machine has no compiler.
    for name in rdma tags removal; do
        cc -O1 "tests/interop/$name.c" -pthread -libverbs -lrdmacm -o "$out/suite/programs/peer-$name"
        add_libraries "$out/suite/programs/peer-$name"
    done
}

# Writes the file system to $out.cpio.
pack() {
    local busybox
    busybox=$(realpath "$(find_program busybox)")
    (cd "$out" && find . | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null) >"$out.cpio"
}

# Names the files of a run below $cache, and waits for the end of another run. The other functions from here on are for
# run.sh, which has `failed`.
begin() {
    console=$cache/console.log verdict=$cache/verdict.log machine='' began=$SECONDS
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock --wait 300 9 || { say "FAILED: another run does not end"; exit 1; }
    rm -f "$cache/reason"
}

# Skips the run, for the reason that unpacking has left.
not_unpacked() {
    skip "$(cat "$cache/reason" 2>/dev/null || echo 'unpacking failed')"
}

# Builds the tests, and lists the files in $files. In the group of this script, whose processor time says that it is not
# stalled.
build_files() {
    say "building the tests"
    files=$(timeout --foreground 3600 cargo xtask vm-files)
}

# Runs a machine to its end, and returns when its verdict is `ok`. `$skipped` counts its tests that were skipped.
# Init gives up on a suite before neither serial port has said anything for 900 s.
run_machine() {
    local code=0 ended
    began=$SECONDS
    : >"$console" >"$verdict"
    "$@" -serial "file:$console" -serial "file:$verdict" </dev/null 9>&- &
    machine=$!
    watch_machine "$machine" "$console" "$verdict" 900 || code=$?
    machine=
    [ $code = 0 ] || failed "QEMU ended with $code"
    ended=$(sed -n 's/^verdict: //p' "$verdict")
    [ -n "$ended" ] || failed "the machine ended without a verdict"
    [ "$ended" = ok ] || failed "$ended"
    skipped=$(grep -c '^test .* \.\.\. skipped, ' "$verdict") || true
    say "$((SECONDS - began)) s in the machine, $skipped tests skipped for the reasons above"
}

# Prints the console of a machine.
show_console() {
    say "the console of the machine:"
    tr -d '\r' <"$console" | sed 's/^/    /'
}

# Waits for a machine: watch_machine PID CONSOLE VERDICT SECONDS. Prints what it writes to VERDICT meanwhile, and calls
# `failed` when neither file grows for so many seconds. Returns the exit code of the machine.
watch_machine() {
    local machine=$1 console=$2 verdict=$3 stalled=$4 size=0 quiet=0 before code=0
    tail --pid="$machine" --lines=+1 --sleep-interval=0.2 --follow "$verdict" 9>&- |
        grep --line-buffered -v '^verdict: ' &
    local printer=$!
    while kill -0 "$machine" 2>/dev/null; do
        sleep 1
        before=$size size=$(cat "$console" "$verdict" | wc -c)
        [ "$size" = "$before" ] && quiet=$((quiet + 1)) || quiet=0
        [ $quiet -lt "$stalled" ] || failed "the machine printed nothing for $stalled s"
    done
    wait "$machine" || code=$?
    wait "$printer" || true
    return $code
}
