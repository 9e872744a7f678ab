//! Messages through queues in scattered pages.

use mlx5_wire::be::Be16;
use mlx5_wire::cqe::Cqe64;
use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
use mlx5_wire::data::DataSegment;
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::cq::{CqContext, ModifyCq, QueryCqReply, modify};
use mlx5_wire::firmware::eq::{QueueData, event};
use mlx5_wire::firmware::mkey::{CreateMkey, MkeyContext, access_mode};
use mlx5_wire::firmware::qp::{AddressPath, QpContext, QueryQpReply, rq_type, service, state};
use mlx5_wire::firmware::srq::{CreateXrq, ModifyRmp, QueryRmpReply, XrqContext};
use mlx5_wire::firmware::wq::WorkQueue;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::remote::RemoteAddressSegment;
use mlx5_wire::tm::{CQE_REQUEST, TagMatchingSegment, TmOpcode};
use mlx5_wire::umr::{CHECK_FREE, UmrControl, mask};

use super::{Cq, Driver, LOG_RQ, LOG_SQ, PAGE, Qp, World, numbered, with_pages, world, world_of};
use crate::commands::refusal::Refusal;
use crate::engine::NicConfig;

/// Address of a byte of a buffer of pages.
fn at(pages: &[u64], offset: u64) -> u64 {
    pages[(offset / PAGE) as usize] + offset % PAGE
}

impl Driver {
    fn write_pages(&self, pages: &[u64], offset: u64, bytes: &[u8]) {
        for (place, byte) in (offset..).zip(bytes) {
            self.host.write(at(pages, place), &[*byte]);
        }
    }

    fn read_pages(&self, pages: &[u64], offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(|place| self.host.read::<1>(at(pages, place))[0]).collect()
    }

    /// Posts a send WQE and rings it on a trapped page.
    fn send(&mut self, qp: &mut Qp, uar: u32, opcode: WqeOpcode, segments: &[u8]) {
        self.send_to(qp, uar, opcode, 0, segments);
    }

    /// Does the same with a value in the control segment.
    fn send_to(&mut self, qp: &mut Qp, uar: u32, opcode: WqeOpcode, imm: u32, segments: &[u8]) {
        let ds = (1 + segments.len() / 16) as u8;
        let ctrl = ControlSegment::new(opcode.get(), qp.sent, qp.number, ds, CQ_UPDATE);
        let ctrl = ControlSegment { imm: imm.into(), ..ctrl };
        let wqe = [&ctrl.to_bytes()[..], segments].concat();
        for (block, bytes) in (qp.sent..).zip(wqe.chunks(64)) {
            let slot = u64::from(block) & ((1 << LOG_SQ) - 1);
            self.write_pages(&qp.pages, (16 << LOG_RQ) + 64 * slot, bytes);
        }
        qp.sent += wqe.len().div_ceil(64) as u16;
        self.host.set_word(qp.record + 4, qp.sent.into());
        self.function.write_uar(uar, 0x800, &ctrl.to_bytes()[..8]);
    }

    /// Posts a NOP.
    pub fn nop(&mut self, qp: &mut Qp, uar: u32) {
        self.send(qp, uar, WqeOpcode::NOP, &[]);
    }

    fn receive(&mut self, qp: &mut Qp, segment: DataSegment) {
        let slot = u64::from(qp.received) & ((1 << LOG_RQ) - 1);
        self.write_pages(&qp.pages, 16 * slot, &segment.to_bytes());
        qp.received += 1;
        self.host.set_word(qp.record, qp.received.into());
    }

    fn cqe(&mut self, cq: &mut Cq) -> Cqe64 {
        Cqe64::from_bytes(&self.poll(cq).expect("a CQE"))
    }

    fn state_of(&mut self, qpn: u32) -> QpContext {
        let input = numbered(Opcode::QUERY_QP, qpn);
        let answer = self.execute(&input, QueryQpReply::SIZE).unwrap();
        QueryQpReply::from_prefix(&answer).unwrap().context
    }
}

