//! Limits, as reported and as enforced.

use std::ptr;
use std::time::Instant;

use soft_mlx5::Device;

use crate::world::{PATIENCE, World, create_qp, errno, init_attr, poll, post_recv, post_send, post_srq_recv, statuses};
use rdma_core_sys::*;

#[test]
fn queues_beyond_the_limits_are_refused() {
    let world = World::stepped();
    let mut caps = ibv_device_attr::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device(world.ctx, &mut caps) }, 0);
    let srq = |max_wr, max_sge| {
        let mut init = ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
        // SAFETY: the domain is alive.
        let srq = unsafe { ibv_create_srq(world.pd, &mut init) };
        if srq.is_null() { Err(errno()) } else { Ok(init.attr) }
    };
    let largest = caps.max_srq_wr as u32;
    assert_eq!(srq(largest, 1).map(|attr| attr.max_wr), Ok(largest));
    assert_eq!(srq(largest + 2, 1).err(), Some(libc::EINVAL));
    assert_eq!(srq(1, caps.max_srq_sge as u32).map(|attr| attr.max_sge), Ok(31));
    assert_eq!(srq(1, caps.max_srq_sge as u32 + 2).err(), Some(libc::EINVAL));

    let cq = |entries, vector| {
        // SAFETY: the context is open.
        let cq = unsafe { ibv_create_cq(world.ctx, entries, ptr::null_mut(), ptr::null_mut(), vector) };
        if cq.is_null() { Err(errno()) } else { Ok(()) }
    };
    assert_eq!(cq(caps.max_cqe, 0), Ok(()));
    assert_eq!(cq(caps.max_cqe + 1, 0), Err(libc::EINVAL));
    assert_eq!(cq(0, 0), Err(libc::EINVAL));
    // SAFETY: the context is open.
    assert_eq!(cq(1, unsafe { (*world.ctx).num_comp_vectors }), Err(libc::EINVAL));

    let queue = world.cq(1);
    let qp = |send, recv| {
        let mut init = init_attr(IBV_QPT_RC, queue, send);
        init.cap.max_recv_wr = recv;
        create_qp(world.pd, &mut init).map(drop)
    };
    assert_eq!(qp(1, caps.max_qp_wr as u32), Ok(()));
    assert_eq!(qp(1, caps.max_qp_wr as u32 + 1), Err(libc::EINVAL));
    assert_eq!(qp(caps.max_qp_wr as u32 + 1, 1), Err(libc::EINVAL));
}

#[test]
fn an_ordinary_srq_has_room_for_waiting_wqes() {
    // The size that the library asks for includes its wait queue, and QUERY_SRQ reports that size.
    let world = World::stepped();
    let srq = world.srq(32);
    let mut attr = ibv_srq_attr::default();
    // SAFETY: the SRQ is alive.
    assert_eq!(unsafe { ibv_query_srq(srq, &mut attr) }, 0);
    assert_eq!(attr.max_wr, 127);
}

