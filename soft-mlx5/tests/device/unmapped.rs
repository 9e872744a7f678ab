//! A program that takes the memory of its queues away.

use std::ptr;
use std::time::Instant;

use crate::world::{PATIENCE, World, next_async, poll, post_recv, post_send, query};
use rdma_core_sys::*;

pub fn protect(addr: u64, rights: i32) {
    // SAFETY: the pages of a queue, whose other users expect the change or wait.
    let done = unsafe { libc::mprotect((addr & !4095) as *mut libc::c_void, 4096, rights) };
    assert_eq!(done, 0);
}

#[test]
fn an_unmapped_receive_queue_is_an_event() {
    let world = World::threaded();
    let cq = world.cq(16);
    let [victim, sender] = [(); 2].map(|()| world.qp(IBV_QPT_RC, cq, ptr::null_mut()));
    world.connect(victim, sender);
    world.connect(sender, victim);
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the QP is alive.
    let number = unsafe { (*victim).qp_num };
    let queues = world.device().queues();
    let ring = queues.qps.iter().find(|qp| qp.number == number).unwrap().attr.rq.buf;
    post_recv(victim, mr, 0, 64);
    protect(ring, libc::PROT_NONE);
    post_send(sender, mr, 64, 64);
    let start = Instant::now();
    while query(victim).qp_state != IBV_QPS_ERR {
        assert!(start.elapsed() < PATIENCE, "the device has not noticed");
    }
    protect(ring, libc::PROT_READ | libc::PROT_WRITE);
    let events: Vec<_> = std::iter::from_fn(|| next_async(world.ctx)).collect();
    assert!(events.contains(&IBV_EVENT_QP_FATAL), "{events:?}");
    // The device and the other QPs work on.
    let other = world.connected(cq, ptr::null_mut());
    post_recv(other, mr, 0, 64);
    post_send(other, mr, 64, 64);
    // SAFETY: the QP is alive.
    let number = unsafe { (*other).qp_num };
    let mut done = 0;
    while done < 2 {
        assert!(start.elapsed() < PATIENCE, "no completion");
        done += u32::from(poll(cq).is_some_and(|wc| {
            assert!(wc.qp_num != number || wc.status == IBV_WC_SUCCESS);
            wc.qp_num == number
        }));
    }
    for qp in [victim, sender, other] {
        // SAFETY: the QP is used no more.
        assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
    }
}
