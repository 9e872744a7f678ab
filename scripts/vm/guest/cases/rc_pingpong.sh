# Ping-pong over RC, polled and with events.
set -e
. /suite/environment
for events in '' -e; do
    /suite/pair 18600 ibv_rc_pingpong -d mlx5_0 -p 18600 $GID_OPTION -n 200 -c $events
done
