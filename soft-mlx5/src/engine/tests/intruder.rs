//! The device survives any packet on the wire.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::program::*;
use crate::base::rng::Rng;
use crate::engine::NicConfig;
use crate::fabric::address::{self, GidType};
use crate::fabric::headers::{Aeth, AtomicEth, Bth, Deth, NakCode, Reth, Syndrome};
use crate::fabric::opcode::Operation;
use crate::fabric::packet::{Frame, Packet, Route};
use crate::fabric::switch::SwitchPort;
use crate::fabric::{Fabric, Switch, psn};
use crate::objects::*;

const MTU: usize = 256;
const PSN: u32 = 0x1000;

/// A queue pair whose peer is played by the test, packet by packet.
struct Setup {
    device: Device,
    intruder: SwitchPort,
    send: Cq,
    recv: Cq,
    qp: Qp,
    memory: Memory,
    key: u32,
}

fn setup() -> Setup {
    let switch = Switch::new();
    let fabric = Fabric::Switch(switch.clone());
    let mut device = Device::with(NicConfig { fabric, ..NicConfig::default() });
    let intruder = switch.join().unwrap();
    let (send, recv) = (device.cq(1024), device.cq(1024));
    let attr = device.qp_attr(Service::Rc, &send, &recv);
    let qp = device.qp(attr);
    let memory = Memory::new(8192);
    let key = device.register(&memory, ALL_ACCESS);
    let mut setup = Setup { device, intruder, send, recv, qp, memory, key };
    setup.connect();
    setup
}

impl Setup {
    fn connect(&mut self) {
        let path = Path { mtu: MTU as u32, reads: 2, ..Path::default() };
        self.device.connect_with(&self.qp, self.intruder.lid(), Qpn(0x99), path);
    }

    fn route(&self, slid: u16) -> Route {
        Route {
            slid,
            dlid: 1,
            sl: 0,
            global: false,
            sgid: (GidType::InfiniBand, address::gid(slid)),
            dgid: address::gid(1),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 1,
        }
    }

    /// Puts a packet for the queue pair on the wire; `fill` appends headers and payload.
    fn queue(&self, slid: u16, operation: Operation, psn: u32, fill: impl FnOnce(&mut Frame)) {
        let mut frame = Frame::default();
        let bth = Bth {
            opcode: operation.encode(Service::Rc),
            dest_qpn: self.qp.number.0,
            ack_request: true,
            psn,
            ..Bth::default()
        };
        frame.begin(&self.route(slid), &bth);
        fill(&mut frame);
        frame.finish();
        frame.seal();
        self.intruder.send(1, frame).unwrap();
    }

    fn send_from(&mut self, slid: u16, operation: Operation, psn: u32, fill: impl FnOnce(&mut Frame)) {
        self.queue(slid, operation, psn, fill);
        self.device.settle();
    }

    fn inject(&mut self, operation: Operation, psn: u32, fill: impl FnOnce(&mut Frame)) {
        self.send_from(self.intruder.lid(), operation, psn, fill);
    }

    fn answers(&mut self) -> Vec<(Operation, u32, Option<Syndrome>)> {
        let frames = std::iter::from_fn(|| self.intruder.receive());
        frames
            .map(|frame| {
                let packet = Packet::parse(frame.bytes()).unwrap();
                (packet.operation, packet.bth.psn, packet.aeth.map(|aeth| aeth.syndrome))
            })
            .collect()
    }

    #[track_caller]
    fn expect_refusal(&mut self, psn: u32, code: NakCode) {
        let nak = (Operation::Acknowledge, psn, Some(Syndrome::Nak(code)));
        assert_eq!(self.answers().last(), Some(&nak));
        assert_eq!(self.device.state(&self.qp), QpState::Err);
    }
}

#[test]
fn only_the_peer_is_heard() {
    let mut s = setup();
    s.qp.post_receive(&[]);
    s.send_from(7, Operation::SendOnly, PSN, |_| ());
    s.recv.expect_nothing();
    assert_eq!(s.answers(), []);
    s.inject(Operation::SendOnly, PSN, |_| ());
    s.recv.expect(CqeOpcode::ResponderSend, &s.qp, 0);
    assert_eq!(s.answers(), [(Operation::Acknowledge, PSN, Some(Syndrome::Ack))]);
}

