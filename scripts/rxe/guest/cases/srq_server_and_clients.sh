# The main job: a server and four connections of two clients.
set -e
srq_server --device rxe0 --path verbs --connections 4 192.0.2.1:18603 >/tmp/server &
server=$!
for seed in 1 2; do
    srq_client --device rxe0 --connections 2 --messages 1000 --seed $seed 192.0.2.1:18603 &
done
wait $server || { cat /tmp/server; exit 1; }
cat /tmp/server
tail -n 1 /tmp/server |
    grep -x 'demo: ok: 2000 messages, path verbs, device rxe0 (.*), 0 lost, 0 corrupted'
