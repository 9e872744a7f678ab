//! Memory windows of both types, bound through libmlx5.

use std::ptr;

use crate::rdma::{ALL, Pair};
use crate::world::*;
use rdma_core_sys::*;

const RIGHTS: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
const SIZE: usize = 8192;

/// A pair, memory that can be bound, and a window on its far side.
struct Bench {
    world: World,
    pair: Pair,
    mr: *mut ibv_mr,
    mw: *mut ibv_mw,
}

impl Bench {
    fn new(kind: ibv_mw_type) -> Self {
        let world = World::stepped();
        let pair = Pair::new(&world);
        let memory = Box::leak(vec![0; SIZE].into_boxed_slice());
        let mr = world.reg(memory, ALL | IBV_ACCESS_MW_BIND);
        // SAFETY: the domain is alive.
        let mw = unsafe { ibv_alloc_mw(world.pd, kind) };
        assert!(!mr.is_null() && !mw.is_null());
        Self { world, pair, mr, mw }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the window is alive.
        unsafe { (*self.mw).rkey }
    }

    fn addr(&self, offset: u64) -> u64 {
        // SAFETY: the region is alive.
        unsafe { (*self.mr).addr as u64 + offset }
    }

    fn info(&self, offset: u64, length: u64) -> ibv_mw_bind_info {
        let addr = self.addr(offset);
        ibv_mw_bind_info { mr: self.mr, addr, length, mw_access_flags: RIGHTS }
    }