#[test]
fn packets_out_of_place_are_invalid_requests() {
    use Operation::*;
    for (operation, len) in
        [(SendMiddle, MTU), (SendLast, 1), (WriteLast, 1), (SendFirst, MTU - 1), (SendOnly, MTU + 1)]
    {
        let mut s = setup();
        s.qp.post_receive(&[DataSegment::new(s.memory.addr(), 4096, s.key)]);
        s.inject(operation, PSN, |frame| frame.payload_mut(len).fill(1));
        s.expect_refusal(PSN, NakCode::InvalidRequest);
    }
    // In the middle of a SEND: any packet except its continuation.
    for (operation, len) in [(SendFirst, MTU), (SendOnly, 5), (WriteMiddle, MTU), (SendLast, 0)] {
        let mut s = setup();
        s.qp.post_receive(&[DataSegment::new(s.memory.addr(), 4096, s.key)]);
        s.inject(SendFirst, PSN, |frame| frame.payload_mut(MTU).fill(1));
        s.inject(operation, PSN + 1, |frame| frame.payload_mut(len).fill(1));
        s.expect_refusal(PSN + 1, NakCode::InvalidRequest);
        // The receive that the message had taken completes.
        s.recv.expect_error(CqeOpcode::ResponderError, &s.qp, 0, 5);
    }
}

#[test]
fn writes_are_as_long_as_they_say() {
    for (claimed, operation, len) in [
        (10, Operation::WriteOnly, 9),
        (10, Operation::WriteOnly, 11),
        (MTU as u32, Operation::WriteFirst, MTU),
        (0, Operation::WriteOnly, 1),
    ] {
        let mut s = setup();
        let reth = Reth { va: s.memory.addr(), rkey: s.key, length: claimed };
        s.inject(operation, PSN, |frame| {
            frame.push(&reth);
            frame.payload_mut(len).fill(1);
        });
        s.expect_refusal(PSN, NakCode::InvalidRequest);
        assert_eq!(s.memory.get(0, MTU), [0; MTU]);
    }
}

#[test]
fn answers_that_are_repeated_take_no_room_of_new_reads() {
    let mut s = setup();
    let reth = Reth { va: s.memory.addr(), rkey: s.key, length: 1 };
    let lid = s.intruder.lid();
    for i in 0..2 {
        s.inject(Operation::ReadRequest, PSN + i, |frame| frame.push(&reth));
    }
    s.answers();
    // Copies that the fabric has held back, and requests of a peer that has both answers.
    for psn in [0, 1, 2, 3] {
        s.queue(lid, Operation::ReadRequest, PSN + psn, |frame| frame.push(&reth));
    }
    s.device.settle();
    let answers: Vec<_> = s.answers().into_iter().map(|(_, psn, _)| psn - PSN).collect();
    assert_eq!(answers, [0, 1, 2, 3]);
    assert_eq!(s.device.state(&s.qp), QpState::Rts);
}

#[test]
fn answers_to_repeated_atomics_are_bounded() {
    let mut s = setup();
    let eth = AtomicEth { va: s.memory.addr(), rkey: s.key, swap_add: 1, compare: 0 };
    for _ in 0..200 {
        s.queue(s.intruder.lid(), Operation::FetchAdd, PSN, |frame| frame.push(&eth));
    }
    // All arrive in one step: no answer is sent before.
    s.device.settle();
    assert_eq!(s.answers().len(), 64);
    assert_eq!(s.memory.get(0, 8), 1_u64.to_le_bytes());
}

/// The first and the last packet of an answer acknowledge, and only they have the header for it.
#[test]
fn a_long_answer_has_a_first_middle_ones_and_a_last() {
    use Operation::*;
    let mut s = setup();
    let reth = Reth { va: s.memory.addr(), rkey: s.key, length: 4 * MTU as u32 };
    s.inject(ReadRequest, PSN, |frame| frame.push(&reth));
    let ack = Some(Syndrome::Ack);
    let operations = [ReadResponseFirst, ReadResponseMiddle, ReadResponseMiddle, ReadResponseLast];
    let expected: Vec<_> = (PSN..).zip(operations).map(|(psn, op)| (op, psn, ack.filter(|_| op.has_aeth()))).collect();
    assert_eq!(s.answers(), expected);
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut s = setup();
    let reth = Reth { va: s.memory.addr(), rkey: s.key, length: 4096 };
    for i in 0..3 {
        s.queue(2, Operation::ReadRequest, PSN + 16 * i, |frame| frame.push(&reth));
    }
    // All arrive in one step: no answer is sent before.
    s.device.settle();
    s.expect_refusal(PSN + 32, NakCode::InvalidRequest);
    assert!(s.device.events().contains(&Event::QpRequestError(s.qp.number)));
}

