# NVMe over RDMA (nvme-rdma) from the machine to a target in it (nvmet-rdma), whose memory is verified through two
# queues, while connections are lost, and again through a file system after another connection.
. /suite/environment
[ "$LINK" = roce ] || { echo "the connection manager finds the device by an IP address, and the machine has no IPoIB"; exit 77; }
modprobe nvmet_rdma && modprobe nvme_rdma && modprobe brd rd_nr=1 rd_size=131072 || { echo "the kernel lacks a module"; exit 77; }
set -e
. /suite/nvme
serve_nvme /dev/ram0 192.0.2.1
connect_nvme 192.0.2.1
verify /dev/nvme0n1 64M
# The host begins again, and the target drops the host: fio waits for both.
verify /dev/nvme0n1 128M --rw=randwrite --loops="${LOOPS-1}" >/tmp/fio &
sleep 3
echo 1 >/sys/class/nvme/nvme0/reset_controller
sleep 3
rm "$port/subsystems/memory"
sleep 2
ln -s "$target/subsystems/memory" "$port/subsystems/"
wait $! || { cat /tmp/fio; exit 1; }
# The shell has a mke2fs of its own.
/usr/bin/mke2fs -q -t ext4 /dev/nvme0n1
mkdir -p /tmp/disk
mount /dev/nvme0n1 /tmp/disk
verify /tmp/disk/file 32M
sum=$(md5sum /tmp/disk/file)
umount /tmp/disk
disconnect_nvme
connect_nvme 192.0.2.1
mount /dev/nvme0n1 /tmp/disk
[ "$(md5sum /tmp/disk/file)" = "$sum" ]
umount /tmp/disk
disconnect_nvme
stop_nvme
rmmod nvme_rdma nvme_fabrics nvmet_rdma nvmet brd