#[test]
fn queue_pair_numbers_repeat_unless_asked() {
    for distinct in [false, true] {
        let world = World::new(Device::builder().stepped().distinct_qp_numbers(distinct));
        let cq = world.cq(16);
        let mr = world.reg(Box::leak(vec![0; 64].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
        let mut numbers = std::collections::HashSet::new();
        for _ in 0..300 {
            let qp = world.connected(cq, ptr::null_mut());
            world.exchange(qp, mr, 32);
            // SAFETY: the QP is alive until it is destroyed.
            let number = unsafe { (*qp).qp_num };
            numbers.insert(number);
            for _ in 0..2 {
                let wc = poll(cq).expect("a completion");
                assert_eq!((wc.status, wc.qp_num), (IBV_WC_SUCCESS, number));
            }
            // SAFETY: as above.
            assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
        }
        assert_eq!(numbers.len() == 300, distinct, "{}", numbers.len());
    }
}

#[test]
fn a_thousand_queue_pairs_receive_from_one_srq_into_one_cq() {
    const QPS: usize = 1000;
    const SIZE: usize = 64;
    // Twice as many QPs as there are registers.
    let world = World::new(Device::builder().strict(true));
    let (cq, srq) = (world.cq(4 * QPS as i32), world.srq(QPS as u32));
    let qps: Vec<_> = (0..QPS).map(|_| world.qp(IBV_QPT_RC, cq, srq)).collect();
    for (index, &qp) in qps.iter().enumerate() {
        world.connect(qp, qps[index ^ 1]);
    }
    // Buffers to send from, and after them buffers to receive into.
    let memory = Box::leak(vec![0u8; 2 * QPS * SIZE].into_boxed_slice());
    let mr = world.reg(memory, IBV_ACCESS_LOCAL_WRITE);
    let start = Instant::now();
    for round in 0..3u8 {
        for (index, &qp) in qps.iter().enumerate() {
            let at = index * SIZE;
            memory[at..at + 8].copy_from_slice(&(index as u64 | u64::from(round) << 32).to_ne_bytes());
            post_srq_recv(srq, mr, index as u64, (QPS + index) * SIZE, SIZE as u32);
            if index % 2 == 0 {
                post_send(qp, mr, at, SIZE as u32);
            }
        }
        for index in (1..QPS).step_by(2) {
            post_send(qps[index], mr, index * SIZE, SIZE as u32);
        }
        let (mut sent, mut received) = (0, vec![false; QPS]);
        while sent < QPS || received.contains(&false) {
            assert!(start.elapsed() < PATIENCE, "round {round}: {sent} sent");
            let Some(wc) = poll(cq) else { continue };
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            if wc.opcode & IBV_WC_RECV == 0 {
                sent += 1;
                continue;
            }
            let at = (QPS + wc.wr_id as usize) * SIZE;
            let (low, _) = memory[at..].split_first_chunk().unwrap();
            let from = (u64::from_ne_bytes(*low) & 0xffff_ffff) as usize;
            assert_eq!(u64::from_ne_bytes(*low) >> 32, u64::from(round));
            // SAFETY: the QP is alive.
            assert_eq!(unsafe { (*qps[from ^ 1]).qp_num }, wc.qp_num);
            assert!(!std::mem::replace(&mut received[from], true), "message of {from} came twice");
        }
        assert!(poll(cq).is_none());
    }
    for qp in qps {
        // SAFETY: alive until here.
        assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
    }
}

#[test]
fn a_process_opens_many_contexts() {
    let world = World::stepped();
    let mr = world.reg(Box::leak(vec![0; 64].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    let open: Vec<_> = (0..200).map(|_| crate::world::open(world.device().name())).collect();
    // SAFETY: the contexts are open, and the objects of a context are used only while it is open.
    unsafe {
        let pd = ibv_alloc_pd(open[199]);
        let mr = ibv_reg_mr(pd, (*mr).addr, 64, IBV_ACCESS_LOCAL_WRITE);
        let cq = ibv_create_cq(open[199], 64, ptr::null_mut(), ptr::null_mut(), 0);
        assert!(!pd.is_null() && !mr.is_null() && !cq.is_null());
        // More QPs than the last context has registers.
        for _ in 0..20 {
            let qp = create_qp(pd, &mut init_attr(IBV_QPT_RC, cq, 4)).unwrap();
            world.connect(qp, qp);
            post_recv(qp, mr, 0, 32);
            post_send(qp, mr, 32, 32);
        }
        world.device().settle();
        assert_eq!(statuses(cq), [IBV_WC_SUCCESS; 40]);
        for ctx in open {
            assert_eq!(ibv_close_device(ctx), 0);
        }
    }
}

#[test]
fn a_resized_queue_keeps_what_was_not_polled() {
    let world = World::stepped();
    let cq = world.cq(7);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = world.reg(Box::leak(vec![0; 64].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    world.exchange(qp, mr, 32);
    // SAFETY: the CQ is alive.
    unsafe {
        assert_eq!(ibv_resize_cq(cq, 100), 0);
        assert_eq!((*cq).cqe, 127);
        assert_ne!(ibv_resize_cq(cq, 1 << 23), 0);
    }
    world.exchange(qp, mr, 32);
    assert_eq!(statuses(cq), [IBV_WC_SUCCESS; 4]);
}