#[test]
fn reads_with_a_payload_and_reads_of_more_than_a_message_are_refused() {
    for (length, payload) in [((1 << 31) + 1, 0), (1, 1)] {
        let mut s = setup();
        let reth = Reth { va: s.memory.addr(), rkey: s.key, length };
        s.inject(Operation::ReadRequest, PSN, |frame| {
            frame.push(&reth);
            frame.payload_mut(payload).fill(1);
        });
        s.expect_refusal(PSN, NakCode::InvalidRequest);
    }
}

/// The answers of the last atomics are kept, as many as a peer may have outstanding.
#[test]
fn an_old_atomic_is_not_answered_again() {
    let mut s = setup();
    let eth = AtomicEth { va: s.memory.addr(), rkey: s.key, swap_add: 1, compare: 0 };
    for i in (0..20).chain([0, 19]) {
        s.inject(Operation::FetchAdd, PSN + i, |frame| frame.push(&eth));
    }
    assert_eq!(s.answers().len(), 21);
    assert_eq!(s.memory.get(0, 8), 20_u64.to_le_bytes());
}

#[test]
fn a_read_repeated_longer_than_it_was_is_not_answered() {
    let mut s = setup();
    for (length, answers) in [(10, 1), (10, 1), (700, 0)] {
        let reth = Reth { va: s.memory.addr(), rkey: s.key, length };
        s.inject(Operation::ReadRequest, PSN, |frame| frame.push(&reth));
        assert_eq!(s.answers().len(), answers);
    }
}

#[test]
fn no_more_is_in_flight_than_the_window() {
    let mut s = setup();
    let work = Work::send().data(s.memory.addr(), 8192, s.key);
    for _ in 0..20 {
        s.device.post(&mut s.qp, &work);
    }
    s.device.settle();
    assert_eq!(s.answers().len(), 256);
    let ack = Aeth { syndrome: Syndrome::Ack, msn: 3 };
    s.inject(Operation::Acknowledge, PSN + 99, |frame| frame.push(&ack));
    assert_eq!(s.answers().len(), 100);
}

#[test]
fn a_peer_that_does_not_read_holds_senders_back() {
    let mut s = setup();
    let send = s.device.cq(16);
    let work = Work::send().data(s.memory.addr(), 8192, s.key);
    let mut qps = Vec::new();
    for _ in 0..20 {
        let attr = s.device.qp_attr(Service::Rc, &send, &send);
        let mut qp = s.device.qp(attr);
        let path = Path { mtu: MTU as u32, ..Path::default() };
        s.device.connect_with(&qp, s.intruder.lid(), Qpn(0x99), path);
        for _ in 0..8 {
            s.device.post(&mut qp, &work);
        }
        qps.push(qp);
    }
    s.device.settle();
    assert_eq!(s.device.nic.drops(), Default::default());
    let waiting = s.answers().len();
    assert!((2000..2100).contains(&waiting), "{waiting}");
    // There is room again: the other packets go without a timeout.
    let mut total = waiting;
    for _ in 0..10 {
        s.device.settle();
        total += s.answers().len();
    }
    assert_eq!(total, 20 * 256);
}

#[test]
fn a_repeated_refusal_counts_once() {
    let mut s = setup();
    s.device.post(&mut s.qp, &Work::send());
    s.device.settle();
    s.answers();
    let nak = Aeth { syndrome: Syndrome::Nak(NakCode::SequenceError), msn: 0 };
    for _ in 0..20 {
        s.queue(2, Operation::Acknowledge, PSN, |frame| frame.push(&nak));
    }
    s.device.settle();
    assert_eq!(s.answers(), [(Operation::SendOnly, PSN, None)]);
    assert_eq!(s.device.state(&s.qp), QpState::Rts);
}

