use super::*;
use mlx5_wire::cqe::{Cqe64, FRESH_OP_OWN};

// A CQ in plain memory, polled the way a driver does.
struct Program {
    ring: Vec<u64>,
    record: Box<[u64; 1]>,
    size: usize,
    count: u32,
}

impl Program {
    fn new(count: u32, size: u32) -> (Self, Cq) {
        Self::with(count, size, None)
    }

    fn compressed(count: u32, format: u8) -> (Self, Cq) {
        Self::with(count, 64, Some(format))
    }

    fn with(count: u32, size: u32, compression: Option<u8>) -> (Self, Cq) {
        let ring = vec![u64::from_ne_bytes([0xf0; 8]); (count * size / 8) as usize];
        let record = Box::new([0]);
        let attr = CqAttr {
            buf: ring.as_ptr() as u64,
            dbrec: record.as_ptr() as u64,
            cqe_count: count,
            cqe_size: size,
            compression,
            collapsed: false,
            real_time: None,
            uar: 0,
            ignore_overrun: false,
            comp_vector: 0,
        };
        (Self { ring, record, size: size as usize, count }, Cq::new(Cqn(0x400), attr, &Spaces::default()).unwrap())
    }

    fn cqe(&self, index: u32) -> Option<Cqe64> {
        let slot = (index & (self.count - 1)) as usize;
        let span = Span::new(self.ring.as_ptr() as u64, self.ring.len() * 8);
        let mut bytes = [0; 64];
        span.read(slot * self.size + self.size - 64, &mut bytes).unwrap();
        let cqe = Cqe64::from_bytes(&bytes);
        let owned = u32::from(cqe.owner()) == (index / self.count) & 1;
        (owned && cqe.opcode() != CqeOpcode::Invalid).then_some(cqe)
    }

    fn bytes(&self, index: u32, offset: usize) -> [u8; 8] {
        let slot = (index & (self.count - 1)) as usize;
        let mut bytes = [0; 8];
        Span::new(self.ring.as_ptr() as u64, self.ring.len() * 8).read(slot * self.size + offset, &mut bytes).unwrap();
        bytes
    }

    fn invalidate(&self, index: u32) {
        let slot = (index & (self.count - 1)) as usize;
        Span::new(self.ring.as_ptr() as u64, self.ring.len() * 8)
            .write(slot * self.size + 63, &[FRESH_OP_OWN])
            .unwrap();
    }

    fn record(&self) -> Span {
        Span::new(self.record.as_ptr() as u64, 8)
    }

    fn consume(&self, index: u32) {
        self.record().set_record(CONSUMER_INDEX, index & CONSUMER_INDEX_MASK).unwrap();
    }

    fn arm(&self, arm: Arm) {
        self.record().set_record(ARM, arm.word().get()).unwrap();
    }
}

fn completion(counter: u16, opcode: CqeOpcode, solicited: bool) -> Completion {
    let mut cqe = Cqe64::zeroed();
    cqe.wqe_counter = counter.into();
    cqe.op_own = op_own(opcode, CqeFormat::Plain, solicited, 0);
    Completion { cqe: cqe.to_bytes(), front: None }
}

fn send(counter: u16) -> Completion {
    completion(counter, CqeOpcode::ResponderSend, false)
}

const ANY: Arm = Arm { sequence: 0, solicited_only: false, consumer_index: 0 };

fn arm(cq: &mut Cq) -> Option<Event> {
    cq.arm(&mut Strict::new(false), &mut Trace::default())
}

#[test]
fn every_cqe_is_seen_once_and_no_other() {
    for size in [64, 128] {
        let (program, mut cq) = Program::new(4, size);
        let mut strict = Strict::new(false);
        for index in 0..1000 {
            assert!(program.cqe(index).is_none(), "{index} before it was written");
            assert_eq!(cq.push(&send(index as u16), &Defects::default(), &mut strict), None);
            assert_eq!(program.cqe(index).unwrap().wqe_counter.get(), index as u16);
            program.consume(index + 1);
        }
    }
}

#[test]
fn indices_wrap_at_24_bits() {
    let (program, mut cq) = Program::new(4, 64);
    let mut strict = Strict::new(false);
    (cq.produced, cq.consumed) = (CONSUMER_INDEX_MASK - 1, CONSUMER_INDEX_MASK - 1);
    program.consume(CONSUMER_INDEX_MASK - 1);
    for index in CONSUMER_INDEX_MASK - 1..CONSUMER_INDEX_MASK + 9 {
        assert_eq!(cq.push(&send(0), &Defects::default(), &mut strict), None);
        program.consume(index + 1);
    }
    for _ in 0..4 {
        assert_eq!(cq.push(&send(0), &Defects::default(), &mut strict), None);
    }
    assert_eq!(cq.push(&send(0), &Defects::default(), &mut strict), Some(Event::CqError(Cqn(0x400))));
}

