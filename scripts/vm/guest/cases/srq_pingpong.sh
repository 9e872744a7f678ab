# Ping-pong over RC on an SRQ, polled and with events.
set -e
. /suite/environment
for events in '' -e; do
    /suite/pair 18603 ibv_srq_pingpong -d mlx5_0 -p 18603 $GID_OPTION -q 4 -n 400 -c $events
done
