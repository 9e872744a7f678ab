# Modules unloaded and loaded again, then the function unbound and bound.
set -e
. /suite/environment
. /suite/again
function=$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")
rmmod rdma_ucm rdma_cm mlx5_ib mlx5_core
[ ! -e /sys/class/infiniband/mlx5_0 ]
for module in mlx5_core mlx5_ib; do insmod "/modules/$module.ko"; done
device_again
for _ in 1 2; do
    echo "$function" >/sys/bus/pci/drivers/mlx5_core/unbind
    [ ! -e /sys/class/infiniband/mlx5_0 ]
    echo "$function" >/sys/bus/pci/drivers/mlx5_core/bind
    device_again
done
use_device
