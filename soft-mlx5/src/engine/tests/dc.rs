//! Dynamic connections: initiators, targets, and what goes wrong between them.

use std::collections::BTreeMap;

use mlx5_wire::data::DataSegment;
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::remote::AtomicSegment;
use mlx5_wire::syndrome::Syndrome;

use super::program::*;
use crate::base::faults::Faults;
use crate::base::rng::Rng;
use crate::engine::NicConfig;
use crate::fabric::address::{self, GidType};
use crate::fabric::headers::{Aeth, Bth, DcHeader, NakCode, Syndrome as AckSyndrome};
use crate::fabric::opcode::Operation;
use crate::fabric::packet::{Frame, Packet, Route};
use crate::fabric::switch::SwitchPort;
use crate::fabric::{Fabric, Switch};
use crate::objects::*;

const KEY: u64 = 0x1ee7_a330_0000_0001;
const SLOTS: u32 = 8;
const BUFFER: usize = 4096;

/// A target with an SRQ, a CQ and a buffer for each slot.
struct Target {
    number: Qpn,
    lid: u16,
    cq: Cq,
    srq: Srq,
    memory: Memory,
    key: u32,
    // Buffer of each slot that is posted.
    slots: BTreeMap<u16, usize>,
    user_index: u32,
}

impl Target {
    fn new(device: &mut Device) -> Self {
        let cq = device.cq(64);
        let srq = device.srq(SLOTS, 6);
        let memory = Memory::new(BUFFER * SLOTS as usize);
        let key = device.register(&memory, ALL_ACCESS);
        let user_index = 0x200 + srq.number.0;
        let attr = QpAttr { user_index, ..QpAttr::of_target(device.pd, cq.number, srq.number, KEY) };
        let number = device.nic.create_qp(attr).unwrap();
        let listens = QpModify {
            state: Some(QpState::Rtr),
            access: Some(ALL_ACCESS),
            path_mtu: Some(1024),
            min_rnr_timer: Some(1),
            ..QpModify::default()
        };
        device.nic.modify_qp(number, &listens).unwrap();
        let lid = device.nic.port().lid;
        Self { number, lid, cq, srq, memory, key, slots: BTreeMap::new(), user_index }
    }

    /// Posts a receive in each free slot but the last.
    fn fill(&mut self) {
        for buffer in 0..SLOTS as usize {
            if self.slots.values().any(|used| *used == buffer) {
                continue;
            }
            let at = self.memory.addr() + (buffer * BUFFER) as u64;
            let Some(slot) = self.srq.post(&[DataSegment::new(at, BUFFER as u32, self.key)]) else { return };
            self.slots.insert(slot, buffer);
        }
    }

    /// Takes the next completion; returns its opcode and bytes.
    fn receive(&mut self) -> Option<(CqeOpcode, Vec<u8>)> {
        let cqe = self.cq.poll()?;
        assert_eq!((cqe.qpn(), cqe.srqn_uidx.get()), (self.number.0, self.user_index));
        let slot = cqe.wqe_counter.get();
        let buffer = self.slots.remove(&slot).expect("a posted slot");
        self.srq.give_back(slot);
        let len = if cqe.opcode() == CqeOpcode::ResponderError { 0 } else { cqe.byte_cnt.get() as usize };
        Some((cqe.opcode(), self.memory.get(buffer * BUFFER, len)))
    }

    fn address(&self) -> DatagramSegment {
        self.address_with(KEY)
    }

    fn address_with(&self, key: u64) -> DatagramSegment {
        let mut address = DatagramSegment::infiniband(self.lid, 0).to(self.number.0, (key >> 32) as u32);
        address.reserved4 = (key as u32).to_be_bytes();
        address
    }

    fn destroy(&self, device: &mut Device) {
        device.nic.destroy_qp(self.number).unwrap();
    }
}

fn initiator(device: &mut Device, cq: &Cq, streams_in_error: Option<u32>) -> Qp {
    let attr = device.qp_attr(Service::Dc, cq, cq);
    let none = WqAttr::default();
    let qp = device.qp(QpAttr { rq: none, dc: DcAttr::Initiator { streams_in_error }, ..attr });
    bring_up(device, &qp);
    qp
}

