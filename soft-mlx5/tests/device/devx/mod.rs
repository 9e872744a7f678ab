//! Programs that issue firmware commands (DEVX), through the stock `mlx5dv_devx_*`.

mod bench;
mod counters;
mod dynamic;
mod events;
mod frames;
mod random;
mod verbs;

use std::ptr;

use mlx5_wire::ctrl::CQ_UPDATE;
use mlx5_wire::data::DataSegment;
use mlx5_wire::firmware::command::{Numbered, Opcode};
use mlx5_wire::firmware::cq::{CqContext, CreateCq, ModifyCq, QueryCqReply, mini_format};
use mlx5_wire::firmware::mkey::{CreateMkey, MkeyContext, access_mode};
use mlx5_wire::firmware::qp::{CreateQp, ModifyQp, QueryQpReply, state};
use mlx5_wire::firmware::srq::{CreateRmp, RmpContext};
use mlx5_wire::firmware::transport::{CreateRq, CreateSq, RqContext, SqContext};
use mlx5_wire::firmware::wq::{WorkQueue, kind};
use rdma_core_sys::*;
use soft_mlx5::objects::strict::Rule;
use soft_mlx5::{Device, LinkLayer};

use self::bench::*;
use self::frames::mlx5dv_of;
use crate::unmapped::protect;
use crate::world::{World, errno, open};

const RESPONDER: u8 = 2;
const REQUESTER: u8 = 0;

const BAD_OP: u8 = 2;
const BAD_PARAM: u8 = 3;
const BAD_RESOURCE: u8 = 5;
const NO_OBJECT: u32 = 0x1102;
const OWNER: u32 = 0x1103;
const ACCESS_MODE: u32 = 0x130a;
const QUERY_HCA_CAP_LEN: usize = 0x1010;

fn refused(status: u8, syndrome: u32) -> Refused {
    (libc::EREMOTEIO, status, syndrome)
}

fn query_capabilities() -> [u8; 16] {
    let mut input = numbered(Opcode::QUERY_HCA_CAP, 0);
    // The present values of the general group.
    input[7] = 1;
    input
}

/// Registers a page for local use; returns its address and its key.
fn page(world: &World) -> (u64, u32) {
    let page = memory(PAGE);
    // SAFETY: the domain is alive, and the memory stays.
    let mr = unsafe { ibv_reg_mr(world.pd, page.cast(), PAGE, IBV_ACCESS_LOCAL_WRITE) };
    // SAFETY: the region is alive.
    (page as u64, unsafe { (*mr).lkey })
}

fn text(at: u64) -> String {
    // SAFETY: the bytes belong to a page of this test.
    (0..5).map(|n| char::from(unsafe { ((at + n) as *const u8).read_volatile() })).collect()
}

fn put_text(at: u64, text: &str) {
    for (n, byte) in text.bytes().enumerate() {
        // SAFETY: the bytes belong to a page of this test.
        unsafe { ((at + n as u64) as *mut u8).write_volatile(byte) };
    }
}

#[test]
fn a_queue_pair_of_commands_sends_to_itself() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let bench = Bench::on(link);
        let mut cq = bench.cq();
        let mut qp = bench.qp(&cq);
        bench.connect(&qp);
        let (addr, key) = page(&bench.world);
        for message in ["first", "again"] {
            put_text(addr, message);
            bench.send(&mut qp, key, addr, addr + 2048, 5);
            assert_eq!(bench.poll(&mut cq), Some((RESPONDER, qp.number)));
            assert_eq!(bench.poll(&mut cq), Some((REQUESTER, qp.number)));
            assert_eq!(bench.poll(&mut cq), None);
            assert_eq!(text(addr + 2048), message);
        }
        let reply = query_object(qp.object, &numbered(Opcode::QUERY_QP, qp.number), QueryQpReply::SIZE).unwrap();
        let context = QueryQpReply::from_prefix(&reply).unwrap().context;
        assert_eq!((context.state, context.pd, context.cqn_snd), (state::RTS, bench.pdn(), cq.number));
    }
}