#[test]
fn an_overrun_is_reported_once_and_writes_nothing() {
    let (program, mut cq) = Program::new(2, 64);
    let mut strict = Strict::new(false);
    cq.push(&send(1), &Defects::default(), &mut strict);
    cq.push(&send(2), &Defects::default(), &mut strict);
    assert_eq!(cq.push(&send(3), &Defects::default(), &mut strict), Some(Event::CqError(Cqn(0x400))));
    assert_eq!(cq.push(&send(3), &Defects::default(), &mut strict), None);
    assert_eq!(program.cqe(0).unwrap().wqe_counter.get(), 1);
    assert_eq!(program.cqe(1).unwrap().wqe_counter.get(), 2);
    program.consume(2);
    assert_eq!(cq.push(&send(3), &Defects::default(), &mut strict), None);
    assert!(program.cqe(2).is_none());
}

#[test]
fn a_consumer_index_ahead_is_a_violation() {
    let (program, mut cq) = Program::new(2, 64);
    let mut strict = Strict::new(false);
    cq.push(&send(1), &Defects::default(), &mut strict);
    cq.push(&send(2), &Defects::default(), &mut strict);
    program.consume(3);
    cq.push(&send(3), &Defects::default(), &mut strict);
    assert_eq!(strict.count(Rule::ConsumerIndex), 1);
}

#[test]
fn an_event_for_each_arm() {
    let (program, mut cq) = Program::new(8, 64);
    let mut strict = Strict::new(false);
    let event = Some(Event::Completion(Cqn(0x400)));
    // A doorbell for another CQ of the page.
    assert_eq!(cq.push(&send(9), &Defects::default(), &mut strict), None);
    assert_eq!(arm(&mut cq), None);
    program.consume(1);
    // The first arm writes zeros, as they stood there before the CQ was created.
    program.arm(Arm { consumer_index: 1, ..ANY });
    assert_eq!(arm(&mut cq), None);
    assert_eq!(cq.push(&send(0), &Defects::default(), &mut strict), event);
    assert_eq!(cq.push(&send(1), &Defects::default(), &mut strict), None);
    // An arm that repeats a sequence number has no effect: its event was raised before.
    program.arm(Arm { consumer_index: 2, ..ANY });
    assert_eq!(arm(&mut cq), None);
    // The program has not taken this CQE: the event comes at once.
    program.arm(Arm { sequence: 1, consumer_index: 2, ..ANY });
    assert_eq!(arm(&mut cq), event);
    program.arm(Arm { sequence: 2, consumer_index: 3, ..ANY });
    assert_eq!(arm(&mut cq), None);
    assert_eq!(cq.push(&send(2), &Defects::default(), &mut strict), event);
}

#[test]
fn an_arm_before_the_poll_announces_newer_cqes_only() {
    let (program, mut cq) = Program::new(8, 64);
    let mut strict = Strict::new(false);
    let event = Some(Event::Completion(Cqn(0x400)));
    let mut push = |cq: &mut Cq| cq.push(&send(0), &Defects::default(), &mut strict);
    program.arm(ANY);
    assert_eq!((arm(&mut cq), push(&mut cq), cq.last_notified()), (None, event, 1));
    // The program takes the event, arms, and polls only then: as ib_send_lat does.
    program.arm(Arm { sequence: 1, ..ANY });
    assert_eq!((arm(&mut cq), push(&mut cq), cq.last_notified()), (None, event, 2));
    // A CQE between the event and the arm is new.
    assert_eq!(push(&mut cq), None);
    program.arm(Arm { sequence: 2, ..ANY });
    assert_eq!((arm(&mut cq), cq.last_notified()), (event, 3));
    // A CQE between the last poll and the arm, too.
    program.consume(3);
    assert_eq!(push(&mut cq), None);
    program.arm(Arm { sequence: 3, consumer_index: 3, ..ANY });
    assert_eq!((arm(&mut cq), cq.last_notified()), (event, 4));
    // The program has polled a CQE before it takes its event.
    program.arm(Arm { sequence: 4, consumer_index: 4, ..ANY });
    assert_eq!((arm(&mut cq), push(&mut cq)), (None, event));
    program.arm(Arm { sequence: 5, consumer_index: 5, ..ANY });
    assert_eq!((arm(&mut cq), push(&mut cq)), (None, event));
}

