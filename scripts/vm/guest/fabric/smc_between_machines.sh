# SMC-R from machine 2 to machine 1, under a program of TCP.
modprobe smc || { echo "the kernel has no SMC"; exit 77; }
set -e
export LD_PRELOAD=/suite/smc.so
case $MACHINE in
    1) iperf3 -s -1 -p 18690 ;;
    2)
        until iperf3 -c 10.219.0.1 -p 18690 -n 8M; do sleep 1; done
        # A link group of SMC outlives its connections.
        unset LD_PRELOAD
        rdma resource show qp | grep smc
        ;;
esac
