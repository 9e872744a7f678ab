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
}

# Writes the file system to $out.cpio.
pack() {
    local busybox
    busybox=$(realpath "$(find_program busybox)")
    (cd "$out" && find . | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null) >"$out.cpio"
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
