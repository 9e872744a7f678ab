#!/usr/bin/env bash
# Runs the test-suite: all the steps of scripts/test-step.sh, or those that are named.
#
# A step that fails does not keep the others from running. The last line has the totals, in which a
# step that is not made of tests counts as one.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=("$@")
[ $# -gt 0 ] || mapfile -t steps < <(scripts/test-step.sh)
# Far more than any step needs: nothing hangs for ever.
limit=900

# Sums `N passed;` or the like over the lines in which cargo and the runner give their results.
total() {
    sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }'
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0 broken=()

# No step after this one uses the network.
timeout "$limit" cargo fetch --locked --quiet

for step in "${steps[@]}"; do
    echo "test: $step"
    began=$SECONDS
    code=0
    timeout "$limit" scripts/test-step.sh "$step" </dev/null 2>&1 | tee "$log" || code=$?
    ok=$(total passed) bad=$(total failed)
    # Tests that are marked as ignored are the business of the tests that run them.
    not=$(grep -c '^test .* \.\.\. skipped, ' "$log" || true)
    case $code in
        0) verdict=ok ;;
        3) verdict=skipped ;;
        124) verdict="FAILED: not done after $limit s" ;;
        *) verdict=FAILED ;;
    esac
    if [ $((ok + bad + not)) = 0 ]; then
        case $code in
            0) ok=1 ;;
            3) not=1 ;;
        esac
    fi
    if [ "${verdict#FAILED}" != "$verdict" ]; then
        broken+=("$step")
        # A build that fails has no test that could.
        [ "$bad" -gt 0 ] || bad=1
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + not))
    echo "test: $step: $verdict, $((SECONDS - began)) s"
done

if [ "$failed" -gt 0 ]; then
    echo "test: failed: ${broken[*]}"
    echo "test: FAILED: $passed passed, $failed failed, $skipped skipped, $SECONDS s"
    exit 1
fi
echo "test: ok: $passed passed, 0 failed, $skipped skipped, $SECONDS s"
