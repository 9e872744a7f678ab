# Ping-pong over UC, polled and with events.
set -e
. /suite/environment
for events in '' -e; do
    /suite/pair 18601 ibv_uc_pingpong -d mlx5_0 -p 18601 $GID_OPTION -n 200 -c $events
done