#[test]
fn objects_in_use_stay() {
    let bench = Bench::new();
    let cq = bench.cq();
    let qp = bench.qp(&cq);
    assert_eq!(destroy(cq.object), libc::EINVAL);
    assert_eq!(deregister(cq.umem), libc::EINVAL);
    assert_eq!(deregister(bench.records_umem), libc::EINVAL);
    // SAFETY: the domain is alive.
    assert_eq!(unsafe { ibv_dealloc_pd(bench.world.pd) }, libc::EBUSY);
    assert_eq!(destroy(qp.object), 0);
    assert_eq!(deregister(qp.umem), 0);
    assert_eq!(deregister(bench.records_umem), libc::EINVAL, "the CQ has its record there");
    assert_eq!(destroy(cq.object), 0);
    assert_eq!(deregister(cq.umem), 0);
    assert_eq!(deregister(bench.records_umem), 0);
    // SAFETY: nothing uses the domain and the register any more.
    unsafe {
        (dv().devx_free_uar)(bench.uar);
        assert_eq!(ibv_dealloc_pd(bench.world.pd), 0);
    }
}

#[test]
fn commands_about_no_object_are_those_of_the_list() {
    let bench = Bench::new();
    let answer = bench.general(&query_capabilities(), QUERY_HCA_CAP_LEN).unwrap();
    assert_eq!(answer[0x10 + 0x38] & 31, 30, "log2 of the longest message");
    let part = bench.general(&query_capabilities(), 0x810).unwrap();
    assert_eq!(part, answer[..0x810], "as much as there is room for");
    assert_eq!(bench.general(&numbered(Opcode::CREATE_QP, 0), 16), Err((libc::EINVAL, 0, 0)));
    assert_eq!(bench.general(&numbered(Opcode::DESTROY_UCTX, 1), 16), Err((libc::EINVAL, 0, 0)));
    // The number of reserved keys, which Linux does not let programs ask for.
    assert_eq!(bench.general(&numbered(Opcode::QUERY_SPECIAL_CONTEXTS, 0), 32), Err((libc::EINVAL, 0, 0)));
    assert_eq!(bench.general(&numbered(Opcode(0xb00), 0), 16), Err(refused(BAD_OP, 0x1001)));
    assert_eq!(bench.create(&numbered(Opcode::QUERY_HCA_CAP, 0)).err(), Some((libc::EINVAL, 0, 0)));
    assert_eq!(bench.create(&numbered(Opcode(0x939), 0)).err(), Some(refused(BAD_OP, 0x1001)), "flow counters");
    assert_eq!(bench.create(&numbered(Opcode::CREATE_FLOW_TABLE, 0)).err(), Some(refused(BAD_OP, 0x1001)));
}

#[test]
fn each_completion_vector_has_an_event_queue() {
    let bench = Bench::new();
    let mut eqn = 0;
    // SAFETY: the context is open, and the number is writable.
    let vectors = unsafe { (*bench.world.ctx).num_comp_vectors } as u32;
    for vector in 0..vectors {
        // SAFETY: the same.
        assert_eq!(unsafe { (dv().devx_query_eqn)(bench.world.ctx, vector, &mut eqn) }, 0);
        assert_eq!(eqn, bench.eqn + vector.min(63));
    }
    // SAFETY: the same.
    assert_eq!(unsafe { (dv().devx_query_eqn)(bench.world.ctx, vectors, &mut eqn) }, libc::EINVAL);
    let mut command = bench.cq_command(1);
    command.context.eqn = 0xee;
    assert_eq!(bench.create(&command.to_bytes()).err(), Some(refused(BAD_RESOURCE, NO_OBJECT)));
}

#[test]
fn registers_have_pages_that_exist() {
    let bench = Bench::new();
    // SAFETY: the context is open, and the register is alive.
    let page = || unsafe { (*(dv().devx_alloc_uar)(bench.world.ctx, 0)).page_id };
    let pages = [bench.uar_page(), page(), page(), page()];
    assert_eq!((pages[0], pages[2]), (pages[1], pages[3]), "two registers a page");
    assert_ne!(pages[0], pages[2]);
    let mut command = bench.cq_command(0);
    command.context.uar_page = 0x3fff;
    assert_eq!(bench.create(&command.to_bytes()).err(), Some(refused(BAD_RESOURCE, NO_OBJECT)), "no such page");
}

