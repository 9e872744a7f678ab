# The checks of the direct path.
set -e
. /suite/environment
doorbell selftest mlx5_0 --quick --report /tmp/selftest.txt | tee /tmp/selftest
tail -n 1 /tmp/selftest | grep -E '^selftest: ok: [0-9]+ checks, [0-9]+ could not run$'
