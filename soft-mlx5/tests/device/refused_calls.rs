//! The errno of each refused call: the stock libmlx5 is called, and `docs/refused-calls.md` holds what it answered.

use std::collections::BTreeSet;
use std::ptr;

use soft_mlx5::{Device, Faults};

use crate::world::{World, create_qp, errno, init_attr, modify, rc, to_init, to_rts};
use rdma_core_sys::*;

/// The page, which `doorbell decode` reads, too.
const PAGE: &str = include_str!("../../../docs/refused-calls.md");

/// Calls, causes and errnos that were measured.
#[derive(Default)]
struct Measured(Vec<(&'static str, &'static str, i32)>);

impl Measured {
    fn add(&mut self, call: &'static str, cause: &'static str, errno: i32) {
        self.0.push((call, cause, errno));
    }

    /// Adds what a call returned that returns the errno.
    fn number(&mut self, call: &'static str, cause: &'static str, result: i32) {
        assert_ne!(result, 0, "{call}: {cause}: not refused");
        self.add(call, cause, result);
    }

    /// Adds the errno of a call that returns an object or null.
    fn object<T>(&mut self, call: &'static str, cause: &'static str, object: *mut T) {
        let refused = errno();
        assert!(object.is_null(), "{call}: {cause}: not refused");
        self.add(call, cause, refused);
    }
}

#[test]
fn the_page_holds_what_libmlx5_answers() {
    let mut measured = Measured::default();
    sends(&mut measured);
    receives(&mut measured);
    polls(&mut measured);
    creations(&mut measured);
    regions(&mut measured);
    states(&mut measured);
    ends(&mut measured);
    exhaustion(&mut measured);
    let row = |(call, cause, errno): &(&str, &str, i32)| format!("| `{call}` | {cause} | {errno} |");
    let rows: BTreeSet<String> = measured.0.iter().map(row).collect();
    // The column of doorbell is a reader's, not libmlx5's.
    let columns =
        |line: &str| line.split(" | ").take(3).collect::<Vec<_>>().join(" | ").trim_end_matches(" |").to_owned() + " |";
    let written: BTreeSet<String> = PAGE.lines().filter(|line| line.starts_with("| `")).map(columns).collect();
    let wrong: Vec<_> = written.difference(&rows).collect();
    let missing: Vec<_> = rows.difference(&written).collect();
    assert!(
        wrong.is_empty() && missing.is_empty(),
        "wrong in the page: {wrong:#?}\nmeasured and missing: {missing:#?}"
    );
}

/// Posts a request of `sges` SGEs of `length` bytes.
fn send(qp: *mut ibv_qp, opcode: ibv_wr_opcode, flags: ibv_send_flags, sges: usize, length: u32) -> i32 {
    let mut list = vec![ibv_sge { addr: PAGE.as_ptr() as u64, length, lkey: 0 }; sges];
    let mut wr = ibv_send_wr { opcode, send_flags: flags, ..Default::default() };
    (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), sges as i32);
    // SAFETY: the QP is alive; an inline send reads `length` bytes of the page, which has more.
    unsafe { ibv_post_send(qp, &mut wr, &mut ptr::null_mut()) }
}

