# Connections of the connection manager that send messages both ways.
. /suite/environment
[ "$LINK" = roce ] || { echo "the connection manager finds the device by an IP address, and the machine has no IPoIB"; exit 77; }
set -e
ucmatose -b 192.0.2.1 -p 18621 -c 4 -C 10 >/tmp/ucmatose &
sleep 2
ucmatose -s 192.0.2.1 -p 18621 -c 4 -C 10
wait $!
