//! A register of several queue pairs, to which whole WQEs are copied.

use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec::SEND;
use mlx5_wire::opcode::CqeOpcode;

use super::program::*;
use crate::engine::NicConfig;
use crate::objects::strict::Rule;
use crate::objects::*;

const LEN: usize = 40;

struct Setup {
    device: Device,
    _send: Cq,
    recv: Cq,
    // Both ring at one register; each has its own peer.
    writers: Vec<Qp>,
    peers: Vec<Qp>,
    memory: Memory,
}

fn setup(blue_flame: bool) -> Setup {
    let mut device = Device::with(NicConfig { blue_flame, ..NicConfig::default() });
    let (send, recv) = (device.cq(64), device.cq(64));
    let register = device.qp_attr(Service::Rc, &send, &recv).register;
    let memory = Memory::new(4096);
    let key = device.register(&memory, ALL_ACCESS);
    let (mut writers, mut peers) = (Vec::new(), Vec::new());
    for index in 0..2 {
        let (writer, mut peer) = device.pair(|attr| QpAttr { register, ..attr }, &send, &recv);
        for slot in 0..2 {
            let at = memory.addr() + (slot * 2 + index) * 256;
            peer.post_receive(&[DataSegment::new(at, 256, key)]);
        }
        writers.push(writer);
        peers.push(peer);
    }
    Setup { device, _send: send, recv, writers, peers, memory }
}

impl Setup {
    /// Posts an inline message of one letter; returns its WQE.
    fn post(&mut self, writer: usize, letter: u8) -> Vec<u8> {
        let qp = &mut self.writers[writer];
        let (index, _) = qp.write(&Work::send().inline(&[letter; LEN]));
        qp.record.span().set_record(SEND, qp.sent.into()).unwrap();
        qp.sq.get(usize::from(index) * 64, 64)
    }

    /// Copies a part of a WQE to the register, eight bytes at a time.
    fn copy(&mut self, wqe: &[u8], words: std::ops::Range<usize>) {
        let register = self.writers[0].attr.register;
        for word in words {
            let value = u64::from_be_bytes(*wqe[word * 8..].first_chunk().unwrap());
            self.device.write_register(register.page, register.offset + word as u32 * 8, value);
        }
    }

    fn wait(&mut self) {
        for _ in 0..200 {
            self.device.now += 20_000_000;
            self.device.settle();
        }
    }

    /// Returns the letters of a message that the peer of a writer received.
    fn received(&mut self, writer: usize, slot: usize) -> Vec<u8> {
        self.memory.get((slot * 2 + writer) * 256, LEN)
    }
}

#[test]
fn whole_copies_one_after_the_other_are_executed_as_they_are() {
    let mut s = setup(true);
    // Two rings of which the device sees one, and then a slow copy.
    let (a, b) = (s.post(0, b'a'), s.post(1, b'b'));
    s.copy(&a, 0..8);
    s.copy(&b, 0..8);
    s.device.settle();
    assert_eq!(s.recv.drain().len(), 2);
    let (a, b) = (s.post(0, b'A'), s.post(1, b'B'));
    s.copy(&a, 0..8);
    s.copy(&b, 0..3);
    s.device.settle();
    s.device.now += 3_000_000_000;
    s.copy(&b, 3..8);
    s.wait();
    assert_eq!(s.device.nic.violations(Rule::BlueFlame), 0);
    for (writer, letters) in [(0, b"aA"), (1, b"bB")] {
        for (slot, letter) in letters.iter().enumerate() {
            assert_eq!(s.received(writer, slot), [*letter; LEN]);
        }
    }
}

#[test]
fn a_ring_of_eight_bytes_takes_the_wqe_from_the_queue() {
    let mut s = setup(true);
    for letters in [b"ab", b"AB"] {
        let (a, b) = (s.post(0, letters[0]), s.post(1, letters[1]));
        s.copy(&a, 0..8);
        s.device.settle();
        s.copy(&b, 0..1);
        s.device.settle();
    }
    assert_eq!(s.recv.drain().len(), 4);
    assert_eq!(s.device.nic.violations(Rule::BlueFlame), 0);
}

#[test]
fn copies_that_overlap_mix_two_wqes() {
    let mut s = setup(true);
    let (a, b) = (s.post(0, b'a'), s.post(1, b'b'));
    s.copy(&a, 0..4);
    s.copy(&b, 0..8);
    s.copy(&a, 4..8);
    s.wait();
    assert_eq!(s.device.nic.violations(Rule::BlueFlame), 1);
    for qp in [&s.peers[0], &s.peers[1]] {
        let cqe = s.recv.poll().unwrap();
        assert_eq!(cqe.opcode(), CqeOpcode::ResponderSend, "{:?}", qp.number);
    }
    // The first half of the message is the ringer's, the second half is the other writer's.
    let mixed = s.received(1, 0);
    assert!(mixed.starts_with(b"bbbb") && mixed.ends_with(b"aaaa"), "{mixed:?}");
    assert_eq!(s.received(0, 0), [b'a'; LEN], "not rung for, and seen by its record");
    // Later messages are whole again.
    let b = s.post(1, b'B');
    s.copy(&b, 0..8);
    s.device.settle();
    assert_eq!(s.received(1, 1), [b'B'; LEN]);
}

#[test]
fn registers_that_only_ring_mix_nothing() {
    let mut s = setup(false);
    let (a, b) = (s.post(0, b'a'), s.post(1, b'b'));
    s.copy(&a, 0..4);
    s.copy(&b, 0..8);
    s.copy(&a, 4..8);
    s.device.settle();
    assert_eq!((s.received(0, 0), s.received(1, 0)), (vec![b'a'; LEN], vec![b'b'; LEN]));
}

#[test]
fn a_ring_under_a_foreign_value_is_not_lost() {
    // A QP that does not exist, one of another page, and one of the same page that rings elsewhere.
    for stranger in [0, 1, 2] {
        let mut device = Device::new();
        let (send, mut recv) = (device.cq(64), device.cq(64));
        let mut pairs: Vec<_> = (0..4).map(|_| device.pair(|attr| attr, &send, &recv)).collect();
        let number = |at: usize| pairs[at].0.number.0;
        let named = [0xabcdef, number(3), number(1)][stranger];
        assert_eq!(pairs[0].0.attr.register.page, pairs[1].0.attr.register.page);
        assert_ne!(pairs[0].0.attr.register.page, pairs[3].0.attr.register.page);
        let (a, b) = &mut pairs[0];
        let counter = b.post_receive(&[]);
        device.post(a, &Work::send());
        let Register { page, offset } = a.attr.register;
        device.write_register(page, offset, u64::from(named) << 8 | 1);
        device.settle();
        recv.expect(CqeOpcode::ResponderSend, b, counter);
        recv.expect_nothing();
        let expected = u64::from(stranger != 2);
        assert_eq!(device.nic.violations(Rule::DoorbellQpn), expected, "{named:#x}");
    }
}
