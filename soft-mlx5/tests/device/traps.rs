//! Reports of programs that stopped on software devices although the verbs looked complete: one test for each.

use std::ptr;

use crate::rdma::{ALL, Pair};
use crate::world::*;
use rdma_core_sys::*;

const RELAXED: u32 = IBV_ACCESS_RELAXED_ORDERING;

/// 3FS closes a connection with a WRITE_IMM without SGE and tests it with a WRITE whose key is 0; Mooncake counts on
/// the receive that a WRITE_IMM takes.
#[test]
fn zero_length_requests_need_no_key_and_take_receives_without_sges() {
    let world = World::stepped();
    let pair = Pair::new(&world);
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        assert_eq!(pair.run(&world, opcode, None, (0, 0)), IBV_WC_SUCCESS, "{opcode}");
    }
    for opcode in [IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND] {
        pair.receive(None);
        assert_eq!(pair.run(&world, opcode, None, (0, 0)), IBV_WC_SUCCESS, "{opcode}");
        assert_eq!(statuses(pair.far_cq), [IBV_WC_SUCCESS], "{opcode}");
    }
}

/// UCX, NCCL, libfabric, NVSHMEM and Mooncake register a dma-buf with descriptor -1 and go by the errno.
#[test]
fn a_probe_for_dma_bufs_gets_ebadf() {
    let world = World::stepped();
    for (length, access) in [(4096, ALL), (0, 0)] {
        // SAFETY: the domain is alive.
        let mr = unsafe { ibv_reg_dmabuf_mr(world.pd, 0, length, 0, -1, access as i32) };
        assert!(mr.is_null());
        assert_eq!(errno(), libc::EBADF);
    }
}

/// NCCL exchanges these options before RTR by default.
#[test]
fn options_for_enhanced_connection_establishment_are_echoed() {
    const VENDOR: u32 = 0x15b3;
    let world = World::stepped();
    let qp = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    let options = || {
        let mut ece = ibv_ece::default();
        // SAFETY: the QP is alive.
        assert_eq!(unsafe { ibv_query_ece(qp, &mut ece) }, 0);
        (ece.vendor_id, ece.options, ece.comp_mask)
    };
    // libmlx5 asks for these at the creation.
    assert_eq!(options(), (VENDOR, 0x1000_0000, 0));
    for (state, attr, asked) in [
        (IBV_QPS_INIT, to_init(), 0),
        (IBV_QPS_RTR, world.to_rtr(1), 0x1000_0005),
        (IBV_QPS_RTS, to_rts(), 0x2000_0001),
    ] {
        let before = options();
        let mut ece = ibv_ece { vendor_id: VENDOR, options: asked, comp_mask: 0 };
        // SAFETY: the QP is alive.
        assert_eq!(unsafe { ibv_set_ece(qp, &mut ece) }, 0);
        assert_eq!(modify(qp, &attr, rc(state)), 0);
        let expected = if asked == 0 { (before.0, 0, 0) } else { (VENDOR, asked, 0) };
        assert_eq!(options(), expected, "{state}");
    }
    let mut foreign = ibv_ece { vendor_id: 0x8086, options: 1, comp_mask: 0 };
    // SAFETY: the QP is alive.
    assert_eq!(unsafe { ibv_set_ece(qp, &mut foreign) }, libc::EINVAL);
}

