# A user who may not open the device gets an error that says what is missing.
set -e
echo 'guest:x:1000:1000::/:/bin/sh' >/etc/passwd
node=$(ls /dev/infiniband/uverbs*)
chmod 600 "$node"
code=0
su guest -c 'PATH=$PATH:/suite/programs; doorbell info; first_receiver 127.0.0.1:0' >/tmp/refused 2>&1 || code=$?
chmod 666 "$node"
cat /tmp/refused
[ $code = 1 ]
[ "$(grep -c 'ibv_open_device on rxe0: Permission denied.*/dev/infiniband/uverbs' /tmp/refused)" = 2 ]

# The connection manager has a node of its own.
node=/dev/infiniband/rdma_cm mode=$(stat -c %a /dev/infiniband/rdma_cm) code=0
chmod 600 $node
su guest -c 'PATH=$PATH:/suite/programs; cm_server 0.0.0.0:18611' >/tmp/refused_cm 2>&1 || code=$?
chmod "$mode" $node
cat /tmp/refused_cm
[ $code = 1 ]
grep 'Permission denied.*permission on /dev/infiniband/rdma_cm' /tmp/refused_cm