fn bring_up(device: &mut Device, qp: &Qp) {
    device.set_state(qp, QpState::Init);
    device.modify(qp, QpModify { state: Some(QpState::Rtr), path_mtu: Some(1024), ..QpModify::default() });
    let sends = QpModify {
        state: Some(QpState::Rts),
        sq_psn: Some(0x1234),
        max_rd_atomic: Some(4),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        ..QpModify::default()
    };
    device.modify(qp, sends);
}

fn reset(device: &mut Device, qp: &mut Qp) {
    device.set_state(qp, QpState::Reset);
    qp.sent = 0;
    qp.record.set(0, &[0; 8]);
    bring_up(device, qp);
}

/// A device with an initiator and some targets.
struct Setup {
    device: Device,
    cq: Cq,
    qp: Qp,
    targets: Vec<Target>,
    memory: Memory,
    key: u32,
}

fn setup(targets: usize, streams_in_error: Option<u32>) -> Setup {
    setup_on(Device::new(), targets, streams_in_error)
}

fn setup_on(mut device: Device, targets: usize, streams_in_error: Option<u32>) -> Setup {
    let cq = device.cq(256);
    let qp = initiator(&mut device, &cq, streams_in_error);
    let targets: Vec<Target> = (0..targets).map(|_| Target::new(&mut device)).collect();
    let memory = Memory::new(65536);
    let key = device.register(&memory, ALL_ACCESS);
    Setup { device, cq, qp, targets, memory, key }
}

impl Setup {
    fn post(&mut self, address: DatagramSegment, work: Work) -> u16 {
        self.device.post(&mut self.qp, &to(address, work))
    }

    fn send(&mut self, target: usize, bytes: &[u8]) -> u16 {
        self.post(self.targets[target].address(), Work::send().inline(bytes))
    }

    /// Checks that a target takes messages of the initiator.
    #[track_caller]
    fn check(&mut self, target: usize) {
        self.targets[target].fill();
        let index = self.send(target, b"check");
        self.device.finish_within(1_000_000_000);
        self.cq.expect(CqeOpcode::Requester, &self.qp, index);
        assert_eq!(self.targets[target].receive(), Some((CqeOpcode::ResponderSend, b"check".to_vec())));
    }

    #[track_caller]
    fn expect_error(&mut self, index: u16, syndrome: Syndrome) {
        self.cq.expect_error(CqeOpcode::RequesterError, &self.qp, index, syndrome.get());
    }
}

/// Puts the address of a target in front of the other segments.
fn to(address: DatagramSegment, work: Work) -> Work {
    Work { segments: [&address.to_bytes()[..], &work.segments].concat(), ..work }
}

#[test]
fn one_initiator_reaches_several_targets_in_order() {
    let mut s = setup(3, None);
    s.targets.iter_mut().for_each(Target::fill);
    s.memory.set(0, &pattern(1, 3000));
    let mut posted = Vec::new();
    for round in 0..4 {
        for target in 0..3 {
            let work = Work::send().data(s.memory.addr() + round, 3000 - 4, s.key);
            posted.push(s.post(s.targets[target].address(), work));
        }
    }
    s.device.settle();
    for index in posted {
        s.cq.expect(CqeOpcode::Requester, &s.qp, index);
    }
    for target in &mut s.targets {
        for round in 0..4 {
            let bytes = pattern(1, 3000)[round..round + 2996].to_vec();
            assert_eq!(target.receive(), Some((CqeOpcode::ResponderSend, bytes)));
        }
    }
}

