# What doorbell would do with this device, and why.
set -e
doorbell info | tee /tmp/info
grep rxe0 /tmp/info
grep 'verbs' /tmp/info
doorbell info --json | grep '"rxe0"'