/// Event types of the event queue.
const EVENTS: u64 = 1 << event::SRQ_LIMIT | 1 << event::SRQ_LAST_WQE | 1 << event::WQ_CATASTROPHIC;

#[test]
fn a_message_crosses_pages_on_both_sides() {
    let World { mut driver, uar, pd, mut cq, .. } = world(EVENTS);
    let mut a = driver.qp(pd, uar, &cq, service::RC, None);
    let mut b = driver.qp(pd, uar, &cq, service::RC, None);
    driver.connect(&a, b.number);
    driver.connect(&b, a.number);
    // The buffers begin in the middle of a page and of a word.
    let (from, to) = (driver.host.take(3), driver.host.take(3));
    let (start, len) = (0x7f00_0000_0123, 2 * PAGE + 100);
    // The lower bits of an entry say what the device may do with the page.
    let entries = |pages: &[u64]| pages.iter().map(|page| page | 3).collect::<Vec<_>>();
    let source = driver.mkey(pd, start, len, &entries(&from));
    let target = driver.mkey(pd, start, len, &entries(&to));
    let message: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    driver.write_pages(&from, 0x123, &message);
    for round in 0..3 * (1u64 << LOG_SQ) {
        driver.receive(&mut b, DataSegment::new(start, len as u32, target));
        let segment = DataSegment::new(start, len as u32, source);
        driver.send(&mut a, uar, WqeOpcode::SEND, &segment.to_bytes());
        driver.settle();
        for _ in 0..2 {
            let cqe = driver.cqe(&mut cq);
            match cqe.opcode() {
                CqeOpcode::ResponderSend => assert_eq!(u64::from(cqe.byte_cnt.get()), len),
                other => assert_eq!(other, CqeOpcode::Requester),
            }
        }
        if round == 0 {
            assert_eq!(driver.read_pages(&to, 0x123, len), message);
        }
    }
    assert!(driver.poll(&mut cq).is_none());
}

/// A queue pair takes as many READs at a time as its context says.
#[test]
fn more_reads_at_a_time_than_the_responder_takes_are_refused() {
    for (log_rra_max, succeed) in [(2, 4), (1, 2)] {
        let World { mut driver, uar, pd, mut cq, .. } = world(EVENTS);
        let mut a = driver.qp(pd, uar, &cq, service::RC, None);
        let b = driver.qp(pd, uar, &cq, service::RC, None);
        driver.connect_with_reads(&a, b.number, [2, 0]);
        driver.connect_with_reads(&b, a.number, [0, log_rra_max]);
        assert_eq!(driver.state_of(b.number).log_rra_max, log_rra_max);
        let buffer = driver.host.take(8);
        let key = driver.mkey(pd, 0, 8 * PAGE, &buffer);
        for _ in 0..4 {
            let remote = RemoteAddressSegment::new(4 * PAGE, key).to_bytes();
            let segments = [&remote[..], &DataSegment::new(0, 4 * PAGE as u32, key).to_bytes()].concat();
            driver.send(&mut a, uar, WqeOpcode::RDMA_READ, &segments);
        }
        driver.settle();
        let cqes: Vec<CqeOpcode> =
            std::iter::from_fn(|| driver.poll(&mut cq)).map(|cqe| Cqe64::from_bytes(&cqe).opcode()).collect();
        let good = cqes.iter().filter(|opcode| **opcode == CqeOpcode::Requester).count();
        assert_eq!((good, cqes.len() >= 4), (succeed, true), "{cqes:?}");
    }
}

