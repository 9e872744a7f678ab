# One process serves an mlx5 device, directly, and the Soft-RoCE device through libibverbs. A connection by IP
# address belongs to the mlx5 device here: soft-mlx5 stands in front of the kernel's connection manager.
set -e
config=/etc/libibverbs.d/mlx5.driver
trap 'rm -f $config' EXIT
echo 'driver /mlx5/libmlx5' >$config
export LD_LIBRARY_PATH=/mlx5
soft-mlx5 run --strict -- all_devices >/tmp/all_devices || { cat /tmp/all_devices; exit 1; }
cat /tmp/all_devices
grep -xE 'rxe0 \(.*\): 1000 messages, path verbs' /tmp/all_devices
grep -x 'mlx5_0 (soft-mlx5): 1000 messages, path direct' /tmp/all_devices

DOORBELL_DEVICE=mlx5_0 DOORBELL_PATH=auto soft-mlx5 run --strict -- /suite/tests/suite --nocapture --exact \
    connection_manager::requests::a_queue_pair_of_another_device_is_refused >/tmp/foreign 2>&1 || {
    cat /tmp/foreign
    exit 1
}
cat /tmp/foreign
grep '1 passed' /tmp/foreign
! grep skipped: /tmp/foreign
