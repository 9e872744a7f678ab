# What the kernel's driver reports.
set -e
. /suite/environment
ibv_devinfo -v -d mlx5_0
ibv_devinfo -d mlx5_0 | grep PORT_ACTIVE
case $LINK in
    ib) ibv_devinfo -d mlx5_0 | grep 'link_layer:.*InfiniBand' ;;
    roce) ibv_devinfo -d mlx5_0 | grep 'link_layer:.*Ethernet' ;;
esac