/// A list of tags has one entry more than tags, which is always free.
#[test]
fn a_list_of_tags_has_as_many_entries_as_its_context_says() {
    let mut driver = Driver::with(NicConfig::default());
    driver.start();
    let World { mut driver, uar, pd, mut cq, .. } = world_of(driver, EVENTS);
    let pages = driver.host.take(1);
    let queue = WorkQueue { pd, dbr_addr: driver.record(), log_stride: 5, log_size: 6, ..WorkQueue::ZERO };
    let context = XrqContext { topology: 1, offload: 1, cqn: cq.number, log_list_size: 2, queue, ..XrqContext::ZERO };
    let create = CreateXrq { request: Request::new(Opcode::CREATE_XRQ), context };
    let list = driver.create(&with_pages(&create.to_bytes(), &pages)).unwrap();
    let (mut create, pages) = driver.qp_command(pd, uar, &cq);
    (create.context.service, create.context.rq_type, create.context.srqn) = (service::RC, rq_type::SRQ, list);
    let number = driver.create(&with_pages(&create.to_bytes(), &pages)).unwrap();
    let record = create.context.dbr_addr;
    let qp = Qp { number, pages, record, sent: 0, received: 0 };
    driver.connect(&qp, number);
    for next in 1..=4 {
        let append = TagMatchingSegment {
            opcode: TmOpcode::Append.byte(),
            flags: CQE_REQUEST,
            index: Be16::new(next),
            ..TagMatchingSegment::zeroed()
        };
        let ctrl = ControlSegment::new(WqeOpcode::TAG_MATCHING.get(), next - 1, number, 4, 0).to_bytes();
        let wqe = [&ctrl[..], &append.to_bytes(), &DataSegment::TERMINATOR.to_bytes()].concat();
        // A queue pair with an SRQ has no receive queue before its send queue.
        driver.write_pages(&qp.pages, 64 * u64::from(next - 1), &wqe);
        driver.host.set_word(record + 4, next.into());
        driver.function.write_uar(uar, 0x800, &ctrl[..8]);
        driver.settle();
        let expected = if next < 4 { CqeOpcode::NoPacket } else { CqeOpcode::RequesterError };
        assert_eq!(driver.cqe(&mut cq).opcode(), expected, "{next}");
    }
}

#[test]
fn an_srq_serves_a_list_and_tells_its_limit() {
    let World { mut driver, uar, pd, mut eq, mut cq } = world(EVENTS);
    let (rmp, ring, record) = driver.rmp(pd, 7, 0);
    let mut a = driver.qp(pd, uar, &cq, service::RC, None);
    let b = driver.qp(pd, uar, &cq, service::RC, Some(rmp));
    driver.connect(&a, b.number);
    driver.connect(&b, a.number);
    let buffer = driver.host.take(1);
    let key = driver.mkey(pd, 0, PAGE, &buffer);
    for slot in 0..128u64 {
        let mut wqe = vec![0; 16];
        wqe[2..4].copy_from_slice(&((slot as u16 + 1) % 128).to_be_bytes());
        wqe.extend(DataSegment::new(8 * slot, 8, key).to_bytes());
        wqe.extend(DataSegment::TERMINATOR.to_bytes());
        driver.write_pages(&ring, 64 * slot, &wqe);
    }
    driver.host.set_word(record, 100);
    let mut arm = ModifyRmp { rmpn: rmp, bitmask: 1, ..ModifyRmp::ZERO };
    (arm.request, arm.context.queue.lwm) = (Request::new(Opcode::MODIFY_RMP), 96);
    driver.execute(&arm.to_bytes(), 16).unwrap();
    let limit = |driver: &mut Driver| {
        let answer = driver.execute(&numbered(Opcode::QUERY_RMP, rmp), QueryRmpReply::SIZE).unwrap();
        QueryRmpReply::from_prefix(&answer).unwrap().context.queue.lwm
    };
    assert_eq!(limit(&mut driver), 96);
    driver.write_pages(&buffer, 0x800, b"abcdefgh");
    for sent in 0..5 {
        let segment = DataSegment::new(0x800, 8, key);
        driver.send(&mut a, uar, WqeOpcode::SEND, &segment.to_bytes());
        driver.settle();
        let cqes = [driver.cqe(&mut cq), driver.cqe(&mut cq)];
        let receive = cqes.iter().find(|cqe| cqe.opcode() == CqeOpcode::ResponderSend).unwrap();
        assert_eq!(receive.wqe_counter.get(), sent);
        assert_eq!(driver.next_event(&mut eq).is_some(), sent == 4, "{sent}");
    }
    assert_eq!(driver.read_pages(&buffer, 0, 40), b"abcdefgh".repeat(5));
    assert_eq!(limit(&mut driver), 0, "the event disarms");
    // The end of a queue pair with an SRQ is an event, too.
    driver.numbered(Opcode::MOVE_QP_TO_ERR, b.number).unwrap();
    driver.settle();
    let eqe = driver.next_event(&mut eq).unwrap();
    assert_eq!(eqe.event, event::SRQ_LAST_WQE);
    assert_eq!(QueueData::from_bytes(&eqe.data).number, b.number);
}