#[test]
fn a_command_is_about_the_object_of_its_handle() {
    let bench = Bench::new();
    let cq = bench.cq();
    let [one, other] = [bench.qp(&cq), bench.qp(&cq)];
    let invalid = Err((libc::EINVAL, 0, 0));
    let init = |qp: &Qp, qpn| {
        let modify = ModifyQp { request: request(Opcode::RST2INIT_QP), qpn, ..ModifyQp::ZERO };
        modify_object(qp.object, &modify.to_bytes())
    };
    assert_eq!(init(&one, other.number), invalid);
    assert_eq!(query_object(one.object, &numbered(Opcode::QUERY_CQ, one.number), 0x110).map(drop), invalid);
    assert_eq!(query_object(one.object, &numbered(Opcode::MOVE_QP_TO_ERR, one.number), 16).map(drop), invalid);
    assert_eq!(modify_object(one.object, &numbered(Opcode::QUERY_QP, one.number)), invalid);
    assert_eq!(modify_object(one.object, &numbered(Opcode::DESTROY_QP, one.number)), invalid);
    assert_eq!(init(&one, one.number), Ok(()));
    assert_eq!(init(&one, one.number), Err(refused(0x10, 0x1303)), "it is in Init now");
}

#[test]
fn memory_of_queues_is_a_umem() {
    let bench = Bench::new();
    let ring = memory(PAGE);
    let command = bench.cq_command(0).to_bytes();
    // An address of the program after the command, where drivers put pages.
    let with_page = [&command[..], &(ring as u64).to_be_bytes()].concat();
    assert_eq!(bench.create(&with_page).err(), Some(refused(BAD_RESOURCE, NO_OBJECT)));
    let umem = bench.umem(ring, PAGE).unwrap();
    // SAFETY: the UMEM is alive.
    let id = unsafe { (*umem).umem_id };
    let command = CreateCq { umem_offset: 64, ..bench.cq_command(id) };
    assert_eq!(bench.create(&command.to_bytes()).err(), Some(refused(BAD_PARAM, 0x1203)), "64 bytes too long");
    let mut command = bench.cq_command(id);
    command.context.dbr_addr = PAGE as u64;
    assert_eq!(bench.create(&command.to_bytes()).err(), Some(refused(BAD_PARAM, 0x1203)), "the record is outside");
    command.context.dbr_addr = 4;
    assert_eq!(bench.create(&command.to_bytes()).err(), Some(refused(BAD_PARAM, 0x1204)));
    let cq = bench.cq();
    let resize = ModifyCq { request: request(Opcode::MODIFY_CQ), cqn: cq.number, ..ModifyCq::ZERO };
    let mut resize = resize.to_bytes();
    resize[7] = 1;
    assert_eq!(modify_object(cq.object, &resize), Err(refused(BAD_RESOURCE, NO_OBJECT)));
}

#[test]
fn a_cq_moves_to_another_umem() {
    let bench = Bench::new();
    let mut cq = bench.cq();
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let (addr, key) = page(&bench.world);
    for _ in 0..3 {
        let old = bench.grow(&mut cq).unwrap();
        assert_eq!(deregister(old), 0, "nothing uses the old entries");
        assert_eq!(deregister(cq.umem), libc::EINVAL, "the CQ has its entries there");
        assert_eq!(deregister(bench.records_umem), libc::EINVAL, "the CQ has its record there");
        for _ in 0..3 {
            bench.send(&mut qp, key, addr, addr + 2048, 5);
            assert_eq!(bench.poll(&mut cq), Some((RESPONDER, qp.number)));
            assert_eq!(bench.poll(&mut cq), Some((REQUESTER, qp.number)));
        }
    }
    assert_eq!([destroy(qp.object), destroy(cq.object)], [0; 2]);
    assert_eq!(deregister(cq.umem), 0);
}

#[test]
fn a_collapsed_cq_has_its_last_cqe_only() {
    let bench = Bench::new();
    let cq = bench.cq_with(|context| (context.collapsed, context.overrun_ignore) = (true, true));
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let (addr, key) = page(&bench.world);
    for _ in 0..40 {
        bench.send(&mut qp, key, addr, addr + 2048, 5);
        // SAFETY: both bytes are in the entries.
        let [last, second] = [63, 127].map(|at| unsafe { cq.ring.add(at).read_volatile() });
        let owner = ((2 * qp.posted - 1) >> 6 & 1) as u8;
        assert_eq!((last, second), (REQUESTER << 4 | owner, 0xf1), "after {} messages", qp.posted);
    }
}

