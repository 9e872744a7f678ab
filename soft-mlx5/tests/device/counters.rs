//! Counters of a device, and the files of sysfs that show them.

use std::collections::BTreeMap;
use std::{fs, ptr};

use rdma_core_sys::*;
use soft_mlx5::faults::{ByKind, Which};
use soft_mlx5::{Device, Faults};

use crate::world::{World, post_recv};

fn shown(world: &World, directory: &str) -> BTreeMap<String, u64> {
    let path = format!("/sys/class/infiniband/{}/ports/1/{directory}", world.device().name());
    let read = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), text.trim().parse().unwrap())
    };
    fs::read_dir(path).unwrap().map(|entry| read(entry.unwrap())).collect()
}

#[test]
fn sysfs_shows_what_the_device_counts() {
    let world = World::stepped();
    let cq = world.cq(64);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(world.device().counters(), soft_mlx5::counters::Counters::default());
    for round in 1..=3 {
        world.exchange(qp, mr, 64);
        let counters = world.device().counters();
        // A message and its acknowledgement, to the device itself.
        assert_eq!((counters.port.xmit_packets, counters.port.rcv_packets), (2 * round, 2 * round));
        assert_eq!(counters.port.unicast_rcv_packets, 2 * round);
        assert!(counters.port.xmit_data > 16 * round, "{counters:?}");
        let files = shown(&world, "counters");
        for (name, value) in counters.port.named() {
            assert_eq!(files[name], value, "{name}");
        }
        assert!(soft_mlx5::counters::ALWAYS_ZERO.iter().all(|name| files[*name] == 0));
    }
    post_recv(qp, mr, 64, 64);
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    // SAFETY: the QP is alive.
    assert_eq!(unsafe { ibv_modify_qp(qp, &mut attr, IBV_QP_STATE as i32) }, 0);
    world.device().settle();
    let files = shown(&world, "hw_counters");
    assert_eq!((files["resp_cqe_error"], files["resp_cqe_flush_error"]), (1, 1));
    for (name, value) in world.device().counters().hardware.named() {
        assert_eq!(files[name], value, "{name}");
    }
    world.device().set_link(false);
    assert_eq!(shown(&world, "counters")["link_downed"], 1);
}

#[test]
fn each_injected_fault_is_counted() {
    let fail_destroy = ByKind { cq: Which::Nth(1), ..ByKind::default() };
    let faults = Faults { duplication: 1.0, fail_destroy, ..Faults::default() };
    let world = World::new(Device::builder().stepped().seed(5).faults(faults));
    let cq = world.cq(64);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    world.exchange(qp, mr, 64);
    // SAFETY: the CQ stays alive, because its destruction fails.
    assert_eq!(unsafe { ibv_destroy_cq(world.cq(1)) }, libc::EBUSY);
    let counters = world.device().counters();
    assert_eq!(counters.injected.packets, counters.injected.doubled);
    assert!(counters.injected.doubled >= 2 && counters.hardware.duplicate_request >= 1);
    assert_eq!((counters.injected.lost, counters.injected.destroys), (0, 1));
    let doubled = format!("{0} of {0} packets doubled", counters.injected.doubled);
    let summary = counters.injected.summary(&faults).unwrap();
    assert_eq!(summary, format!("{doubled}, 1 destructions failed"));
}