#[test]
fn all_operations_of_rc() {
    let mut s = setup(2, None);
    s.targets[0].fill();
    let (remote, rkey) = (s.targets[1].memory.addr(), s.targets[1].key);
    s.targets[1].memory.set(0, &7u64.to_ne_bytes());
    s.targets[1].memory.set(64, b"to be read");
    // The key of the memory is the device's; the target is any of it.
    let address = s.targets[0].address();
    let local = (s.memory.addr(), s.key);
    let works = [
        Work::new(WqeOpcode::SEND_IMM).imm(5).inline(b"imm"),
        Work::new(WqeOpcode::RDMA_WRITE).remote(remote + 128, rkey).inline(b"written"),
        Work::new(WqeOpcode::RDMA_WRITE_IMM).imm(6).remote(remote + 200, rkey).inline(b"noticed"),
        Work::new(WqeOpcode::RDMA_READ).remote(remote + 64, rkey).data(local.0, 10, local.1),
        Work::new(WqeOpcode::ATOMIC_FA).remote(remote, rkey).bytes(&AtomicSegment::fetch_add(3).to_bytes()).data(
            local.0 + 16,
            8,
            local.1,
        ),
        // A compact address, and none for a request that stays here.
        Work::new(WqeOpcode::NOP),
    ];
    for work in works {
        let whole = if work.opcode == WqeOpcode::NOP { work } else { to(address, work) };
        let index = s.device.post(&mut s.qp, &whole);
        s.device.settle();
        s.cq.expect(CqeOpcode::Requester, &s.qp, index);
    }
    let mut compact = address.to_bytes()[..16].to_vec();
    compact[8] = 0;
    let index = s.device.post(&mut s.qp, &Work::send().bytes(&compact).inline(b"compact"));
    s.device.settle();
    s.cq.expect(CqeOpcode::Requester, &s.qp, index);
    assert_eq!(s.targets[0].receive(), Some((CqeOpcode::ResponderSendImm, b"imm".to_vec())));
    assert_eq!(s.targets[0].receive().unwrap().0, CqeOpcode::ResponderWriteImm);
    assert_eq!(s.targets[0].receive(), Some((CqeOpcode::ResponderSend, b"compact".to_vec())));
    let memory = &s.targets[1].memory;
    assert_eq!((memory.get(128, 7), memory.get(200, 7)), (b"written".to_vec(), b"noticed".to_vec()));
    assert_eq!(memory.get(0, 8), 10u64.to_ne_bytes());
    assert_eq!((s.memory.get(0, 10), s.memory.get(16, 8)), (b"to be read".to_vec(), 7u64.to_ne_bytes().to_vec()));
}

#[test]
fn a_wrong_key_stops_the_initiator_and_counts_at_the_target() {
    let mut s = setup(1, None);
    s.targets[0].fill();
    s.device.nic.arm_key_violation(s.targets[0].number).unwrap();
    let first = s.post(s.targets[0].address_with(KEY ^ 1), Work::send().inline(b"first"));
    let second = s.send(0, b"flushed");
    s.device.settle();
    s.expect_error(first, Syndrome::REMOTE_ACCESS);
    s.expect_error(second, Syndrome::WR_FLUSH);
    assert_eq!(s.device.state(&s.qp), QpState::Err);
    let status = s.device.nic.target_status(s.targets[0].number).unwrap();
    assert_eq!((status.key_violations, status.connections), (1, 0));
    assert_eq!(s.device.events(), [Event::DctKeyViolation(s.targets[0].number)]);
    assert_eq!(s.targets[0].receive(), None);
    reset(&mut s.device, &mut s.qp);
    s.check(0);
}

#[test]
fn an_access_fault_stops_the_initiator_and_not_the_target() {
    let mut s = setup(1, None);
    let mut other = initiator(&mut s.device, &s.cq, None);
    let write = Work::new(WqeOpcode::RDMA_WRITE).remote(s.targets[0].memory.addr(), s.key ^ 0xff00).inline(b"x");
    let index = s.post(s.targets[0].address(), write);
    s.device.settle();
    s.expect_error(index, Syndrome::REMOTE_ACCESS);
    assert_eq!((s.device.state(&s.qp), s.device.events()), (QpState::Err, vec![]));
    // The target does not wait for an initiator that is silent.
    s.device.finish();
    assert_eq!(s.device.nic.target_status(s.targets[0].number).unwrap().connections, 0);
    std::mem::swap(&mut s.qp, &mut other);
    s.check(0);
    std::mem::swap(&mut s.qp, &mut other);
    reset(&mut s.device, &mut s.qp);
    s.check(0);
}

