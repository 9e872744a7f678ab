//! Errors are reported as an adapter reports them.

use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec::{RECEIVE, SEND};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::uar::CQ_DOORBELL;

use super::program::*;
use crate::objects::mkey::{LOCAL_WRITE, REMOTE_READ};
use crate::objects::strict::Rule;
use crate::objects::*;

const LOCAL_LENGTH: u8 = 0x01;
const LOCAL_QP_OP: u8 = 0x02;
const LOCAL_PROT: u8 = 0x04;
const FLUSH: u8 = 0x05;
const REMOTE_INVALID: u8 = 0x12;
const REMOTE_ACCESS: u8 = 0x13;
const REMOTE_OP: u8 = 0x14;
const RETRIES: u8 = 0x15;
const RNR_RETRIES: u8 = 0x16;

use CqeOpcode::{Requester, RequesterError, ResponderError, ResponderSend};

fn setup() -> Setup {
    Setup::new(Path::default())
}

impl Setup {
    /// Expects that the requester failed with `syndrome`, and that the send after it was flushed.
    #[track_caller]
    fn expect_failure(&mut self, index: u16, syndrome: u8) {
        self.send.expect_error(RequesterError, &self.a, index, syndrome);
        assert_eq!(self.device.state(&self.a), QpState::Err);
        let next = self.device.post(&mut self.a, &Work::send().flags(0));
        self.device.settle();
        self.send.expect_error(RequesterError, &self.a, next, FLUSH);
        self.send.expect_nothing();
    }
}

#[test]
fn bad_lkey_at_the_requester() {
    for (addr, len, wrong) in [(0, 100, 1), (65500, 100, 0), (-1i64, 1, 0)] {
        let mut s = setup();
        s.receive(4096);
        let addr = s.memory.addr().wrapping_add_signed(addr);
        let index = s.device.post(&mut s.a, &Work::send().data(addr, len, s.key ^ wrong));
        s.device.settle();
        s.expect_failure(index, LOCAL_PROT);
        assert_eq!(s.device.state(&s.b), QpState::Rts, "nothing was sent");
    }
}

#[test]
fn earlier_sends_complete_before_a_local_error() {
    let mut s = setup();
    s.receive(64);
    s.receive(64);
    s.device.post(&mut s.a, &Work::send().flags(0).inline(b"one"));
    let good = s.device.post(&mut s.a, &Work::send().inline(b"two"));
    let bad = s.device.post(&mut s.a, &Work::send().data(0, 8, 0xdead00));
    let flushed = s.device.post(&mut s.a, &Work::send().flags(0));
    s.device.settle();
    assert_eq!(s.recv.drain().len(), 2);
    s.send.expect(Requester, &s.a, good);
    s.send.expect_error(RequesterError, &s.a, bad, LOCAL_PROT);
    s.send.expect_error(RequesterError, &s.a, flushed, FLUSH);
    s.send.expect_nothing();
}

#[test]
fn bad_lkey_at_the_responder() {
    let mut s = setup();
    let counter = s.b.post_receive(&[DataSegment::new(s.memory.addr(), 64, s.key ^ 0x40)]);
    let index = s.device.post(&mut s.a, &Work::send().inline(b"hello"));
    s.device.settle();
    s.recv.expect_error(ResponderError, &s.b, counter, LOCAL_PROT);
    assert_eq!(s.device.state(&s.b), QpState::Err);
    s.expect_failure(index, REMOTE_OP);
}

#[test]
fn a_region_without_local_write_cannot_receive() {
    let mut s = setup();
    let key = s.device.register(&s.memory, REMOTE_READ);
    let counter = s.b.post_receive(&[DataSegment::new(s.memory.addr(), 64, key)]);
    s.device.post(&mut s.a, &Work::send().inline(b"hello"));
    s.device.settle();
    s.recv.expect_error(ResponderError, &s.b, counter, LOCAL_PROT);
    assert_eq!(s.memory.get(0, 5), [0; 5]);
}

#[test]
fn a_message_longer_than_the_receive() {
    for (posted, sent) in [(10, 11), (2000, 2001), (2048, 5000)] {
        let mut s = setup();
        let counter = s.receive(posted);
        let work = Work::send().data(s.memory.addr() + 8192, sent, s.key);
        let index = s.device.post(&mut s.a, &work);
        s.device.settle();
        s.recv.expect_error(ResponderError, &s.b, counter, LOCAL_LENGTH);
        s.expect_failure(index, REMOTE_INVALID);
    }
}

