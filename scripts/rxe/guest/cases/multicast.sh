# Two members of a multicast group and a sender, over IPv4 as the GID of the device. What the host sends comes
# back to it because ordinary sockets are members too. Soft-RoCE has no clock for timestamps.
set -e
for member in 1 2; do
    multicast --device rxe0 --group 239.0.0.219 --interface dummy0 --messages 200 >/tmp/member$member &
    members="$members $!"
done
for member in 1 2; do
    until grep -q joined /tmp/member$member; do sleep 0.1; done
done
multicast --device rxe0 --group 239.0.0.219 --send 200 --gap 200
for member in $members; do wait $member; done
cat /tmp/member1 /tmp/member2
[ "$(grep -c '^200 datagrams, 0 missed' /tmp/member1 /tmp/member2 | cut -d: -f2 | tr -d '\n')" = 11 ]