#[test]
fn an_initiator_waits_for_a_receive_of_its_target() {
    let mut s = setup(2, None);
    let (slow, fast) = (s.send(0, b"slow"), s.send(1, b"behind"));
    s.targets[1].fill();
    s.device.finish_within(20_000_000);
    s.cq.expect_nothing();
    s.targets[0].fill();
    s.device.finish_within(20_000_000);
    s.cq.expect(CqeOpcode::Requester, &s.qp, slow);
    s.cq.expect(CqeOpcode::Requester, &s.qp, fast);
    assert_eq!(s.targets[1].receive(), Some((CqeOpcode::ResponderSend, b"behind".to_vec())));
}

#[test]
fn a_target_that_ends_returns_what_it_holds() {
    let slowly = NicConfig { small_steps: true, ..NicConfig::default() };
    let mut s = setup_on(Device::with(slowly), 1, None);
    s.targets[0].fill();
    let posted = s.post(s.targets[0].address(), Work::send().data(s.memory.addr(), 4000, s.key));
    // The first of four packets has arrived.
    let number = s.targets[0].number;
    while s.device.nic.target_status(number).unwrap().connections == 0 {
        s.device.now += 100;
        s.device.nic.step(s.device.now);
    }
    s.device.nic.drain_target(number).unwrap();
    assert_eq!(s.device.events(), [Event::DctDrained(number)]);
    let status = s.device.nic.target_status(number).unwrap();
    assert!(status.drained && status.connections == 0);
    s.targets[0].destroy(&mut s.device);
    s.device.finish_within(60_000_000_000);
    s.expect_error(posted, Syndrome::TRANSPORT_RETRY_EXC);
    assert_eq!(s.targets[0].receive(), Some((CqeOpcode::ResponderError, Vec::new())), "the receive comes back");
    assert_eq!(s.targets[0].receive(), None);
    assert_eq!(s.device.nic.destroy_srq(s.targets[0].srq.number), Ok(()));
}

#[test]
fn streams_fail_alone() {
    let mut s = setup(2, Some(2));
    s.targets.iter_mut().for_each(Target::fill);
    let of = |stream: u16, work: Work| Work { stream, ..work };
    let bad = Work::new(WqeOpcode::RDMA_WRITE).remote(s.targets[0].memory.addr(), s.key ^ 0xff00).inline(b"x");
    let post = |s: &mut Setup, stream, target: usize, work: &Work| {
        let address = s.targets[target].address();
        let work = of(stream, to(address, work.clone()));
        s.device.post(&mut s.qp, &work)
    };
    let good = Work::send().inline(b"good");
    let failed = post(&mut s, 3, 0, &bad);
    let others = [post(&mut s, 4, 0, &good), post(&mut s, 5, 1, &good)];
    let behind = post(&mut s, 3, 1, &good);
    s.device.settle();
    s.expect_error(failed, Syndrome::REMOTE_ACCESS);
    for index in others {
        s.cq.expect(CqeOpcode::Requester, &s.qp, index);
    }
    s.expect_error(behind, Syndrome::WR_FLUSH);
    assert_eq!((s.device.state(&s.qp), s.device.events()), (QpState::Rts, vec![]));
    assert_eq!([0, 1].map(|target| s.targets[target].receive().is_some()), [true, true]);
    assert_eq!(s.targets[0].receive(), None);

    assert!(s.device.nic.reset_stream(s.qp.number, 4).is_err(), "no error");
    s.device.nic.reset_stream(s.qp.number, 3).unwrap();
    let again = post(&mut s, 3, 0, &good);
    s.device.settle();
    s.cq.expect(CqeOpcode::Requester, &s.qp, again);
    // The second stream in error is one too many.
    let (first, second) = (post(&mut s, 1, 0, &bad), post(&mut s, 2, 0, &bad));
    s.device.settle();
    s.expect_error(first, Syndrome::REMOTE_ACCESS);
    s.expect_error(second, Syndrome::REMOTE_ACCESS);
    assert_eq!(s.device.state(&s.qp), QpState::Err);
}

