# Latency and bandwidth by perftest; the figures are those of an emulated processor.
set -e
. /suite/environment
run() {
    port=18610 program=$1
    shift
    /suite/pair $port "$program" -d mlx5_0 -p $port $GID_X_OPTION -F -n 500 "$@"
}
run ib_write_lat
run ib_write_lat -s 4096 -c UC
run ib_send_bw -s 65536
run ib_send_bw -s 1024 -c UD -e
run ib_write_bw -s 65536 -q 4
run ib_read_lat -s 8192
