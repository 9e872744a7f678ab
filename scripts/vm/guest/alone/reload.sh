# Modules unloaded and loaded again, then the function unbound and bound.
set -e
device() {
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
ibv_rc_pingpong -d mlx5_0 -p 18630 -n 100 -e &
/suite/listening 18630
ibv_rc_pingpong -d mlx5_0 -p 18630 -n 100 -e 127.0.0.1
wait $!