#[test]
fn requests_that_a_silent_target_may_have_executed_fail_with_their_streams() {
    let mut s = setup(2, Some(8));
    s.targets[1].fill();
    s.targets[0].destroy(&mut s.device);
    let silent = s.targets[0].address();
    let sends = [1, 2].map(|stream| {
        let work = Work { stream, ..to(silent, Work::send().inline(b"lost")) };
        s.device.post(&mut s.qp, &work)
    });
    let other = Work { stream: 3, ..to(s.targets[1].address(), Work::send().inline(b"good")) };
    let other = s.device.post(&mut s.qp, &other);
    s.device.finish_within(60_000_000_000);
    for index in sends {
        s.expect_error(index, Syndrome::TRANSPORT_RETRY_EXC);
    }
    s.cq.expect(CqeOpcode::Requester, &s.qp, other);
    assert_eq!(s.targets[1].receive(), Some((CqeOpcode::ResponderSend, b"good".to_vec())));
    assert_eq!([1, 2, 3].map(|stream| s.device.nic.reset_stream(s.qp.number, stream).is_ok()), [true, true, false]);
}

#[test]
fn a_dead_initiator_is_forgotten() {
    let fabric = Fabric::Switch(Switch::new());
    let config = NicConfig { fabric, small_steps: true, ..NicConfig::default() };
    let mut devices = [0, 1].map(|_| Device::with(config.clone()));
    let [a, b] = &mut devices;
    let mut target = Target::new(b);
    target.fill();
    let cq = a.cq(64);
    let mut qp = initiator(a, &cq, None);
    let memory = Memory::new(4096);
    let key = a.register(&memory, ALL_ACCESS);
    a.post(&mut qp, &to(target.address(), Work::send().data(memory.addr(), 4000, key)));
    // The first packets arrive, and no more.
    while b.nic.target_status(target.number).unwrap().connections == 0 {
        for device in [&mut *a, &mut *b] {
            device.now += 100;
            device.nic.step(device.now);
        }
    }
    a.nic.set_link(false);
    b.finish();
    assert_eq!(b.nic.target_status(target.number).unwrap().connections, 0);
    assert_eq!(target.receive(), Some((CqeOpcode::ResponderError, Vec::new())), "the receive comes back");
    assert_eq!(b.nic.destroy_srq(target.srq.number).err(), Some(Errno(libc::EBUSY)));
    target.destroy(b);
    assert_eq!(b.nic.destroy_srq(target.srq.number), Ok(()));
}

/// A device, and a port at which the test writes and reads packets.
struct Wire {
    device: Device,
    port: SwitchPort,
}

impl Wire {
    fn new() -> Self {
        let switch = Switch::new();
        let device = Device::with(NicConfig { fabric: Fabric::Switch(switch.clone()), ..NicConfig::default() });
        Self { device, port: switch.join().unwrap() }
    }

    fn send(&mut self, operation: Operation, to: u32, psn: u32, dc: DcHeader, fill: impl FnOnce(&mut Frame)) {
        let (slid, dlid) = (self.port.lid(), self.device.nic.port().lid);
        let route = Route {
            slid,
            dlid,
            sl: 0,
            global: false,
            sgid: (GidType::InfiniBand, address::gid(slid)),
            dgid: address::gid(dlid),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 1,
        };
        let opcode = operation.encode(Service::Dc);
        let mut frame = Frame::default();
        frame.begin(&route, &Bth { opcode, dest_qpn: to, ack_request: true, psn, ..Bth::default() });
        frame.push(&dc);
        fill(&mut frame);
        frame.finish();
        frame.seal();
        self.port.send(dlid, frame).unwrap();
        self.device.settle();
    }

