# The driver recovers from a reset of the function that it is not told of, is reloaded, and lets go of the function, all
# while programs send.
set -e
. /suite/environment
. /suite/again
device=$(readlink -f /sys/class/infiniband/mlx5_0/device)
function=$(basename "$device")

start_traffic
before=$(dmesg | grep -c 'health recovery succeeded' || true)
echo 1 >"$device/reset"
recovered $((before + 1))
stop_traffic
device_again
use_device

start_traffic
devlink dev reload "pci/$function"
stop_traffic
device_again
use_device

start_traffic
echo "$function" >/sys/bus/pci/drivers/mlx5_core/unbind
[ ! -e /sys/class/infiniband/mlx5_0 ]
stop_traffic
echo "$function" >/sys/bus/pci/drivers/mlx5_core/bind
device_again
use_device
