# A server of the connection manager, and three clients that connect four times each with one queue pair.
set -e
cm_server --path verbs --connections 12 0.0.0.0:18610 >/tmp/cm_server &
server=$!
# Its first line says that it listens.
until [ -s /tmp/cm_server ]; do sleep 0.1; done
clients=''
for _ in 1 2 3; do
    cm_server --client --path verbs --times 4 --messages 200 192.0.2.1:18610 &
    clients="$clients $!"
done
for client in $clients; do wait $client; done
wait $server || { cat /tmp/cm_server; exit 1; }
cat /tmp/cm_server
tail -n 1 /tmp/cm_server | grep -x 'cm_server: 12 connections served, 0 messages missing'
[ "$(grep -c ': 200 of 200 messages' /tmp/cm_server)" = 12 ]