#[test]
fn remote_access_is_checked() {
    let other_pd = |s: &mut Setup| {
        let pd = s.device.nic.alloc_pd().unwrap();
        let (va, length) = (s.memory.addr(), s.memory.len() as u64);
        let attr = MkeyAttr { pd, va, iova: va, length, access: ALL_ACCESS };
        s.device.nic.create_mkey(attr).unwrap().0
    };
    for case in 0..5 {
        for opcode in [WqeOpcode::RDMA_WRITE, WqeOpcode::RDMA_READ] {
            let mut s = setup();
            let at = s.memory.addr();
            let (raddr, rkey) = match case {
                0 => (at, s.key ^ 1),
                1 => (at + 65536 - 2999, s.key),
                2 => (at, s.device.register(&s.memory, LOCAL_WRITE)),
                3 => (at, other_pd(&mut s)),
                _ => (u64::MAX - 10, s.key),
            };
            let work = Work::new(opcode).remote(raddr, rkey).data(at + 8192, 3000, s.key);
            s.memory.set(8192, &[0xab; 3000]);
            let index = s.device.post(&mut s.a, &work);
            s.device.settle();
            assert_eq!(s.device.state(&s.b), QpState::Err);
            assert!(s.device.events().contains(&Event::QpAccessError(s.b.number)));
            s.expect_failure(index, REMOTE_ACCESS);
            assert_eq!(s.memory.get(65536 - 2999, 2999), [0; 2999], "nothing was written");
        }
    }
}

#[test]
fn a_queue_pair_that_gives_no_rights() {
    for opcode in [WqeOpcode::RDMA_WRITE, WqeOpcode::RDMA_READ] {
        let mut s = Setup::new(Path { access: 0, ..Path::default() });
        let work = Work::new(opcode).remote(s.memory.addr(), s.key);
        let index = s.device.post(&mut s.a, &work.data(s.memory.addr(), 8, s.key));
        s.device.settle();
        assert!(s.device.events().contains(&Event::QpRequestError(s.b.number)));
        s.expect_failure(index, REMOTE_INVALID);
    }
}

#[test]
fn a_read_into_memory_that_may_not_be_written() {
    let mut s = setup();
    let lkey = s.device.register(&s.memory, 0);
    let work = Work::new(WqeOpcode::RDMA_READ).remote(s.memory.addr(), s.key);
    let index = s.device.post(&mut s.a, &work.data(s.memory.addr() + 4096, 64, lkey));
    s.device.settle();
    s.expect_failure(index, LOCAL_PROT);
}

#[test]
fn memory_that_ends_while_it_is_read() {
    let mut s = setup();
    let key = s.device.register(&s.memory, ALL_ACCESS);
    let work = Work::new(WqeOpcode::RDMA_READ).remote(s.memory.addr(), key);
    let index = s.device.post(&mut s.a, &work.data(s.memory.addr(), 65536, s.key));
    s.device.now += 1;
    // The request is answered over several steps.
    assert!(s.device.nic.step(s.device.now));
    s.device.nic.destroy_mkey(Mkey(key)).unwrap();
    s.device.settle();
    s.expect_failure(index, REMOTE_ACCESS);
}

#[test]
fn opcodes_that_are_not_known() {
    use WqeOpcode as Op;
    let refused = [Op::ATOMIC_MASKED_CS, Op::ATOMIC_MASKED_FA, Op::LOCAL_INVAL, Op::UMR, Op::SET_PSV];
    for opcode in [0x0e, 0x14, 0x1b, 0x25, 0x28, 0x3f, 0xff].map(WqeOpcode::new).into_iter().chain(refused) {
        let mut s = setup();
        let index = s.device.post(&mut s.a, &Work::new(opcode));
        s.device.settle();
        s.expect_failure(index, LOCAL_QP_OP);
    }
}

#[test]
fn receiver_not_ready_and_then_ready() {
    let mut s = setup();
    let index = s.device.post(&mut s.a, &Work::send().inline(b"patience"));
    for _ in 0..20 {
        s.device.settle();
        s.device.now += 5_000_000;
    }
    s.send.expect_nothing();
    s.receive(64);
    s.device.finish();
    let cqe = s.recv.expect(ResponderSend, &s.b, 0);
    assert_eq!(cqe.byte_cnt.get(), 8);
    s.send.expect(Requester, &s.a, index);
}

