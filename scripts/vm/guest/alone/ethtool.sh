# What the tools of an administrator ask of the function.
. /suite/environment
[ "$LINK" = roce ] || { echo "an InfiniBand port has no network interface here"; exit 77; }
set -e
device=$(readlink -f /sys/class/infiniband/mlx5_0/device)
netdev=$(ls "$device/net" | head -n 1)
ethtool "$netdev"
ethtool -i "$netdev"
ethtool -S "$netdev" >/dev/null
ethtool -k "$netdev" >/dev/null
for option in --show-fec -m -a -c -g -l -T --show-eee --show-priv-flags -n -x --show-module -d; do
    echo "ethtool $option: $(ethtool $option "$netdev" 2>&1 | head -n 3)"
done
devlink dev info "pci/$(basename "$device")"
devlink health show
ethtool -t "$netdev" || { dmesg | tail; exit 1; }
ip link set "$netdev" mtu 9000
ip link show "$netdev" | grep 'mtu 9000'
ip link set "$netdev" mtu 1500
