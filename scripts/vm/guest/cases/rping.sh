# A connection of the connection manager: SEND, READ and WRITE with events.
. /suite/environment
[ "$LINK" = roce ] || { echo "the connection manager finds the device by an IP address, and the machine has no IPoIB"; exit 77; }
set -e
rping -s -a 192.0.2.1 -p 18620 -v -V -C 20 >/tmp/rping &
sleep 2
rping -c -a 192.0.2.1 -p 18620 -v -V -C 20
wait $!