#[test]
fn error_flushes_and_reset_begins_again() {
    let World { mut driver, uar, pd, mut cq, .. } = world(EVENTS);
    let mut a = driver.qp(pd, uar, &cq, service::RC, None);
    driver.connect(&a, a.number);
    assert_eq!(driver.state_of(a.number).state, state::RTS);
    for _ in 0..3 {
        driver.receive(&mut a, DataSegment::new(0, 8, 0x100));
    }
    driver.numbered(Opcode::MOVE_QP_TO_ERR, a.number).unwrap();
    driver.nop(&mut a, uar);
    driver.settle();
    let flushed = std::iter::from_fn(|| driver.poll(&mut cq)).collect::<Vec<_>>();
    let of = |opcode| flushed.iter().filter(|cqe| cqe[63] >> 4 == opcode).count();
    assert_eq!((of(0xd), of(0xe), flushed.len()), (1, 3, 4));
    assert!(flushed.iter().all(|cqe| cqe[0x37] == 5), "the syndrome is a flush");
    assert_eq!(driver.state_of(a.number).state, state::ERR);
    driver.numbered(Opcode::MOVE_QP_TO_RST, a.number).unwrap();
    let context = driver.state_of(a.number);
    assert_eq!((context.state, context.remote_qpn, context.rre), (state::RST, 0, false));
    assert_eq!(context.cqn_snd, cq.number);
    assert_eq!(driver.numbered(Opcode::MOVE_QP_TO_ERR, a.number), Err(Refusal::QP_STATE));
    (a.sent, a.received) = (0, 0);
    driver.host.write(a.record, &[0; 8]);
    driver.connect(&a, a.number);
    driver.nop(&mut a, uar);
    driver.settle();
    assert_eq!(driver.cqe(&mut cq).opcode(), CqeOpcode::Requester);
}

#[test]
fn queue_pair_1_answers_to_its_number() {
    let World { mut driver, uar, pd, mut cq, .. } = world(EVENTS);
    let mut manager = driver.qp(pd, uar, &cq, service::QP1, None);
    let key_of_qp1 = 0x8001_0000;
    let path = AddressPath { port: 1, ..AddressPath::ZERO };
    let init = QpContext { path, q_key: key_of_qp1, ..QpContext::ZERO };
    driver.modify(Opcode::RST2INIT_QP, manager.number, 0, init).unwrap();
    driver.modify(Opcode::INIT2RTR_QP, manager.number, 0, QpContext::ZERO).unwrap();
    driver.modify(Opcode::RTR2RTS_QP, manager.number, 0, QpContext::ZERO).unwrap();
    let buffer = driver.host.take(1);
    let key = driver.mkey(pd, 0, PAGE, &buffer);
    driver.receive(&mut manager, DataSegment::new(0, 0x400, key));
    driver.write_pages(&buffer, 0x800, &[0x33; 256]);
    let lid = driver.function.port().lid;
    let address = DatagramSegment::infiniband(lid, 0).to(1, key_of_qp1);
    let segments = [&address.to_bytes()[..], &DataSegment::new(0x800, 256, key).to_bytes()].concat();
    driver.send(&mut manager, uar, WqeOpcode::SEND, &segments);
    driver.settle();
    let cqes = [driver.cqe(&mut cq), driver.cqe(&mut cq)];
    let receive = cqes.iter().find(|cqe| cqe.opcode() == CqeOpcode::ResponderSend).unwrap();
    assert_eq!(receive.byte_cnt.get(), 40 + 256);
    assert_eq!(receive.flags_rqpn.get() & 0xff_ffff, 1, "the sender is queue pair 1");
    assert_eq!(receive.imm_inval_pkey.get(), 0xffff);
    assert_eq!(driver.read_pages(&buffer, 40, 256), [0x33; 256]);
}

