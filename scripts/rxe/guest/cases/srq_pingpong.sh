# The device by itself: two programs of libibverbs, with an SRQ.
set -e
ibv_srq_pingpong -d rxe0 -p 18601 -g 1 -n 200 -q 16 -c -e &
/suite/listening 18601
ibv_srq_pingpong -d rxe0 -p 18601 -g 1 -n 200 -q 16 -c -e 192.0.2.1
wait $!
