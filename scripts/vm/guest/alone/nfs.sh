# NFS over RDMA from the machine to a server in it: files are written, read back after another mount, and verified.
. /suite/environment
[ "$LINK" = roce ] || { echo "the connection manager finds the device by an IP address, and the machine has no IPoIB"; exit 77; }
modprobe rpcrdma && modprobe nfsd && modprobe nfsv4 || { echo "the kernel lacks a module"; exit 77; }
set -e
mkdir -p /tmp/export /tmp/nfs
mount -t nfsd nfsd /proc/fs/nfsd
# What rpc.mountd would answer: each client is of the domain `all`, which has one file system, the root of all others.
never=2147483647
flags=$((0x2 | 0x10 | 0x400 | 0x2000)) # any port, asynchronous, no check of subtrees, a number for the file system
echo "nfsd 192.0.2.1 $never all" >/proc/net/rpc/auth.unix.ip/channel
echo "all /tmp/export $never $flags 65534 65534 0" >/proc/net/rpc/nfsd.export/channel
echo "all 1 \\x00000000 $never /tmp/export" >/proc/net/rpc/nfsd.fh/channel
echo "-2 -3 +4 +4.1 +4.2" >/proc/fs/nfsd/versions
# Seconds in which clients claim what they had: the least.
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
echo 2 >/proc/fs/nfsd/threads
echo "rdma 20049" >/proc/fs/nfsd/portlist
connect() {
    mount -t nfs4 -o vers=4.2,proto=rdma,port=20049,addr=192.0.2.1,clientaddr=192.0.2.1 192.0.2.1:/ /tmp/nfs
}
connect
dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null
cp /tmp/random /tmp/nfs/file
umount /tmp/nfs
connect
cmp /tmp/random /tmp/nfs/file
cmp /tmp/random /tmp/export/file
. /suite/verify
verify /tmp/nfs/verified 8M
umount /tmp/nfs
echo 0 >/proc/fs/nfsd/threads
umount /proc/fs/nfsd
rmmod nfsv4 nfs rpcrdma
