# Machine 2 connects to a process on the fabric, then the process to machine 2.
[ "$MACHINE" = 2 ] || { echo "machine 2 does it"; exit 77; }
set -e
# Each process has the device of the last one, with the same numbers of queue pairs. A kernel refuses connections of such
# a number (IB_CM_REJ_STALE_CONN) for the 4 s after the last connection (its state TIMEWAIT).
PAUSE=6 /suite/end connect 18640 10.219.0.3
sleep 6
# A client of perftest -R connects twice at once, and a server in an emulated machine does not listen yet the second time.
rping -s -p 18650 -C 20 -V
