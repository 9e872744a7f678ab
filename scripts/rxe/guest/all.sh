#!/bin/sh
# Runs in the machine: every test of every binary, each in a process of its own, then the cases.
#
# Prints what libtest would. What skips.txt names does not run; the last result counts it.
code=0 left_out=0
# A name in skips.txt can be `*`.
set -f
. /suite/environment
FILTER=$(cat /suite/filter)

# Prints the lines of skips.txt for a binary without its name.
skips() {
    sed -n "s/^$1  *//p" /suite/skips.txt
}

# Says whether a name contains one of the words of FILTER, which may be empty.
selected() {
    [ -n "$FILTER" ] || return 0
    for part in $FILTER; do
        case $1 in
            *"$part"*) return 0 ;;
        esac
    done
    return 1
}

run_tests() {
    binary=$1 name=$(basename "$1")
    echo "tests of $name"
    # Tests that are marked as ignored stand in both lists; they are run by others.
    { "$binary" --list --format terse; "$binary" --list --format terse --ignored; } |
        sort | uniq -u | sed -n 's/: test$//p' >/tmp/tests
    if [ ! -s /tmp/tests ]; then
        echo "test $name ... FAILED: it has no tests"
        code=1
        return
    fi
    all=$(skips "$name" | sed -n 's/^\*  *//p')
    # What it names should exist.
    for test in $(skips "$name" | cut -d' ' -f1); do
        [ "$test" = '*' ] || grep -qxF "$test" /tmp/tests || {
            echo "test $test ... FAILED: skips.txt names it, $name does not have it"
            code=1
        }
    done
    set --
    while read -r test; do
        selected "$test" || continue
        reason=${all:-$(skips "$name" | sed -n "s/^$test  *//p")}
        if [ -n "$reason" ]; then
            echo "test $test ... skipped, $reason"
            left_out=$((left_out + 1))
        else
            set -- "$@" "$test"
        fi
    done </tmp/tests
    [ $# = 0 ] || xtask isolate --jobs 2 --limit 600 "$binary" --exact "$@" || code=1
}

# Runs cases one after the other; leaves the output, the exit code and the hundredths of a second of each.
run_lane() {
    for case in "$@"; do
        result=/tmp/cases/$(basename "$case" .sh) began=$(now)
        timeout 900 sh "$case" >"$result.output" 2>&1
        echo $? >"$result.code"
        echo $(($(now) - began)) >"$result.took"
        # init looks whether this file grows.
        echo "$case" >>/tmp/progress
    done
}

report_case() {
    name=cases::$1 status=$(cat "/tmp/cases/$1.code") took=$(cat "/tmp/cases/$1.took")
    took=$((took / 100)).$(printf %02d $((took % 100)))
    case $status in
        0)
            passed=$((passed + 1))
            echo "test $name ... ok ($took s)"
            ;;
        77)
            skipped=$((skipped + 1))
            echo "test $name ... skipped, $(tail -n 1 "/tmp/cases/$1.output")"
            ;;
        *)
            failed=$((failed + 1)) code=1
            echo "test $name ... FAILED ($took s): exit code $status"
            sed 's/^/    /' "/tmp/cases/$1.output"
            ;;
    esac
}

# Two at a time: they spend much of their time waiting.
run_cases() {
    passed=0 failed=0 skipped=$left_out odd='' even=''
    echo "cases"
    mkdir /tmp/cases
    for case in $(ls /suite/cases/); do
        selected "cases::${case%.sh}" || continue
        swap=$even even="$odd /suite/cases/$case" odd=$swap
    done
    run_lane $odd &
    run_lane $even
    wait $!
    # The cases that change the machine run alone.
    for case in $(ls /suite/alone/ 2>/dev/null); do
        selected "cases::${case%.sh}" || continue
        odd="$odd /suite/alone/$case"
        run_lane "/suite/alone/$case"
    done
    for case in $(echo $odd $even | tr ' ' '\n' | sort); do
        report_case "$(basename "$case" .sh)"
    done
    [ $failed = 0 ] && word=ok || word=FAILED
    echo
    echo "test result: $word. $passed passed; $failed failed; $skipped skipped"
}

# Hundredths of a second since the start.
now() {
    sed 's/^\([0-9]*\)\.\([0-9]*\) .*/\1\2/' /proc/uptime
}

for binary in $(ls /suite/tests); do
    run_tests "/suite/tests/$binary"
done
run_cases
exit $code