/// A device whose thread gets no processor between a packet and its answer sees time-outs without a cause.
#[test]
fn an_rnr_nak_restores_the_transport_retries() {
    let mut s = Setup::new(Path { timeout: 10, retry_cnt: 2, rnr_timer: 1, ..Path::default() });
    let index = s.device.post(&mut s.a, &Work::send().inline(b"patience"));
    for _ in 0..200 {
        // Longer than the time-out of 4.19 ms.
        s.device.now += 5_000_000;
        s.device.nic.step(s.device.now);
    }
    s.send.expect_nothing();
    s.receive(64);
    s.device.finish();
    s.recv.expect(ResponderSend, &s.b, 0);
    s.send.expect(Requester, &s.a, index);
}

#[test]
fn rnr_retries_run_out() {
    let mut s = Setup::new(Path { rnr_retry: 3, rnr_timer: 14, ..Path::default() });
    let index = s.device.post(&mut s.a, &Work::send());
    let start = s.device.now;
    s.device.run_until(|| s.send.peek().is_some());
    s.send.expect_error(RequesterError, &s.a, index, RNR_RETRIES);
    // Three delays of 1.28 ms were waited out.
    let waited = s.device.now - start;
    assert!((3_840_000..4_000_000).contains(&waited), "{waited}");
    assert_eq!(s.device.state(&s.b), QpState::Rts);
}

#[test]
fn retries_run_out_without_an_answer() {
    let mut s = Setup::new(Path { timeout: 10, retry_cnt: 3, ..Path::default() });
    let lid = s.device.nic.port().lid;
    let silent = s.device.qp_attr(Service::Rc, &s.send, &s.recv);
    let silent = s.device.qp(silent);
    let qp = s.device.qp_attr(Service::Rc, &s.send, &s.recv);
    let mut qp = s.device.qp(qp);
    for (dlid, peer) in [(lid, silent.number), (lid, Qpn(0x3fff)), (99, silent.number)] {
        s.device.set_state(&qp, QpState::Reset);
        qp.record.span().set_record(SEND, 0).unwrap();
        qp.sent = 0;
        s.device.connect_with(&qp, dlid, peer, Path { timeout: 10, retry_cnt: 3, ..Path::default() });
        let start = s.device.now;
        s.device.post(&mut qp, &Work::send().inline(b"anybody?"));
        s.device.run_until(|| s.send.peek().is_some());
        s.send.expect_error(RequesterError, &qp, 0, RETRIES);
        // One attempt and three retries, 4.19 ms each.
        let waited = s.device.now - start;
        assert!((16_700_000..17_000_000).contains(&waited), "{waited}");
    }
}

#[test]
fn malformed_wqes_are_violations_and_errors() {
    // ds of 0, and ds beyond the producer index.
    for (ds, rule) in [(0, Rule::SendSize), (9, Rule::SendSize)] {
        let mut s = setup();
        let (_, mut ctrl) = s.a.write(&Work::send());
        ctrl.qpn_ds = (s.a.number.0 << 8 | ds).into();
        s.a.sq.set(0, &ctrl.to_bytes());
        s.device.ring(&mut s.a, ctrl);
        s.device.settle();
        assert_eq!(s.device.nic.violations(rule), 1);
        s.send.expect_error(RequesterError, &s.a, 0, LOCAL_QP_OP);
    }
}

#[test]
fn a_wqe_names_its_queue_pair() {
    let mut s = setup();
    let (_, mut ctrl) = s.a.write(&Work::send());
    let rung = ctrl;
    ctrl.qpn_ds = ((s.a.number.0 + 1) << 8 | 1).into();
    s.a.sq.set(0, &ctrl.to_bytes());
    s.device.ring(&mut s.a, rung);
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::SendQpn), 1);
    s.send.expect_error(RequesterError, &s.a, 0, LOCAL_QP_OP);
}