#[test]
fn a_cq_compresses_in_arrays_only() {
    const CQE_MODE: u32 = 0x1209;
    let bench = Bench::new();
    let refused_cq = |change: fn(&mut CqContext)| {
        let mut command = bench.cq_command(0);
        command.context.compression = true;
        change(&mut command.context);
        bench.create(&command.to_bytes()).err()
    };
    for change in [
        |context: &mut CqContext| context.cqe_size = 1,
        |context: &mut CqContext| context.collapsed = true,
        |context: &mut CqContext| context.compression_layout = 1,
        |context: &mut CqContext| context.mini_cqe_format = mini_format::STRIDE_INDEX,
    ] {
        assert_eq!(refused_cq(change), Some(refused(BAD_PARAM, CQE_MODE)));
    }
    let cq = bench.cq_with(|context| (context.compression, context.mini_cqe_format) = (true, mini_format::CHECKSUM));
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let (addr, key) = page(&bench.world);
    (0..4).for_each(|_| bench.post(&mut qp, key, addr, addr + 2048, 5, 0));
    bench.world.device().settle();
    // SAFETY: the byte is in the entries.
    let title = unsafe { cq.ring.add(63).read_volatile() };
    assert_eq!(title >> 2 & 3, 3, "the first CQE is the title of a compressed block: {title:#x}");
}

#[test]
fn a_ring_at_the_page_of_another_queue_pair_is_a_violation() {
    let mut bench = Bench::with(Device::builder().stepped());
    let mut cq = bench.cq();
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let (addr, key) = page(&bench.world);
    let other = bench.world.qp(IBV_QPT_RC, bench.world.cq(16), ptr::null_mut());
    let register = mlx5dv_of(other, 0).bf.reg;
    // SAFETY: the register is alive.
    let own = unsafe { *bench.uar };
    bench.uar = Box::leak(Box::new(mlx5dv_devx_uar { reg_addr: register, ..own }));
    bench.send(&mut qp, key, addr, addr + 2048, 5);
    assert_eq!(bench.world.device().violations(Rule::DoorbellQpn), 1);
    assert_eq!(bench.poll(&mut cq), None, "an adapter ignores the ring");
}

#[test]
fn a_umem_that_is_unmapped_under_a_queue_pair_fails_the_queue_pair() {
    for of_records in [false, true] {
        let bench = Bench::with(Device::builder().stepped());
        let mut cq = bench.cq();
        let mut qp = bench.qp(&cq);
        bench.connect(&qp);
        let (addr, key) = page(&bench.world);
        bench.post(&mut qp, key, addr, addr + 2048, 5, CQ_UPDATE);
        let lost = if of_records { bench.records } else { qp.ring } as u64;
        protect(lost, libc::PROT_NONE);
        bench.world.device().settle();
        protect(lost, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(bench.world.device().violations(Rule::QueueMemory), 1);
        let reply = query_object(qp.object, &numbered(Opcode::QUERY_QP, qp.number), QueryQpReply::SIZE).unwrap();
        assert_eq!(QueryQpReply::from_prefix(&reply).unwrap().context.state, state::ERR);
        assert_eq!(text(addr + 2048), "\0\0\0\0\0");
        assert_eq!(bench.poll(&mut cq), None);
    }
}

/// `doorbell decode` knows the syndrome.
#[test]
fn an_srq_has_next_segments_and_no_strides() {
    const WQ_KIND: u32 = 0x130c;
    let bench = Bench::new();
    let umem_id = bench.umem_id(bench.umem(memory(PAGE), PAGE).unwrap());
    let create = |kind, basic_cyclic| {
        let queue = WorkQueue {
            kind,
            pd: bench.pdn(),
            log_stride: 6,
            log_size: 4,
            dbr_umem_id: bench.umem_id(bench.records_umem),
            umem_id,
            ..WorkQueue::ZERO
        };
        let context = RmpContext { state: 1, basic_cyclic, queue };
        let create = CreateRmp { request: request(Opcode::CREATE_RMP), context };
        bench.create(&create.to_bytes()).map(|(object, _)| destroy(object))
    };
    for kind in [kind::LINKED_LIST, kind::CYCLIC] {
        assert_eq!((create(kind, false), create(kind, true)), (Ok(0), Err(refused(BAD_PARAM, WQ_KIND))));
    }
    for kind in [kind::LINKED_LIST_STRIDING, kind::CYCLIC_STRIDING] {
        assert_eq!(create(kind, false), Err(refused(BAD_PARAM, WQ_KIND)));
    }
}

#[test]
fn rings_and_records_lie_inside_their_umems() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let cq = bench.cq();
    let umem = bench.umem_id(bench.umem(memory(PAGE), PAGE).unwrap());
    let records = bench.umem_id(bench.records_umem);
    // 32 WQEs of 64 bytes in the last half of the page, and the last record of the page.
    let queue = |umem_offset, dbr_addr| WorkQueue {
        kind: kind::CYCLIC,
        pd: bench.pdn(),
        uar_page: bench.uar_page(),
        log_stride: 6,
        log_size: 5,
        dbr_umem_id: records,
        dbr_addr,
        umem_id: umem,
        umem_offset,
        ..WorkQueue::ZERO
    };
    let qp = |umem_offset, dbr_addr| {
        let mut create = CreateQp { umem_offset, ..bench.qp_command(bench.pdn(), cq.number, umem) };
        (create.context.dbr_addr, create.context.rq_type, create.context.log_sq_size) = (dbr_addr, 3, 5);
        create.to_bytes().to_vec()
    };
    let sq = |offset, record| {
        let context = SqContext { cqn: cq.number, queue: queue(offset, record), ..SqContext::ZERO };
        CreateSq { request: request(Opcode::CREATE_SQ), context }.to_bytes().to_vec()
    };
    let rq = |offset, record| {
        let context = RqContext { cqn: cq.number, queue: queue(offset, record), ..RqContext::ZERO };
        CreateRq { request: request(Opcode::CREATE_RQ), context }.to_bytes().to_vec()
    };
    let rmp = |offset, record| {
        let context = RmpContext { state: 1, queue: queue(offset, record), ..RmpContext::ZERO };
        CreateRmp { request: request(Opcode::CREATE_RMP), context }.to_bytes().to_vec()
    };
    let commands: [&dyn Fn(u64, u64) -> Vec<u8>; 4] = [&qp, &sq, &rq, &rmp];
    for (at, command) in commands.iter().enumerate() {
        let create = |offset, record| bench.create(&command(offset, record)).map(|(object, _)| destroy(object));
        let (half, last) = (PAGE as u64 / 2, PAGE as u64 - 8);
        assert_eq!(create(half, last), Ok(0), "command {at}");
        for (offset, record) in [(half + 64, last), (half, last + 8), (u64::MAX - 63, last), (half, u64::MAX - 7)] {
            assert_eq!(
                create(offset, record),
                Err(refused(BAD_PARAM, 0x1203)),
                "command {at}: {offset:#x} {record:#x}"
            );
        }
    }
}