    /// Returns session, packet number and syndrome of each packet of the device.
    fn packets(&mut self) -> Vec<(u64, u32, Option<AckSyndrome>)> {
        let frames = std::iter::from_fn(|| self.port.receive());
        let read = |frame: Frame| {
            let packet = Packet::parse(frame.bytes()).unwrap();
            (packet.dc.session, packet.bth.psn, packet.aeth.map(|aeth| aeth.syndrome))
        };
        frames.map(read).collect()
    }
}

#[test]
fn a_packet_of_an_earlier_session_belongs_to_no_connection() {
    let mut wire = Wire::new();
    let mut target = Target::new(&mut wire.device);
    target.fill();
    let number = target.number;
    let send = |wire: &mut Wire, session, psn| {
        let dc = DcHeader { key: KEY, session, initiator: 0x99 };
        wire.send(Operation::SendOnly, number.0, psn, dc, |frame| frame.payload_mut(4).fill(session as u8));
        wire.packets()
    };
    let (ack, missing) = (Some(AckSyndrome::Ack), Some(AckSyndrome::Nak(NakCode::SequenceError)));
    assert_eq!(send(&mut wire, 5, 0), [(5, 0, ack)]);
    assert_eq!(send(&mut wire, 5, 0), [(5, 0, ack)], "a double is answered again");
    assert_eq!(send(&mut wire, 4, 0), []);
    assert_eq!(send(&mut wire, 6, 1), [(6, 0, missing)], "the first packet was lost");
    assert_eq!(send(&mut wire, 6, 0), [(6, 0, ack)]);
    assert_eq!(send(&mut wire, 5, 1), []);
    assert_eq!(target.receive().unwrap().1, [5; 4]);
    assert_eq!(target.receive().unwrap().1, [6; 4]);
    assert_eq!(target.receive(), None);
    wire.device.nic.drain_target(number).unwrap();
    assert_eq!((send(&mut wire, 7, 0), target.receive()), (vec![], None), "drained");
}

#[test]
fn an_answer_of_an_earlier_session_acknowledges_nothing() {
    let mut wire = Wire::new();
    let mut cq = wire.device.cq(64);
    let mut qp = initiator(&mut wire.device, &cq, None);
    let address = DatagramSegment::infiniband(wire.port.lid(), 0).to(0x77, 0);
    let index = wire.device.post(&mut qp, &to(address, Work::send().inline(b"hello")));
    wire.device.settle();
    let sent = wire.packets();
    let [(session, 0, None)] = sent[..] else { panic!("{sent:?}") };
    let aeth = Aeth { syndrome: AckSyndrome::Ack, msn: 1 };
    for (session, completes) in [(session - 1, false), (session, true)] {
        let dc = DcHeader { key: 0, session, initiator: qp.number.0 };
        wire.send(Operation::Acknowledge, qp.number.0, 0, dc, |frame| frame.push(&aeth));
        assert_eq!(cq.peek().is_some(), completes);
    }
    cq.expect(CqeOpcode::Requester, &qp, index);
}

/// Initiators and targets on several devices, on a link with faults.
struct Crowd {
    devices: Vec<Device>,
    initiators: Vec<Sender>,
    targets: Vec<Option<Target>>,
    now: u64,
    rng: Rng,
    // Requests that completed, failed ones among them.
    completed: u64,
    failed: u64,
    digest: u64,
}