#[test]
fn a_lost_read_answer_is_asked_for_again_without_a_timeout() {
    let mut s = setup();
    let read = Work::new(mlx5_wire::opcode::WqeOpcode::RDMA_READ).remote(0x1000, 7);
    s.device.post(&mut s.qp, &read.data(s.memory.addr(), 700, s.key));
    s.device.settle();
    assert_eq!(s.answers(), [(Operation::ReadRequest, PSN, None)]);
    let ack = Aeth { syndrome: Syndrome::Ack, msn: 1 };
    s.inject(Operation::ReadResponseFirst, PSN, |frame| {
        frame.push(&ack);
        frame.payload_mut(MTU).fill(1);
    });
    // The middle answer is missing.
    s.inject(Operation::ReadResponseLast, PSN + 2, |frame| {
        frame.push(&ack);
        frame.payload_mut(700 - 2 * MTU).fill(3);
    });
    assert_eq!(s.answers(), [(Operation::ReadRequest, PSN + 1, None)]);
    s.inject(Operation::ReadResponseFirst, PSN + 1, |frame| {
        frame.push(&ack);
        frame.payload_mut(MTU).fill(2);
    });
    s.inject(Operation::ReadResponseLast, PSN + 2, |frame| {
        frame.push(&ack);
        frame.payload_mut(700 - 2 * MTU).fill(3);
    });
    s.send.expect(CqeOpcode::Requester, &s.qp, 0);
    assert_eq!(s.memory.get(255, 2), [1, 2]);
    assert_eq!(s.memory.get(511, 2), [2, 3]);
}

#[test]
fn an_acknowledgement_that_overtakes_a_read_answer_asks_for_it_again() {
    let mut s = setup();
    let read = Work::new(mlx5_wire::opcode::WqeOpcode::RDMA_READ).remote(0x1000, 7);
    s.device.post(&mut s.qp, &read.data(s.memory.addr(), 10, s.key));
    s.device.post(&mut s.qp, &Work::send());
    s.device.settle();
    s.answers();
    let ack = Aeth { syndrome: Syndrome::Ack, msn: 2 };
    s.inject(Operation::Acknowledge, PSN + 1, |frame| frame.push(&ack));
    let asked = [(Operation::ReadRequest, PSN, None), (Operation::SendOnly, PSN + 1, None)];
    assert_eq!(s.answers(), asked);
    s.send.expect_nothing();
    // The second time, the loss is known.
    s.inject(Operation::Acknowledge, PSN + 1, |frame| frame.push(&ack));
    assert_eq!(s.answers(), []);
}