#[test]
fn a_wqe_carries_its_index() {
    let mut s = setup();
    let (_, rung) = s.a.write(&Work::send());
    let ctrl = ControlSegment::new(rung.opcode().get(), 7, s.a.number.0, 1, rung.fm_ce_se);
    s.a.sq.set(0, &ctrl.to_bytes());
    s.device.ring(&mut s.a, rung);
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::SendIndex), 1);
}

#[test]
fn a_wqe_that_changes_under_the_device_is_a_violation() {
    // Another length, and other bytes of the same length.
    for later in [&b"another length"[..], b"other"] {
        let mut s = setup();
        // The receive comes later: until then the WQE is read again for each try.
        s.device.post(&mut s.a, &Work::send().inline(b"first"));
        s.device.settle();
        s.a.sent = 0;
        s.a.write(&Work::send().inline(later));
        s.device.finish_within(10_000_000);
        assert_eq!(s.device.nic.violations(Rule::SendChanged), 1);
        s.send.expect_error(RequesterError, &s.a, 0, LOCAL_QP_OP);
    }
}

#[test]
fn doorbells_that_the_device_ignores_are_violations() {
    let mut s = setup();
    let idle = s.device.qp_attr(Service::Rc, &s.send, &s.recv);
    let mut idle = s.device.qp(idle);
    s.device.post(&mut idle, &Work::send());
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::DoorbellState), 1);
    s.send.expect_nothing();
}

#[test]
fn arms_of_others_are_violations() {
    let mut s = setup();
    let (own, page_of_qp) = (s.send.number.0, s.a.attr.register.page);
    assert_ne!(page_of_qp, CQ_PAGE);
    for (page, cqn, expected) in [(CQ_PAGE, own, 0), (page_of_qp, own, 1), (CQ_PAGE, 0xab_cdef, 2)] {
        s.device.write_register(page, CQ_DOORBELL as u32, 1 << 32 | u64::from(cqn));
        s.device.settle();
        assert_eq!(s.device.nic.violations(Rule::ArmCqn), expected, "CQ {cqn:#x} at page {page}");
    }
    // An arm whose CQ the program destroys at once was right when it was rung.
    let cq = s.device.cq(4);
    s.device.arm(&cq, 0, false);
    s.device.nic.destroy_cq(cq.number).unwrap();
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::ArmCqn), 2);
}

#[test]
fn doorbells_of_others_are_violations() {
    let mut s = setup();
    let register = s.a.attr.register;
    s.device.write_register(register.page, register.offset, 0x0a_0012_3402);
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::DoorbellQpn), 1);
}

#[test]
fn a_record_without_a_doorbell_is_a_violation() {
    let mut s = setup();
    let (_, ctrl) = s.a.write(&Work::send());
    s.a.record.span().set_record(SEND, s.a.sent.into()).unwrap();
    let mut look = |times, now: u64| {
        for _ in 0..times {
            s.device.nic.step(now);
        }
        s.device.nic.violations(Rule::DoorbellMissing)
    };
    assert_eq!(look(1000, 1), 0, "it may be on its way");
    assert_eq!(look(1000, 3_000_000_000), 1);
    assert_eq!(look(1000, 9_000_000_000), 1, "once");
    s.device.ring(&mut s.a, ctrl);
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::DoorbellMissing), 1);
}

#[test]
fn a_program_that_was_stopped_gets_the_time_to_ring() {
    let mut s = setup();
    let (_, ctrl) = s.a.write(&Work::send());
    s.a.record.span().set_record(SEND, s.a.sent.into()).unwrap();
    s.device.nic.step(1);
    s.device.nic.step(9_000_000_000);
    s.device.ring(&mut s.a, ctrl);
    for _ in 0..1000 {
        s.device.nic.step(18_000_000_000);
    }
    assert_eq!(s.device.nic.violations(Rule::DoorbellMissing), 0);
}

#[test]
fn receives_are_not_posted_in_reset() {
    let mut s = setup();
    let early = s.device.qp_attr(Service::Rc, &s.send, &s.recv);
    let mut early = s.device.qp(early);
    early.post_receive(&[DataSegment::new(s.memory.addr(), 8, s.key)]);
    s.device.set_state(&early, QpState::Init);
    assert_eq!(s.device.nic.violations(Rule::ReceiveState), 1);
}