#[test]
fn an_arm_after_more_cqes_than_indices_is_answered() {
    let (program, mut cq) = Program::new(2, 64);
    let mut strict = Strict::new(false);
    let event = Some(Event::Completion(Cqn(0x400)));
    let mut push = |cq: &mut Cq| cq.push(&send(0), &Defects::default(), &mut strict);
    program.arm(ANY);
    assert_eq!((arm(&mut cq), push(&mut cq)), (None, event));
    // All CQEs but one of a full turn of the indices were polled, and the next is the one with the index of the event.
    for turn in [CONSUMER_INDEX_MASK, CONSUMER_INDEX_MASK / 2 + 1, u32::MAX] {
        cq.advance(turn);
        (cq.consumed, cq.unannounced) = (cq.produced, turn);
        program.consume(cq.produced);
        assert_eq!(push(&mut cq), None);
        let sequence = (cq.spent.unwrap() + 1) & 3;
        program.arm(Arm { sequence, consumer_index: cq.produced - 1, ..ANY });
        assert_eq!(arm(&mut cq), event, "{turn:#x}");
    }
}

#[test]
fn a_solicited_cqe_is_announced_by_any_event_once() {
    let (program, mut cq) = Program::new(8, 64);
    let mut strict = Strict::new(false);
    let event = Some(Event::Completion(Cqn(0x400)));
    let solicited = completion(1, CqeOpcode::ResponderSend, true);
    program.arm(ANY);
    assert_eq!(arm(&mut cq), None);
    assert_eq!(cq.push(&solicited, &Defects::default(), &mut strict), event);
    assert_eq!(cq.push(&send(2), &Defects::default(), &mut strict), None);
    program.arm(Arm { sequence: 1, solicited_only: true, ..ANY });
    assert_eq!(arm(&mut cq), None);
    assert_eq!(cq.push(&send(3), &Defects::default(), &mut strict), None);
    assert_eq!(cq.push(&solicited, &Defects::default(), &mut strict), event);
}

#[test]
fn solicited_arms_wait_for_solicited_cqes_and_errors() {
    let (program, mut cq) = Program::new(8, 64);
    let mut strict = Strict::new(false);
    let event = Some(Event::Completion(Cqn(0x400)));
    program.arm(Arm { solicited_only: true, ..ANY });
    assert_eq!(arm(&mut cq), None);
    assert_eq!(cq.push(&send(0), &Defects::default(), &mut strict), None);
    let solicited = completion(1, CqeOpcode::ResponderSend, true);
    assert_eq!(cq.push(&solicited, &Defects::default(), &mut strict), event);
    // The solicited CQE was taken: it does not count again.
    program.arm(Arm { sequence: 1, solicited_only: true, consumer_index: 2 });
    assert_eq!(arm(&mut cq), None);
    let error = completion(2, CqeOpcode::ResponderError, false);
    assert_eq!(cq.push(&error, &Defects::default(), &mut strict), event);
}

#[test]
fn resize_ends_the_old_buffer_and_continues_in_the_new_one() {
    let (old, mut cq) = Program::new(4, 64);
    let mut strict = Strict::new(false);
    for counter in 0..3 {
        cq.push(&send(counter), &Defects::default(), &mut strict);
    }
    let mut new = vec![u64::from_ne_bytes([0xf0; 8]); 8 * 8];
    cq.resize(&Space::Process, new.as_mut_ptr() as u64, 8, &mut strict).unwrap();
    assert_eq!(old.cqe(3).unwrap().opcode(), CqeOpcode::ResizeCq);
    assert_eq!(cq.push(&send(9), &Defects::default(), &mut strict), None);
    let new = Program { ring: new, record: old.record, size: 64, count: 8 };
    assert_eq!(new.cqe(4).unwrap().wqe_counter.get(), 9);
    // Four were not read, because the resize CQE does not count; four more fit into eight.
    for _ in 0..4 {
        assert_eq!(cq.push(&send(0), &Defects::default(), &mut strict), None);
    }
    assert_eq!(cq.resize(&Space::Process, new.ring.as_ptr() as u64, 4, &mut strict), Err(Errno(libc::EINVAL)));
    assert!(matches!(cq.push(&send(0), &Defects::default(), &mut strict), Some(Event::CqError(_))));
    assert_eq!(strict.count(Rule::ConsumerIndex), 0);
}