#[test]
fn answers_that_do_not_fit_are_bad_responses() {
    use Operation::*;
    for (operation, len) in
        [(ReadResponseOnly, 699), (ReadResponseMiddle, MTU - 1), (ReadResponseLast, MTU), (AtomicAcknowledge, 0)]
    {
        let mut s = setup();
        let read = Work::new(mlx5_wire::opcode::WqeOpcode::RDMA_READ).remote(0x1000, 7);
        s.device.post(&mut s.qp, &read.data(s.memory.addr(), 700, s.key));
        s.device.settle();
        s.inject(operation, PSN, |frame| {
            if operation.has_aeth() {
                frame.push(&Aeth { syndrome: Syndrome::Ack, msn: 1 });
            }
            if operation == AtomicAcknowledge {
                frame.push(&7u64);
            }
            frame.payload_mut(len).fill(1);
        });
        s.send.expect_error(CqeOpcode::RequesterError, &s.qp, 0, 0x10);
        assert_eq!(s.memory.get(0, 700), [0; 700]);
    }
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_ignored() {
    let mut s = setup();
    s.device.post(&mut s.qp, &Work::send());
    s.device.settle();
    s.answers();
    for (syndrome, at) in [
        (Syndrome::Ack, PSN + 1),
        (Syndrome::Ack, PSN - 1),
        (Syndrome::Nak(NakCode::RemoteAccess), PSN + 5),
        (Syndrome::Rnr(1), PSN + 100),
    ] {
        s.inject(Operation::Acknowledge, at, |frame| frame.push(&Aeth { syndrome, msn: 0 }));
        s.send.expect_nothing();
        assert_eq!(s.device.state(&s.qp), QpState::Rts);
    }
    // An answer to a read where a send was asked.
    s.inject(Operation::ReadResponseOnly, PSN, |frame| {
        frame.push(&Aeth { syndrome: Syndrome::Ack, msn: 0 });
    });
    s.send.expect_error(CqeOpcode::RequesterError, &s.qp, 0, 0x10);
}

#[test]
fn random_packets_touch_nothing_that_is_not_registered() {
    let mut s = setup();
    let mut rng = Rng::new(11);
    let guard = Memory::new(8192);
    let operations: Vec<_> =
        (0..=255).filter_map(Operation::decode).filter(|(service, _)| *service == Service::Rc).collect();
    let mut restarts = 0;
    for _ in 0..50_000 {
        if s.device.state(&s.qp) == QpState::Err {
            restarts += 1;
            s.device.set_state(&s.qp, QpState::Reset);
            (s.qp.sent, s.qp.received) = (0, 0);
            s.qp.record.set(0, &[0; 8]);
            s.connect();
        }
        if rng.chance(0.3) {
            s.qp.post_receive(&[DataSegment::new(s.memory.addr(), rng.below(4096) as u32 + 1, s.key)]);
        }
        if rng.chance(0.3) {
            let work = match rng.below(3) {
                0 => Work::send().data(s.memory.addr(), 1 + rng.below(1000) as u32, s.key),
                _ => Work::new(mlx5_wire::opcode::WqeOpcode::RDMA_READ).remote(0, 0).data(
                    s.memory.addr(),
                    1 + rng.below(1000) as u32,
                    s.key,
                ),
            };
            s.device.post(&mut s.qp, &work);
        }
        let (_, operation) = operations[rng.below(operations.len() as u64) as usize];
        let status = s.device.nic.query_qp(s.qp.number).unwrap();
        let base = if operation.is_response() { status.sq_psn } else { status.rq_psn };
        let at = psn::add(base, rng.below(6) as u32).wrapping_sub(3) & 0xff_ffff;
        let bases = [s.memory.addr(), guard.addr(), s.memory.addr() + 8000, rng.next_u64()];
        let va = bases[rng.below(4) as usize].wrapping_add(rng.below(300));
        let rkey = if rng.chance(0.9) { s.key } else { rng.next_u64() as u32 };
        let length = rng.below(600) as u32;
        let len = if rng.chance(0.5) { MTU } else { rng.below(MTU as u64 + 2) as usize };
        let syndromes = [
            Syndrome::Ack,
            Syndrome::Ack,
            Syndrome::Rnr(1),
            Syndrome::Nak(NakCode::SequenceError),
            Syndrome::Nak(NakCode::RemoteOperational),
            Syndrome::Reserved(0x9f),
        ];
        let syndrome = syndromes[rng.below(6) as usize];
        s.inject(operation, at, |frame| {
            if operation.has_reth() {
                frame.push(&Reth { va, rkey, length });
            }
            if operation.has_atomic_eth() {
                frame.push(&AtomicEth { va: va & !7, rkey, swap_add: 1, compare: 0 });
            }
            if operation.has_aeth() {
                frame.push(&Aeth { syndrome, msn: 0 });
            }
            if operation == Operation::AtomicAcknowledge {
                frame.push(&1u64);
            }
            if operation.has_immediate() || operation.has_ieth() {
                frame.push(&1u32);
            }
            frame.payload_mut(len).fill(0xff);
        });
        s.answers();
        s.send.drain();
        s.recv.drain();
        s.device.events();
    }
    assert!(restarts > 1000, "{restarts}");
    assert!(guard.get(0, guard.len()).iter().all(|byte| *byte == 0));
}

#[test]
fn datagrams_do_not_reach_connected_queue_pairs() {
    let mut s = setup();
    s.qp.post_receive(&[DataSegment::new(s.memory.addr(), 4096, s.key)]);
    let mut frame = Frame::default();
    let opcode = Operation::SendOnly.encode(Service::Ud);
    let bth = Bth { opcode, dest_qpn: s.qp.number.0, psn: PSN, ..Bth::default() };
    frame.begin(&s.route(2), &bth);
    frame.push(&Deth { qkey: 0x1111_1111, source_qpn: 1 });
    frame.finish();
    frame.seal();
    s.intruder.send(1, frame).unwrap();
    s.device.settle();
    s.recv.expect_nothing();
}