#[test]
fn a_cq_overrun_stops_its_queue_pairs() {
    let mut device = Device::new();
    let (send, mut small) = (device.cq(64), device.cq(4));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &small);
    for _ in 0..5 {
        b.post_receive(&[]);
        device.post(&mut a, &Work::send().flags(CQ_UPDATE));
    }
    device.settle();
    let events = device.events();
    assert!(events.contains(&Event::CqError(small.number)));
    assert!(events.contains(&Event::QpFatal(b.number)));
    assert_eq!(device.state(&b), QpState::Err);
    assert_eq!(small.drain().len(), 4);
    device.settle();
    small.expect_nothing();
}

#[test]
fn zero_length_segments_are_violations() {
    let mut s = setup();
    s.b.post_receive(&[DataSegment::new(s.memory.addr(), 0, s.key)]);
    s.device.post(&mut s.a, &Work::send().inline(b"x"));
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::ZeroLength), 1);
    let index = s.device.post(&mut s.a, &Work::send().data(s.memory.addr(), 0, s.key));
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::ZeroLength), 2);
    s.send.drain();
    assert_eq!((index, s.device.state(&s.a)), (1, QpState::Err));
}

#[test]
fn lengths_with_bit_31_are_violations_and_errors() {
    const BIT: u32 = 1 << 31;
    let mut found = 0;
    // The key names memory of this length, which is not there.
    let huge = |s: &mut Setup| {
        let attr = MkeyAttr { pd: s.device.pd, va: 0, iova: 0, length: 3 << 30, access: ALL_ACCESS };
        s.device.nic.create_mkey(attr).unwrap().0
    };
    for length in [BIT, BIT + 1, BIT + 11, BIT + 13, BIT + 64, u32::MAX] {
        for opcode in [WqeOpcode::SEND, WqeOpcode::RDMA_WRITE, WqeOpcode::RDMA_READ] {
            let mut s = setup();
            s.receive(64);
            let key = huge(&mut s);
            let mut work = Work::new(opcode);
            if opcode != WqeOpcode::SEND {
                work = work.remote(s.memory.addr(), s.key);
            }
            let index = s.device.post(&mut s.a, &work.data(0x1000, length, key));
            s.device.settle();
            found += s.device.nic.violations(Rule::SegmentLength);
            s.expect_failure(index, LOCAL_LENGTH);
            assert_eq!(s.recv.drain().len(), 0, "{length:#x}: nothing was sent");
        }
    }
    assert_eq!(found, 18);
    // Without memory, an inline segment of one byte is what it says; an empty one is nothing.
    let mut s = setup();
    s.receive(64);
    s.device.post(&mut s.a, &Work::send().data(0x1000, BIT + 1, s.key ^ 0x40));
    s.device.settle();
    assert_eq!((s.recv.drain().len(), s.device.nic.violations(Rule::SegmentLength)), (1, 0));
}

#[test]
fn a_receive_of_2_gib_has_no_room() {
    let mut s = setup();
    let counter = s.b.post_receive(&[DataSegment::new(s.memory.addr(), 1 << 31, s.key)]);
    s.device.post(&mut s.a, &Work::send().inline(b"x"));
    s.device.settle();
    assert_eq!(s.device.nic.violations(Rule::SegmentLength), 1);
    s.recv.expect_error(ResponderError, &s.b, counter, LOCAL_LENGTH);
}

#[test]
fn wqes_stand_at_the_stride_of_the_queue() {
    // Written at twice the stride of the queue, and at half of it: the device finds a slot that was never written.
    for (written, slot) in [(128, 1), (32, 2)] {
        let mut s = setup();
        let stride = 1 << s.b.attr.rq.shift;
        assert_eq!(stride, 64);
        let segments = [DataSegment::new(s.memory.addr(), 64, s.key), DataSegment::TERMINATOR];
        for (index, segment) in (0..4).flat_map(|wqe| segments.map(|segment| (wqe, segment))) {
            let at = index * written + if segment.is_terminator() { 16 } else { 0 };
            s.b.rq.set(at, &segment.to_bytes());
        }
        s.b.record.span().set_record(RECEIVE, slot + 1).unwrap();
        for _ in 0..=slot {
            assert_eq!(s.device.nic.violations(Rule::Stride), 0);
            s.device.post(&mut s.a, &Work::send().inline(b"x"));
            s.device.settle();
        }
        assert_eq!(s.device.nic.violations(Rule::Stride), 1, "{written}");
    }
}
