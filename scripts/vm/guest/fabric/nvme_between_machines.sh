# NVMe over RDMA from machine 2 to machine 1, on a fabric that loses packets.
modprobe nvmet_rdma && modprobe nvme_rdma && modprobe brd rd_nr=1 rd_size=65536 || { echo "the kernel lacks a module"; exit 77; }
set -e
. /suite/nvme
case $MACHINE in
    1)
        serve_nvme /dev/ram0 10.219.0.1
        # Machine 2 is done.
        nc -l -p 18680
        stop_nvme
        ;;
    2)
        connect_nvme 10.219.0.1
        verify /dev/nvme0n1 8M
        disconnect_nvme
        connect_nvme 10.219.0.1
        verify /dev/nvme0n1 8M --rw=randwrite
        disconnect_nvme
        until echo done | nc 10.219.0.1 18680; do sleep 1; done
        ;;
esac