#[test]
fn a_resized_queue_goes_on_in_its_new_pages() {
    let World { mut driver, uar, pd, mut cq, .. } = world(EVENTS);
    let mut a = driver.qp(pd, uar, &cq, service::RC, None);
    driver.connect(&a, a.number);
    driver.nop(&mut a, uar);
    driver.settle();
    let pages = driver.host.take(4);
    let resize = |driver: &mut Driver, log_size, pages: &[u64]| {
        let request = Request { op_mod: modify::RESIZE, ..Request::new(Opcode::MODIFY_CQ) };
        let context = CqContext { log_size, ..CqContext::ZERO };
        let modify = ModifyCq { request, cqn: cq.number, context, ..ModifyCq::ZERO };
        driver.execute(&with_pages(&modify.to_bytes(), pages), 16).map(drop)
    };
    assert_eq!(resize(&mut driver, 8, &pages[..3]), Err(Refusal::PAGE_LIST));
    assert_eq!(resize(&mut driver, 23, &pages), Err(Refusal::QUEUE_SIZE));
    resize(&mut driver, 8, &pages).unwrap();
    assert_eq!(driver.cqe(&mut cq).opcode(), CqeOpcode::Requester);
    assert_eq!(driver.cqe(&mut cq).opcode(), CqeOpcode::ResizeCq);
    // The driver counts on from the CQEs that it took, without the one of the resize.
    let mut new = Cq { pages, log_size: 8, taken: 1, ..cq };
    driver.host.set_word(new.record, 1);
    for slot in 0..256u64 {
        let op_own = 0xf0 | (1 ^ (new.taken >> 8 & 1) as u8);
        driver.write_pages(&new.pages, 64 * slot + 63, &[op_own]);
    }
    driver.nop(&mut a, uar);
    driver.settle();
    let answer = driver.execute(&numbered(Opcode::QUERY_CQ, new.number), 0x110).unwrap();
    let context = QueryCqReply::from_prefix(&answer).unwrap().context;
    assert_eq!((context.log_size, context.status), (8, 0));
    new.taken = context.producer_counter - 1;
    assert_eq!(driver.cqe(&mut new).opcode(), CqeOpcode::Requester);
}