fn sends(measured: &mut Measured) {
    const CALL: &str = "ibv_post_send";
    let world = World::stepped();
    let cq = world.cq(64);
    let mut init = init_attr(IBV_QPT_RC, cq, 16);
    init.cap.max_inline_data = 32;
    let qp = create_qp(world.pd, &mut init).unwrap();
    let (sges, inline) = (init.cap.max_send_sge as usize, init.cap.max_inline_data);
    measured.number(CALL, "a queue pair in RESET", send(qp, IBV_WR_SEND, 0, 1, 8));
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    measured.number(CALL, "a queue pair in INIT", send(qp, IBV_WR_SEND, 0, 1, 8));
    // SAFETY: the QP is alive.
    let number = unsafe { (*qp).qp_num };
    assert_eq!(modify(qp, &world.to_rtr(number), rc(IBV_QPS_RTR)), 0);
    measured.number(CALL, "a queue pair in RTR", send(qp, IBV_WR_SEND, 0, 1, 8));
    assert_eq!(modify(qp, &to_rts(), rc(IBV_QPS_RTS)), 0);
    measured.number(CALL, "more SGEs than max_send_sge", send(qp, IBV_WR_SEND, 0, sges + 1, 8));
    measured.number(CALL, "inline bytes beyond max_inline_data", send(qp, IBV_WR_SEND, IBV_SEND_INLINE, 1, inline + 1));
    measured.number(CALL, "an operation that the queue pair does not have", send(qp, IBV_WR_TSO, 0, 1, 8));
    measured.number(CALL, "an opcode that libmlx5 does not know", send(qp, 200, 0, 1, 8));
    let ud = world.qp(IBV_QPT_UD, cq, ptr::null_mut());
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..Default::default() };
    let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    assert_eq!(modify(ud, &attr, init), 0);
    attr.qp_state = IBV_QPS_RTR;
    assert_eq!(modify(ud, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    assert_eq!(modify(ud, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    let full = (0..1024).find_map(|_| Some(send(qp, IBV_WR_SEND, 0, 1, 8)).filter(|&errno| errno != 0));
    measured.number(CALL, "the send queue is full", full.expect("a queue with an end"));
}

fn receives(measured: &mut Measured) {
    let world = World::stepped();
    let cq = world.cq(64);
    let mut init = init_attr(IBV_QPT_RC, cq, 4);
    let qp = create_qp(world.pd, &mut init).unwrap();
    let mut list = vec![ibv_sge::default(); 64];
    let mut wr = ibv_recv_wr { sg_list: list.as_mut_ptr(), ..Default::default() };
    let mut post = |sges: u32| {
        wr.num_sge = sges as i32;
        // SAFETY: the QP is alive, and the list as long as it says.
        unsafe { ibv_post_recv(qp, &mut wr, &mut ptr::null_mut()) }
    };
    measured.number("ibv_post_recv", "a queue pair in RESET", post(1));
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    measured.number("ibv_post_recv", "more SGEs than max_recv_sge", post(init.cap.max_recv_sge + 1));
    let full = (0..1024).find_map(|_| Some(post(1)).filter(|&errno| errno != 0));
    measured.number("ibv_post_recv", "the receive queue is full", full.expect("a queue with an end"));

    let srq = world.srq(4);
    let mut attr = ibv_srq_attr::default();
    // SAFETY: the SRQ is alive.
    assert_eq!(unsafe { ibv_query_srq(srq, &mut attr) }, 0);
    let mut post = |sges: u32| {
        wr.num_sge = sges as i32;
        // SAFETY: the SRQ is alive, and the list as long as it says.
        unsafe { ibv_post_srq_recv(srq, &mut wr, &mut ptr::null_mut()) }
    };
    measured.number("ibv_post_srq_recv", "more SGEs than max_sge", post(attr.max_sge + 1));
    let full = (0..1024).find_map(|_| Some(post(1)).filter(|&errno| errno != 0));
    measured.number("ibv_post_srq_recv", "the SRQ is full", full.expect("a queue with an end"));
}

fn polls(measured: &mut Measured) {
    const CALL: &str = "ibv_poll_cq";
    /// The user's index of a queue pair in a CQE.
    const UIDX: usize = 32;
    let world = World::stepped();
    let cq = world.cq(16);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    world.exchange(qp, mr, 64);
    let mut queue = mlx5dv_cq::default();
    let mut object = mlx5dv_obj::default();
    (object.cq.in_, object.cq.out) = (cq, &mut queue);
    // SAFETY: the CQ is alive, its buffer holds a CQE in the first place, and the device writes no more.
    unsafe {
        assert_eq!((Mlx5dv::get().unwrap().init_obj)(&mut object, MLX5DV_OBJ_CQ.into()), 0);
        queue.buf.cast::<u8>().add(UIDX).cast::<u32>().write_volatile(0xff_ffff_u32.to_be());
        let polled = ibv_poll_cq(cq, 1, &mut ibv_wc::default());
        measured.number(CALL, "a CQE that names no queue pair of the process", polled);
    }
    let mut attr = ibv_cq_init_attr_ex { cqe: 4, ..Default::default() };
    let mut poll = ibv_poll_cq_attr::default();
    // SAFETY: the context is open; libmlx5 writes to neither structure.
    unsafe {
        let cq = ibv_create_cq_ex(world.ctx, &mut attr);
        measured.number("ibv_start_poll", "the CQ is empty", ibv_start_poll(cq, &mut poll));
        poll.comp_mask = 1;
        measured.number("ibv_start_poll", "an attribute that libmlx5 does not know", ibv_start_poll(cq, &mut poll));
    }
}

fn creations(measured: &mut Measured) {
    let world = World::stepped();
    let mut caps = ibv_device_attr::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device(world.ctx, &mut caps) }, 0);
    let cq = world.cq(4);
    // SAFETY: the context is open, and there is no channel.
    let make = |entries, vector| unsafe { ibv_create_cq(world.ctx, entries, ptr::null_mut(), ptr::null_mut(), vector) };
    measured.object("ibv_create_cq", "no entries", make(0, 0));
    measured.object("ibv_create_cq", "more entries than max_cqe", make(caps.max_cqe + 1, 0));
    // SAFETY: the context is open.
    let vectors = unsafe { (*world.ctx).num_comp_vectors };
    measured.object("ibv_create_cq", "a completion vector beyond num_comp_vectors", make(1, vectors));

    let mut refuse = |cause, change: &dyn Fn(&mut ibv_qp_init_attr)| {
        let mut init = init_attr(IBV_QPT_RC, cq, 4);
        change(&mut init);
        let refused = create_qp(world.pd, &mut init).expect_err(cause);
        measured.add("ibv_create_qp", cause, refused);
    };
    refuse("more send requests than max_qp_wr", &|init| init.cap.max_send_wr = caps.max_qp_wr as u32 + 1);
    refuse("more receives than max_qp_wr", &|init| init.cap.max_recv_wr = caps.max_qp_wr as u32 + 1);
    refuse("more SGEs than max_sge, to send", &|init| init.cap.max_send_sge = 1 << 10);
    refuse("more SGEs than max_sge, to receive", &|init| init.cap.max_recv_sge = 1 << 10);
    refuse("more inline bytes than a WQE holds", &|init| init.cap.max_inline_data = 1 << 14);
    refuse("a type that does not exist", &|init| init.qp_type = 77);

    let make = |max_wr, max_sge| {
        let mut init = ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
        // SAFETY: the domain is alive.
        unsafe { ibv_create_srq(world.pd, &mut init) }
    };
    measured.object("ibv_create_srq", "more receives than max_srq_wr", make(caps.max_srq_wr as u32 + 2, 1));
    measured.object("ibv_create_srq", "more SGEs than max_srq_sge", make(1, caps.max_srq_sge as u32 + 2));

    let mut attr = ibv_ah_attr { port_num: 77, ..Default::default() };
    // SAFETY: the domain is alive.
    measured
        .object("ibv_create_ah", "a port that the device does not have", unsafe { ibv_create_ah(world.pd, &mut attr) });
}

fn regions(measured: &mut Measured) {
    const CALL: &str = "ibv_reg_mr";
    let world = World::stepped();
    let mut memory = vec![0u8; 4096];
    measured.object(
        CALL,
        "remote WRITE or atomics without local write",
        world.reg(&mut memory, IBV_ACCESS_REMOTE_WRITE),
    );
    // SAFETY: the call fails without a look at the range.
    let reg = |start: usize, len| unsafe { ibv_reg_mr(world.pd, start as *mut _, len, IBV_ACCESS_LOCAL_WRITE) };
    measured.object(CALL, "memory that is not mapped", reg(0x1000, 4096));
    measured.object(CALL, "a range that wraps", reg(usize::MAX - 8191, 1 << 20));
    // SAFETY: the domain is alive; the descriptor is none.
    let mr = unsafe { ibv_reg_dmabuf_mr(world.pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE as i32) };
    measured.object("ibv_reg_dmabuf_mr", "a descriptor that is not open", mr);
}

fn states(measured: &mut Measured) {
    const CALL: &str = "ibv_modify_qp";
    let world = World::stepped();
    let qp = world.qp(IBV_QPT_RC, world.cq(8), ptr::null_mut());
    measured.number(CALL, "a state that does not follow: RESET to RTS", modify(qp, &to_rts(), rc(IBV_QPS_RTS)));
    measured.number(CALL, "an attribute is missing", modify(qp, &to_init(), IBV_QP_STATE | IBV_QP_PORT));
    let wrong = ibv_qp_attr { port_num: 77, ..to_init() };
    measured.number(CALL, "a port that the device does not have", modify(qp, &wrong, rc(IBV_QPS_INIT)));
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    let mut wrong = world.to_rtr(1);
    wrong.path_mtu = 9;
    measured.number(CALL, "a path MTU beyond that of the port", modify(qp, &wrong, rc(IBV_QPS_RTR)));
    let mut wrong = world.to_rtr(1);
    (wrong.ah_attr.is_global, wrong.ah_attr.grh.sgid_index) = (1, 200);
    measured.number(CALL, "a GID index that the port does not have", modify(qp, &wrong, rc(IBV_QPS_RTR)));
    let wrong = ibv_qp_attr { max_dest_rd_atomic: 255, ..world.to_rtr(1) };
    measured.number(CALL, "more READs than max_qp_rd_atom", modify(qp, &wrong, rc(IBV_QPS_RTR)));
}

fn ends(measured: &mut Measured) {
    let world = World::stepped();
    let cq = world.cq(8);
    let srq = world.srq(4);
    let _qp = world.qp(IBV_QPT_RC, cq, srq);
    // SAFETY: the objects are alive, and stay so because they are in use.
    unsafe {
        measured.number("ibv_destroy_cq", "a queue pair uses it", ibv_destroy_cq(cq));
        measured.number("ibv_destroy_srq", "a queue pair uses it", ibv_destroy_srq(srq));
        measured.number("ibv_dealloc_pd", "objects use it", ibv_dealloc_pd(world.pd));
    }
}

fn exhaustion(measured: &mut Measured) {
    let faults = Faults { max_qps: Some(1), max_mkeys: Some(1), ..Faults::default() };
    let world = World::new(Device::builder().stepped().faults(faults));
    let cq = world.cq(8);
    let make = || create_qp(world.pd, &mut init_attr(IBV_QPT_RC, cq, 4));
    let refused = (0..3).find_map(|_| make().err()).expect("a device that is full");
    measured.add("ibv_create_qp", "the device has no queue pair left", refused);
    let mut memory = vec![0u8; 4096];
    let mut reg = || world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    let refused = (0..3).find_map(|_| reg().is_null().then(errno)).expect("a device that is full");
    measured.add("ibv_reg_mr", "the device has no memory key left", refused);
}
