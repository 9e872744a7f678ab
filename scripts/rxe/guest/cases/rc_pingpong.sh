# The device by itself: two programs of libibverbs, with completion events. `srq_pingpong_ported` has one with an SRQ.
set -e
ibv_devinfo -d rxe0 | grep PORT_ACTIVE
ibv_rc_pingpong -d rxe0 -p 18600 -g 1 -n 200 -c -e &
/suite/listening 18600
ibv_rc_pingpong -d rxe0 -p 18600 -g 1 -n 200 -c -e 192.0.2.1
wait $!