    /// Lets the far QP post a request that has no data.
    fn post(&self, change: impl FnOnce(&mut ibv_send_wr)) -> Result<(), i32> {
        let mut wr = ibv_send_wr { send_flags: IBV_SEND_SIGNALED, ..Default::default() };
        change(&mut wr);
        // SAFETY: the QP and what the request names are alive.
        match unsafe { ibv_post_send(self.pair.far, &mut wr, &mut ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(error),
        }
    }

    fn outcome_of(&self, change: impl FnOnce(&mut ibv_send_wr)) -> (ibv_wc_status, ibv_wc_opcode) {
        self.post(change).unwrap();
        self.world.device().settle();
        let wc = poll(self.pair.far_cq).expect("a completion");
        (wc.status, wc.opcode)
    }

    /// Binds the window of type 2 under the next key, which it returns.
    fn bind(&self, info: ibv_mw_bind_info) -> u32 {
        let rkey = ibv_inc_rkey(self.rkey());
        let outcome = self.outcome_of(|wr| {
            wr.opcode = IBV_WR_BIND_MW;
            wr.__bindgen_anon_2.bind_mw.mw = self.mw;
            wr.__bindgen_anon_2.bind_mw.rkey = rkey;
            wr.__bindgen_anon_2.bind_mw.bind_info = info;
        });
        assert_eq!(outcome, (IBV_WC_SUCCESS, IBV_WC_BIND_MW));
        // SAFETY: the window is alive. The program keeps its key.
        unsafe { (*self.mw).rkey = rkey };
        rkey
    }

    fn invalidate(&self, rkey: u32) -> (ibv_wc_status, ibv_wc_opcode) {
        self.outcome_of(|wr| {
            wr.opcode = IBV_WR_LOCAL_INV;
            wr.__bindgen_anon_1.invalidate_rkey = rkey;
        })
    }

    /// Lets the near QP write to the window, or read it.
    fn access(&self, opcode: ibv_wr_opcode, to: u64, rkey: u32, length: u32) -> ibv_wc_status {
        // SAFETY: the region is alive.
        let local = unsafe { (self.addr(SIZE as u64 / 2), length, (*self.mr).lkey) };
        self.pair.run(&self.world, opcode, Some(local), (to, rkey))
    }

    fn write(&self, to: u64, rkey: u32, length: u32) -> ibv_wc_status {
        self.access(IBV_WR_RDMA_WRITE, to, rkey, length)
    }
}

#[test]
fn the_device_has_windows_of_type_1_and_2b() {
    let world = World::stepped();
    let mut caps = ibv_device_attr::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device(world.ctx, &mut caps) }, 0);
    let windows = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    assert_eq!(caps.device_cap_flags & windows, IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
    assert_eq!(caps.max_mw, caps.max_mr);
    // SAFETY: the domain is alive.
    assert!(unsafe { ibv_alloc_mw(world.pd, 3) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn a_domain_with_a_window_stays() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    // SAFETY: domain and window are alive; the window is freed once.
    unsafe {
        assert_eq!(ibv_dealloc_pd(bench.world.pd), libc::EBUSY);
        let pd = ibv_alloc_pd(bench.world.ctx);
        let mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(ibv_dealloc_mw(mw), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn a_window_of_type_2_is_bound_used_and_invalidated() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    let rkey = bench.bind(bench.info(64, 100));
    assert_eq!(bench.write(bench.addr(64), rkey, 100), IBV_WC_SUCCESS);
    assert_eq!(bench.access(IBV_WR_RDMA_READ, bench.addr(100), rkey, 64), IBV_WC_SUCCESS);
    assert_eq!(bench.invalidate(rkey), (IBV_WC_SUCCESS, IBV_WC_LOCAL_INV));
    // Bound again, to other bytes, and from 0 on.
    let info = ibv_mw_bind_info { mw_access_flags: RIGHTS | IBV_ACCESS_ZERO_BASED, ..bench.info(1000, 8) };
    let next = bench.bind(info);
    assert_eq!(bench.write(0, next, 8), IBV_WC_SUCCESS);
    assert_eq!(bench.write(0, next, 9), IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_key_from_before_is_stale() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    let first = bench.bind(bench.info(0, 100));
    bench.invalidate(first);
    let second = bench.bind(bench.info(0, 100));
    assert_ne!(first, second);
    assert_eq!(bench.write(bench.addr(0), first, 8), IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_bound_window_is_not_bound_again() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    let rkey = bench.bind(bench.info(0, 100));
    let outcome = bench.outcome_of(|wr| {
        wr.opcode = IBV_WR_BIND_MW;
        wr.__bindgen_anon_2.bind_mw.mw = bench.mw;
        wr.__bindgen_anon_2.bind_mw.rkey = ibv_inc_rkey(rkey);
        wr.__bindgen_anon_2.bind_mw.bind_info = bench.info(0, 100);
    });
    assert_eq!(outcome.0, IBV_WC_MW_BIND_ERR);
}

#[test]
fn a_window_gives_only_its_rights() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    let info = ibv_mw_bind_info { mw_access_flags: IBV_ACCESS_REMOTE_READ, ..bench.info(0, 100) };
    let rkey = bench.bind(info);
    assert_eq!(bench.access(IBV_WR_RDMA_READ, bench.addr(0), rkey, 64), IBV_WC_SUCCESS);
    assert_eq!(bench.write(bench.addr(0), rkey, 8), IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_freed_window_is_gone() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    let rkey = bench.bind(bench.info(0, 100));
    // SAFETY: the window is freed once.
    assert_eq!(unsafe { ibv_dealloc_mw(bench.mw) }, 0);
    assert_eq!(bench.write(bench.addr(0), rkey, 8), IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_peer_invalidates_a_window_of_type_2() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    let rkey = bench.bind(bench.info(0, 100));
    bench.pair.receive(None);
    let mut wr = ibv_send_wr { opcode: IBV_WR_SEND_WITH_INV, send_flags: IBV_SEND_SIGNALED, ..Default::default() };
    wr.__bindgen_anon_1.invalidate_rkey = rkey;
    // SAFETY: the QP is alive.
    assert_eq!(unsafe { ibv_post_send(bench.pair.near, &mut wr, &mut ptr::null_mut()) }, 0);
    assert_eq!(bench.pair.outcome(&bench.world), IBV_WC_SUCCESS);
    let wc = poll(bench.pair.far_cq).expect("a message");
    // SAFETY: the flag says which field holds a value.
    assert_eq!((wc.wc_flags, unsafe { wc.__bindgen_anon_1.invalidated_rkey }), (IBV_WC_WITH_INV, rkey));
    assert_eq!(bench.write(bench.addr(0), rkey, 8), IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_window_of_type_1_is_bound_over_and_unbound() {
    let bench = Bench::new(IBV_MW_TYPE_1);
    let bind = |offset, length| {
        let info = bench.info(offset, length);
        let mut bind = ibv_mw_bind { wr_id: 5, send_flags: IBV_SEND_SIGNALED, bind_info: info };
        // SAFETY: QP, window and region are alive.
        assert_eq!(unsafe { ibv_bind_mw(bench.pair.far, bench.mw, &mut bind) }, 0);
        bench.world.device().settle();
        let wc = poll(bench.pair.far_cq).expect("a completion");
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (5, IBV_WC_SUCCESS, IBV_WC_BIND_MW));
        bench.rkey()
    };
    let first = bind(0, 100);
    assert_eq!(bench.write(bench.addr(0), first, 100), IBV_WC_SUCCESS);
    let second = bind(200, 8);
    assert_ne!(first, second);
    assert_eq!(bench.write(bench.addr(200), second, 8), IBV_WC_SUCCESS);
    let third = bind(0, 0);
    assert_eq!(bench.write(bench.addr(200), third, 8), IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn the_send_interface_of_single_calls_binds_and_invalidates() {
    let bench = Bench::new(IBV_MW_TYPE_2);
    let cq = bench.world.cq(8);
    let mut init = ibv_qp_init_attr_ex::default();
    (init.send_cq, init.recv_cq, init.qp_type, init.pd) = (cq, cq, IBV_QPT_RC, bench.world.pd);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (8, 1);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let operations = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_RDMA_WRITE;
    init.send_ops_flags = u64::from(operations);
    // SAFETY: the context is open, and the objects of the attributes are alive.
    let qp = unsafe { ibv_create_qp_ex(bench.world.ctx, &mut init) };
    assert!(!qp.is_null());
    bench.world.connect(qp, qp);
    let rkey = ibv_inc_rkey(bench.rkey());
    let info = bench.info(0, 64);
    // SAFETY: QP, window and region are alive, and each request is complete before the next begins.
    unsafe {
        let qp = ibv_qp_to_qp_ex(qp);
        ibv_wr_start(qp);
        (*qp).wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_bind_mw(qp, bench.mw, rkey, &info);
        ibv_wr_rdma_write(qp, rkey, bench.addr(0));
        ibv_wr_set_sge(qp, (*bench.mr).lkey, bench.addr(4096), 64);
        ibv_wr_local_inv(qp, rkey);
        ibv_wr_rdma_write(qp, rkey, bench.addr(0));
        ibv_wr_set_sge(qp, (*bench.mr).lkey, bench.addr(4096), 64);
        assert_eq!(ibv_wr_complete(qp), 0);
    }
    bench.world.device().settle();
    let found: Vec<_> = std::iter::from_fn(|| poll(cq)).map(|wc| wc.status).collect();
    assert_eq!(found[..3], [IBV_WC_SUCCESS; 3]);
    assert_ne!(found[3], IBV_WC_SUCCESS);
}