struct Sender {
    qp: Qp,
    cq: Cq,
    // Target and number of each outstanding request, by its index.
    outstanding: BTreeMap<u16, (usize, u64)>,
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let faults = Faults { loss: 0.01, duplication: 0.02, reordering: 0.02, ..Faults::default() };
        let config = NicConfig { fabric: Fabric::Switch(Switch::new()), faults, seed, ..NicConfig::default() };
        let mut devices: Vec<Device> =
            (0..4).map(|n| Device::with(NicConfig { seed: seed ^ n, ..config.clone() })).collect();
        let initiators = (0..8).map(|_| {
            let cq = devices[0].cq(256);
            Sender { qp: initiator(&mut devices[0], &cq, None), cq, outstanding: BTreeMap::new() }
        });
        let initiators = initiators.collect();
        let targets = (0..24).map(|n| Some(Target::new(&mut devices[1 + n % 3]))).collect();
        Self { devices, initiators, targets, now: 0, rng: Rng::new(seed), completed: 0, failed: 0, digest: 0 }
    }

    fn step(&mut self) {
        self.now += 1000;
        let mut busy = false;
        for device in &mut self.devices {
            busy |= device.nic.step(self.now);
        }
        if !busy {
            let next = self.devices.iter().filter_map(|device| device.nic.next_deadline()).min();
            self.now = self.now.max(next.unwrap_or(0));
        }
        for target in self.targets.iter_mut().flatten() {
            while let Some((opcode, bytes)) = target.receive() {
                assert!(opcode == CqeOpcode::ResponderSend || bytes.is_empty());
                self.digest = bytes.iter().fold(self.digest, |digest, byte| digest.wrapping_mul(31) + u64::from(*byte));
            }
            target.fill();
        }
        for sender in &mut self.initiators {
            let mut broken = false;
            while let Some(cqe) = sender.cq.poll() {
                let done = sender.outstanding.remove(&cqe.wqe_counter.get());
                let (_, number) = done.expect("a request completes once");
                self.completed += 1;
                self.digest = self.digest.wrapping_mul(31) + number + self.now;
                if cqe.opcode() == CqeOpcode::RequesterError {
                    self.failed += 1;
                    broken = true;
                }
            }
            let state = self.devices[0].state(&sender.qp);
            assert!(!broken || state == QpState::Err);
            if state == QpState::Err && sender.outstanding.is_empty() {
                reset(&mut self.devices[0], &mut sender.qp);
            }
        }
    }

    /// Posts requests to targets of which one dies now and then.
    fn run(&mut self, requests: u64) {
        let mut posted = 0;
        let live: Vec<DatagramSegment> = self.targets.iter().flatten().map(Target::address).collect();
        while posted < requests {
            let which = self.rng.below(self.initiators.len() as u64) as usize;
            let sender = &mut self.initiators[which];
            if sender.outstanding.len() < 12 && self.devices[0].state(&sender.qp) == QpState::Rts {
                let target = self.rng.below(live.len() as u64) as usize;
                let mut bytes = vec![target as u8; 2 + self.rng.below(40) as usize];
                bytes[1] = posted as u8;
                let work = to(live[target], Work::send().inline(&bytes));
                let index = self.devices[0].post(&mut sender.qp, &work);
                assert!(sender.outstanding.insert(index, (target, posted)).is_none());
                posted += 1;
                if posted % 400 == 0 {
                    // Its buffers were all returned or are still posted.
                    let dying = (posted / 400) as usize % self.targets.len();
                    if let Some(target) = self.targets[dying].take() {
                        self.devices[1 + dying % 3].nic.drain_target(target.number).unwrap();
                        target.destroy(&mut self.devices[1 + dying % 3]);
                        std::mem::forget(target);
                    }
                }
            }
            self.step();
        }
        while self.initiators.iter().any(|sender| !sender.outstanding.is_empty()) {
            self.step();
        }
    }
}

#[test]
fn each_request_completes_once_whatever_the_link_and_the_targets_do() {
    let run = |seed| {
        let mut crowd = Crowd::new(seed);
        crowd.run(4000);
        let live = crowd.targets.iter().flatten().count();
        assert_eq!((crowd.completed, live), (4000, 24 - 10));
        assert!(crowd.failed > 0 && crowd.failed < 3000, "{}", crowd.failed);
        crowd.devices.iter_mut().for_each(|device| device.now = crowd.now);
        crowd.devices.iter_mut().for_each(Device::finish);
        for (n, target) in crowd.targets.iter().enumerate() {
            if let Some(target) = target {
                let status = crowd.devices[1 + n % 3].nic.target_status(target.number).unwrap();
                assert_eq!(status.connections, 0);
            }
        }
        (crowd.failed, crowd.digest)
    };
    assert_eq!(run(1), run(1));
}
