# Modules unloaded and loaded again, then the function unbound and bound.
set -e
. /suite/environment
device() {
    if [ "$LINK" = roce ]; then
        # The network interface is a new one, without an address.
        netdev=$(ls /sys/class/infiniband/mlx5_0/device/net | head -n 1)
        ip address add 192.0.2.1/24 dev "$netdev"
        ip link set "$netdev" up
    fi
    for _ in $(seq 300); do
        ! grep -qs ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state || break
        sleep 0.1
    done
    ibv_devinfo -d mlx5_0 | grep -E 'PORT_ACTIVE|PORT_DOWN'
}
function=$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")
rmmod rdma_ucm rdma_cm mlx5_ib mlx5_core
[ ! -e /sys/class/infiniband/mlx5_0 ]
for module in mlx5_core mlx5_ib; do insmod "/modules/$module.ko"; done
device
for _ in 1 2; do
    echo "$function" >/sys/bus/pci/drivers/mlx5_core/unbind
    [ ! -e /sys/class/infiniband/mlx5_0 ]
    echo "$function" >/sys/bus/pci/drivers/mlx5_core/bind
    device
done
ibv_rc_pingpong -d mlx5_0 -p 18630 $GID_OPTION -n 100 -e &
/suite/listening 18630
ibv_rc_pingpong -d mlx5_0 -p 18630 $GID_OPTION -n 100 -e 127.0.0.1
wait $!
