# A ping-pong of two processes, polled and with events. The figures are those of an emulated processor.
set -e
for events in '' -e; do
    latency --device rxe0 --port 18605 $events &
    /suite/listening 18605
    latency --device rxe0 --port 18605 --iters 500 --warm-up 50 $events 192.0.2.1 | tee /tmp/latency
    wait $!
    grep 'p90' /tmp/latency
done
