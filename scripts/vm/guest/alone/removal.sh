# What a program sees that waits for a device in every way while the port goes and the function is unbound.
set -e
. /suite/environment
function=$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")
address=
[ "$LINK" = ib ] || address=192.0.2.1
peer-removal $address >/tmp/removal 2>&1 &
program=$!
until grep -q waiting /tmp/removal; do
    kill -0 $program || { cat /tmp/removal; exit 1; }
    sleep 0.1
done
if [ "$LINK" = roce ]; then
    netdev=$(ls /sys/class/infiniband/mlx5_0/device/net | head -n 1)
    ip link set "$netdev" down
    sleep 1
fi
echo "$function" >/sys/bus/pci/drivers/mlx5_core/unbind
wait $program || { code=$?; cat /tmp/removal; exit $code; }
# The next case finds the device as it was.
echo "$function" >/sys/bus/pci/drivers/mlx5_core/bind
case $LINK in
    ib) grep -x 'removed' /tmp/removal ;;
    roce) grep -x 'removed, after the port' /tmp/removal ;;
esac
