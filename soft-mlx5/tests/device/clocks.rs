//! Timestamps in real time, as libmlx5 asks for them.

use std::time::Duration;

use rdma_core_sys::*;
use soft_mlx5::Device;

use crate::world::{World, create_qp, errno, init_attr};

const WALLCLOCK: u32 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
const TICKS: u32 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;

fn cq(world: &World, wc_flags: u32) -> *mut ibv_cq_ex {
    let wc_flags = wc_flags.into();
    let mut attr = ibv_cq_init_attr_ex { cqe: 15, wc_flags, ..Default::default() };
    // SAFETY: the context is open.
    let cq = unsafe { ibv_create_cq_ex(world.ctx, &mut attr) };
    assert!(!cq.is_null(), "{}", errno());
    cq
}

/// Makes a queue pair with two CQs; returns errno if it is refused.
fn qp(world: &World, send: *mut ibv_cq_ex, recv: *mut ibv_cq_ex) -> Result<*mut ibv_qp, i32> {
    let recv_cq = ibv_cq_ex_to_cq(recv);
    let init = init_attr(IBV_QPT_RC, ibv_cq_ex_to_cq(send), 4);
    create_qp(world.pd, &mut ibv_qp_init_attr { recv_cq, ..init })
}

#[test]
fn without_real_time_libmlx5_converts_ticks() {
    let world = World::stepped();
    let cq = cq(&world, WALLCLOCK);
    let qp = qp(&world, cq, cq).unwrap();
    world.connect(qp, qp);
    let mut memory = vec![0; 256];
    let mr = world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    world.device().advance(Duration::from_millis(2500));
    world.exchange(qp, mr, 100);
    // SAFETY: the CQ is alive and was created for the fields that are read.
    unsafe {
        assert_eq!(ibv_start_poll(cq, &mut ibv_poll_cq_attr::default()), 0);
        assert_eq!(ibv_wc_read_completion_wallclock_ns(cq), 2_500_000_000);
        ibv_end_poll(cq);
    }
}

#[test]
fn the_two_directions_of_a_queue_pair_have_one_clock() {
    let world = World::new(Device::builder().stepped().real_time(true));
    let (real, ticks) = (cq(&world, WALLCLOCK), cq(&world, TICKS));
    assert_eq!(qp(&world, real, ticks), Err(libc::EOPNOTSUPP));
    assert_eq!(qp(&world, ticks, real), Err(libc::EOPNOTSUPP));
    for cq in [real, ticks] {
        // SAFETY: the QP is used no more.
        assert_eq!(unsafe { ibv_destroy_qp(qp(&world, cq, cq).unwrap()) }, 0);
    }
}
