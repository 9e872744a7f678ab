# What doorbell says of the device.
set -e
doorbell info mlx5_0
