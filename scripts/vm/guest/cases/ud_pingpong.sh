# Ping-pong over UD, polled and with events.
set -e
. /suite/environment
for events in '' -e; do
    /suite/pair 18602 ibv_ud_pingpong -d mlx5_0 -p 18602 $GID_OPTION -n 200 -c $events
done
