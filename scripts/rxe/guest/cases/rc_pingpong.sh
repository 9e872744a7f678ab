# The device itself, as libibverbs' own programs see it.
set -e
ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE
ibv_rc_pingpong -d rxe0 -g 1 -n 200 -c &
sleep 0.5
ibv_rc_pingpong -d rxe0 -g 1 -n 200 -c 127.0.0.1
wait $!
