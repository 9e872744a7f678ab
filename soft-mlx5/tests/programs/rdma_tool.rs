//! The `rdma` tool of iproute2, and RDMA netlink as a program speaks it.

use crate::common::{Outcome, finish, run};

fn rdma(options: &[&str], arguments: &str) -> Outcome {
    finish(&mut run(options, &["sh", "-c", &format!("exec rdma {arguments}")]))
}

#[test]
fn devices_and_ports_are_listed() {
    let shown = rdma(&[], "dev show").succeeded();
    assert!(shown.starts_with("0: mlx5_0: node_type ca fw 16.35.2000 node_guid 00db:00ff:"), "{shown}");
    let shown = rdma(&[], "link show").succeeded();
    let state = "subnet_prefix fe80:0000:0000:0000 lid 1 sm_lid 49151 lmc 0 state ACTIVE physical_state LINK_UP";
    assert_eq!(shown.trim_end(), format!("link mlx5_0/1 {state}"));
    let shown = rdma(&["--link", "roce", "--netdev", "lo"], "link show -j").succeeded();
    for field in ["\"ifname\":\"mlx5_0\"", "\"port\":1", "\"netdev\":\"lo\",\"netdev_index\":1"] {
        assert!(shown.contains(field), "{shown}");
    }
    let shown = rdma(&[], "resource show").succeeded();
    assert_eq!(shown.trim_end(), "0: mlx5_0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0");
    let shown = rdma(&[], "statistic show link mlx5_0/1").succeeded();
    assert!(shown.contains(" out_of_buffer 0 "), "{shown}");
    assert_eq!(rdma(&[], "statistic qp show link mlx5_0/1").succeeded(), "");
    assert!(rdma(&[], "system show").succeeded().contains("copy-on-fork on"));
}

#[test]
fn what_would_change_something_is_refused() {
    for arguments in ["dev set mlx5_0 name mlx5_7", "link add rxe0 type rxe netdev lo", "system set netns exclusive"] {
        let outcome = rdma(&[], arguments);
        assert!(!outcome.status.success(), "{outcome:?}");
        assert!(outcome.stderr.contains("Operation not supported"), "{outcome:?}");
    }
}

/// Makes more objects than one datagram can tell, and asks the kernel for them as `rdma` does.
#[test]
fn objects_of_the_program_are_told() {
    const SCRIPT: &str = r#"
import os, socket, struct
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.qp import QP, QPInitAttr, QPCap
import pyverbs.enums as e
context = Context(name='mlx5_0')
pd, cq = PD(context), CQ(context, 100)
regions = [MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE) for _ in range(200)]
qps = [QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, rcq=cq, scq=cq, cap=QPCap())) for _ in range(3)]
nl = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)
nl.bind((0, 0))
def attributes(data):
    while data:
        length, kind = struct.unpack_from('HH', data)
        yield kind & 0x3fff, data[4:length]
        data = data[(length + 3) & ~3:]
def ask(command, flags, **given):
    body = b''.join(struct.pack('HHI', 8, int(kind[1:]), value) for kind, value in given.items())
    nl.send(struct.pack('IHHII', 16 + len(body), 5 << 10 | command, 1 | flags, 77, 0) + body)
    found = []
    while True:
        data = nl.recv(65536)
        assert len(data) <= 4096
        while data:
            length, kind, multi, sequence, port = struct.unpack_from('IHHII', data)
            assert (sequence, port) == (77, nl.getsockname()[0])
            if kind == 2:
                return struct.unpack_from('i', data, 16)[0] or found
            if kind == 3:
                return found
            found.append(list(attributes(data[16:length])))
            data = data[(length + 3) & ~3:]
DUMP, ACK = 0x300, 4
def number(value):
    return int.from_bytes(value, 'little')
[device] = ask(1, DUMP)
index = number(dict(device)[1])
def table(command, kind):
    messages = ask(command, DUMP, a1=index)
    entries = [entry for message in messages for _, entry in attributes(dict(message)[kind])]
    return len(messages), [dict(attributes(entry)) for entry in entries]
count, found = table(13, 40)
assert count > 1 and {number(mr[43]) for mr in found} == {mr.lkey for mr in regions}
assert all(number(mr[28]) == os.getpid() and number(mr[45]) == 4096 for mr in found)
_, found = table(10, 19)
assert {number(qp[21]) for qp in found} == {qp.qp_num for qp in qps} and all(number(qp[27]) == 0 for qp in found)
_, [found] = table(12, 35)
assert (number(found[37]), number(found[38])) == (127, 6)
assert table(23, 88) == (0, [])
# Counters of queue pairs, of which none is bound, and those of another kind of object.
assert (ask(17, DUMP, a1=index, a75=19), ask(17, DUMP, a1=index, a75=40)) == ([], -22)
[one] = ask(10, ACK, a1=index, a21=qps[1].qp_num)
assert number(dict(one)[26]) == 2
assert ask(10, ACK, a1=index, a21=0xffffff) == -2
assert ask(1, ACK, a1=99) == ask(1, ACK) == ask(99, ACK) == -22
assert ask(2, ACK, a1=index) == -95
# A short message, and data that is no message.
nl.send(b'abc'); nl.send(struct.pack('IHHII', 99999, 5 << 10 | 1, 1, 77, 0))
qps.clear(); regions.clear()
copy = socket.fromfd(nl.fileno(), socket.AF_NETLINK, socket.SOCK_RAW)
nl.close(); nl = copy
[summary] = ask(9, ACK, a1=index)
counts = {}
for _, entry in attributes(dict(summary)[15]):
    entry = dict(attributes(entry)); counts[entry[17].decode()] = number(entry[18])
assert counts == {'pd\0': 1, 'cq\0': 1, 'qp\0': 0, 'cm_id\0': 0, 'mr\0': 0, 'ctx\0': 1, 'srq\0': 0}, counts
print('fine')
"#;
    let outcome = finish(&mut run(&[], &["/usr/bin/python3", "-c", SCRIPT]));
    assert_eq!(outcome.succeeded(), "fine\n");
}