#[test]
fn a_umem_that_is_unmapped_under_a_cq_fails_the_cq() {
    const OVERRUN: u8 = 9;
    let bench = Bench::with(Device::builder().stepped());
    let cq = bench.cq();
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let (addr, key) = page(&bench.world);
    protect(cq.ring as u64, libc::PROT_NONE);
    bench.send(&mut qp, key, addr, addr + 2048, 5);
    protect(cq.ring as u64, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(bench.world.device().violations(Rule::QueueMemory), 1);
    let reply = query_object(cq.object, &numbered(Opcode::QUERY_CQ, cq.number), QueryCqReply::SIZE).unwrap();
    assert_eq!(QueryCqReply::from_prefix(&reply).unwrap().context.status, OVERRUN);
}

#[test]
fn a_umem_is_memory_that_is_mapped() {
    let bench = Bench::new();
    assert_eq!(bench.umem(memory(PAGE), 0).err(), Some(libc::EINVAL));
    assert_eq!(bench.umem(ptr::null_mut(), PAGE).err(), Some(libc::EFAULT));
    let at = memory(2 * PAGE);
    assert!(bench.umem_with(at, 2 * PAGE, u64::MAX << 12).is_ok());
    assert_eq!(bench.umem_with(at, PAGE, 1 << 16).err(), Some(libc::EINVAL), "no page of 64 KiB fits");
    assert_eq!(bench.umem_with(at, PAGE, 1 << 11).err(), Some(libc::EINVAL));
}

#[test]
fn keys_of_umems_and_of_other_keys_reach_their_memory() {
    let bench = Bench::new();
    let mut cq = bench.cq();
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let buffer = memory(PAGE);
    let umem = bench.umem(buffer, PAGE).unwrap();
    let context = MkeyContext {
        local_read: true,
        local_write: true,
        access_mode: access_mode::MTT,
        qpn: 0xff_ffff,
        variant: 0x11,
        pd: bench.pdn(),
        start: 0x10_0000,
        len: PAGE as u64,
        log_page_size: 12,
        ..MkeyContext::ZERO
    };
    // SAFETY: the UMEM is alive.
    let umem_id = unsafe { (*umem).umem_id };
    let create = CreateMkey { request: request(Opcode::CREATE_MKEY), context, umem_id, ..CreateMkey::ZERO };
    let (plain, index) = bench.create(&create.to_bytes()).unwrap();
    put_text(buffer as u64, "plain");
    bench.send(&mut qp, index << 8 | 0x11, 0x10_0000, 0x10_0800, 5);
    assert_eq!(text(buffer as u64 + 2048), "plain");
    assert_eq!(bench.poll(&mut cq), Some((RESPONDER, qp.number)));
    assert_eq!(bench.poll(&mut cq), Some((REQUESTER, qp.number)));
    assert_eq!(deregister(umem), libc::EINVAL, "the key is there");

    let list = DataSegment::new(0x10_0000, PAGE as u32, index << 8 | 0x11).to_bytes();
    let context = MkeyContext { access_mode: access_mode::KLM, start: 0, translations: 1, ..context };
    let create = CreateMkey { context, translations_actual: 1, umem_id: 0, ..create };
    let (indirect, upper) = bench.create(&[&create.to_bytes()[..], &list].concat()).unwrap();
    put_text(buffer as u64, "list!");
    bench.send(&mut qp, upper << 8 | 0x11, 0, 0x800, 5);
    assert_eq!(text(buffer as u64 + 2048), "list!");

    let context = MkeyContext { access_mode: access_mode::PHYSICAL, ..context };
    let physical = CreateMkey { context, ..create };
    assert_eq!(bench.create(&physical.to_bytes()).err(), Some(refused(BAD_PARAM, ACCESS_MODE)));
    assert_eq!([destroy(indirect), destroy(plain), deregister(umem)], [0; 3]);
}

#[test]
fn no_command_reaches_objects_of_another_context() {
    let bench = Bench::new();
    let cq = bench.cq();
    let other = open(bench.world.device().name());
    // SAFETY: the context is open.
    let pd = unsafe { ibv_alloc_pd(other) };
    let command = bench.qp_command(pdn(pd), cq.number, 1);
    assert_eq!(bench.create(&command.to_bytes()).err(), Some(refused(BAD_RESOURCE, OWNER)), "a domain of verbs");
    let command = bench.cq_command(1).to_bytes();
    assert_eq!(create_in(other, &command).err(), Some(refused(BAD_RESOURCE, OWNER)), "its register and its memory");
    let mut forged = bench.qp_command(pdn(pd), cq.number, 1);
    forged.request.uid = 2;
    assert_eq!(bench.create(&forged.to_bytes()).err(), Some(refused(BAD_RESOURCE, OWNER)), "whatever user it names");
    // SAFETY: the context is not used any more.
    assert_eq!(unsafe { ibv_close_device(other) }, 0);
}

/// More contexts than the firmware has users.
#[test]
fn a_closed_context_leaves_nothing() {
    let bench = Bench::new();
    for _ in 0..600 {
        let ctx = open(bench.world.device().name());
        let (_, pd) = create_in(ctx, &numbered(Opcode::ALLOC_PD, 0)).expect("a user of its own");
        // SAFETY: the context is open, and the memory stays.
        let umem = unsafe { (dv().devx_umem_reg)(ctx, bench.records.cast(), PAGE, IBV_ACCESS_LOCAL_WRITE) };
        // SAFETY: the UMEM is alive.
        let umem_id = unsafe { (*umem).umem_id };
        let context = MkeyContext {
            access_mode: access_mode::MTT,
            qpn: 0xff_ffff,
            pd,
            len: PAGE as u64,
            log_page_size: 12,
            ..MkeyContext::ZERO
        };
        let create = CreateMkey { request: request(Opcode::CREATE_MKEY), context, umem_id, ..CreateMkey::ZERO };
        create_in(ctx, &create.to_bytes()).unwrap();
        // SAFETY: the context is not used any more.
        assert_eq!(unsafe { ibv_close_device(ctx) }, 0);
    }
}

#[test]
fn a_device_without_devx_has_no_users() {
    let world = World::new(Device::builder().stepped().devx(false));
    let mut output = [0; 16];
    let input = Numbered { request: request(Opcode::ALLOC_PD), ..Numbered::ZERO }.to_bytes();
    // SAFETY: the context is open, and both areas have their lengths.
    let object =
        unsafe { (dv().devx_obj_create)(world.ctx, input.as_ptr().cast(), 16, output.as_mut_ptr().cast(), 16) };
    assert_eq!((object, errno()), (ptr::null_mut(), libc::EINVAL));
    let input = query_capabilities();
    // SAFETY: the same.
    let error =
        unsafe { (dv().devx_general_cmd)(world.ctx, input.as_ptr().cast(), 16, output.as_mut_ptr().cast(), 16) };
    assert_eq!(error, libc::EOPNOTSUPP);
}