#[test]
fn the_queue_pair_of_the_driver_gives_keys_to_domains() {
    let World { mut driver, uar, pd, mut cq, .. } = world(EVENTS);
    let own = driver.numbered(Opcode::ALLOC_PD, 0).unwrap();
    // Memory of the bus, through which the device reads the list.
    let physical = MkeyContext {
        local_read: true,
        length64: true,
        access_mode: access_mode::PHYSICAL,
        qpn: 0xff_ffff,
        pd: own,
        ..MkeyContext::ZERO
    };
    let free = MkeyContext {
        free: true,
        umr_en: true,
        access_mode: access_mode::MTT,
        qpn: 0xff_ffff,
        pd: own,
        // Room for two pages.
        translations: 1,
        log_page_size: 12,
        ..MkeyContext::ZERO
    };
    let request = Request::new(Opcode::CREATE_MKEY);
    let mut create = |context| driver.create(&CreateMkey { request, context, ..CreateMkey::ZERO }.to_bytes()).unwrap();
    let (bus, index) = (create(physical) << 8, create(free));
    let (from, to, list) = (driver.host.take(2), driver.host.take(2), driver.host.take(1)[0]);
    for (at, page) in to.iter().enumerate() {
        driver.host.write(list + 8 * at as u64, &(page | 3).to_be_bytes());
    }
    let mut umr = driver.qp(0, uar, &cq, service::REG_UMR, None);
    let number = umr.number;
    driver.connect(&umr, number);
    let (start, len) = (0x7f00_0000_0ff0, 0x20);
    let mut change = |driver: &mut Driver, qp: &mut Qp, mask: u64, octowords: u16, context: MkeyContext| {
        let flags = if context.free { 0 } else { CHECK_FREE };
        let control =
            UmrControl { flags, xlt_octowords: octowords.into(), mkey_mask: mask.into(), ..UmrControl::zeroed() };
        let mut segments = [&control.to_bytes()[..], &context.to_bytes()].concat();
        if octowords > 0 {
            segments.extend(DataSegment::new(list, 64, bus).to_bytes());
        }
        driver.send_to(qp, uar, WqeOpcode::UMR, index << 8, &segments);
        driver.settle();
        driver.poll(&mut cq).map(|cqe| Cqe64::from_bytes(&cqe).opcode())
    };
    let enabled = MkeyContext { local_write: true, local_read: true, pd, start, len, variant: 7, ..free };
    let mask = mask::LEN | mask::PAGE_SIZE | mask::START | mask::LOCAL_READ | mask::LOCAL_WRITE | mask::PD;
    let mask = mask | mask::KEY | mask::FREE;
    // A list comes in 64 bytes although the key has room for two pages.
    let enabled = MkeyContext { free: false, ..enabled };
    assert_eq!(change(&mut driver, &mut umr, mask, 4, enabled), Some(CqeOpcode::Requester));
    // The key is one of the program's domain now.
    let mut a = driver.qp(pd, uar, &cq, service::RC, None);
    let mut b = driver.qp(pd, uar, &cq, service::RC, None);
    driver.connect(&a, b.number);
    driver.connect(&b, a.number);
    let source = driver.mkey(pd, start, len, &from);
    driver.write_pages(&from, 0xff0, &[0x5a; 0x20]);
    driver.receive(&mut b, DataSegment::new(start, len as u32, index << 8 | 7));
    driver.send(&mut a, uar, WqeOpcode::SEND, &DataSegment::new(start, len as u32, source).to_bytes());
    driver.settle();
    while let Some(cqe) = driver.poll(&mut cq) {
        assert!(matches!(Cqe64::from_bytes(&cqe).opcode(), CqeOpcode::Requester | CqeOpcode::ResponderSend));
    }
    assert_eq!(driver.read_pages(&to, 0xff0, 0x20), [0x5a; 0x20]);
}

#[test]
fn a_queue_that_overran_says_so() {
    let World { mut driver, uar, pd, eq, .. } = world(EVENTS);
    let cq = driver.cq(1, eq.number, uar);
    let mut a = driver.qp(pd, uar, &cq, service::RC, None);
    driver.connect(&a, a.number);
    let mut status = |driver: &mut Driver| {
        driver.nop(&mut a, uar);
        driver.settle();
        let answer = driver.execute(&numbered(Opcode::QUERY_CQ, cq.number), 0x110).unwrap();
        QueryCqReply::from_prefix(&answer).unwrap().context.status
    };
    assert_eq!([(); 3].map(|()| status(&mut driver)), [0, 0, 9]);
}

#[test]
fn a_queue_pair_keeps_its_partition() {
    let World { mut driver, uar, pd, cq, .. } = world(EVENTS);
    let qp = driver.qp(pd, uar, &cq, service::RC, None).number;
    let path = AddressPath { port: 1, pkey_index: 5, ..AddressPath::ZERO };
    driver.modify(Opcode::RST2INIT_QP, qp, 0, QpContext { path, ..QpContext::ZERO }).unwrap();
    assert_eq!(driver.state_of(qp).path.pkey_index, 5);
    driver.modify(Opcode::INIT2RTR_QP, qp, 0, QpContext { mtu: 3, ..QpContext::ZERO }).unwrap();
    assert_eq!(driver.state_of(qp).path.pkey_index, 5);
}