/// libibverbs strips optional flags unless the kernel says that it knows them (`commands.rs`): the flag must arrive,
/// and do nothing.
#[test]
fn optional_access_flags_are_accepted_by_each_registration() {
    let world = World::stepped();
    let memory = Box::leak(vec![0u8; 8192].into_boxed_slice());
    let (addr, len) = (memory.as_mut_ptr(), memory.len());
    for flags in [RELAXED, 1 << 21, 1 << 29] {
        let access = (ALL | flags) as i32;
        // SAFETY: the memory outlives the context, and the domain is alive.
        unsafe {
            for mr in [
                ibv_reg_mr(world.pd, addr.cast(), len, ALL | flags),
                ibv_reg_mr_iova2(world.pd, addr.cast(), len, addr as u64 & 0xfff, access as u32),
            ] {
                assert!(!mr.is_null(), "{flags:#x}: {}", errno());
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
        }
    }
    // SAFETY: as above.
    let mr = unsafe { ibv_reg_mr(world.pd, addr.cast(), len, ALL | 1 << 30) };
    assert!(mr.is_null());
    assert_eq!(errno(), libc::EINVAL, "no optional flag");
}

/// The address that a peer names is that of the registration, not that of the memory.
#[test]
fn a_region_has_the_address_that_its_registration_names() {
    let world = World::stepped();
    let memory = Box::leak(vec![0u8; 8192].into_boxed_slice());
    memory[5] = 99;
    let addr = memory.as_mut_ptr();
    let iova = 0x5000_0000 | addr as u64 & 0xfff;
    // SAFETY: the memory outlives the context, and the domain is alive.
    let mr = unsafe { ibv_reg_mr_iova2(world.pd, addr.cast(), 4096, iova, ALL | RELAXED) };
    // SAFETY: the MR is alive.
    let key = unsafe { (*mr).lkey };
    let (from, to) = ((iova + 5, 1, key), (iova + 4095, key));
    let write = |from| Pair::new(&world).run(&world, IBV_WR_RDMA_WRITE, Some(from), to);
    assert_eq!(write(from), IBV_WC_SUCCESS);
    assert_eq!(memory[4095], 99);
    assert_eq!(write((addr as u64, 1, key)), IBV_WC_LOC_PROT_ERR);
}

/// libfabric looks for the largest inline size by doubling it until a QP is refused.
#[test]
fn inline_data_beyond_the_largest_wqe_is_refused() {
    let world = World::stepped();
    let cq = world.cq(1);
    let sizes = std::iter::successors(Some(1u32), |size| size.checked_mul(2));
    let refused = sizes.take_while(|size| *size <= i32::MAX as u32 / 2).find(|size| {
        let mut init = init_attr(IBV_QPT_RC, cq, 1);
        init.cap.max_inline_data = *size;
        create_qp(world.pd, &mut init).is_err()
    });
    assert_eq!(refused, Some(1024));
}

/// Threads of UCX, NCCL, SPDK and others wait for asynchronous events all the time.
#[test]
fn the_file_of_asynchronous_events_is_silent_without_events() {
    let world = World::stepped();
    let mr = world.reg(Box::leak(vec![0u8; 4096].into_boxed_slice()), ALL);
    let qp = world.connected(world.cq(8), ptr::null_mut());
    world.exchange(qp, mr, 64);
    assert_eq!(next_async(world.ctx), None);
}

/// eRPC posts a null list to find out whether it runs on a patched driver.
#[test]
fn a_null_list_of_receives_is_no_error() {
    let world = World::stepped();
    let qp = world.connected(world.cq(8), ptr::null_mut());
    let mut bad = ptr::null_mut();
    // SAFETY: the QP is alive; a null list has no requests.
    assert_eq!(unsafe { ibv_post_recv(qp, ptr::null_mut(), &mut bad) }, 0);
}

/// Mooncake and UCX reset a QP before each connection.
#[test]
fn a_qp_leaves_each_state_by_reset_and_connects_again() {
    let world = World::stepped();
    let mr = world.reg(Box::leak(vec![0u8; 4096].into_boxed_slice()), ALL);
    let cq = world.cq(64);
    let qp = world.qp(IBV_QPT_RC, cq, ptr::null_mut());
    let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
    let error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    // SAFETY: the QP is alive.
    let rtr = world.to_rtr(unsafe { (*qp).qp_num });
    for steps in 0..=4 {
        let change =
            [(to_init(), rc(IBV_QPS_INIT)), (rtr, rc(IBV_QPS_RTR)), (to_rts(), rc(IBV_QPS_RTS)), (error, IBV_QP_STATE)];
        for (attr, mask) in &change[..steps] {
            assert_eq!(modify(qp, attr, *mask), 0);
        }
        assert_eq!(modify(qp, &reset, IBV_QP_STATE), 0, "after {steps} changes");
        world.connect(qp, qp);
        world.exchange(qp, mr, 64);
        assert_eq!(statuses(cq), [IBV_WC_SUCCESS; 2], "after {steps} changes");
        assert_eq!(modify(qp, &reset, IBV_QP_STATE), 0);
    }
}

/// SPDK ends the connection when its CQ does not grow with the queue pairs.
#[test]
fn a_cq_grows_while_it_holds_completions() {
    let world = World::stepped();
    let mr = world.reg(Box::leak(vec![0u8; 4096].into_boxed_slice()), ALL);
    let cq = world.cq(2);
    let qp = world.connected(cq, ptr::null_mut());
    world.exchange(qp, mr, 64);
    // SAFETY: the CQ is alive.
    assert_eq!(unsafe { ibv_resize_cq(cq, 64) }, 0);
    world.exchange(qp, mr, 64);
    assert_eq!(statuses(cq), [IBV_WC_SUCCESS; 4]);
}

/// NCCL recovers ports over unreliable connections.
#[test]
fn an_unreliable_connection_carries_messages() {
    let world = World::stepped();
    let mr = world.reg(Box::leak(vec![0u8; 4096].into_boxed_slice()), ALL);
    let cq = world.cq(8);
    let qp = world.qp(IBV_QPT_UC, cq, ptr::null_mut());
    let mask = |state| crate::qp_states::mask(IBV_QPT_UC, state);
    assert_eq!(modify(qp, &to_init(), mask(IBV_QPS_INIT)), 0);
    // SAFETY: the QP is alive.
    let rtr = world.to_rtr(unsafe { (*qp).qp_num });
    assert_eq!(modify(qp, &rtr, mask(IBV_QPS_RTR)), 0);
    assert_eq!(modify(qp, &to_rts(), mask(IBV_QPS_RTS)), 0);
    world.exchange(qp, mr, 64);
    assert_eq!(statuses(cq), [IBV_WC_SUCCESS; 2]);
}

/// 3FS counts on the error at once.
#[test]
fn without_rnr_retries_a_receiver_that_is_not_ready_is_fatal() {
    let world = World::stepped();
    let pair = Pair::new(&world);
    let near = pair.near;
    let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
    assert_eq!(modify(near, &reset, IBV_QP_STATE), 0);
    // SAFETY: the QP is alive.
    let rtr = world.to_rtr(unsafe { (*pair.far).qp_num });
    assert_eq!(modify(near, &to_init(), rc(IBV_QPS_INIT)), 0);
    assert_eq!(modify(near, &rtr, rc(IBV_QPS_RTR)), 0);
    assert_eq!(modify(near, &ibv_qp_attr { rnr_retry: 0, ..to_rts() }, rc(IBV_QPS_RTS)), 0);
    assert_eq!(pair.run(&world, IBV_WR_SEND, None, (0, 0)), IBV_WC_RNR_RETRY_EXC_ERR);
}

/// libfabric believes that a device can reach peer memory if its name has these letters.
#[test]
fn the_name_of_the_device_says_mlx() {
    let world = World::stepped();
    assert!(world.device().name().contains("mlx"));
}

/// On-demand paging is not offered, and refused as by a kernel whose adapter lacks it.
#[test]
fn pages_on_demand_are_neither_offered_nor_taken() {
    let world = World::stepped();
    let mut caps = ibv_device_attr_ex::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device_ex(world.ctx, ptr::null(), &mut caps) }, 0);
    let odp = caps.odp_caps;
    let of = odp.per_transport_caps;
    assert_eq!((odp.general_caps, of.rc_odp_caps, of.uc_odp_caps, of.ud_odp_caps), (0, 0, 0, 0));
    assert_eq!(caps.xrc_odp_caps, 0);
    let memory = Box::leak(vec![0u8; 4096].into_boxed_slice());
    for access in [IBV_ACCESS_ON_DEMAND, ALL | IBV_ACCESS_ON_DEMAND] {
        assert!(world.reg(memory, access).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    // SAFETY: the domain is alive; the whole address space would be an implicit region.
    let mr = unsafe { ibv_reg_mr(world.pd, ptr::null_mut(), usize::MAX, IBV_ACCESS_ON_DEMAND) };
    assert!(mr.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let mr = world.reg(memory, ALL);
    // SAFETY: domain and MR are alive.
    unsafe {
        let mut sge = ibv_sge { addr: (*mr).addr as u64, length: 64, lkey: (*mr).lkey };
        for advice in
            [IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT]
        {
            assert_eq!(ibv_advise_mr(world.pd, advice, 0, &mut sge, 1), libc::EOPNOTSUPP);
        }
    }
}