// Returns counter, length, and the hash or checksum of the completions at `index`. Reads blocks as DPDK's driver
// does, and invalidates the CQEs that are skipped.
fn read(program: &Program, index: u32, format: u8) -> Vec<(u16, u32, u32)> {
    let title = program.cqe(index).expect("a CQE");
    if title.format() == CqeFormat::Plain {
        let extra = if format == 1 { title.rx_hash_result.get() } else { title.check_sum.get().into() };
        return vec![(title.wqe_counter.get(), title.byte_cnt.get(), extra)];
    }
    assert_eq!(title.format(), CqeFormat::Compressed);
    let (mut array, mut next) = (index + 1, index + 8);
    let mut found = Vec::new();
    for i in 0..title.byte_cnt.get() {
        let mini = program.bytes(array, i as usize % 8 * 8);
        let upper = u32::from_be_bytes(mini[..4].try_into().unwrap());
        let extra = if format == 1 { upper } else { upper >> 16 };
        let counter = title.wqe_counter.get().wrapping_add(i as u16);
        found.push((counter, u32::from_be_bytes(mini[4..].try_into().unwrap()), extra));
        if i % 8 == 7 {
            (array, next) = (next, next + 8);
        }
    }
    for skipped in 1..title.byte_cnt.get() {
        program.invalidate(index + skipped);
    }
    found
}

#[test]
fn blocks_of_any_length_at_any_place() {
    for format in [1u8, 2] {
        let (program, mut cq) = Program::compressed(64, format);
        let mut strict = Strict::new(false);
        let (mut index, mut counter) = (0u32, 0xfff0u16);
        for len in (1..=64).chain((1..=64).rev()).chain([7, 8, 9, 16, 17]) {
            let mut expected = Vec::new();
            for i in 0..len {
                let mut cqe = Cqe64::from_bytes(&send(counter).cqe);
                cqe.byte_cnt = (100 + i).into();
                if format == 1 {
                    cqe.rx_hash_result = i.into();
                } else {
                    cqe.check_sum = (i as u16).into();
                }
                let completion = Completion { cqe: cqe.to_bytes(), front: None };
                assert_eq!(cq.push(&completion, &Defects::default(), &mut strict), None);
                expected.push((counter, 100 + i, i));
                counter = counter.wrapping_add(1);
            }
            assert!(program.cqe(index).is_none(), "it is held back");
            assert_eq!(cq.write_block(&Defects::default(), &mut Strict::new(false)), None);
            assert_eq!(read(&program, index, format), expected);
            index += len;
            program.consume(index);
        }
        assert_eq!(strict.count(Rule::ConsumerIndex), 0);
    }
}

#[test]
fn a_block_ends_where_a_mini_cqe_cannot_tell_the_difference() {
    let (program, mut cq) = Program::compressed(64, 1);
    let mut strict = Strict::new(false);
    let mut push = |cq: &mut Cq, completion: &Completion| {
        assert_eq!(cq.push(completion, &Defects::default(), &mut strict), None);
    };
    for counter in [1, 2, 3, 9, 10] {
        push(&mut cq, &send(counter));
    }
    push(&mut cq, &completion(11, CqeOpcode::ResponderSendImm, false));
    push(&mut cq, &completion(12, CqeOpcode::ResponderError, false));
    push(&mut cq, &send(13));
    assert_eq!(cq.write_block(&Defects::default(), &mut Strict::new(false)), None);
    let counts = |index, n: u32| assert_eq!(read(&program, index, 1).len() as u32, n, "{index}");
    [(0, 3), (3, 2), (5, 1), (6, 1), (7, 1)].into_iter().for_each(|(index, n)| counts(index, n));
    assert_eq!(cq.producer(), 8);
}

#[test]
fn an_event_of_a_block_comes_with_it_and_an_overrun_counts_it() {
    let (program, mut cq) = Program::compressed(4, 1);
    let mut strict = Strict::new(false);
    program.arm(Arm { solicited_only: true, ..ANY });
    assert_eq!(arm(&mut cq), None);
    for counter in 0..4 {
        let solicited = completion(counter, CqeOpcode::ResponderSend, true);
        assert_eq!(cq.push(&solicited, &Defects::default(), &mut strict), None);
    }
    assert_eq!(cq.write_block(&Defects::default(), &mut Strict::new(false)), Some(Event::Completion(Cqn(0x400))));
    assert_eq!(cq.push(&send(4), &Defects::default(), &mut strict), Some(Event::CqError(Cqn(0x400))));
    assert_eq!(read(&program, 0, 1).len(), 4);
}
