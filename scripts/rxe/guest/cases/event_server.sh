# A server that sleeps while nothing arrives, and two clients.
set -e
event_server --device rxe0 --connections 3 192.0.2.1:18604 >/tmp/event_server &
server=$!
/suite/listening 18604
srq_client --device rxe0 --connections 1 --messages 500 --seed 1 192.0.2.1:18604 &
srq_client --device rxe0 --connections 2 --messages 1000 --seed 2 192.0.2.1:18604
wait $server || { cat /tmp/event_server; exit 1; }
cat /tmp/event_server
[ "$(grep -c ': 500 messages, as they were sent' /tmp/event_server)" = 3 ]
grep '^event_server: 3 connections served, slept [1-9][0-9]* times' /tmp/event_server
