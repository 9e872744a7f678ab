//! Timestamps in real time, as libmlx5 asks for them.

use std::ptr;
use std::time::Duration;

use rdma_core_sys::*;
use soft_mlx5::Device;

use crate::world::{
    INIT_RC, RTR_RC, RTS_RC, World, errno, modify, post_recv, post_send, to_init, to_rts,
};

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

/// Two CQs for the directions of a queue pair; errno if that is refused.
fn qp(world: &World, send: *mut ibv_cq_ex, recv: *mut ibv_cq_ex) -> Result<*mut ibv_qp, i32> {
    let mut init = ibv_qp_init_attr {
        send_cq: ibv_cq_ex_to_cq(send),
        recv_cq: ibv_cq_ex_to_cq(recv),
        qp_type: IBV_QPT_RC,
        ..Default::default()
    };
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    // SAFETY: domain and CQs are alive.
    let qp = unsafe { ibv_create_qp(world.pd, &mut init) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

/// Sends a message to itself 2.5 s after power-up; what `read` says of its receive.
fn arrival(world: &World, cq: *mut ibv_cq_ex, read: unsafe fn(*mut ibv_cq_ex) -> u64) -> u64 {
    let qp = qp(world, cq, cq).unwrap();
    // SAFETY: the QP is alive.
    let number = unsafe { (*qp).qp_num };
    assert_eq!(modify(qp, &to_init(), INIT_RC), 0);
    assert_eq!(modify(qp, &world.to_rtr(number), RTR_RC), 0);
    assert_eq!(modify(qp, &to_rts(), RTS_RC), 0);
    let mut memory = vec![0; 256];
    let mr = world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    post_recv(qp, mr, 128, 128);
    world.device().advance(Duration::from_millis(2500));
    post_send(qp, mr, 0, 100);
    world.device().settle();
    // SAFETY: the CQ is alive and was created for what is read.
    unsafe {
        assert_eq!(ibv_start_poll(cq, &mut ibv_poll_cq_attr::default()), 0);
        let time = read(cq);
        ibv_end_poll(cq);
        time
    }
}

#[test]
fn a_cq_asked_for_real_time_has_seconds_and_nanoseconds() {
    let world = World::new(Device::builder().stepped().real_time(true));
    let time = arrival(&world, cq(&world, WALLCLOCK), ibv_wc_read_completion_wallclock_ns);
    assert_eq!(time, 2 << 32 | 500_000_000);
}

#[test]
fn others_have_ticks() {
    let world = World::new(Device::builder().stepped().real_time(true));
    let ticks = arrival(&world, cq(&world, TICKS), ibv_wc_read_completion_ts);
    assert_eq!(ticks, 2_500_000_000);
}

#[test]
fn without_real_time_libmlx5_converts_ticks() {
    let world = World::stepped();
    let time = arrival(&world, cq(&world, WALLCLOCK), ibv_wc_read_completion_wallclock_ns);
    assert_eq!(time, 2_500_000_000);
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

#[test]
fn the_flag_of_the_context_says_whether_there_is_real_time() {
    for (offered, builder) in
        [(false, Device::builder()), (true, Device::builder().real_time(true))]
    {
        let world = World::new(builder.stepped());
        let mut attr = mlx5dv_context::default();
        let query = Mlx5dv::get().unwrap().query_device;
        // SAFETY: an open context and a writable structure.
        assert_eq!(unsafe { query(world.ctx, ptr::from_mut(&mut attr)) }, 0);
        let flag = u64::from(MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS);
        assert_eq!(attr.flags & flag != 0, offered);
    }
}
