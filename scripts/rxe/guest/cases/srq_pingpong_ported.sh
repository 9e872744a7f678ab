# The port of ibv_srq_pingpong and the program itself, each as the server of the other.
set -e
common="-p 18602 -g 1 -n 200 -q 16 -c"
for events in '' -e; do
    ibv_srq_pingpong -d rxe0 $common $events &
    /suite/listening 18602
    srq_pingpong -d rxe0 $common $events 192.0.2.1
    wait $!
    srq_pingpong -d rxe0 $common $events &
    /suite/listening 18602
    ibv_srq_pingpong -d rxe0 $common $events 192.0.2.1
    wait $!
done
