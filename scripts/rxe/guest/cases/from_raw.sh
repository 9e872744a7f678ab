# Objects that a program made with libibverbs.
set -e
from_raw verbs | tee /tmp/from_raw
grep -q 'path verbs' /tmp/from_raw
grep -q '^1000 messages received' /tmp/from_raw
